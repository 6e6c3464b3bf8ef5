// @ts-check
/**
 * `npm run bench -- --model M [--browser B] [--json] [--drafters | --peers]`: what a model costs in a headless browser, by the built package.
 *
 * Milliseconds per pass for 1, 2, 4, 8, 16 and 32 rows and how many times those of one row that is, time per kernel for each (the
 * package's own `benchmark`), prefill and plain decode tokens/s, time to first token, load time cold and cached, peak wasm memory.
 * Generation figures are medians of `--repeats`.
 *
 * `--drafters` compares drafters with plain decoding instead, prompt by prompt and category by category, as the benchmark page does; with
 * `--json` the report is one that the page opens. Other tokens than those of plain decoding give exit status 1.
 *
 * `--peers` compares with wllama instead: all engines in turn, in another order each time, in one run, medians of `--repeats`.
 * Only ratios within one run mean anything on a shared machine. With `--json` standard output is one JSON object on one line.
 */
import { pathToFileURL } from 'node:url';
import { snakeCase } from '../www/bench/names.js';
import { median } from '../www/bench/summary.js';
import { browserNames } from './browsers.mjs';
import { build } from './build.mjs';
import { compareDrafters, printComparison } from './drafters.mjs';
import { draftOptions, draftSpecs } from './drafting.mjs';
import { Failure, runMain } from './failure.mjs';
import { stageLines } from './generate.mjs';
import { openModel } from './headless.mjs';
import { resolveModel } from './models.mjs';
import { printReport } from './numbers.mjs';
import { helpText, parseOptions } from './options.mjs';
import { runEngine } from './peers.mjs';
import { say } from './programs.mjs';
import { setup } from './setup.mjs';
import { readTasks } from './tasks.mjs';

/** @typedef {import('./peers.mjs').Engine} Engine */
/** @typedef {import('./peers.mjs').Run} Run */

const ROWS = [1, 2, 4, 8, 16, 32];

/** Passes that take less make texts so short that one measurement says little. */
const SHORT_PASS_MS = 20;

/** About 100 tokens, and plain enough for every tokenizer. The number makes each repeat's prompt new to every prompt cache. */
const PROMPT = (/** @type {number} */ i) =>
  `${['First', 'Second', 'Third', 'Fourth', 'Fifth', 'Sixth', 'Seventh', 'Eighth', 'Ninth', 'Tenth'][i % 10]} story. Once upon a time there was a little ` +
  'girl who lived with her grandmother in a small house at the edge of a forest. Every morning she walked to the river to fetch water, and ' +
  'every evening she sat by the fire and listened to the old stories. One day, when the leaves were turning red and gold, she found a strange ' +
  'box under a tree. It was made of dark wood, and it was warm to the touch. She carried it home and put it on the table. Then';

const specs = /** @type {const} */ ({
  model: { type: 'text', value: 'M', help: 'a known name, a .gguf file, a folder, a URL or a hub id; smollm2-135m-instruct unless told' },
  browser: { type: 'text', choices: browserNames, help: 'chromium unless told' },
  drafters: { type: 'flag', help: 'compare drafters with plain decoding, interleaved' },
  draft: { type: 'texts', value: 'WHO', help: 'with --drafters: a drafter, auto, or several with commas; every one there is and auto unless told' },
  heads: draftSpecs.heads,
  tree: draftSpecs.tree,
  'max-nodes': draftSpecs['max-nodes'],
  accept: draftSpecs.accept,
  prompts: { type: 'text', value: 'SET', help: 'repetitive (unless told), spec-bench, or a file of JSON lines {id, category, prompt}' },
  categories: { type: 'text', value: 'A,B', help: 'only these categories' },
  'per-category': { type: 'integer', min: 1, value: 'N', help: 'prompts of each category; 2 of spec-bench, else all' },
  'max-prompt-tokens': { type: 'integer', min: 16, value: 'N', help: 'the middle of longer prompts is cut out; 512 unless told' },
  temperature: { type: 'number', min: 0, value: 'T', help: 'with --drafters; 0 unless told' },
  seed: { type: 'integer', min: 0, value: 'S', help: 'with --drafters' },
  peers: { type: 'flag', help: 'compare with wllama, interleaved (Chromium, a GGUF file)' },
  repeats: { type: 'integer', min: 1, max: 10, value: 'N', help: '3 unless told; with --drafters 1, or 5 for models of short passes' },
  'max-tokens': { type: 'integer', min: 2, value: 'N', help: 'tokens to write each time; 32, or 64 with --drafters, unless told' },
  'steps-in-flight': { type: 'integer', min: 1, value: 'S', help: 'as for generate' },
  json: { type: 'flag', help: 'one JSON object' },
  help: { type: 'flag', help: 'this list' },
});

