// @ts-check
import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { test } from 'node:test';
import { DraftreeError, asDraftreeError, errorCodes } from '../../pkg/errors.js';

test('the codes are those of the Rust side, in its order', () => {
  const source = readFileSync(new URL('../../src/error.rs', import.meta.url), 'utf8');
  const inRust = [...source.matchAll(/Self::\w+ => "(\w+)"/g)].map((match) => match[1]);
  assert.ok(inRust.length > 10);
  assert.deepEqual(inRust, [...errorCodes]);
});

test('errors of the core keep their code, all others are internal', () => {
  const fromCore = Object.assign(new Error('no room'), { name: 'DraftreeError', code: 'out_of_memory' });
  assert.deepEqual({ ...asDraftreeError(fromCore, 'x') }, { ...new DraftreeError('out_of_memory', 'no room') });
  const strange = Object.assign(new Error('no room'), { name: 'DraftreeError', code: 'made_up' });
  assert.equal(asDraftreeError(strange, 'x').code, 'internal');
  const trap = new WebAssembly.RuntimeError('unreachable');
  assert.equal(asDraftreeError(trap, 'generating').message, 'generating: RuntimeError: unreachable');
  assert.equal(asDraftreeError('text', 'generating').message, 'generating: text');
});
