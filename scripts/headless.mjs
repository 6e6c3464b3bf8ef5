// @ts-check
/**
 * The built package in a headless browser, driven from Node: a local server, a browser, one loaded model.
 *
 * What runs in the page is what a user writes: `load`, `generate`, `for await`. Nothing here reaches into the package.
 */
import { launch } from './browsers.mjs';
import { resolveModel } from './models.mjs';
import { root } from './programs.mjs';
import { serve } from './serve.mjs';

/** @typedef {{ role: string, content: string }} Message */
/** @typedef {Record<string, unknown>} GenerateOptions options of the package's `generate` */
/** @typedef {{ stage: string, file?: string, loaded: number, total: number }} Progress */
/**
 * What the package's `generate` results in (`GenerationResult` of the package).
 * @typedef {{ text: string, tokens: number[], promptTokens: number[], finishReason: string, usage: Record<string, number>, stats: Record<string, number> }} Result
 */
/** @typedef {{ name: string, adapter: Record<string, string>, [key: string]: unknown }} Info what the package tells of a model */

/** An empty page; the icon keeps browsers from asking for one. */
export const BLANK_PAGE = '<!doctype html><html lang="en"><title>draftree</title><link rel="icon" href="data:,">';

/**
 * @typedef {object} SessionOptions
 * @property {import('./browsers.mjs').BrowserName} browser
 * @property {boolean} [isolate] serve with the headers of cross-origin isolation
 * @property {number} [timeoutMs] see `launch`
 * @property {Record<string, string>} [mounts] see `serve`
 */
/**
 * A browser at an empty page of a local server that has the whole project.
 * @param {SessionOptions} options
 */
export async function openSession({ browser: name, isolate = false, timeoutMs, mounts = {} }) {
  const server = await serve(root, { isolate, mounts, pages: { '/': BLANK_PAGE } });
  try {
    const browser = await launch(name, timeoutMs === undefined ? {} : { timeoutMs });
    const close = async () => {
      await browser.close();
      await server.close();
    };
    try {
      const page = await browser.newPage();
      await page.goto(`${server.url}/`);
      return { server, browser, page, close };
    } catch (error) {
      await browser.close();
      throw error;
    }
  } catch (error) {
    await server.close();
    throw error;
  }
}

/**
 * @typedef {object} OpenOptions
 * @property {string} model what `--model` accepts
 * @property {import('./browsers.mjs').BrowserName} browser
 * @property {Record<string, unknown>} [loadOptions]
 * @property {(progress: Progress) => void} [onProgress]
 * @property {number} [timeoutMs]
 */
/**
 * Loads a model with the built package.
 * @param {OpenOptions} options
 * @returns {Promise<HeadlessModel>}
 */
export async function openModel({ model, browser, loadOptions = {}, onProgress, timeoutMs }) {
  const { source, mounts } = await resolveModel(model, '/model/');
  const session = await openSession({ browser, mounts, ...(timeoutMs === undefined ? {} : { timeoutMs }) });
  try {
    /** @type {{ onText?: ((text: string) => void) | undefined }} */
    const listeners = {};
    session.page.onMessage((message) => {
      if (message.progress) onProgress?.(message.progress);
      if (typeof message.text === 'string') listeners.onText?.(message.text);
    });
    const loadOnce = () => session.page.evaluate(loadInPage, '/pkg/index.js', source(session.server.url), loadOptions);
    const { info, loadMs } = await loadOnce();
    return new HeadlessModel(session, info, loadMs, listeners, loadOnce);
  } catch (error) {
    await session.close();
    throw error;
  }
}

/** A model that is loaded in a headless browser. */
export class HeadlessModel {
  #session;
  #listeners;
  #loadOnce;

  /**
   * @param {Awaited<ReturnType<typeof openSession>>} session @param {Info} info @param {number} loadMs
   * @param {{ onText?: ((text: string) => void) | undefined }} listeners @param {() => Promise<{ loadMs: number }>} loadOnce
   */
  constructor(session, info, loadMs, listeners, loadOnce) {
    this.#session = session;
    this.#listeners = listeners;
    this.#loadOnce = loadOnce;
    this.info = info;
    /** Wall time of `load` in the page, download from the local server included. */
    this.loadMs = loadMs;
    this.browserVersion = session.browser.version;
    this.page = session.page;
  }

  /**
   * One generation from an empty cache.
   * @param {string | Message[]} prompt @param {GenerateOptions} options @param {(text: string) => void} [onText]
   * @returns {Promise<Result>}
   */
  async generate(prompt, options, onText) {
    this.#listeners.onText = onText;
    await this.#session.page.evaluate(() => /** @type {any} */ (globalThis).model.reset());
    return this.#session.page.evaluate(generateInPage, prompt, options);
  }

  /** @param {Record<string, unknown>} options @returns {Promise<Record<string, unknown>>} */
  benchmark(options) {
    return this.#session.page.evaluate((options) => /** @type {any} */ (globalThis).model.benchmark(options), options);
  }

  /** Loads the model a second time, now from the package's cache, and returns how long that took. */
  async reload() {
    const { loadMs } = await this.#loadOnce();
    return loadMs;
  }

  /** Frees the model and ends browser and server. */
  async close() {
    await this.#session.close();
  }
}

/**
 * Runs in the page.
 * @param {string} packageUrl @param {string} source @param {Record<string, unknown>} options
 * @returns {Promise<{ info: Info, loadMs: number }>}
 */
async function loadInPage(packageUrl, source, options) {
  const { load } = await import(packageUrl);
  await /** @type {any} */ (globalThis).model?.dispose();
  const begin = performance.now();
  const model = await load(source, {
    ...options,
    onProgress: (/** @type {Progress} */ progress) => /** @type {any} */ (globalThis).sendMessage({ progress }),
  });
  /** @type {any} */ (globalThis).model = model;
  return { info: JSON.parse(JSON.stringify(model.info)), loadMs: performance.now() - begin };
}

/**
 * Runs in the page.
 * @param {string | Message[]} prompt @param {GenerateOptions} options
 * @returns {Promise<Result>}
 */
async function generateInPage(prompt, options) {
  const generation = /** @type {any} */ (globalThis).model.generate(prompt, options);
  for await (const { text } of generation) /** @type {any} */ (globalThis).sendMessage({ text });
  const result = await generation.result;
  return { ...result, tokens: [...result.tokens], promptTokens: [...result.promptTokens] };
}
