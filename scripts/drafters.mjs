// @ts-check
/**
 * What `npm run bench -- --drafters` measures: each drafter against plain decoding, on the same loaded model, in turns.
 *
 * Every drafter gets a model that was loaded anew, because drafters learn from what they wrote. For each prompt the prompt alone is computed
 * first, from an empty cache; then plain, drafter, plain run on it, so that the drafter is compared with the mean of what plain decoding
 * took just before and just after. All three find the prompt in the cache and write the same tokens, so their times are those of decoding
 * alone, from the call to the last token, and the ratio of the times is that of the speeds. A drafter sees each prompt once: it has learnt
 * from other texts only. Where a text takes a fraction of a second all of this is repeated, from the loading on, and the medians count.
 * Tokens that differ from those of plain decoding are a fault.
 */
import { median } from './numbers.mjs';
import { say } from './programs.mjs';
import { shorten } from './tasks.mjs';

/** @typedef {import('./tasks.mjs').Task} Task */
/** @typedef {import('./headless.mjs').Result} Result */
/** @typedef {{ repeats: number, maxTokens: number, maxPromptTokens: number, options: Record<string, unknown> }} Settings `options` are those of `generate` */

/**
 * One prompt with one drafter.
 * @typedef {object} Row
 * @property {string | number} id
 * @property {string} category
 * @property {number} promptTokens
 * @property {number} prefillMs the prompt from an empty cache, and one pass
 * @property {number} tokens
 * @property {number} passes
 * @property {number} ms with the drafter
 * @property {number} plainMs without, the mean of before and after
 * @property {number} ratio how many times faster than plain decoding
 * @property {boolean} identical
 * @property {Result['stats']['draft']} draft
 */

/** Numbers of rows that passes have. */
const SIZES = [1, 2, 4, 8, 16];

/** What came before the measured prompts: the number of steps in flight is found. */
const WARM_UP = 'The sun was up. The bird sang and the dog ran. The sun was up, and the bird sang again.';

/**
 * @param {import('./headless.mjs').HeadlessModel} model @param {string} drafter as for `--draft` @param {Task[]} tasks @param {Settings} settings
 */
export async function measureDrafter(model, drafter, tasks, settings) {
  /** @type {Row[][]} */
  const rounds = [];
  for (let i = 0; i < settings.repeats; i++) rounds.push(await measureRound(model, drafter, tasks, settings));
  const rows = tasks.map((_, i) => medianRow(rounds.map((round) => /** @type {Row} */ (round[i]))));
  return { drafter, ...summary(rows), categories: byCategory(rows), prompts: rows };
}

/** The row whose tokens and passes are those of the first round, and whose times are medians. @param {Row[]} rows @returns {Row} */
function medianRow(rows) {
  const [first] = /** @type {[Row, ...Row[]]} */ (rows);
  const over = (/** @type {(row: Row) => number} */ figure) => median(rows.map(figure));
  return {
    ...first,
    prefillMs: over((row) => row.prefillMs),
    ms: over((row) => row.ms),
    plainMs: over((row) => row.plainMs),
    ratio: over((row) => row.ratio),
    identical: rows.every(({ identical }) => identical),
  };
}

/**
 * @param {import('./headless.mjs').HeadlessModel} model @param {string} drafter @param {Task[]} tasks @param {Settings} settings
 */
async function measureRound(model, drafter, tasks, { maxTokens, maxPromptTokens, options }) {
  await model.reload();
  // Waits for the kernels of every size: compiling them in the background takes time from whatever is measured meanwhile.
  await model.benchmark({ rows: SIZES, repeats: 1, context: 16 });
  const plain = { ...options, maxTokens, draft: 'none' };
  const drafting = { ...options, maxTokens, draft: drafter.includes(',') ? drafter.split(',') : drafter };
  const limit = Math.min(maxPromptTokens, Number(model.info['contextLength']) - maxTokens);
  for (const each of [plain, drafting]) await model.generate(WARM_UP, { ...each, tree: 'auto', maxTokens: 24, ignoreEos: true });
  /** @type {Row[]} */
  const rows = [];
  for (const task of tasks) {
    const { id, category, prompt } = await shorten(task, limit, (prompt) => model.countTokens(prompt));
    const prefill = await model.generate(prompt, { ...plain, maxTokens: 1 });
    const before = await model.generateAgain(prompt, plain);
    const drafted = await model.generateAgain(prompt, drafting);
    const after = await model.generateAgain(prompt, plain);
    const plainMs = (decodeMs(before) + decodeMs(after)) / 2;
    const row = {
      id,
      category,
      promptTokens: prefill.usage.promptTokens,
      prefillMs: prefill.stats.prefillMs,
      tokens: drafted.tokens.length,
      passes: drafted.stats.passes,
      ms: decodeMs(drafted),
      plainMs,
      ratio: plainMs / decodeMs(drafted),
      identical: [drafted, after].every(({ tokens }) => tokens.join() === before.tokens.join()),
      draft: drafted.stats.draft,
    };
    rows.push(row);
    say(
      `  ${drafter.padEnd(10)} ${String(id).padEnd(14)} ${category.padEnd(16)} ${String(row.promptTokens).padStart(4)} + ${String(row.tokens).padEnd(3)} ` +
        `${(row.tokens / row.passes).toFixed(2)} tokens/pass  ${row.ratio.toFixed(2)}x${row.identical ? '' : '  OTHER TOKENS'}`,
    );
  }
  return rows;
}

/** From the call to the last token. @param {Result} result */
const decodeMs = ({ stats }) => stats.timeToFirstTokenMs + stats.decodeMs;

/** @param {readonly number[]} values */
const sum = (values) => values.reduce((total, value) => total + value, 0);

/** Sums over prompts, so that long answers count for more. @param {readonly Row[]} rows */
export function summary(rows) {
  const total = (/** @type {(row: Row) => number} */ figure) => sum(rows.map(figure));
  const [tokens, ms, plainMs] = [total((row) => row.tokens), total((row) => row.ms), total((row) => row.plainMs)];
  return {
    ratio: plainMs / ms,
    medianRatio: median(rows.map((row) => row.ratio)),
    tokensPerPass: tokens / total((row) => row.passes),
    tokensPerSecond: (1000 * tokens) / ms,
    plainTokensPerSecond: (1000 * tokens) / plainMs,
    promptTokensPerSecond: (1000 * total((row) => row.promptTokens)) / total((row) => row.prefillMs),
    identical: rows.every((row) => row.identical),
  };
}

/** @param {readonly Row[]} rows */
export function byCategory(rows) {
  return [...new Set(rows.map(({ category }) => category))].map((category) => {
    const mine = rows.filter((row) => row.category === category);
    const { ratio, tokensPerPass, identical } = summary(mine);
    return { category, prompts: mine.length, ratio, tokensPerPass, identical };
  });
}
