// @ts-check
/**
 * The download against a server with the faults of real ones.
 */
import assert from 'node:assert/strict';
import { createHash } from 'node:crypto';
import { test } from 'node:test';
import { currentVersion, download, sameVersion } from '../../pkg/download.js';
import { MemoryFile } from '../../pkg/storage.js';
import { serveFile } from './server.mjs';

const body = Uint8Array.from({ length: 300_000 }, (_, index) => (index * 7919) >> 3);
const other = body.map((byte) => byte ^ 0xff);
const sha256 = createHash('sha256').update(body).digest('hex');
const retryDelays = [1, 1, 1];

/** @param {MemoryFile} file */
const bytesOf = (file) => file.read(0, file.size);

/**
 * Download from a server with this behaviour; `start` bytes are there from an earlier try.
 * @param {import('./server.mjs').Behaviour} behaviour
 * @param {{ start?: Uint8Array, file?: object, options?: import('../../pkg/download.js').DownloadOptions }} [setup]
 */
async function run(behaviour, { start, file = {}, options = {} } = {}) {
  const server = await serveFile(behaviour);
  const target = new MemoryFile();
  if (start) target.append(start);
  try {
    const version = await download({ url: server.url, ...file }, target, { retryDelays, ...options });
    return { version, target, requests: server.requests, bytes: await bytesOf(target) };
  } catch (error) {
    throw Object.assign(/** @type {Error} */ (error), { target, requests: server.requests });
  } finally {
    await server.close();
  }
}

test('a file arrives whole, with progress and its version', async () => {
  /** @type {[number, number | undefined][]} */
  const progress = [];
  const { bytes, version } = await run(
    { body, etag: '"one"', lastModified: 'Mon, 01 Jan 2024 00:00:00 GMT' },
    { options: { onProgress: (loaded, total) => progress.push([loaded, total]) } },
  );
  assert.deepEqual(bytes, body);
  assert.deepEqual(version, { etag: '"one"', lastModified: 'Mon, 01 Jan 2024 00:00:00 GMT', size: body.length });
  assert.deepEqual(progress.at(-1), [body.length, body.length]);
});

test('a server that does not say how long the file is works', async () => {
  /** @type {(number | undefined)[]} */
  const totals = [];
  const { bytes } = await run({ body, length: false }, { options: { onProgress: (_, total) => totals.push(total) } });
  assert.deepEqual(bytes, body);
  assert.ok(totals.every((total) => total === undefined));
});

test('404 fails at once, naming URL and status', async () => {
  await assert.rejects(run({ body, statuses: [404] }), (/** @type {any} */ error) => {
    assert.equal(error.code, 'load_failed');
    assert.match(error.message, /model\.gguf.*404/);
    assert.equal(error.requests.length, 1);
    return true;
  });
});

test('a server that is down for a moment is asked again', async () => {
  const { bytes, requests } = await run({ body, statuses: [503, 429] });
  assert.deepEqual(bytes, body);
  assert.equal(requests.length, 3);
});

test('a server that stays down fails with its status', async () => {
  await assert.rejects(run({ body, statuses: [500, 500, 500, 500, 500] }), { code: 'load_failed', message: /500/ });
});

test('no server at all is load_failed with the URL', async () => {
  const target = new MemoryFile();
  const url = 'http://127.0.0.1:9/model.gguf';
  await assert.rejects(download({ url }, target, { retryDelays }), { code: 'load_failed', message: /127\.0\.0\.1:9\/model\.gguf/ });
});

test('a broken connection is resumed where it broke', async () => {
  const { bytes, requests } = await run({ body, etag: '"one"', cuts: [100_000] });
  assert.deepEqual(bytes, body);
  assert.equal(requests.length, 2);
  assert.match(requests[1]?.range ?? '', /^bytes=[1-9]\d*-$/);
  assert.equal(requests[1]?.ifRange, '"one"');
});

test('a broken connection starts over where the server has no ranges', async () => {
  const { bytes, requests } = await run({ body, etag: '"one"', cuts: [100_000], ranges: false });
  assert.deepEqual(bytes, body);
  assert.equal(requests.length, 2);
});

test('a broken connection starts over where nothing tells versions apart', async () => {
  const { bytes, requests } = await run({ body, cuts: [100_000] });
  assert.deepEqual(bytes, body);
  assert.equal(requests[1]?.range, undefined);
});

test('a body that always ends early is never taken for the file', async () => {
  const cuts = [70_000, 10, 10, 10, 10, 10, 10];
  await assert.rejects(run({ body, cuts, ranges: false }), { code: 'load_failed' });
});

test('an earlier part is continued', async () => {
  const { bytes, requests } = await run({ body, etag: '"one"' }, { start: body.subarray(0, 1234), options: { version: { etag: '"one"' } } });
  assert.deepEqual(bytes, body);
  assert.deepEqual(requests, [{ method: 'GET', range: 'bytes=1234-', ifRange: '"one"' }]);
});