/** @param {readonly string[]} argv */
async function main(argv) {
  const { values } = parseOptions(argv, specs);
  if (values.help) return void console.log(helpText('npm run bench -- [options]    what a model costs in a headless browser', specs));
  const browser = values.browser === 'firefox' ? 'firefox' : 'chromium';
  const model = values.model ?? 'smollm2-135m-instruct';
  const { repeats = 3, 'max-tokens': maxTokens = values.drafters ? 64 : 32 } = values;
  if (values.peers && values.drafters) throw new Failure('invalid_option', '--drafters and --peers exclude each other.');
  const { file } = await resolveModel(model, '/model/');
  if (values.peers && (browser !== 'chromium' || !file?.endsWith('.gguf'))) {
    throw new Failure('invalid_option', '--peers compares in Chromium, with a model that is one GGUF file on disk.');
  }
  await setup({ browsers: [browser] });
  await build();
  if (values.drafters) return measureDrafters(model, browser, maxTokens, values);
  const report = values.peers
    ? await comparePeers(/** @type {string} */ (file), repeats, maxTokens)
    : await measureModel(model, browser, values.heads, repeats, { maxTokens, ...(values['steps-in-flight'] ? { stepsInFlight: values['steps-in-flight'] } : {}) });
  if (values.json) console.log(JSON.stringify({ model, ...report }));
  else printReport(model, report);
}

/**
 * @param {string} name @param {import('./browsers.mjs').BrowserName} browser @param {number} maxTokens
 * @param {import('./options.mjs').Values<typeof specs>} values
 * @returns {Promise<number>} the exit status
 */
async function measureDrafters(name, browser, maxTokens, values) {
  const { prompts = 'repetitive', categories, temperature, seed, tree, accept } = values;
  const { 'max-nodes': maxNodes, 'max-prompt-tokens': maxPromptTokens = 512 } = values;
  const options = { ...(await draftOptions({ tree, 'max-nodes': maxNodes, accept })), ...(temperature && { temperature }), ...(seed && { seed }) };
  say(`Loading ${name} in ${browser} …`);
  const model = await openModel(name, { browser, heads: values.heads, onProgress: stageLines() });
  try {
    const { info } = model;
    const perCategory = values['per-category'] ?? (prompts === 'spec-bench' ? 2 : undefined);
    const tasks = await readTasks(prompts, { chat: info.hasChatTemplate, categories: categories?.split(','), perCategory });
    const repeats = values.repeats ?? ((info.passMs[1] ?? 0) < SHORT_PASS_MS ? 5 : 1);
    const drafters = values.draft ?? [...info.drafters, 'auto'];
    const report = await compareDrafters(model, drafters, { tasks, repeats, maxTokens, maxPromptTokens, options }, { model: name, prompts });
    return printComparison(report, values.json ?? false);
  } finally {
    await model.close();
  }
}

/**
 * @param {string} name @param {import('./browsers.mjs').BrowserName} browser @param {string | undefined} heads @param {number} repeats
 * @param {{ maxTokens: number, stepsInFlight?: number }} options
 */
