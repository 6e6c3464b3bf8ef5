// @ts-check
/**
 * What the comparison of `npm run bench -- --peers` runs in the page: the same prompt, timed in the same way, by this package and by
 * wllama (llama.cpp in wasm), as a user gets it and on its CPU path with one thread.
 *
 * Each run is a new browser with an empty profile: load (cold), unload, load again (from the package's own cache), generate. Times are
 * taken by the page's clock from the chunks that arrive, not from what the packages report, so that both are judged alike.
 *
 * wllama asks for WebGPU by itself, but its backend needs the feature shader-f16 and without it computes on the CPU, saying nothing:
 * the software adapter of Chromium has no shader-f16. llama.cpp's log tells where the layers went, so each run says what it measured.
 */
import { openSession } from './headless.mjs';

/** @typedef {'draftree' | 'wllama' | 'wllama-cpu'} Engine */
/**
 * @typedef {object} Timing
 * @property {number} loadColdMs
 * @property {number} loadCachedMs
 * @property {number} promptTokens
 * @property {number} firstMs from the call until the first chunk
 * @property {number} firstTokens tokens in the first chunk
 * @property {number} restMs from the first chunk until the last
 * @property {number} restTokens tokens in the chunks after the first
 */
/** @typedef {Timing & { engine: Engine, prefillTokensPerSecond: number, decodeTokensPerSecond: number, ranOn: string }} Run */

/**
 * One engine in one new browser.
 * @param {Engine} engine @param {string} file the model on disk @param {{ prompt: string, maxTokens: number }} task
 * @returns {Promise<Run>}
 */
export async function runEngine(engine, file, task) {
  const session = await openSession({ browser: 'chromium', isolate: true, mounts: { '/model/model.gguf': file } });
  try {
    const source = `${session.server.url}/model/model.gguf`;
    /** @type {string[]} */
    const nativeLog = [];
    session.page.onMessage(({ log }) => log && nativeLog.push(log));
    const timing = engine === 'draftree'
      ? await session.page.evaluate(draftreeInPage, '/pkg/index.js', source, task)
      : await session.page.evaluate(wllamaInPage, '/node_modules/@wllama/wllama/esm/index.js', source, { ...task, gpu: engine === 'wllama' });
    return {
      engine,
      ...timing,
      ranOn: engine === 'draftree' ? 'WebGPU' : whereLayersWent(nativeLog),
      prefillTokensPerSecond: (1000 * timing.promptTokens) / timing.firstMs,
      decodeTokensPerSecond: (1000 * timing.restTokens) / timing.restMs,
    };
  } finally {
    await session.close();
  }
}

/**
 * Where llama.cpp put the weights, from its log.
 * @param {readonly string[]} log
 */
function whereLayersWent(log) {
  const offloaded = log.map((line) => /offloaded (\d+\/\d+) layers to GPU/.exec(line)?.[1]).find(Boolean);
  const webgpu = log.some((line) => /WebGPU model buffer size/.test(line));
  return offloaded && webgpu ? `WebGPU (${offloaded} layers)` : 'CPU';
}

/**
 * Runs in the page.
 * @param {string} packageUrl @param {string} source @param {{ prompt: string, maxTokens: number }} task
 * @returns {Promise<Timing>}
 */
async function draftreeInPage(packageUrl, source, { prompt, maxTokens }) {
  const { load } = await import(packageUrl);
  const begin = performance.now();
  await (await load(source)).dispose();
  const middle = performance.now();
  const model = await load(source);
  const loaded = performance.now();
  const generation = model.generate(prompt, { maxTokens, temperature: 0, ignoreEos: true });
  const start = performance.now();
  /** @type {{ at: number, tokens: number }[]} */
  const chunks = [];
  for await (const { tokens } of generation) chunks.push({ at: performance.now(), tokens: tokens.length });
  const { usage } = await generation.result;
  await model.dispose();
  const written = chunks.filter(({ tokens }) => tokens > 0);
  const [first = { at: NaN, tokens: 0 }] = written;
  const last = written.at(-1) ?? first;
  return {
    loadColdMs: middle - begin,
    loadCachedMs: loaded - middle,
    promptTokens: usage.promptTokens,
    firstMs: first.at - start,
    firstTokens: first.tokens,
    restMs: last.at - first.at,
    restTokens: written.reduce((sum, { tokens }) => sum + tokens, 0) - first.tokens,
  };
}

/**
 * Runs in the page. `n_gpu_layers` 0 turns wllama's WebGPU backend off; left out, all layers go to the GPU.
 * @param {string} packageUrl @param {string} source @param {{ prompt: string, maxTokens: number, gpu: boolean }} task
 * @returns {Promise<Timing>}
 */
async function wllamaInPage(packageUrl, source, { prompt, maxTokens, gpu }) {
  const { Wllama } = await import(packageUrl);
  const wasm = new URL('./wasm/wllama.wasm', new URL(packageUrl, location.href)).href;
  const log = (/** @type {unknown[]} */ ...parts) => /** @type {any} */ (globalThis).sendMessage({ log: parts.map(String).join(' ') });
  const settings = { n_ctx: 1024, n_threads: 1, n_parallel: 1, ...(gpu ? {} : { n_gpu_layers: 0 }) };
  const loadOnce = async () => {
    const wllama = new Wllama({ default: wasm }, { logger: { debug: log, log, warn: log, error: log } });
    await wllama.loadModelFromUrl(source, settings);
    return wllama;
  };
  const begin = performance.now();
  await (await loadOnce()).exit();
  const middle = performance.now();
  const wllama = await loadOnce();
  const loaded = performance.now();
  /** @type {number[]} */
  const arrivals = [];
  let promptTokens = 0;
  const start = performance.now();
  const stream = await wllama.createCompletion({
    prompt, max_tokens: maxTokens, temperature: 0, ignore_eos: true, cache_prompt: false, stream: true, stream_options: { include_usage: true },
  });
  for await (const chunk of stream) {
    if (chunk.choices?.[0] && !chunk.choices[0].finish_reason) arrivals.push(performance.now());
    promptTokens = chunk.usage?.prompt_tokens ?? chunk.timings?.prompt_n ?? promptTokens;
  }
  await wllama.exit();
  const [first = NaN] = arrivals;
  return {
    loadColdMs: middle - begin,
    loadCachedMs: loaded - middle,
    promptTokens,
    firstMs: first - start,
    firstTokens: 1,
    restMs: (arrivals.at(-1) ?? NaN) - first,
    restTokens: arrivals.length - 1,
  };
}