test('an earlier part of another version is thrown away', async () => {
  const { bytes, version } = await run({ body, etag: '"two"' }, { start: other.subarray(0, 1234), options: { version: { etag: '"one"' } } });
  assert.deepEqual(bytes, body);
  assert.equal(version.etag, '"two"');
});

test('a file that changes between two attempts is not mixed', async () => {
  const server = await serveFile({ body: other, etag: '"one"', cuts: [100_000] });
  const target = new MemoryFile();
  const done = download({ url: server.url }, target, {
    retryDelays: [50, 50, 50],
    onProgress: (loaded) => {
      if (loaded > 0) server.behaviour = { body, etag: '"two"' };
    },
  });
  await done;
  assert.deepEqual(await bytesOf(target), body);
  await server.close();
});

test('a part that is already the whole file is recognised', async () => {
  const { bytes, requests } = await run({ body, etag: '"one"' }, { start: body, options: { version: { etag: '"one"' } } });
  assert.deepEqual(bytes, body);
  assert.equal(requests.length, 1);
});

test('a part longer than the file is thrown away', async () => {
  const start = new Uint8Array(body.length + 5);
  const { bytes } = await run({ body, etag: '"one"' }, { start, options: { version: { etag: '"one"' } } });
  assert.deepEqual(bytes, body);
});

test('size and sha256 of a listing are checked, also over a resumed part', async () => {
  const file = { size: body.length, sha256 };
  const { bytes, requests } = await run({ body }, { start: body.subarray(0, 200_001), file });
  assert.deepEqual(bytes, body);
  assert.equal(requests[0]?.range, 'bytes=200001-');
});

test('a damaged part is found by its sha256 and fetched again', async () => {
  const { bytes, requests } = await run({ body }, { start: other.subarray(0, 1000), file: { size: body.length, sha256 } });
  assert.deepEqual(bytes, body);
  assert.equal(requests.length, 2);
});

test('a file that stays damaged is refused', async () => {
  await assert.rejects(run({ body: other }, { file: { size: body.length, sha256 } }), (/** @type {any} */ error) => {
    assert.equal(error.code, 'load_failed');
    assert.match(error.message, /sha256/);
    assert.equal(error.target.size, 0);
    return true;
  });
});

test('a file of another size than listed is refused', async () => {
  await assert.rejects(run({ body }, { file: { size: body.length - 1 } }), { code: 'load_failed', message: /300000 bytes.*299999/ });
});

test('an AbortSignal stops a slow body and keeps what came', async () => {
  const abort = new AbortController();
  const onProgress = (/** @type {number} */ loaded) => {
    if (loaded > 3000) abort.abort(new Error('enough'));
  };
  await assert.rejects(run({ body, pause: 5 }, { options: { signal: abort.signal, onProgress } }), (/** @type {any} */ error) => {
    assert.equal(error.code, 'aborted');
    assert.equal(error.cause.message, 'enough');
    assert.ok(error.target.size > 3000 && error.target.size < 100_000);
    return true;
  });
});

test('an AbortSignal ends the wait before another attempt', async () => {
  const started = performance.now();
  await assert.rejects(
    run({ body, statuses: [503] }, { options: { retryDelays: [60_000], signal: AbortSignal.timeout(50) } }),
    { code: 'aborted' },
  );
  assert.ok(performance.now() - started < 5000);
});

test('a server that goes silent counts as a broken connection', async () => {
  const { bytes } = await run({ body, etag: '"one"', pause: 1 }, { options: { stallTimeout: 2000 } });
  assert.deepEqual(bytes, body);
  await assert.rejects(run({ body, pause: 400 }, { options: { stallTimeout: 50, retryDelays: [] } }), { code: 'load_failed', message: /silent/ });
});

test('HEAD tells the version; the strongest validator decides', async () => {
  const server = await serveFile({ body, etag: 'W/"one"' });
  assert.deepEqual(await currentVersion(server.url), { etag: 'W/"one"', size: body.length });
  server.behaviour = { body, statuses: [405] };
  assert.equal(await currentVersion(server.url), undefined);
  await server.close();
  assert.ok(sameVersion({ etag: 'W/"a"', size: 1 }, { etag: '"a"', size: 2 }));
  assert.ok(!sameVersion({ etag: '"a"', size: 1 }, { etag: '"b"', size: 1 }));
  assert.ok(!sameVersion({ lastModified: 'x', size: 1 }, { etag: '"b"', lastModified: 'y', size: 1 }));
  assert.ok(!sameVersion({ size: 1 }, { size: 2 }));
  assert.ok(sameVersion({ size: 1 }, {}));
});
