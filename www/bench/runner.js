// @ts-check
/**
 * A model in this page as what the benchmark runs, and the browser's name for its report.
 */
import { load } from '../pkg/index.js';

/** @import { GenerateOptions, LoadOptions, Model, ModelInfo, ModelSource } from '../pkg/index.js' */
/** @import { Result, Runner } from './measure.js' */
/** @import { Message } from './prompts.js' */

/** @implements {Runner} */
export class PageRunner {
  #source;
  #options;
  #model;

  /** @param {ModelSource} source @param {Pick<LoadOptions, 'heads' | 'onProgress' | 'signal'>} options @returns {Promise<PageRunner>} */
  static async load(source, options) {
    return new PageRunner(source, options, await load(source, options));
  }

  /** @param {ModelSource} source @param {Pick<LoadOptions, 'heads' | 'onProgress' | 'signal'>} options @param {Model} model */
  constructor(source, options, model) {
    this.#source = source;
    this.#options = options;
    this.#model = model;
    /** @type {ModelInfo} */
    this.info = model.info;
  }

  /** @param {string | Message[]} prompt @param {GenerateOptions} options @returns {Promise<Result>} */
  async generate(prompt, options) {
    await this.#model.reset();
    return this.generateAgain(prompt, options);
  }

  /** @param {string | Message[]} prompt @param {GenerateOptions} options @returns {Promise<Result>} */
  generateAgain(prompt, options) {
    const { signal } = this.#options;
    return this.#model.generate(prompt, { ...options, ...(signal && { signal }) }).result;
  }

  /** @param {string | Message[]} prompt */
  countTokens(prompt) {
    return this.#model.countTokens(prompt);
  }

  /** @param {{ rows: number[], repeats: number, context: number }} options */
  benchmark(options) {
    return this.#model.benchmark(options);
  }

  /** Now from the package's cache. */
  async reload() {
    await this.#model.dispose();
    const { heads = 'auto', signal } = this.#options;
    const began = performance.now();
    this.#model = await load(this.#source, { heads, ...(signal && { signal }) });
    return performance.now() - began;
  }

  dispose() {
    return this.#model.dispose();
  }
}

/** @typedef {{ brand: string, version: string }} Brand */
/** @typedef {{ getHighEntropyValues: (hints: string[]) => Promise<{ fullVersionList?: Brand[] }> }} UserAgentData */

/** The browser and its version, as well as it tells. */
export async function browserName() {
  const { userAgentData } = /** @type {{ userAgentData?: UserAgentData }} */ (/** @type {unknown} */ (navigator));
  const { fullVersionList: brands = [] } = (await userAgentData?.getHighEntropyValues(['fullVersionList'])) ?? {};
  const real = brands.filter(({ brand }) => !/not.a.brand/i.test(brand));
  const brand = real.find(({ brand }) => brand !== 'Chromium') ?? real[0];
  if (brand) return `${brand.brand} ${brand.version}`;
  const [, name = 'a browser', version = ''] = /(Firefox|Edg|Chrome|Version)\/([\d.]+)/.exec(navigator.userAgent) ?? [];
  return `${name === 'Version' ? 'Safari' : name} ${version}`.trim();
}
