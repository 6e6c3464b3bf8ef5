// @ts-check
/**
 * The two ways to talk to a model that other code is written for: chat completions and sessions, over a stand-in for the core.
 */
import assert from 'node:assert/strict';
import { after, afterEach, before, describe, test } from 'node:test';
import { echoModel } from './echo_model.mjs';
import { core } from './fake_core.mjs';

/** @type {import('../../pkg/index.js').Model} */
let model;

before(async () => {
  model = await echoModel();
});
after(() => model.dispose());
afterEach(() => {
  Object.assign(core, { pace: 0, fault: undefined, steps: 0 });
});

/** @param {string} content */
const user = (content) => ({ role: 'user', content });

/** @param {string} code @param {RegExp} message */
const fault = (code, message) => (/** @type {any} */ error) => error.name === 'DraftreeError' && error.code === code && message.test(error.message);

describe('chat completions', () => {
  test('give a whole answer with usage', async () => {
    const completion = await model.chat.completions.create({ messages: [user('one two three four')], model: 'mine' });
    assert.match(completion.id, /^chatcmpl-[0-9a-f]{24}$/);
    assert.ok(Math.abs(completion.created - Date.now() / 1000) < 60);
    assert.deepEqual({ ...completion, id: '', created: 0 }, {
      id: '',
      created: 0,
      model: 'mine',
      object: 'chat.completion',
      choices: [{ index: 0, message: { role: 'assistant', content: 'one two three four ', refusal: null }, finish_reason: 'stop', logprobs: null }],
      usage: {
        prompt_tokens: 34,
        completion_tokens: 4,
        total_tokens: 53,
        prompt_tokens_details: { cached_tokens: 1 },
        completion_tokens_details: { accepted_prediction_tokens: 2, rejected_prediction_tokens: 4 },
      },
    });
    assert.equal((await model.chat.completions.create({ messages: [user('x')] })).model, 'echo');
  });

  test('stream chunks that make up the answer, with usage behind them if asked for', async () => {
    const stream = await model.chat.completions.create({ messages: [user('a b')], stream: true, stream_options: { include_usage: true } });
    const chunks = [];
    for await (const chunk of stream) chunks.push(chunk);
    assert.deepEqual(chunks.map(({ choices: [choice] }) => choice?.delta), [{ role: 'assistant', content: '' }, { content: 'a ' }, { content: 'b ' }, {}, undefined]);
    assert.deepEqual(chunks.map(({ choices: [choice] }) => choice?.finish_reason), [null, null, null, 'stop', undefined]);
    assert.deepEqual(chunks.map(({ usage }) => usage?.completion_tokens), [undefined, undefined, undefined, undefined, 2]);
    assert.equal(new Set(chunks.map(({ id }) => id)).size, 1);
  });

  test('stop when their reader leaves or a signal fires, and the model is free at once', async () => {
    const stream = await model.chat.completions.create({ messages: [user('a b c d e f')], stream: true });
    for await (const { choices } of stream) if (choices[0]?.delta.content === 'b ') break;
    assert.equal(core.steps, 2);
    const abort = new AbortController();
    core.pace = 5;
    const answer = model.chat.completions.create({ messages: [user('a b c d e f')] }, { signal: abort.signal });
    setTimeout(() => abort.abort(), 12);
    await assert.rejects(answer, fault('aborted', /AbortSignal/));
    core.pace = 0;
    assert.equal((await model.chat.completions.create({ messages: [user('x')] })).choices[0].message.content, 'x ');
  });

  test('tell log-probabilities with the texts of tokens, whole and streamed', async () => {
    const named = (/** @type {string} */ token, /** @type {number} */ byte, /** @type {number} */ logprob) => ({ token, logprob, bytes: [byte] });
    const content = [
      { ...named('a', 97, -1), top_logprobs: [named('a', 97, -1), named('\ufffd', 0xc3, -2)] },
      { ...named('\ufffd', 0xc3, -1), top_logprobs: [named('\ufffd', 0xc3, -1), named('c', 99, -2)] },
    ];
    const request = { messages: [user('x y')], logprobs: true, top_logprobs: 2 };
    const completion = await model.chat.completions.create(request);
    assert.deepEqual(completion.choices[0].logprobs, { content, refusal: null });
    assert.equal(core.options['logprobs'], 2);
    const streamed = [];
    for await (const { choices } of await model.chat.completions.create({ ...request, stream: true })) streamed.push(choices[0]?.logprobs);
    assert.deepEqual(streamed, [null, { content: content.slice(0, 1), refusal: null }, { content: content.slice(1), refusal: null }, null]);
    const alone = await model.chat.completions.create({ messages: [user('x')], logprobs: true });
    assert.deepEqual(alone.choices[0].logprobs, { content: [{ ...named('a', 97, -1), top_logprobs: [] }], refusal: null });
    assert.equal((await model.chat.completions.create({ messages: [user('x')], logprobs: false })).choices[0].logprobs, null);
  });

  test('hand every option on by its own name', async () => {
    await model.chat.completions.create({
      messages: [{ role: 'user', content: [{ type: 'text', text: 'a ' }, { type: 'text', text: 'b' }] }],
      max_completion_tokens: 5,
      top_p: 0.5,
      frequency_penalty: 0.1,
      presence_penalty: 0.2,
      logit_bias: { 7: -1 },
      seed: 3,
      stop: ['x'],
      n: 1,
      user: 'someone',
      draftree: { draft: 'ngram', topK: 4 },
    });
    assert.deepEqual(core.options, {
      temperature: 1,
      maxTokens: 5,
      topP: 0.5,
      frequencyPenalty: 0.1,
      presencePenalty: 0.2,
      logitBias: { 7: -1 },
      seed: 3,
      stop: ['x'],
      draft: 'ngram',
      topK: 4,
    });
  });

  test('refuse what they cannot do', async () => {
    const { completions } = model.chat;
    const refused = (/** @type {any} */ request, /** @type {RegExp} */ message) => assert.rejects(completions.create(request), fault('invalid_option', message));
    await refused({ messages: [user('x')], tools: [] }, /"tools" is not supported/);
    await refused({ messages: [user('x')], temprature: 1 }, /did you mean "temperature"/);
    await refused({ messages: [user('x')], n: 2 }, /n must be 1, not 2/);
    await refused({ messages: [user('x')], top_logprobs: 2 }, /top_logprobs needs logprobs: true/);
    await refused({ messages: [user('x')], logprobs: 5 }, /logprobs must be true or false, not 5/);
    await refused({ messages: [user('x')], logprobs: true, top_logprobs: 21 }, /from 0 to 20/);
    await refused({ messages: 'x' }, /messages must be an array/);
    await refused({ messages: [{ role: 'user', content: [{ type: 'image_url' }] }] }, /message 0 .*image_url.*text only/);
    await refused({ messages: [{ role: 'user' }] }, /message 0 must be/);
    await refused(undefined, /must be an object/);
    await refused({ messages: [user('x')], temperature: -1 }, /temperature/);
  });
});

