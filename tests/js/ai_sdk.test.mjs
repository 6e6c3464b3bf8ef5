// @ts-check
/** The model as the AI SDK calls it, over a stand-in for the core; that its types are those of the SDK is checked with the types of the scripts. */
import assert from 'node:assert/strict';
import { after, afterEach, before, test } from 'node:test';
import { draftree } from '../../pkg/ai_sdk.js';
import { echoModel } from './echo_model.mjs';
import { core } from './fake_core.mjs';

/** @typedef {import('@ai-sdk/provider').LanguageModelV4} LanguageModelV4 */
/** @typedef {import('@ai-sdk/provider').LanguageModelV4CallOptions} CallOptions */

/** @type {import('../../pkg/index.js').Model} */
let model;

before(async () => {
  model = await echoModel();
});
after(() => model.dispose());
afterEach(() => {
  Object.assign(core, { pace: 0, fault: undefined, steps: 0 });
});

/** @param {Parameters<typeof draftree>[1]} [defaults] @returns {LanguageModelV4} */
const languageModel = (defaults) => draftree(model, defaults);

/** @param {string} text @returns {CallOptions['prompt']} */
const asked = (text) => [{ role: 'user', content: [{ type: 'text', text }] }];

/** @template T @param {ReadableStream<T>} stream @returns {Promise<T[]>} */
async function partsOf(stream) {
  const parts = [];
  for await (const part of stream) parts.push(part);
  return parts;
}

/** @param {string} code @param {RegExp} message */
const fault = (code, message) => (/** @type {any} */ error) => error.name === 'DraftreeError' && error.code === code && message.test(error.message);

const usage = {
  inputTokens: { total: 29, noCache: 28, cacheRead: 1, cacheWrite: undefined },
  outputTokens: { total: 3, text: 3, reasoning: undefined },
  raw: { promptTokens: 29, completionTokens: 3, totalTokens: 43, reusedPromptTokens: 1 },
};
const stats = { draft: { tokensBySource: { plain: 2, ngram: 1 }, rowsPerStep: [[4, 2]] } };

test('a whole answer has text, usage, the reason of its end and what drafting came to', async () => {
  const language = languageModel();
  assert.deepEqual([language.specificationVersion, language.provider, language.modelId], ['v4', 'draftree', 'echo']);
  const { response, ...result } = await language.doGenerate({ prompt: asked('one two three') });
  assert.deepEqual(result, {
    content: [{ type: 'text', text: 'one two three ' }],
    finishReason: { unified: 'stop', raw: 'stop' },
    usage,
    providerMetadata: { draftree: stats },
    warnings: [],
  });
  assert.equal(response?.modelId, 'echo');
  assert.ok(Math.abs(Number(response?.timestamp) - Date.now()) < 60_000);
});

test('a stream has the parts of one text, and the same end', async () => {
  const parts = await partsOf((await languageModel().doStream({ prompt: asked('one two three') })).stream);
  assert.ok(parts[1]?.type === 'response-metadata' && parts[1].modelId === 'echo' && parts[1].timestamp instanceof Date);
  assert.deepEqual([parts[0], ...parts.slice(2)], [
    { type: 'stream-start', warnings: [] },
    { type: 'text-start', id: '0' },
    ...['one ', 'two ', 'three '].map((delta) => ({ type: 'text-delta', id: '0', delta })),
    { type: 'text-end', id: '0' },
    { type: 'finish', usage, finishReason: { unified: 'stop', raw: 'stop' }, providerMetadata: { draftree: stats } },
  ]);
});

test('raw chunks come before their text where they are asked for', async () => {
  const parts = await partsOf((await languageModel().doStream({ prompt: asked('one two'), includeRawChunks: true })).stream);
  const raw = parts.filter((part) => part.type === 'raw').map(({ rawValue }) => rawValue);
  assert.deepEqual(raw, [{ text: 'one ', tokens: [0] }, { text: 'two ', tokens: [1] }]);
});

test('every setting has its option, and the nearest one wins', async () => {
  const language = languageModel({ draft: 'ngram', temperature: 0.1, maxTokens: 7 });
  await language.doGenerate({
    prompt: asked('x'),
    maxOutputTokens: 5,
    temperature: 0.5,
    topP: 0.9,
    topK: 3,
    presencePenalty: 0.1,
    frequencyPenalty: 0.2,
    seed: 4,
    stopSequences: ['y'],
    providerOptions: { draftree: { draft: 'none', topK: 2 }, other: { topK: 1 } },
  });
  assert.deepEqual(core.options, {
    draft: 'none', temperature: 0.5, maxTokens: 5, topP: 0.9, topK: 2, presencePenalty: 0.1, frequencyPenalty: 0.2, seed: 4, stop: ['y'],
  });
  await language.doGenerate({ prompt: asked('x'), maxOutputTokens: undefined });
  assert.deepEqual(core.options, { draft: 'ngram', temperature: 0.1, maxTokens: 7 });
});

