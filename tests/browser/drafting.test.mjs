// @ts-check
/**
 * Drafting never changes the text: in both browsers the tokens are those of plain decoding, for every drafter, shape of tree and number of
 * steps in flight, greedy and sampled. And what the stats say of it adds up.
 */
import assert from 'node:assert/strict';
import { existsSync } from 'node:fs';
import path from 'node:path';
import { after, before, describe, test } from 'node:test';
import { fetchModel } from '../../scripts/models.mjs';
import { cacheFolder } from '../../scripts/programs.mjs';
import { browserNames, HeadlessModel, openSession } from './browsers.mjs';

/** @typedef {import('../../scripts/headless.mjs').Result} Result */
/** @typedef {Record<string, unknown>} Options */

const stories = '/models/stories260K/stories260K-q8_0.gguf';

const prompts = [
  'Tom had a red ball. "Do you want to play with my red ball?" he asked the cat. "No," said the cat. "Do you want to',
  'Once upon a time',
  'The bus stopped, and a girl got on the bus. The bus stopped, and a boy got on the bus. The bus stopped, and',
];
const samplings = [
  {},
  { temperature: 0.7, seed: 3 },
  { temperature: 1, topK: 40, topP: 0.9, seed: 4 },
  { temperature: 0.7, minP: 0.05, repetitionPenalty: 1.2, frequencyPenalty: 0.2, presencePenalty: 0.1, logitBias: { 261: 1.5 }, seed: 5 },
  { repetitionPenalty: 1.1, presencePenalty: 0.3 },
];
const drafters = ['medusa', 'ngram', 'recycling', ['ngram', 'recycling'], 'auto'];
/** A binary tree, one that Medusa published the like of, a chain, and grown ones. @type {Options[]} */
const trees = [
  {},
  { tree: 'dense:2,2,2' },
  { tree: [[0], [0, 0], [1], [0, 1], [2], [0, 0, 0], [1, 0], [3], [0, 0, 1], [0, 0, 0, 0]] },
  { maxNodes: 64 },
  { tree: [[0], [0, 0], [0, 0, 0], [0, 0, 0, 0]] },
  { maxNodes: 3 },
];

/** Every prompt with every way to sample; drafters, trees and steps in flight go round, each at its own pace. */
function* runs() {
  let count = 0;
  for (const sampling of samplings) {
    for (const prompt of prompts) {
      const drafting = Array.from({ length: 3 }, () => {
        const run = { draft: drafters[count % drafters.length], ...trees[count % trees.length], ...(count % 5 === 0 && { stepsInFlight: 1 }) };
        count++;
        return run;
      });
      yield { prompt, sampling, drafting };
    }
  }
}

/** @param {HeadlessModel} model @param {string | import('../../scripts/headless.mjs').Message[]} prompt @param {Options} options */
const generate = (model, prompt, options) => model.generate(prompt, { ignoreEos: true, ...options });

/** @param {Result} result */
function checkStats({ tokens, finishReason, stats }) {
  const { drafters, rowsPerStep, acceptance, tokensBySource, maxNodes } = stats.draft;
  const sum = (/** @type {number[]} */ values) => values.reduce((a, b) => a + b, 0);
  assert.equal(sum(Object.values(tokensBySource)), tokens.length);
  assert.equal(sum(rowsPerStep.map(([, passes]) => passes)), stats.passes);
  assert.ok(rowsPerStep.every(([rows]) => rows >= 1 && rows <= maxNodes));
  assert.ok(Math.abs(stats.tokensPerPass - tokens.length / stats.passes) < 1e-9);
  // One submit a step, and no more of them behind the end than were in flight.
  assert.ok(stats.submits >= stats.passes && stats.submits < stats.passes + stats.stepsInFlight, `${stats.submits} submits, ${stats.passes} passes`);
  assert.deepEqual(Object.keys(acceptance), [...drafters]);
  for (const drafter of drafters) {
    const depths = acceptance[drafter] ?? [];
    assert.deepEqual(depths.map(({ depth }) => depth), depths.map((_, index) => index + 1));
    for (const { offered, accepted } of depths) assert.ok(accepted <= offered);
    // What was accepted was written, but for what stood behind a stop string.
    if (finishReason !== 'stop') assert.equal(sum(depths.map(({ accepted }) => accepted)), tokensBySource[drafter]);
  }
}