describe('a session', () => {
  test('remembers its turns', async () => {
    const session = await model.session({ initialPrompts: [{ role: 'system', content: 'be' }], maxTokens: 2 });
    assert.equal(session.inputUsage, 'system:be;'.length + 'assistant:'.length);
    assert.equal(await session.prompt('one two three'), 'one two ');
    assert.deepEqual(session.messages, [{ role: 'system', content: 'be' }, user('one two three'), { role: 'assistant', content: 'one two ' }]);
    assert.equal(session.inputUsage, 'system:be;user:one two three;assistant:one two '.length);
    assert.equal(session.inputQuota, 200);
    assert.ok((await session.measureInputUsage('more')) > 0);
    await session.append([user('noted')]);
    assert.equal(session.messages.length, 4);
    const copy = await session.clone();
    await copy.prompt('x');
    assert.deepEqual([session.messages.length, copy.messages.length], [4, 6]);
  });

  test('streams, and turns wait for each other', async () => {
    const session = await model.session();
    const first = session.promptStreaming('a b c');
    const reader = first.getReader();
    assert.equal((await reader.read()).value, 'a ');
    const second = session.prompt('d');
    assert.equal((await reader.read()).value, 'b ');
    assert.equal((await reader.read()).value, 'c ');
    assert.equal((await reader.read()).done, true);
    assert.equal(await second, 'd ');
    assert.deepEqual(session.messages.map(({ content }) => content), ['a b c', 'a b c ', 'd', 'd ']);
  });

  test('forgets a turn that was stopped', async () => {
    const session = await model.session();
    const reader = session.promptStreaming('a b c d').getReader();
    await reader.read();
    await reader.cancel();
    core.pace = 5;
    const abort = new AbortController();
    setTimeout(() => abort.abort(), 12);
    await assert.rejects(session.prompt('a b c d e', { signal: abort.signal }), fault('aborted', /./));
    core.pace = 0;
    assert.equal(session.messages.length, 0);
    assert.equal(await session.prompt('x'), 'x ');
  });

  test('drops its oldest turns when the context is full, and says so', async () => {
    const session = await model.session({ initialPrompts: [{ role: 'system', content: 's' }], maxTokens: 10 });
    let overflows = 0;
    session.addEventListener('quotaoverflow', () => overflows++);
    session.onquotaoverflow = () => overflows++;
    for (let turn = 0; turn < 8; turn++) await session.prompt(`turn number ${turn}`);
    assert.ok(overflows > 0 && overflows % 2 === 0);
    assert.equal(session.messages[0]?.content, 's');
    assert.equal(session.messages[1]?.role, 'user');
    assert.equal(session.messages.at(-2)?.content, 'turn number 7');
    assert.ok(session.inputUsage <= 200);
  });

  test('ends by destroy() or its signal', async () => {
    const session = await model.session();
    session.destroy();
    await assert.rejects(session.prompt('x'), fault('disposed', /destroyed/));
    await assert.rejects(session.clone(), fault('disposed', /destroyed/));
    await assert.rejects(session.append('x'), fault('disposed', /destroyed/));
    const abort = new AbortController();
    core.pace = 5;
    const other = await model.session({ signal: abort.signal });
    const answer = other.prompt('a b c d e');
    setTimeout(() => abort.abort(), 12);
    await assert.rejects(answer, fault('aborted', /./));
    await assert.rejects(model.session({ signal: AbortSignal.abort() }), fault('aborted', /./));
  });
});
