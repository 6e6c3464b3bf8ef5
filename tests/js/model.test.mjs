// @ts-check
/**
 * A model and its generations over the protocol, with a stand-in for the core: both ends run, only the wasm and the worker do not.
 */
import assert from 'node:assert/strict';
import { afterEach, test } from 'node:test';
import { Channel, workerPort } from '../../pkg/channel.js';
import { Host } from '../../pkg/host.js';
import { load } from '../../pkg/index.js';
import { Model } from '../../pkg/model.js';
import { core } from './fake_core.mjs';

const words = 'one two three four five six seven eight';
const spaced = `${words} `;

/** A host at the other end of messages that are copied, as between threads. */
function localHost() {
  /** @type {any} */
  const port = { closed: false };
  port.connect = (/** @type {(message: unknown) => void} */ receive) => {
    const host = new Host((message) => setImmediate(() => receive(structuredClone(message))), /** @type {any} */ (core));
    port.post = (/** @type {any} */ message) => {
      const copy = structuredClone(message);
      setImmediate(() => host.receive(copy));
    };
  };
  port.close = () => {
    port.closed = true;
  };
  return port;
}

async function openModel() {
  const port = localHost();
  const channel = new Channel(port);
  return { model: modelOver(channel, await channel.load({ source: { kind: 'local', files: [] }, heads: null, cache: false }).info), port };
}

/**
 * A model without `load`; its constructor is not part of the package's types.
 * @param {Channel} channel @param {unknown} info
 * @returns {import('../../pkg/index.js').Model}
 */
const modelOver = (channel, info) => new /** @type {any} */ (Model)(channel, info);

afterEach(() => {
  Object.assign(core, { pace: 0, prefill: 0, fault: undefined, steps: 0 });
});

/** @param {AsyncIterable<{ text: string }>} generation */
async function textOf(generation) {
  let text = '';
  for await (const chunk of generation) text += chunk.text;
  return text;
}

test('chunks, then the result', async () => {
  const { model } = await openModel();
  const generation = model.generate(words, { maxTokens: 3 });
  assert.equal(await textOf(generation), 'one two three ');
  const { text, tokens, finishReason } = await generation.result;
  assert.deepEqual({ text, tokens, finishReason }, { text: 'one two three ', tokens: [0, 1, 2], finishReason: 'stop' });
  assert.deepEqual(await generation.next(), { done: true, value: undefined });
  await model.dispose();
  assert.equal(core.alive, 0);
});

test('the result alone runs the generation to its end; the chunks can be read afterwards', async () => {
  const { model } = await openModel();
  const generation = model.generate(words);
  assert.equal((await generation.result).text, spaced);
  assert.equal(await textOf(generation), spaced);
  const second = model.generate(words);
  const result = second.result;
  assert.equal(await textOf(second), spaced);
  assert.equal((await result).text, spaced);
  await model.dispose();
});

test('a reader that pauses pauses the core', async () => {
  const { model } = await openModel();
  const generation = model.generate(words);
  await generation.next();
  await generation.next();
  await new Promise((resolve) => setTimeout(resolve, 30));
  assert.equal(core.steps, 2);
  await generation.return();
  await model.dispose();
});

test('several calls of next() are answered in order', async () => {
  const { model } = await openModel();
  const generation = model.generate('a b');
  const results = await Promise.all([generation.next(), generation.next(), generation.next(), generation.next()]);
  assert.deepEqual(results.map(({ value }) => value?.text), ['a ', 'b ', undefined, undefined]);
  await model.dispose();
});

test('break stops the core and frees the model', async () => {
  const { model } = await openModel();
  const generation = model.generate(words);
  for await (const { text } of generation) if (text === 'two ') break;
  assert.equal(core.steps, 2);
  const { text, finishReason } = await generation.result;
  assert.deepEqual({ text, finishReason }, { text: 'one two ', finishReason: 'aborted' });
  assert.equal(await textOf(model.generate(words)), spaced);
  await model.dispose();
});

test('abort() ends reading without an error, and another generation may follow at once', async () => {
  core.pace = 5;
  const { model } = await openModel();
  const first = model.generate(words);
  const reading = textOf(first);
  await new Promise((resolve) => setTimeout(resolve, 12));
  void first.abort();
  const second = model.generate('x y');
  assert.equal(await textOf(second), 'x y ');
  const text = await reading;
  assert.ok(spaced.startsWith(text) && text.length < spaced.length);
  assert.equal((await first.result).finishReason, 'aborted');
  await first.abort();
  await model.dispose();
  assert.equal(core.alive, 0);
});

