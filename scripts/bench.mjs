// @ts-check
/**
 * `npm run bench -- --model M [--browser B] [--json] [--peers]`: what a model costs in a headless browser, by the built package.
 *
 * Milliseconds per pass for 1, 2, 4, 8, 16 and 32 rows and time per kernel (the package's own `benchmark`), prefill and decode
 * tokens/s, time to first token, load time cold and cached, peak wasm memory. Generation figures are medians of `--repeats`.
 *
 * `--peers` compares with wllama instead: all engines in turn, in another order each time, in one run, medians of `--repeats`.
 * Only ratios within one run mean anything on a shared machine. With `--json` standard output is one JSON object on one line.
 */
import { pathToFileURL } from 'node:url';
import { browserNames } from './browsers.mjs';
import { build } from './build.mjs';
import { Failure, runMain } from './failure.mjs';
import { snakeCase, stageLines } from './generate.mjs';
import { openModel } from './headless.mjs';
import { resolveModel } from './models.mjs';
import { helpText, parseOptions } from './options.mjs';
import { runEngine } from './peers.mjs';
import { say } from './programs.mjs';
import { setup } from './setup.mjs';

/** @typedef {import('./peers.mjs').Engine} Engine */
/** @typedef {import('./peers.mjs').Run} Run */

const ROWS = [1, 2, 4, 8, 16, 32];

/** About 100 tokens, and plain enough for every tokenizer. The number makes each repeat's prompt new to every prompt cache. */
const PROMPT = (/** @type {number} */ i) =>
  `${['First', 'Second', 'Third', 'Fourth', 'Fifth', 'Sixth', 'Seventh', 'Eighth', 'Ninth', 'Tenth'][i % 10]} story. Once upon a time there was a little ` +
  'girl who lived with her grandmother in a small house at the edge of a forest. Every morning she walked to the river to fetch water, and ' +
  'every evening she sat by the fire and listened to the old stories. One day, when the leaves were turning red and gold, she found a strange ' +
  'box under a tree. It was made of dark wood, and it was warm to the touch. She carried it home and put it on the table. Then';

const specs = /** @type {const} */ ({
  model: { type: 'text', value: 'M', help: 'a known name, a .gguf file, a folder, a URL or a hub id; smollm2-135m-instruct unless told' },
  browser: { type: 'text', choices: browserNames, help: 'chromium unless told' },
  peers: { type: 'flag', help: 'compare with wllama, interleaved (Chromium, a GGUF file)' },
  repeats: { type: 'integer', min: 1, max: 10, value: 'N', help: '3 unless told' },
  'max-tokens': { type: 'integer', min: 2, value: 'N', help: 'tokens to write in each repeat; 32 unless told' },
  'steps-in-flight': { type: 'integer', min: 1, value: 'S', help: 'as for generate' },
  json: { type: 'flag', help: 'one JSON object' },
  help: { type: 'flag', help: 'this list' },
});

/** @param {readonly number[]} values */
export function median(values) {
  const sorted = [...values].sort((a, b) => a - b);
  const middle = sorted.length >> 1;
  return sorted.length % 2 ? Number(sorted[middle]) : (Number(sorted[middle - 1]) + Number(sorted[middle])) / 2;
}

/** @param {readonly string[]} argv */
async function main(argv) {
  const { values } = parseOptions(argv, specs);
  if (values.help) return void console.log(helpText('npm run bench -- [options]    what a model costs in a headless browser', specs));
  const browser = values.browser === 'firefox' ? 'firefox' : 'chromium';
  const model = values.model ?? 'smollm2-135m-instruct';
  const { repeats = 3, 'max-tokens': maxTokens = 32 } = values;
  const { file } = await resolveModel(model, '/model/');
  if (values.peers && (browser !== 'chromium' || !file?.endsWith('.gguf'))) {
    throw new Failure('invalid_option', '--peers compares in Chromium, with a model that is one GGUF file on disk.');
  }
  await setup({ browsers: [browser] });
  await build();
  const report = values.peers
    ? await comparePeers(/** @type {string} */ (file), repeats, maxTokens)
    : await measureModel(model, browser, repeats, { maxTokens, ...(values['steps-in-flight'] ? { stepsInFlight: values['steps-in-flight'] } : {}) });
  if (values.json) console.log(JSON.stringify({ model, ...report }));
  else printReport(model, report);
}

