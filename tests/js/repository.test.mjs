// @ts-check
/**
 * Which files a load brings here, of a model and of its draft heads: from a file's URL, a folder, a repository of the hub, or local files.
 */
import assert from 'node:assert/strict';
import http from 'node:http';
import { after, test } from 'node:test';
import { openModel } from '../../pkg/repository.js';
import { describeHeads, describeSource } from '../../pkg/source.js';

/** What the server has: by path, a text, or a page that it sends for what it lacks. @type {Record<string, string>} */
let files = {};
/** What it sends for other paths: nothing (404), or a page. @type {string | undefined} */
let fallback;
/** @type {string[]} */
let asked = [];
const server = http.createServer(({ method, url }, response) => {
  const path = decodeURIComponent(new URL(url ?? '', 'http://x').pathname + new URL(url ?? '', 'http://x').search);
  asked.push(`${method} ${path}`);
  const body = files[path] ?? fallback;
  if (body === undefined) return void response.writeHead(404).end();
  const type = path in files ? 'application/octet-stream' : 'text/html; charset=utf-8';
  response.writeHead(200, { 'Content-Type': type, 'Content-Length': body.length });
  response.end(method === 'HEAD' ? undefined : body);
});
await new Promise((resolve) => server.listen(0, '127.0.0.1', () => resolve(undefined)));
const { port } = /** @type {import('node:net').AddressInfo} */ (server.address());
const origin = `http://127.0.0.1:${port}`;
after(() => {
  server.close();
  server.closeAllConnections();
});

/** The names of what is opened for a model, and of its heads. @param {any} source @param {any} [heads] */
async function opened(source, heads) {
  asked = [];
  const { signal } = new AbortController();
  const described = [describeSource(source, origin), describeHeads(heads, origin)];
  const open = await openModel(/** @type {any} */ (described[0]), /** @type {any} */ (described[1]), false, signal, () => {});
  const names = (/** @type {{ files: { name: string }[] }} */ opened) => opened.files.map(({ name }) => name);
  return [names(open.model), typeof open.heads === 'object' && open.heads !== null ? names(open.heads) : open.heads];
}

test('a GGUF file, with heads beside it or without', async () => {
  files = { '/m.gguf': 'model' };
  assert.deepEqual(await opened(`${origin}/m.gguf`), [['m.gguf'], 'auto']);
  assert.deepEqual(asked, ['HEAD /m.heads.safetensors', 'GET /m.gguf']);
  files['/m.heads.safetensors'] = 'heads';
  assert.deepEqual(await opened(`${origin}/m.gguf`), [['m.gguf', 'm.heads.safetensors'], 'auto']);
  assert.deepEqual(await opened(`${origin}/m.gguf`, null), [['m.gguf'], null]);
  assert.deepEqual(asked, ['GET /m.gguf']);
});

test('a page that is sent for every name is no heads', async () => {
  files = { '/m.gguf': 'model' };
  fallback = '<!doctype html>';
  assert.deepEqual(await opened(`${origin}/m.gguf`), [['m.gguf'], 'auto']);
  fallback = undefined;
});

test('heads of their own URL, folder, or repository', async () => {
  const listing = { siblings: [{ rfilename: 'config.json' }, { rfilename: 'medusa_lm_head.safetensors' }, { rfilename: 'medusa_lm_head.pt' }] };
  files = {
    '/m.gguf': 'model',
    '/m.heads.safetensors': 'beside',
    '/other/any.safetensors': 'heads',
    '/folder/heads.safetensors': 'heads',
    '/api/models/org/heads/revision/main?blobs=true': JSON.stringify(listing),
    '/org/heads/resolve/main/medusa_lm_head.safetensors': 'heads',
    '/api/models/org/none/revision/main?blobs=true': '{"siblings":[]}',
  };
  const model = `${origin}/m.gguf`;
  assert.deepEqual(await opened(model, `${origin}/other/any.safetensors`), [['m.gguf'], ['any.safetensors']]);
  assert.deepEqual(await opened(model, `${origin}/folder/`), [['m.gguf'], ['heads.safetensors']]);
  assert.deepEqual(await opened(model, 'org/heads'), [['m.gguf'], ['medusa_lm_head.safetensors']]);
  assert.deepEqual(await opened(model, new File(['heads'], 'mine.safetensors')), [['m.gguf'], ['mine.safetensors']]);
  await assert.rejects(opened(model, `${origin}/empty/`), { code: 'load_failed', message: /draft heads in .*\/empty\/.*heads\.safetensors/ });
  await assert.rejects(opened(model, 'org/none'), { code: 'load_failed', message: /draft heads in org\/none/ });
  await assert.rejects(opened(model, `${origin}/gone.safetensors`), { code: 'load_failed' });
});

test('a folder and a repository, with heads beside the weights', async () => {
  const names = ['config.json', 'tokenizer.json', 'model.safetensors', 'medusa_lm_head.safetensors', 'adapter.safetensors'];
  const folder = Object.fromEntries(names.map((name) => [`/f/${name}`, '{}']));
  const repository = Object.fromEntries(names.map((name) => [`/org/m/resolve/main/${name}`, '{}']));
  const listing = { siblings: names.map((rfilename) => ({ rfilename })) };
  files = { ...folder, ...repository, '/api/models/org/m/revision/main?blobs=true': JSON.stringify(listing) };
  const all = ['config.json', 'tokenizer.json', 'model.safetensors', 'medusa_lm_head.safetensors'];
  for (const source of [`${origin}/f/`, 'org/m']) {
    assert.deepEqual(await opened(source), [all, 'auto']);
    assert.deepEqual(await opened(source, null), [all.slice(0, 3), null]);
  }
  delete files['/f/medusa_lm_head.safetensors'];
  assert.deepEqual(await opened(`${origin}/f/`), [all.slice(0, 3), 'auto']);
});

test('local files', async () => {
  const local = ['m.gguf', 'm.heads.safetensors'].map((name) => new File(['x'], name));
  assert.deepEqual(await opened(local), [['m.gguf', 'm.heads.safetensors'], 'auto']);
});
