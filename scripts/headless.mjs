// @ts-check
/**
 * The built package in a headless browser, driven from Node: a local server, a browser, one loaded model.
 *
 * What runs in the page is what a user writes: `load`, `generate`, `for await`. Nothing here reaches into the package.
 */
import { launch } from './browsers.mjs';
import { resolveHeads, resolveModel } from './models.mjs';
import { root } from './programs.mjs';
import { serve } from './serve.mjs';

/** @typedef {{ role: string, content: string }} Message */
/** @typedef {import('../pkg/index.js').GenerateOptions | Record<string, unknown>} GenerateOptions options of the package's `generate` */
/** @typedef {{ stage: string, file?: string, loaded: number, total: number }} Progress */
/** @typedef {import('../pkg/index.js').GenerationResult} Result what the package's `generate` results in */
/** @typedef {import('../pkg/index.js').ModelInfo} Info what the package tells of a model */

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
 * @typedef {object} Session
 * @property {{ url: string }} server
 * @property {import('./browsers.mjs').Browser} browser
 * @property {import('./browsers.mjs').Page} page
 * @property {() => Promise<void>} close
 */
/**
 * @param {SessionOptions} options
 * @returns {Promise<Session>}
 */
export async function openSession({ browser: name, isolate = false, timeoutMs, mounts = {} }) {
  const server = await serve(root, { isolate, mounts, pages: { '/': BLANK_PAGE } });
  try {
    const browser = await launch(name, timeoutMs === undefined ? {} : { timeoutMs });
    try {
      const page = await browser.newPage();
      await page.goto(`${server.url}/`);
      const close = () => browser.close().then(server.close);
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
 * @typedef {object} LoadOptions
 * @property {Record<string, unknown>} [options] options of the package's `load`
 * @property {(progress: Progress) => void} [onProgress]
 */
/**
 * A session with one model, named as for `--model`, and perhaps heads, named as for `--heads`. Closing the model closes the session.
 * @param {string} model @param {SessionOptions & LoadOptions & { heads?: string | undefined }} options
 * @returns {Promise<HeadlessModel>}
 */
export async function openModel(model, options) {
  const { source, mounts } = await resolveModel(model, '/model/');
  const heads = await resolveHeads(options.heads);
  const session = await openSession({ ...options, mounts: { ...mounts, ...heads.mounts } });
  try {
    const { url } = session.server;
    const loaded = await HeadlessModel.load(session, source(url), { ...options, options: { ...options.options, ...heads.options(url) } });
    loaded.close = session.close;
    return loaded;
  } catch (error) {
    await session.close();
    throw error;
  }
}

/** A model that is loaded in a headless browser. A session holds one at a time. */
export class HeadlessModel {
  #session;
  #loadOnce;
  /** @type {((text: string) => void) | undefined} */
  #onText;

  /**
   * Loads with the built package; a model that the session held before is disposed.
   * @param {Session} session @param {string} source what the package's `load` takes @param {LoadOptions} [options]
   */
  static async load(session, source, { options = {}, onProgress } = {}) {
    session.page.onMessage(({ progress }) => progress && onProgress?.(progress));
    const loadOnce = () => session.page.evaluate(loadInPage, '/pkg/index.js', source, options);
    const { info, loadMs } = await loadOnce();
    return new HeadlessModel(session, info, loadMs, loadOnce);
  }

  /** @param {Session} session @param {Info} info @param {number} loadMs @param {() => Promise<{ loadMs: number }>} loadOnce */
  constructor(session, info, loadMs, loadOnce) {
    this.#session = session;
    this.#loadOnce = loadOnce;
    this.info = info;
    /** Wall time of `load` in the page, download from the local server included. */
    this.loadMs = loadMs;
    this.browserVersion = session.browser.version;
    /** Ends what was opened for this model. */
    this.close = async () => {};
    session.page.onMessage(({ text }) => typeof text === 'string' && this.#onText?.(text));
  }

  /**
   * One generation from an empty cache.
   * @param {string | Message[]} prompt @param {GenerateOptions} options @param {(text: string) => void} [onText]
   * @returns {Promise<Result>}
   */
  async generate(prompt, options, onText) {
    this.#onText = onText;
    try {
      await this.#session.page.evaluate(() => /** @type {any} */ (globalThis).model.reset());
      return await this.#session.page.evaluate(generateInPage, prompt, options, true);
    } finally {
      this.#onText = undefined;
    }
  }

  /**
   * One generation that finds in the cache what the last one left there, without the messages that stream its text here: for measuring.
   * @param {string | Message[]} prompt @param {GenerateOptions} options
   * @returns {Promise<Result>}
   */
  generateAgain(prompt, options) {
    return this.#session.page.evaluate(generateInPage, prompt, options, false);
  }

  /** How many tokens of context a prompt takes. @param {string | Message[]} prompt @returns {Promise<number>} */
  countTokens(prompt) {
    return this.#session.page.evaluate((prompt) => /** @type {any} */ (globalThis).model.countTokens(prompt), prompt);
  }

  /** @param {Record<string, unknown>} options @returns {Promise<Record<string, unknown>>} */
  benchmark(options) {
    return this.#session.page.evaluate((options) => /** @type {any} */ (globalThis).model.benchmark(options), options);
  }

  /** Loads the model anew, now from the package's cache: a model that has learnt nothing. Returns how long that took. */
  async reload() {
    const { loadMs } = await this.#loadOnce();
    return loadMs;
  }

  /** The tokens of a text, with BOS where the model wants it. @param {string} text @returns {Promise<number[]>} */
  tokenize(text) {
    return this.#session.page.evaluate(async (text) => [...(await /** @type {any} */ (globalThis).model.tokenize(text))], text);
  }

  /** The logits of some tokens after `ids`. @param {number[]} ids @param {number[]} wanted @returns {Promise<number[]>} */
  logits(ids, wanted) {
    return this.#session.page.evaluate(
      async (ids, wanted) => {
        const logits = await /** @type {any} */ (globalThis).model.nextLogits(ids);
        return wanted.map((/** @type {number} */ id) => logits[id]);
      },
      ids,
      wanted,
    );
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
 * @param {string | Message[]} prompt @param {GenerateOptions} options @param {boolean} isStreamed
 * @returns {Promise<Result>}
 */
async function generateInPage(prompt, options, isStreamed) {
  const generation = /** @type {any} */ (globalThis).model.generate(prompt, options);
  for await (const { text } of generation) if (isStreamed) /** @type {any} */ (globalThis).sendMessage({ text });
  const result = await generation.result;
  return { ...result, tokens: [...result.tokens], promptTokens: [...result.promptTokens] };
}
