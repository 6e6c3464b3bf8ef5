// @ts-check
/** The static server: types, ranges, validators, faults, and that nothing outside its folder can be read. */
import assert from 'node:assert/strict';
import { mkdtemp, mkdir, rm, symlink, writeFile } from 'node:fs/promises';
import http from 'node:http';
import os from 'node:os';
import path from 'node:path';
import { after, before, describe, test } from 'node:test';
import { serve } from '../../scripts/serve.mjs';

describe('static server', () => {
  const body = Buffer.from(Array.from({ length: 100_000 }, (_, i) => i % 251));
  /** @type {string} */
  let folder;
  /** @type {Awaited<ReturnType<typeof serve>>} */
  let server;

  before(async () => {
    folder = await mkdtemp(path.join(os.tmpdir(), 'draftree-serve-'));
    const site = path.join(folder, 'site');
    await mkdir(path.join(site, 'sub'), { recursive: true });
    await mkdir(path.join(site, '.git'));
    await Promise.all([
      writeFile(path.join(site, 'a.gguf'), body),
      writeFile(path.join(site, 'empty.bin'), ''),
      writeFile(path.join(site, 'm.wasm'), 'x'),
      writeFile(path.join(site, 'sub', 'index.html'), '<p>'),
      writeFile(path.join(site, 'ä b.js'), '1'),
      writeFile(path.join(site, '.git', 'config'), 'secret'),
      writeFile(path.join(folder, 'secret.txt'), 'secret'),
      symlink(path.join(folder, 'secret.txt'), path.join(site, 'link.txt')),
    ]);
    server = await serve(site, { isolate: true, mounts: { '/one.txt': path.join(folder, 'secret.txt') }, pages: { '/page': '<!doctype html>' } });
  });
  after(async () => {
    await server.close();
    await rm(folder, { recursive: true });
  });

  test('whole files, their types, and isolation headers', async () => {
    const response = await fetch(`${server.url}/a.gguf`);
    assert.equal(response.status, 200);
    assert.equal(response.headers.get('content-type'), 'application/octet-stream');
    assert.equal(response.headers.get('accept-ranges'), 'bytes');
    assert.equal(response.headers.get('cross-origin-opener-policy'), 'same-origin');
    assert.equal(response.headers.get('cross-origin-embedder-policy'), 'require-corp');
    assert.deepEqual(Buffer.from(await response.arrayBuffer()), body);
    assert.equal((await fetch(`${server.url}/m.wasm`)).headers.get('content-type'), 'application/wasm');
    assert.match(String((await fetch(`${server.url}/%C3%A4%20b.js`)).headers.get('content-type')), /^text\/javascript/);
    assert.equal(await (await fetch(`${server.url}/empty.bin`)).text(), '');
    assert.equal(await (await fetch(`${server.url}/sub`)).text(), '<p>');
    assert.equal(await (await fetch(`${server.url}/page`)).text(), '<!doctype html>');
    assert.equal(await (await fetch(`${server.url}/one.txt`)).text(), 'secret');
  });

  test('HEAD and validators', async () => {
    const head = await fetch(`${server.url}/a.gguf`, { method: 'HEAD' });
    assert.equal(head.headers.get('content-length'), '100000');
    assert.equal(await head.text(), '');
    const etag = String(head.headers.get('etag'));
    assert.equal((await fetch(`${server.url}/a.gguf`, { headers: { 'If-None-Match': etag } })).status, 304);
    assert.equal((await fetch(`${server.url}/a.gguf`, { headers: { Range: 'bytes=1-', 'If-Range': '"other"' } })).status, 200);
    assert.equal((await fetch(`${server.url}/a.gguf`, { headers: { Range: 'bytes=1-', 'If-Range': etag } })).status, 206);
    assert.equal((await fetch(`${server.url}/a.gguf`, { method: 'POST' })).status, 405);
  });

  for (const [range, start, stop] of /** @type {[string, number, number][]} */ ([
    ['bytes=0-0', 0, 1],
    ['bytes=10-19', 10, 20],
    ['bytes=99990-', 99_990, 100_000],
    ['bytes=99990-200000', 99_990, 100_000],
    ['bytes=-5', 99_995, 100_000],
    ['bytes=-200000', 0, 100_000],
  ])) {
    test(`range ${range}`, async () => {
      const response = await fetch(`${server.url}/a.gguf`, { headers: { Range: range } });
      assert.equal(response.status, 206);
      assert.equal(response.headers.get('content-range'), `bytes ${start}-${stop - 1}/100000`);
      assert.deepEqual(Buffer.from(await response.arrayBuffer()), body.subarray(start, stop));
    });
  }

  test('ranges that cannot be met, or are to be ignored', async () => {
    const beyond = await fetch(`${server.url}/a.gguf`, { headers: { Range: 'bytes=100000-' } });
    assert.equal(beyond.status, 416);
    assert.equal(beyond.headers.get('content-range'), 'bytes */100000');
    for (const range of ['bytes=5-2', 'bytes=0-1,5-6', 'lines=1-2', 'bytes=-']) {
      assert.equal((await fetch(`${server.url}/a.gguf`, { headers: { Range: range } })).status, 200, range);
    }
  });

  test('nothing outside the folder', async () => {
    const paths = ['/../secret.txt', '/%2e%2e/secret.txt', '/sub/..%2f..%2fsecret.txt', '/link.txt', '/.git/config', '/one.txt/../x', '/a%00.gguf', '/%ff', '//etc/passwd'];
    for (const requested of paths) {
      const { status, text } = await rawGet(server.port, requested);
      assert.ok(status === 404 || status === 400, `${requested}: ${status}`);
      assert.doesNotMatch(text, /secret/, requested);
    }
  });

  test('faults on demand', async () => {
    server.faults.push({ match: /a\.gguf$/, noRange: true });
    const whole = await fetch(`${server.url}/a.gguf`, { headers: { Range: 'bytes=1-' } });
    assert.equal(whole.status, 200);
    assert.equal(whole.headers.get('accept-ranges'), null);
    server.faults[0] = { match: /a\.gguf$/, truncate: 1000 };
    await assert.rejects(fetch(`${server.url}/a.gguf`).then((response) => response.arrayBuffer()));
    server.faults[0] = { match: /a\.gguf$/, status: 503 };
    assert.equal((await fetch(`${server.url}/a.gguf`)).status, 503);
    server.faults[0] = { match: /a\.gguf$/, bytesPerSecond: 500_000 };
    const begin = performance.now();
    assert.equal((await (await fetch(`${server.url}/a.gguf`)).arrayBuffer()).byteLength, 100_000);
    assert.ok(performance.now() - begin > 150);
    server.faults.length = 0;
  });
});

/**
 * A request whose path no client has tidied up.
 * @param {number} port @param {string} requested
 * @returns {Promise<{ status: number, text: string }>}
 */
function rawGet(port, requested) {
  return new Promise((resolve, reject) => {
    const request = http.get({ host: '127.0.0.1', port, path: requested }, (response) => {
      let text = '';
      response.setEncoding('utf8').on('data', (chunk) => (text += chunk)).on('end', () => resolve({ status: response.statusCode ?? 0, text }));
    });
    request.on('error', reject);
  });
}
