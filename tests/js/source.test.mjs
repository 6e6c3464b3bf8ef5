// @ts-check
/**
 * How sources are told apart, and which file of a repository is chosen.
 */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { chooseGguf } from '../../pkg/repository.js';
import { describeHeads, describeSource, headsBeside, isHeadFile } from '../../pkg/source.js';

Object.assign(globalThis, { document: { baseURI: 'https://example.org/app/index.html' } });

const hub = { kind: 'hub', hubUrl: 'https://huggingface.co', repository: 'org/name', revision: 'main' };

test('hub ids', () => {
  assert.deepEqual(describeSource('org/name'), hub);
  assert.deepEqual(describeSource('org/name@v1.0'), { ...hub, revision: 'v1.0' });
  assert.deepEqual(describeSource('org/name-GGUF:Q4_K_M'), { ...hub, repository: 'org/name-GGUF', quantisation: 'Q4_K_M' });
  assert.deepEqual(describeSource('org/name', 'https://mirror.example/'), { ...hub, hubUrl: 'https://mirror.example' });
});

test('URLs of files and folders', () => {
  const cases = {
    'https://a.example/m.gguf?download=true': ['file', 'https://a.example/m.gguf?download=true'],
    'models/m.GGUF': ['file', 'https://example.org/app/models/m.GGUF'],
    './m.gguf': ['file', 'https://example.org/app/m.gguf'],
    '../m/': ['folder', 'https://example.org/m/'],
    '/models/m': ['folder', 'https://example.org/models/m/'],
    'models/': ['folder', 'https://example.org/app/models/'],
    'a/b/c': ['folder', 'https://example.org/app/a/b/c/'],
    'blob:https://example.org/1-2-3': ['file', 'blob:https://example.org/1-2-3'],
  };
  for (const [source, [kind, url]] of Object.entries(cases)) assert.deepEqual(describeSource(source), { kind, url }, source);
  assert.deepEqual(describeSource(new URL('https://a.example/folder')), { kind: 'folder', url: 'https://a.example/folder/' });
});

test('local files: one GGUF, or the files of a folder', () => {
  const file = (/** @type {string} */ name) => new File(['x'], name);
  /** @param {string[]} names */
  const chosen = (...names) => {
    const described = describeSource(names.map(file));
    return described.kind === 'local' ? described.files.map(({ name }) => name) : [];
  };
  assert.deepEqual(describeSource(file('a.bin')).kind, 'local');
  assert.deepEqual(chosen('notes.txt', 'a.gguf'), ['a.gguf']);
  assert.deepEqual(chosen('config.json', 'model.safetensors', 'README.md', 'a.gguf'), ['config.json', 'model.safetensors']);
  assert.deepEqual(chosen('whatever.bin'), ['whatever.bin']);
  assert.deepEqual(chosen('notes.txt', 'a.gguf', 'a.heads.safetensors', 'adapter.safetensors'), ['a.gguf', 'a.heads.safetensors']);
});

test('draft heads: beside the model, named, or none', () => {
  assert.equal(describeHeads(), 'auto');
  assert.equal(describeHeads('auto'), 'auto');
  assert.equal(describeHeads(null), null);
  const url = 'https://a.example/medusa_lm_head.safetensors';
  assert.deepEqual(describeHeads(url), { kind: 'file', url });
  assert.deepEqual(describeHeads('heads.safetensors'), { kind: 'file', url: 'https://example.org/app/heads.safetensors' });
  assert.deepEqual(describeHeads('org/name'), hub);
  assert.deepEqual(describeHeads(new File(['x'], 'any.safetensors')), { kind: 'local', files: [new File(['x'], 'any.safetensors')] });
  assert.deepEqual(
    ['medusa_lm_head.safetensors', 'heads.safetensors', 'm.heads.safetensors', 'model.safetensors', 'heads.json'].filter(isHeadFile),
    ['medusa_lm_head.safetensors', 'heads.safetensors', 'm.heads.safetensors'],
  );
  const besides = {
    'https://a.example/m.gguf': 'https://a.example/m.heads.safetensors',
    'https://a.example/x.gguf/m.Q4_0.GGUF?download=true': 'https://a.example/x.gguf/m.Q4_0.heads.safetensors?download=true',
    'https://a.example/m.bin': undefined,
    'blob:https://a.example/1-2.gguf': undefined,
  };
  for (const [model, heads] of Object.entries(besides)) assert.equal(headsBeside(model), heads);
});

test('what is no source is refused', () => {
  for (const source of [[], 7, null, [1], 'http://']) {
    assert.throws(() => describeSource(/** @type {any} */ (source)), { code: 'invalid_option' });
  }
});

test('a GGUF is chosen by quantisation, or by preference', () => {
  const names = ['README.md', 'm-Q8_0.gguf', 'm.Q4_K_M.gguf', 'm-Q2_K.gguf', 'm-f16-00001-of-00002.gguf'];
  assert.equal(chooseGguf(names, 'o/n'), 'm.Q4_K_M.gguf');
  assert.equal(chooseGguf(names, 'o/n', 'q2_k'), 'm-Q2_K.gguf');
  assert.equal(chooseGguf(['odd.gguf'], 'o/n'), 'odd.gguf');
  assert.throws(() => chooseGguf(names, 'o/n', 'Q5_0'), { code: 'load_failed', message: /kind Q5_0.*it has m-Q8_0\.gguf, / });
  assert.throws(() => chooseGguf(names, 'o/n', 'f16'), { code: 'load_failed' });
  assert.throws(() => chooseGguf([], 'o/n'), { code: 'load_failed', message: /no single GGUF/ });
});