async function measureModel(name, browser, heads, repeats, options) {
  say(`Loading ${name} in ${browser} …`);
  const model = await openModel(name, { browser, heads, onProgress: stageLines() });
  try {
    const loadCachedMs = await model.reload();
    say('Timing passes and kernels …');
    const { passes, kernels, headKernels, ...benchmark } = await model.benchmark({ rows: ROWS });
    const times = /** @type {{ rows: number, ms: number }[]} */ (passes);
    const [one = NaN] = times.filter(({ rows }) => rows === 1).map(({ ms }) => ms);
    /** @type {import('./headless.mjs').Result[]} */
    const results = [];
    for (let i = 0; i < repeats; i++) {
      say(`Generating, ${i + 1} of ${repeats} …`);
      results.push(await model.generate(PROMPT(i), { ...options, draft: 'none', ignoreEos: true }));
    }
    const over = (/** @type {(result: import('./headless.mjs').Result) => number} */ figure) => median(results.map(figure));
    return {
      browser: model.browserVersion,
      adapter: model.info.adapter,
      passes: times.map(({ rows, ms }) => ({ rows, ms, times_one_row: ms / one })),
      ...snakeCase(benchmark),
      kernels: kernels && byKernel(/** @type {KernelTime[]} */ (kernels)),
      ...(headKernels ? { head_kernels: headKernels } : {}),
      prompt_tokens: over(({ usage }) => usage.promptTokens),
      prefill_tokens_per_second: over(({ usage, stats }) => (1000 * usage.promptTokens) / stats.prefillMs),
      decode_tokens_per_second: over(({ stats }) => stats.tokensPerSecond),
      time_to_first_token_ms: over(({ stats }) => stats.timeToFirstTokenMs),
      steps_in_flight: over(({ stats }) => stats.stepsInFlight),
      dispatches_per_pass: over(({ stats }) => stats.dispatchesPerPass),
      load_cold_ms: model.loadMs,
      load_cached_ms: loadCachedMs,
      peak_wasm_bytes: Math.max(...results.map(({ stats }) => stats.peakWasmBytes)),
    };
  } finally {
    await model.close();
  }
}

/** @typedef {{ name: string, rows: number, launches: number, ms: number }} KernelTime */

/** One line a kernel, one column for each number of rows. @param {KernelTime[]} times */
function byKernel(times) {
  return times
    .filter(({ rows }) => rows === times[0]?.rows)
    .map(({ name, launches }) => ({
      name,
      launches,
      ...Object.fromEntries(times.filter((time) => time.name === name).map(({ rows, ms }) => [`ms_${rows}`, ms])),
    }));
}

/** @param {string} file @param {number} repeats @param {number} maxTokens */
async function comparePeers(file, repeats, maxTokens) {
  /** @type {Engine[]} */
  const engines = ['draftree', 'wllama', 'wllama-cpu'];
  /** @type {Run[]} */
  const runs = [];
  for (let i = 0; i < repeats; i++) {
    for (let j = 0; j < engines.length; j++) {
      const engine = /** @type {Engine} */ (engines[(i + j) % engines.length]);
      const run = await runEngine(engine, file, { prompt: PROMPT(i), maxTokens });
      runs.push(run);
      say(`${i + 1}/${repeats} ${engine.padEnd(10)} on ${run.ranOn}: ${figures(run)}`);
    }
  }
  const summaries = engines.map((engine) => summary(engine, runs.filter((run) => run.engine === engine)));
  const [own, ...others] = /** @type {[Summary, ...Summary[]]} */ (summaries);
  const ratios = others.map((other) => ({
    against: `${other.engine} (${other.ran_on})`,
    decode: own.decode_tokens_per_second / other.decode_tokens_per_second,
    prefill: own.prefill_tokens_per_second / other.prefill_tokens_per_second,
    load_cold: own.load_cold_ms / other.load_cold_ms,
    load_cached: own.load_cached_ms / other.load_cached_ms,
  }));
  return { browser: 'chromium', repeats, engines: summaries, ratios };
}

/** @typedef {ReturnType<typeof summary>} Summary */
/** @param {Engine} engine @param {Run[]} runs */
function summary(engine, runs) {
  return {
    engine,
    ran_on: runs[0]?.ranOn ?? '',
    decode_tokens_per_second: median(runs.map((run) => run.decodeTokensPerSecond)),
    prefill_tokens_per_second: median(runs.map((run) => run.prefillTokensPerSecond)),
    load_cold_ms: median(runs.map((run) => run.loadColdMs)),
    load_cached_ms: median(runs.map((run) => run.loadCachedMs)),
  };
}

/** @param {Run} run */
function figures({ decodeTokensPerSecond, prefillTokensPerSecond, loadColdMs, loadCachedMs }) {
  return (
    `decode ${decodeTokensPerSecond.toFixed(2)} tokens/s, prefill ${prefillTokensPerSecond.toFixed(1)} tokens/s, ` +
    `load ${(loadColdMs / 1000).toFixed(2)} s cold, ${(loadCachedMs / 1000).toFixed(2)} s cached`
  );
}

if (import.meta.url === pathToFileURL(process.argv[1] ?? '').href) {
  const argv = process.argv.slice(2);
  await runMain(
    () => main(argv),
    (error) => (argv.includes('--json') ? console.log(JSON.stringify({ error })) : say(JSON.stringify({ error }))),
  );
}