test('abort during the prefill, and before the start', async () => {
  core.prefill = 20;
  const { model } = await openModel();
  const first = model.generate(words);
  void first.abort();
  const second = model.generate(words);
  void second.abort();
  const third = model.generate('x');
  assert.equal((await first.result).finishReason, 'aborted');
  assert.equal((await second.result).finishReason, 'aborted');
  assert.equal(await textOf(third), 'x ');
  await model.dispose();
});

test('a signal ends reading and result with code aborted, and leaves the model usable', async () => {
  core.pace = 2;
  const { model } = await openModel();
  const abort = new AbortController();
  const generation = model.generate(words, { signal: abort.signal });
  const reading = (async () => {
    for await (const { text } of generation) if (text === 'two ') abort.abort(new Error('why'));
  })();
  await assert.rejects(reading, (/** @type {any} */ error) => error.code === 'aborted' && error.cause.message === 'why');
  await assert.rejects(generation.result, { code: 'aborted' });
  assert.deepEqual(await generation.next(), { done: true, value: undefined });
  assert.equal(await textOf(model.generate('x', { signal: new AbortController().signal })), 'x ');
  await assert.rejects(textOf(model.generate('x', { signal: AbortSignal.abort() })), { code: 'aborted' });
  assert.equal(await textOf(model.generate('x')), 'x ');
  await model.dispose();
});

test('a second generation is refused while one runs', async () => {
  const { model } = await openModel();
  const first = model.generate(words);
  const second = model.generate(words);
  await assert.rejects(second.result, { code: 'busy', message: /abort\(\)/ });
  await assert.rejects(textOf(second), { code: 'busy' });
  assert.equal(await textOf(first), spaced);
  assert.equal(await textOf(model.generate('x')), 'x ');
  await model.dispose();
});

test('faults reach the reader once, and never as unhandled rejections', async () => {
  const { model } = await openModel();
  await assert.rejects(textOf(model.generate('')), { code: 'empty_prompt', message: 'nothing to continue' });
  const unread = model.generate(words, /** @type {any} */ ({ maxTokenz: 1 }));
  await new Promise((resolve) => setTimeout(resolve, 5));
  await assert.rejects(unread.next(), { code: 'invalid_option' });
  assert.deepEqual(await unread.next(), { done: true, value: undefined });
  core.fault = { at: 1, error: new WebAssembly.RuntimeError('unreachable') };
  const broken = model.generate(words);
  await broken.next();
  await assert.rejects(broken.next(), { code: 'internal', message: /unreachable/ });
  assert.equal(await textOf(model.generate('x')), 'x ');
  await model.dispose();
  assert.equal(core.alive, 0);
});

test('a ReadableStream pulls, ends, and cancels', async () => {
  const { model } = await openModel();
  assert.equal(await textOf(/** @type {any} */ (model.generate(words).toReadableStream())), spaced);
  const generation = model.generate(words);
  const reader = generation.toReadableStream().getReader();
  assert.equal((await reader.read()).value?.text, 'one ');
  await reader.cancel();
  assert.equal((await generation.result).finishReason, 'aborted');
  assert.ok(core.steps <= 8 + 2);
  await assert.rejects(model.generate('').toReadableStream().getReader().read(), { code: 'empty_prompt' });
  await model.dispose();
});

test('tokens, templates and counts', async () => {
  const { model } = await openModel();
  assert.deepEqual([...(await model.tokenize('ab'))], [97, 98]);
  assert.equal(await model.detokenize([97, 98]), 'ab');
  assert.deepEqual((await model.tokenBytes([0, 1])).map((bytes) => [...bytes]), [[97], [0xc3]]);
  const messages = [{ role: 'user', content: 'hi' }];
  assert.equal(await model.applyChatTemplate(messages), 'user:hi;assistant:');
  assert.equal(await model.applyChatTemplate(messages, { addGenerationPrompt: false }), 'user:hi;');
  assert.equal(await model.countTokens('abc'), 3);
  assert.equal(await model.countTokens(messages), 18);
  await assert.rejects(model.applyChatTemplate(/** @type {any} */ ('x')), { code: 'invalid_option' });
  await model.reset();
  await model.dispose();
});