test('settings that have no effect are warnings', async () => {
  /** @type {CallOptions} */
  const options = {
    prompt: [...asked('a'), { role: 'assistant', content: [{ type: 'reasoning', text: 'hm' }, { type: 'text', text: 'b' }] }, ...asked('c')],
    tools: [{ type: 'function', name: 'f', inputSchema: {} }],
    toolChoice: { type: 'required' },
    responseFormat: { type: 'json' },
    reasoning: 'high',
  };
  const features = ['tools', 'toolChoice', 'responseFormat', 'reasoning', 'reasoning parts'];
  const { warnings, usage } = await languageModel().doGenerate(options);
  assert.deepEqual(warnings.map((warning) => warning.type === 'unsupported' && warning.feature), features);
  assert.equal(usage.inputTokens.total, 'user:a;assistant:b;user:c;assistant:'.length);
  const [start] = await partsOf((await languageModel().doStream(options)).stream);
  assert.ok(start?.type === 'stream-start' && start.warnings.length === features.length);
  const plain = await languageModel().doGenerate({ prompt: asked('a'), tools: [], toolChoice: { type: 'auto' }, responseFormat: { type: 'text' }, reasoning: 'none' });
  assert.deepEqual(plain.warnings, []);
});

test('a prompt that cannot be read, and an option that is wrong, are errors', async () => {
  /** @type {CallOptions['prompt']} */
  const picture = [{ role: 'user', content: [{ type: 'file', mediaType: 'image/png', data: { type: 'data', data: 'AA==' } }] }];
  await assert.rejects(async () => languageModel().doGenerate({ prompt: picture }), fault('invalid_option', /message 0 \(user\).*expected.*"text", found "file"/));
  await assert.rejects(async () => languageModel().doGenerate({ prompt: asked('x'), temperature: -1 }), fault('invalid_option', /temperature/));
  const parts = await partsOf((await languageModel().doStream({ prompt: asked('x'), temperature: -1 })).stream);
  assert.deepEqual(parts.slice(-2).map(({ type }) => type), ['error', 'finish']);
  const [error, finish] = parts.slice(-2);
  assert.ok(error?.type === 'error' && fault('invalid_option', /temperature/)(error.error));
  assert.ok(finish?.type === 'finish' && finish.finishReason.unified === 'error');
});

test('a model without a chat template continues one message as plain text', async () => {
  const base = draftree({ info: { name: 'base', hasChatTemplate: false }, generate: (prompt, options) => model.generate(prompt, options) });
  const { usage, content } = await base.doGenerate({ prompt: [{ role: 'user', content: 'one two' }] });
  assert.equal(usage.inputTokens.total, 'one two'.length);
  assert.deepEqual(content, [{ type: 'text', text: 'one two ' }]);
  const system = { role: 'system', content: 'be brief' };
  await assert.rejects(base.doGenerate({ prompt: [system, { role: 'user', content: 'x' }] }), fault('invalid_option', /no chat template.*found system, user/));
});

test('an abort is the reason of its signal, and the model is free at once', async () => {
  const longText = 'a b c d e f g h';
  core.pace = 5;
  const abort = new AbortController();
  const answer = languageModel().doGenerate({ prompt: asked(longText), abortSignal: abort.signal });
  setTimeout(() => abort.abort(), 12);
  await assert.rejects(async () => answer, { name: 'AbortError' });
  await assert.rejects(async () => languageModel().doGenerate({ prompt: asked('x'), abortSignal: abort.signal }), { name: 'AbortError' });

  const later = new AbortController();
  const { stream } = await languageModel().doStream({ prompt: asked(longText), abortSignal: later.signal });
  setTimeout(() => later.abort(new Error('enough')), 12);
  await assert.rejects(partsOf(stream), { message: 'enough' });

  core.pace = 0;
  assert.deepEqual((await languageModel().doGenerate({ prompt: asked('x') })).content, [{ type: 'text', text: 'x ' }]);
});

test('cancelling a stream stops the model, and its reader sets the pace', async () => {
  const reader = (await languageModel().doStream({ prompt: asked('a b c d e f') })).stream.getReader();
  for (let part = 0; part < 5; part++) await reader.read();
  await new Promise((resolve) => setTimeout(resolve, 20));
  assert.equal(core.steps, 2);
  await reader.cancel();
  assert.deepEqual((await languageModel().doGenerate({ prompt: asked('x') })).content, [{ type: 'text', text: 'x ' }]);
});
