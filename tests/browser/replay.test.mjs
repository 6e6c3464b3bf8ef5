// @ts-check
/**
 * `draftree eval` replays draft steps on the CPU; here the built package takes them on the GPU. With heads alone both write the tokens of every
 * prompt in the same number of passes, so what the tool says of heads and trees is what a browser gets. How far n-grams and recycling are
 * believed is told to the device while steps are in flight, at a time that is never the same; with them the sums are close.
 */
import assert from 'node:assert/strict';
import { existsSync } from 'node:fs';
import { mkdtemp, readFile, rm, writeFile } from 'node:fs/promises';
import os from 'node:os';
import path from 'node:path';
import { after, before, describe, test } from 'node:test';
import { openModel } from '../../scripts/headless.mjs';
import { fetchModel, knownModels } from '../../scripts/models.mjs';
import { cacheFolder, outputOf, root } from '../../scripts/programs.mjs';
import { browserNames } from './browsers.mjs';

/** @typedef {{ id: string, prompt?: string, turns?: string[] }} Prompt */
/** @typedef {{ draft: string, answers: { id: string, tokens: number, passes: number }[] }} Run */

const sets = ['medusa', 'medusa,ngram,recycling'];
/** By how much the passes of the second may differ, relative to those of the replay. */
const CLOSE = 0.05;
const tree = 'dense:2,2,1';

/**
 * What the tool finds for some prompts.
 * @param {string} model @param {Prompt[]} prompts @param {number} maxTokens @param {string} [heads] those beside the model unless told @returns {Promise<Run[]>}
 */
async function replay(model, prompts, maxTokens, heads) {
  const folder = await mkdtemp(path.join(os.tmpdir(), 'draftree-replay-'));
  try {
    const file = path.join(folder, 'prompts.jsonl');
    await writeFile(file, prompts.map((prompt) => `${JSON.stringify(prompt)}\n`).join(''));
    const options = ['--model', model, '--prompts', file, '--work', folder, '--tree', tree, '--max-tokens', String(maxTokens), '--exact-rows', '--keep', '--json'];
    const drafts = [...sets.flatMap((set) => ['--draft', set]), ...(heads === undefined ? [] : ['--heads', heads])];
    const printed = outputOf('cargo', ['run', '--quiet', '--release', '--features', 'cli', '--', 'eval', ...options, ...drafts]);
    assert.ok(printed, 'draftree eval failed');
    return JSON.parse(printed).runs;
  } finally {
    await rm(folder, { recursive: true });
  }
}

/** The first turn of some prompts, one of each category in turn. @param {string} file @param {number} count @returns {Promise<Prompt[]>} */
async function firstTurns(file, count) {
  const lines = (await readFile(file, 'utf8')).trim().split('\n').map((line) => JSON.parse(line));
  const categories = [...new Set(lines.map(({ category }) => category))];
  const ofEach = Math.ceil(count / categories.length);
  const turns = categories.flatMap((each) => lines.filter(({ category }) => category === each).slice(0, ofEach));
  return turns.slice(0, count).map(({ id, prompt, turns }) => (prompt === undefined ? { id: String(id), turns: turns.slice(0, 1) } : { id: String(id), prompt }));
}

/**
 * Writes the answers of the runs, and compares.
 * @param {import('../../scripts/headless.mjs').HeadlessModel} model @param {Prompt[]} prompts @param {Run[]} runs @param {number} maxTokens
 */
async function compare(model, prompts, runs, maxTokens) {
  for (const { draft, answers } of runs) {
    const sum = { replayed: 0, passes: 0 };
    for (const prompt of prompts) {
      const input = prompt.prompt ?? [{ role: 'user', content: String(prompt.turns?.[0]) }];
      const plain = await model.generate(input, { draft: 'none', maxTokens });
      const { tokens, stats } = await model.generate(input, { draft: draft.split(','), tree, maxTokens });
      assert.deepEqual(tokens, plain.tokens, `${draft}, ${prompt.id}`);
      const replayed = answers.find(({ id }) => id === prompt.id);
      assert.equal(tokens.length, replayed?.tokens);
      if (draft === 'medusa') assert.equal(stats.passes, replayed?.passes, `passes of ${prompt.id}`);
      sum.replayed += replayed?.passes ?? 0;
      sum.passes += stats.passes;
    }
    const { passes, replayed } = sum;
    assert.ok(Math.abs(passes / replayed - 1) < CLOSE, `${draft}: ${passes} passes, ${replayed} by the replay`);
  }
}

for (const browser of browserNames) {
  describe(`steps in ${browser} are those of the replay`, { timeout: 300_000 }, () => {
    /** @type {import('../../scripts/headless.mjs').HeadlessModel} */
    let model;
    before(async () => {
      model = await openModel('stories260k', { browser });
    });
    after(() => model?.close());

    test('with the heads of the embedded model', async () => {
      const prompts = await firstTurns(path.join(root, 'scripts', 'prompts', 'story-openings.jsonl'), 10);
      const runs = await replay(await fetchModel('stories260k'), prompts, 64);
      assert.equal(runs.length, sets.length);
      await compare(model, prompts, runs, 64);
      assert.ok(runs.every(({ answers }) => answers.every(({ tokens, passes }) => passes < tokens)), 'heads were right somewhere in every answer');
    });
  });
}

test('steps of a real model are those of the replay', { timeout: 1_800_000 }, async (context) => {
  const name = 'smollm2-135m-instruct';
  const prompts = path.join(root, '..', 'shared', 'data', 'spec_bench.jsonl');
  if (!existsSync(path.join(cacheFolder, 'models', `${name}.gguf`))) return context.skip(`${name} is not here; \`npm run fetch-model -- ${name}\` fetches it`);
  if (!existsSync(prompts)) return context.skip('Spec-Bench is not here');
  const heads = path.join(root, String(knownModels[name]?.heads));
  const ten = await firstTurns(prompts, 10);
  const model = await openModel(name, { browser: 'chromium', timeoutMs: 600_000 });
  try {
    const [run] = await replay(await fetchModel(name), ten, 32, heads);
    assert.ok(run);
    await compare(model, ten, [run], 32);
  } finally {
    await model.close();
  }
});