for (const browser of browserNames) {
  describe(`drafting in ${browser}`, { timeout: 300_000 }, () => {
    /** @type {import('../../scripts/headless.mjs').Session} */
    let session;
    /** @type {HeadlessModel} */
    let model;
    before(async () => {
      session = await openSession({ browser });
      model = await HeadlessModel.load(session, session.server.url + stories);
    });
    after(() => session?.close());

    test('writes the tokens of plain decoding, whoever drafts', async () => {
      let drafted = 0;
      let passes = 0;
      for (const { prompt, sampling, drafting } of runs()) {
        // A single step in flight waits for Firefox's clock, 100 ms a step.
        const plain = await generate(model, prompt, { ...sampling, draft: 'none', maxTokens: 32 });
        assert.deepEqual(plain.stats.draft.drafters, []);
        checkStats(plain);
        for (const options of drafting) {
          const maxTokens = options.stepsInFlight === 1 && browser === 'firefox' ? 12 : 32;
          const result = await generate(model, prompt, { ...sampling, ...options, maxTokens });
          const what = JSON.stringify({ prompt, ...sampling, ...options });
          assert.deepEqual(result.tokens, plain.tokens.slice(0, maxTokens), what);
          assert.equal(result.finishReason, 'length', what);
          checkStats(result);
          drafted += result.tokens.length - result.stats.draft.tokensBySource.plain;
          passes += result.stats.passes;
        }
      }
      assert.ok(drafted > 100, `only ${drafted} drafted tokens were accepted in ${passes} passes: nothing was tried`);
    });

    test('ends where plain decoding ends: at every number of tokens, at stop strings, at the end of the context', async () => {
      const [prompt = ''] = prompts;
      const tree = { draft: 'auto', tree: 'dense:2,2,2' };
      const plain = await generate(model, prompt, { draft: 'none', maxTokens: 24 });
      for (let maxTokens = 1; maxTokens <= 9; maxTokens++) {
        const { tokens } = await generate(model, prompt, { ...tree, maxTokens });
        assert.deepEqual(tokens, plain.tokens.slice(0, maxTokens));
      }
      for (const stop of [plain.text.slice(7, 13), plain.text.slice(20, 22)]) {
        const [expected, found] = [await generate(model, prompt, { draft: 'none', maxTokens: 24, stop }), await generate(model, prompt, { ...tree, maxTokens: 24, stop })];
        assert.equal(expected.finishReason, 'stop');
        assert.deepEqual([found.text, found.tokens, found.finishReason], [expected.text, expected.tokens, 'stop']);
        checkStats(found);
      }
      const long = 'The cat sat. '.repeat(76);
      const [expected, found] = [await generate(model, long, { draft: 'none' }), await generate(model, long, tree)];
      assert.equal(expected.finishReason, 'context');
      assert.deepEqual([found.tokens, found.finishReason], [expected.tokens, 'context']);
    });

    test('chunks tell where each token came from and what it added', async () => {
      const chunks = await session.page.evaluate(async (prompt) => {
        /** @type {import('../../pkg/index.js').GenerationChunk[]} */
        const chunks = [];
        const generation = /** @type {any} */ (globalThis).model.generate(prompt, { draft: ['ngram', 'recycling'], tree: 'dense:2,2', maxTokens: 48 });
        for await (const chunk of generation) chunks.push(chunk);
        return chunks;
      }, String(prompts[2]));
      const sources = chunks.flatMap(({ sources }) => sources);
      assert.ok(sources.includes('ngram') && sources.includes('plain'), sources.join());
      for (const { text, tokens, sources, pieces } of chunks) {
        assert.deepEqual([sources.length, pieces.length], [tokens.length, tokens.length]);
        assert.equal(pieces.join(''), text);
      }
      for (const { sources } of chunks.slice(0, -1)) assert.equal(sources.indexOf('plain'), sources.length - 1);
    });

    test('what cannot be drafted with is refused, naming what is wrong', async () => {
      for (const [options, message] of /** @type {[Options, RegExp][]} */ ([
        [{ draft: 'ngrams' }, /did you mean "ngram"/],
        [{ tree: [[0], [1, 0]] }, /its parent \[1\] is not/],
        [{ tree: 'dense:8,8' }, /more than 64/],
        [{ draft: 'medusa', tree: 'dense:1,1,1,1,1' }, /deepest node is at depth 5, but the draft heads guess 4/],
        [{ maxNodes: 65 }, /from 1 to 64/],
      ])) {
        await assert.rejects(generate(model, 'x', options), (/** @type {any} */ error) => error.code === 'invalid_option' && message.test(error.message));
      }
      assert.deepEqual(model.info['drafters'], ['medusa', 'ngram', 'recycling']);
      const bare = await HeadlessModel.load(session, session.server.url + stories, { options: { heads: null } });
      assert.deepEqual(bare.info['drafters'], ['ngram', 'recycling']);
      await assert.rejects(generate(bare, 'x', { draft: 'medusa' }), { code: 'invalid_option', message: /medusa has nothing to work with/ });
      assert.deepEqual(session.page.errors, []);
    });
  });
}

test('a real model writes the tokens of plain decoding', { timeout: 600_000 }, async (context) => {
  const name = 'smollm2-135m-instruct';
  if (!existsSync(path.join(cacheFolder, 'models', `${name}.gguf`))) {
    return context.skip(`${name} is not here; \`npm run fetch-model -- ${name}\` fetches it`);
  }
  const session = await openSession({ browser: 'chromium', mounts: { '/model.gguf': await fetchModel(name) } });
  try {
    const model = await HeadlessModel.load(session, `${session.server.url}/model.gguf`);
    const prompt = [{ role: 'user', content: 'Write the days of the week in a list, then write the same list again.' }];
    for (const sampling of [{}, { temperature: 0.8, topP: 0.95, seed: 7 }]) {
      const plain = await generate(model, prompt, { ...sampling, draft: 'none', maxTokens: 24 });
      for (const drafting of [{ draft: 'auto' }, { draft: ['ngram', 'recycling'], tree: 'dense:2,1,1' }]) {
        const result = await generate(model, prompt, { ...sampling, ...drafting, maxTokens: 24 });
        assert.deepEqual(result.tokens, plain.tokens, JSON.stringify({ ...sampling, ...drafting }));
        checkStats(result);
      }
    }
  } finally {
    await session.close();
  }
});
