// @ts-check
/**
 * How drafting is measured, in the benchmark page and by `npm run bench -- --drafters` alike: each variant (a drafter, with a tree)
 * against plain decoding, on the same loaded model, in turns.
 *
 * Every variant gets a model that was loaded anew, because drafters learn from what they wrote. For each prompt the prompt alone is computed
 * first, from an empty cache; then plain, variant, plain run on it, so that the variant is compared with the mean of what plain decoding
 * took just before and just after. All three find the prompt in the cache and write the same tokens, so their times are those of decoding
 * alone, from the call to the last token, and the ratio of the times is that of the speeds. A variant sees each prompt once: it has learnt
 * from other texts only. All of this is repeated, from the loading on, with the variants in another order each time.
 * Tokens that differ from those of plain decoding are a fault, unless a rule of acceptance was chosen that allows it.
 */
import { shorten } from './prompts.js';

/** @import { DraftStats, GenerateOptions, GenerationResult, ModelInfo } from '../pkg/index.js' */
/** @import { Message, Task } from './prompts.js' */

/** @typedef {{ rows: number, ms: number }} PassTime */
/** @typedef {Pick<GenerationResult, 'tokens' | 'usage' | 'stats'>} Result */
/**
 * One loaded model, wherever it runs.
 * @typedef {object} Runner
 * @property {ModelInfo} info
 * @property {(prompt: string | Message[], options: GenerateOptions) => Promise<Result>} generate from an empty cache
 * @property {(prompt: string | Message[], options: GenerateOptions) => Promise<Result>} generateAgain finds in the cache what the last one left
 * @property {(prompt: string | Message[]) => Promise<number>} countTokens
 * @property {(options: { rows: number[], repeats: number, context: number }) => Promise<Record<string, unknown>>} benchmark as of the package
 * @property {() => Promise<number>} reload a model that has learnt nothing; returns how many milliseconds that took
 */
/** @typedef {{ name: string, options: GenerateOptions }} Variant */
/**
 * @typedef {object} Plan
 * @property {readonly Task[]} tasks
 * @property {readonly Variant[]} variants
 * @property {number} repeats
 * @property {number} maxTokens
 * @property {number} maxPromptTokens the middle of longer prompts is cut out
 * @property {readonly number[]} sizes numbers of rows whose passes are timed
 * @property {GenerateOptions} options of all generations, plain ones among them
 */
/**
 * One prompt with one variant.
 * @typedef {object} Row
 * @property {string} variant
 * @property {string | number} id
 * @property {string} category
 * @property {number} promptTokens
 * @property {number} prefillMs the prompt from an empty cache, and one pass: the time to the first token
 * @property {number} tokens
 * @property {number} passes
 * @property {number} ms with the variant
 * @property {number} plainMs without, the mean of before and after
 * @property {number} ratio how many times faster than plain decoding
 * @property {boolean} identical
 * @property {number} peakWasmBytes
 * @property {DraftStats} draft
 */
/** @typedef {{ rows: Row[], passes: PassTime[][], loadMs: number[] }} Measured what there is so far, in the order it came */
/** @typedef {{ done: number, total: number, row?: Row }} Step */

/** What comes before the measured prompts: the number of steps in flight is found. */
const WARM_UP = 'The sun was up. The bird sang and the dog ran. The sun was up, and the bird sang again.';

/**
 * Measures, adding to `measured`, and tells after each step how many there are. The caller may stop between steps, and what was measured stays.
 * @param {Runner} runner @param {Plan} plan @param {Measured} measured
 * @returns {AsyncGenerator<Step, void, void>}
 */
export async function* measure(runner, plan, measured) {
  const { tasks, variants, repeats } = plan;
  const total = repeats * variants.length * (tasks.length + 1);
  let done = 0;
  for (let repeat = 0; repeat < repeats; repeat++) {
    for (let i = 0; i < variants.length; i++) {
      const variant = /** @type {Variant} */ (variants[(repeat + i) % variants.length]);
      await prepare(runner, plan, variant, measured);
      yield { done: ++done, total };
      for (const task of tasks) {
        const row = await measureTask(runner, plan, variant, task);
        measured.rows.push(row);
        yield { done: ++done, total, row };
      }
    }
  }
}

/** A model that has learnt nothing and has its kernels. @param {Runner} runner @param {Plan} plan @param {Variant} variant @param {Measured} measured */
async function prepare(runner, plan, variant, measured) {
  measured.loadMs.push(await runner.reload());
  // Waits for the kernels of every size: compiling them in the background takes time from whatever is measured meanwhile.
  const { passes } = await runner.benchmark({ rows: [...plan.sizes], repeats: 1, context: 16 });
  measured.passes.push(/** @type {PassTime[]} */ (passes));
  for (const options of [plainOptions(plan), draftedOptions(plan, variant)]) {
    await runner.generate(WARM_UP, { ...options, tree: 'auto', maxTokens: Math.min(plan.maxTokens, 24), ignoreEos: true });
  }
}

/** @param {Runner} runner @param {Plan} plan @param {Variant} variant @param {Task} task @returns {Promise<Row>} */
async function measureTask(runner, plan, variant, task) {
  const limit = Math.min(plan.maxPromptTokens, runner.info.contextLength - plan.maxTokens);
  const { id, category, prompt } = await shorten(task, limit, (prompt) => runner.countTokens(prompt));
  const plain = plainOptions(plan);
  const prefill = await runner.generate(prompt, { ...plain, maxTokens: 1 });
  const before = await runner.generateAgain(prompt, plain);
  const drafted = await runner.generateAgain(prompt, draftedOptions(plan, variant));
  const after = await runner.generateAgain(prompt, plain);
  const plainMs = (decodeMs(before) + decodeMs(after)) / 2;
  return {
    variant: variant.name,
    id,
    category,
    promptTokens: prefill.usage.promptTokens,
    prefillMs: prefill.stats.timeToFirstTokenMs,
    tokens: drafted.tokens.length,
    passes: drafted.stats.passes,
    ms: decodeMs(drafted),
    plainMs,
    ratio: plainMs / decodeMs(drafted),
    identical: [drafted, after].every(({ tokens }) => tokens.join() === before.tokens.join()),
    peakWasmBytes: after.stats.peakWasmBytes,
    draft: drafted.stats.draft,
  };
}

/** @param {Plan} plan @returns {GenerateOptions} */
const plainOptions = ({ options, maxTokens }) => ({ ...options, maxTokens, draft: 'none' });

/** @param {Plan} plan @param {Variant} variant @returns {GenerateOptions} */
const draftedOptions = ({ options, maxTokens }, variant) => ({ ...options, maxTokens, ...variant.options });

/** From the call to the last token. @param {Result} result */
const decodeMs = ({ stats }) => stats.timeToFirstTokenMs + stats.decodeMs;