test('log-probabilities come with chunks and with the result, where they are asked for', async () => {
  const { model } = await openModel();
  const generation = model.generate('one two', { logprobs: 1 });
  const chunks = [];
  for await (const chunk of generation) chunks.push(chunk);
  const place = (/** @type {number} */ token) => ({ token, logprob: -1, top: [{ token, logprob: -1 }] });
  assert.deepEqual(chunks.map(({ logprobs }) => logprobs), [[place(0)], [place(1)]]);
  assert.deepEqual((await generation.result).logprobs, [place(0), place(1)]);
  const without = await model.generate('one').result;
  assert.ok(!('logprobs' in without));
  await model.dispose();
});

test('calls made while a text is written wait for a moment between two chunks', async () => {
  core.pace = 3;
  const { model } = await openModel();
  const generation = model.generate(words);
  const result = generation.result;
  const counts = [];
  for await (const _ of generation) counts.push(await model.countTokens('abc'));
  assert.deepEqual(counts, Array(8).fill(3));
  assert.equal((await result).text, spaced);
  await model.dispose();
});

test('dispose settles everything and closes the other side', async () => {
  core.pace = 5;
  const { model, port } = await openModel();
  const generation = model.generate(words);
  const reading = textOf(generation);
  const counting = model.countTokens('x');
  await generation.next();
  const disposed = model.dispose();
  await assert.rejects(reading, { code: 'disposed' });
  await assert.rejects(generation.result, { code: 'disposed' });
  await counting;
  await disposed;
  assert.ok(port.closed);
  assert.equal(core.alive, 0);
  await assert.rejects(model.tokenize('x'), { code: 'disposed' });
  await assert.rejects(model.generate('x').result, { code: 'disposed' });
  await model.dispose();
});

test('a model can be disposed by using', async () => {
  const { model, port } = await openModel();
  await model[Symbol.asyncDispose ?? Symbol.for('Symbol.asyncDispose')]();
  assert.ok(port.closed);
});

/** A worker that says nothing. */
class SilentWorker extends EventTarget {
  /** @type {((event: object) => void) | null} */
  onmessage = null;
  /** @type {((event: object) => void) | null} */
  onerror = null;
  /** @type {((event: object) => void) | null} */
  onmessageerror = null;
  isTerminated = false;
  /** @type {any[]} */
  posted = [];
  postMessage(/** @type {unknown} */ message) {
    this.posted.push(structuredClone(message));
  }
  terminate() {
    this.isTerminated = true;
  }
}

test('when the worker dies, everything that waits is told', async () => {
  const worker = new SilentWorker();
  const channel = new Channel(workerPort(/** @type {any} */ (worker)));
  const loading = channel.load({ source: { kind: 'local', files: [] }, heads: null, cache: false });
  worker.onmessage?.({ data: { op: 'done', id: loading.id, value: { name: 'x' } } });
  const model = modelOver(channel, await loading.info);
  const generation = model.generate(words);
  const waiting = [generation.next(), generation.result, model.tokenize('x'), model.reset()];
  worker.onerror?.({ message: 'boom', preventDefault() {} });
  for (const settled of await Promise.allSettled(waiting)) {
    assert.equal(settled.status, 'rejected');
    assert.equal(settled.reason.code, 'internal');
    assert.match(settled.reason.message, /boom/);
  }
  assert.ok(worker.isTerminated);
  await assert.rejects(model.tokenize('x'), { code: 'internal' });
  await assert.rejects(model.generate('x').result, { code: 'internal' });
  await model.dispose();
});

test('a worker that does not start is load_failed', async () => {
  const worker = new SilentWorker();
  const channel = new Channel(workerPort(/** @type {any} */ (worker)));
  const { info } = channel.load({ source: { kind: 'local', files: [] }, heads: null, cache: false });
  worker.onerror?.({ message: '', preventDefault() {} });
  await assert.rejects(info, { code: 'load_failed', message: /worker\.js/ });
});

test('a call whose arguments cannot be copied fails by itself', async () => {
  const { model } = await openModel();
  await assert.rejects(model.benchmark({ callback() {} }), { code: 'internal' });
  assert.equal(await textOf(model.generate('x')), 'x ');
  await model.dispose();
});

test('the package can be imported where there is no browser, and says what is missing', async () => {
  await assert.rejects(load('org/name'), { code: 'webgpu_unavailable', message: /navigator\.gpu/ });
  await assert.rejects(load('org/name', { signal: AbortSignal.abort() }), { code: 'aborted' });
  await assert.rejects(load('org/name', /** @type {any} */ ({ sginal: 1 })), { code: 'invalid_option', message: /"signal"/ });
  await assert.rejects(load(/** @type {any} */ (7)), { code: 'invalid_option' });
});
