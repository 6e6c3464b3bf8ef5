// @ts-check
/**
 * What is refused at the JavaScript door, and in which words.
 */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { checkGenerateOptions, checkLoadOptions, checkPrompt } from '../../pkg/options.js';
import { nearestName } from '../../pkg/suggest.js';

/** @param {() => unknown} call @param {RegExp} message */
const refuses = (call, message) => assert.throws(call, { name: 'DraftreeError', code: 'invalid_option', message });

test('an unknown option names the nearest known one', () => {
  refuses(() => checkGenerateOptions(/** @type {any} */ ({ max_tokens: 3 })), /generate has no option "max_tokens": did you mean "maxTokens"\?/);
  refuses(() => checkGenerateOptions(/** @type {any} */ ({ temprature: 1 })), /did you mean "temperature"\?/);
  refuses(() => checkLoadOptions(/** @type {any} */ ({ onprogress: () => {} })), /load has no option "onprogress": did you mean "onProgress"\?/);
  refuses(() => checkGenerateOptions(/** @type {any} */ ({ zzzzzzzzzz: 1 })), /known are maxTokens, temperature/);
  refuses(() => checkGenerateOptions(JSON.parse('{"__proto__": 1}')), /no option "__proto__"/);
  refuses(() => checkGenerateOptions(/** @type {any} */ ({ toString: 1 })), /no option "toString"/);
});

test('nearestName forgives spelling, case and conventions, not other words', () => {
  const known = ['maxTokens', 'topK', 'topP', 'seed'];
  assert.equal(nearestName('MAX-TOKENS', known), 'maxTokens');
  assert.equal(nearestName('top_k', known), 'topK');
  assert.equal(nearestName('sead', known), 'seed');
  assert.equal(nearestName('beams', known), undefined);
});

const refused = {
  maxTokens: [0, -1, 1.5, '3', NaN, Infinity, null],
  temperature: [-0.1, NaN, '0'],
  topK: [-1, 0.5],
  topP: [0, 1.1, -1],
  minP: [-0.1, 1.1],
  repetitionPenalty: [0, -1],
  frequencyPenalty: [NaN, '1'],
  presencePenalty: [Infinity],
  logitBias: [1, { a: 1 }, { 1: 'x' }, { '-1': 1 }],
  seed: [-1, 0.5, 2 ** 53, '7'],
  stop: ['', [''], 3, ['a', 1]],
  ignoreEos: [1, 'yes'],
  draft: ['ngrams', true, null, [], ['auto'], ['ngram', 'none'], [undefined], 'ngram,recycling'],
  tree: ['wide', 'dense:', 'dense:4,,2', 'dense:4,', [], [[]], [0], [[-1]], [[0.5]], [['0']], {}],
  maxNodes: [0, 65, 1.5, '8', Infinity],
  accept: ['typical', {}, { typical: 0.1 }, { typical: { eps: 0.1 } }, { topK: { k: '3' } }, { typical: {}, topK: {} }, { topK: { tolerance: -1 } }],
  logprobs: [-1, 21, 0.5, '3', true],
  trees: [1, 'true', null],
  stepsInFlight: [0, 1.5],
  signal: [{}, true],
};

const accepted = {
  maxTokens: 1, temperature: 0, topK: 0, topP: 1, minP: 0, repetitionPenalty: 0.5, frequencyPenalty: -1, presencePenalty: 2,
  logitBias: { 5: -100 }, seed: 2 ** 53 - 1, stop: ['a', 'b'], ignoreEos: true, draft: ['ngram', 'medusa'], tree: 'dense:4,3,2',
  maxNodes: 64, accept: { typical: { epsilon: 0.09, alpha: 0.3 } }, logprobs: 20, trees: true, stepsInFlight: 8,
  signal: new AbortController().signal,
};

test('values of the wrong type or out of range are refused, naming option and value', () => {
  for (const [name, values] of Object.entries(refused)) {
    for (const value of values) {
      refuses(() => checkGenerateOptions(/** @type {any} */ ({ [name]: value })), new RegExp(`option "${name}" of generate must be .+, not .+`));
    }
  }
});

test('a misspelt drafter names the nearest one', () => {
  refuses(() => checkGenerateOptions(/** @type {any} */ ({ draft: 'ngrams' })), /"draft" of generate must be "auto", "none".*did you mean "ngram"\?/);
  refuses(() => checkGenerateOptions(/** @type {any} */ ({ draft: ['ngram', 'recyling'] })), /"recyling": did you mean "recycling"\?/);
  refuses(() => checkGenerateOptions(/** @type {any} */ ({ draft: 'xyz' })), /must be "auto", "none", or one or a list of "medusa", "ngram", "recycling", not "xyz"/);
});

test('every way to draft and to accept is an option', () => {
  for (const draft of ['auto', 'none', 'medusa', 'ngram', 'recycling', ['medusa', 'ngram', 'recycling']]) {
    assert.deepEqual(checkGenerateOptions(/** @type {any} */ ({ draft })), { draft });
  }
  for (const tree of ['auto', 'dense:1', [[0], [0, 0], [1]]]) assert.deepEqual(checkGenerateOptions(/** @type {any} */ ({ tree })), { tree });
  for (const accept of ['exact', 'rejection', { typical: {} }, { topK: { k: 3 } }, { topK: { tolerance: 0 } }]) {
    assert.deepEqual(checkGenerateOptions(/** @type {any} */ ({ accept })), { accept });
  }
});

test('good values pass unchanged, absent ones stay absent', () => {
  assert.deepEqual(checkGenerateOptions(/** @type {any} */ (accepted)), accepted);
  assert.deepEqual(Object.keys(accepted), Object.keys(refused));
  assert.deepEqual(checkGenerateOptions(/** @type {any} */ ({ seed: undefined })), {});
  assert.deepEqual(checkLoadOptions({ heads: null, worker: false, cache: false, contextLength: 10 }), {
    heads: null, worker: false, cache: false, contextLength: 10,
  });
});

test('options that are no object are refused', () => {
  refuses(() => checkGenerateOptions(/** @type {any} */ (null)), /must be an object, not null/);
  refuses(() => checkLoadOptions(/** @type {any} */ ('x')), /must be an object, not "x"/);
});

test('load options are checked', () => {
  for (const heads of [true, 1, '', []]) {
    refuses(() => checkLoadOptions(/** @type {any} */ ({ heads })), /"heads" of load must be "auto", a URL, a hub id, a File or null/);
  }
  for (const heads of ['auto', 'https://example.org/heads.safetensors', new URL('https://example.org/'), new File([], 'heads.safetensors')]) {
    assert.deepEqual(checkLoadOptions({ heads }), { heads });
  }
  refuses(() => checkLoadOptions(/** @type {any} */ ({ worker: 1 })), /"worker" of load must be true, false or a Worker/);
  refuses(() => checkLoadOptions(/** @type {any} */ ({ wasmUrl: 1 })), /"wasmUrl"/);
});

test('a prompt is a string or messages with role and content', () => {
  assert.deepEqual(checkPrompt(''), { prompt: '' });
  const message = { role: 'user', content: 'hi' };
  assert.deepEqual(checkPrompt([{ ...message, id: 7 }]), { messages: [message] });
  refuses(() => checkPrompt(undefined), /must be a string or an array of messages, not undefined/);
  refuses(() => checkPrompt([message, { role: 'user' }]), /message 1 must be \{ role, content \}/);
  refuses(() => checkPrompt([null]), /message 0/);
});