/**
 * @param {string} name @param {import('./browsers.mjs').BrowserName} browser @param {number} repeats
 * @param {{ maxTokens: number, stepsInFlight?: number }} options
 */
async function measureModel(name, browser, repeats, options) {
  say(`Loading ${name} in ${browser} …`);
  const model = await openModel(name, { browser, onProgress: stageLines() });
  try {
    const loadCachedMs = await model.reload();
    say('Timing passes and kernels …');
    const benchmark = await model.benchmark({ rows: ROWS });
    /** @type {import('./headless.mjs').Result[]} */
    const results = [];
    for (let i = 0; i < repeats; i++) {
      say(`Generating, ${i + 1} of ${repeats} …`);
      results.push(await model.generate(PROMPT(i), { ...options, ignoreEos: true }));
    }
    const over = (/** @type {(result: import('./headless.mjs').Result) => number} */ figure) => median(results.map(figure));
    return {
      browser: model.browserVersion,
      adapter: model.info.adapter,
      ...snakeCase(benchmark),
      prompt_tokens: over(({ usage }) => Number(usage['promptTokens'])),
      prefill_tokens_per_second: over(({ usage, stats }) => (1000 * Number(usage['promptTokens'])) / Number(stats['prefillMs'])),
      decode_tokens_per_second: over(({ stats }) => Number(stats['tokensPerSecond'])),
      time_to_first_token_ms: over(({ stats }) => Number(stats['timeToFirstTokenMs'])),
      steps_in_flight: over(({ stats }) => Number(stats['stepsInFlight'])),
      dispatches_per_pass: over(({ stats }) => Number(stats['dispatchesPerPass'])),
      load_cold_ms: model.loadMs,
      load_cached_ms: loadCachedMs,
      peak_wasm_bytes: Math.max(...results.map(({ stats }) => Number(stats['peakWasmBytes']))),
    };
  } finally {
    await model.close();
  }
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

/** Lists as tables, single values as lines. @param {string} model @param {Record<string, unknown>} report */
function printReport(model, report) {
  console.log(model);
  for (const [key, value] of Object.entries(report)) {
    if (Array.isArray(value) && value.every((row) => typeof row === 'object' && row !== null)) printTable(key, value);
    else console.log(`${key}: ${typeof value === 'number' ? rounded(value) : typeof value === 'string' ? value : JSON.stringify(value)}`);
  }
}

/** @param {string} title @param {Record<string, unknown>[]} rows */
function printTable(title, rows) {
  const keys = [...new Set(rows.flatMap((row) => Object.keys(row)))];
  const cells = [keys, ...rows.map((row) => keys.map((key) => (typeof row[key] === 'number' ? rounded(row[key]) : String(row[key] ?? ''))))];
  const widths = keys.map((_, column) => Math.max(...cells.map((line) => String(line[column]).length)));
  console.log(`${title}:`);
  for (const line of cells) console.log(`  ${line.map((cell, column) => cell.padEnd(Number(widths[column]))).join('  ')}`.trimEnd());
}

/** @param {number} value */
const rounded = (value) => (Number.isInteger(value) ? String(value) : Math.abs(value) >= 100 ? value.toFixed(0) : value.toPrecision(3));

if (import.meta.url === pathToFileURL(process.argv[1] ?? '').href) {
  const argv = process.argv.slice(2);
  await runMain(
    () => main(argv),
    (error) => (argv.includes('--json') ? console.log(JSON.stringify({ error })) : say(JSON.stringify({ error }))),
  );
}
