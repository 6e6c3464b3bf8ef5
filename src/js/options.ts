/**
 * What callers pass in: the option types with their documentation, and the checks at the JavaScript door.
 *
 * Defaults are applied by the core, in one place; here an absent option stays absent. The core checks ranges again, because it is
 * also used without this file. What is checked here and only here is what JavaScript alone can get wrong: unknown names and types.
 */
import { DraftreeError } from './errors.js';
import type { LoadProgress } from './results.js';
import { nearestName } from './suggest.js';

/** One turn of a conversation. */
export interface Message {
  /** Usually `system`, `user` or `assistant`; the model's chat template decides which it knows. */
  role: string;
  content: string;
}

/** A text to continue, or a conversation to answer. */
export type Prompt = string | Message[];

/**
 * Where a model comes from: an id on the Hugging Face hub (`org/name`, with `@revision` and, for repositories of GGUF files,
 * `:quantisation`, as in `org/name-GGUF:Q4_K_M`), the URL of a `.gguf` file, the URL of a folder with `config.json` and safetensors,
 * a local GGUF file, or the files of such a folder. Relative URLs are meant from the page and start with `./`, `../` or `/`, or end in
 * `.gguf` or `/`.
 */
export type ModelSource = string | URL | File | File[];

/**
 * Where draft heads come from: `'auto'` for beside the model, the URL of a safetensors file, a folder or an id on the hub that has one,
 * or a local file.
 */
export type HeadsSource = string | URL | File;

/** Options of `load`. */
export interface LoadOptions {
  /** Called as the load advances, at most about twenty times a second and once at the end of each stage. */
  onProgress?: (progress: LoadProgress) => void;
  /** Stops the load, frees what it took and rejects with code `aborted`. What was downloaded stays, and a later load resumes. */
  signal?: AbortSignal;
  /** Limit the context to fewer tokens than the model's own, to save GPU memory. */
  contextLength?: number;
  /**
   * Where the model runs: `true` (default) in a worker of this package, `false` on the calling thread, or in a worker made by the
   * caller, for pages that serve `worker.js` from another origin. A given worker belongs to the model: `dispose` terminates it.
   * On the calling thread models are read from the cache but not added to it.
   */
  worker?: boolean | Worker;
  /** Where `core_bg.wasm` is served, if not beside the package's JavaScript. */
  wasmUrl?: string | URL;
  /** Keep downloaded files for the next visit, in the origin private file system. Default `true`. */
  cache?: boolean;
  /** Decode steps submitted before their results are read. The default was chosen by measurement. */
  stepsInFlight?: number;
  /**
   * Draft heads, small networks that guess the next tokens for the model to check. `'auto'` (default) takes those that lie beside it:
   * `medusa_lm_head.safetensors` or `heads.safetensors` in its folder or repository, `name.heads.safetensors` beside `name.gguf`, or
   * those in the model's own files (Medusa-1.0). Others are named like a model, or given as a File; `null` is none. Heads that do not
   * fit the model fail the load; what they are is in `info.heads`.
   */
  heads?: HeadsSource | null;
  /** A mirror of the Hugging Face hub. Default `https://huggingface.co`. */
  hubUrl?: string | URL;
}

/** Options of `generate`. Every one may be left out. */
export interface GenerateOptions {
  /** Most tokens to write, at least 1. Default 256. */
  maxTokens?: number;
  /** 0 (default) always takes the likeliest token; higher values flatten the distribution that is sampled from. */
  temperature?: number;
  /** Sample among the `topK` likeliest tokens only. 0 (default) means all. */
  topK?: number;
  /** Sample among the likeliest tokens that together reach this probability, in (0, 1]. Default 1: all. */
  topP?: number;
  /** Leave out tokens less likely than `minP` times the likeliest, in [0, 1]. Default 0: none. */
  minP?: number;
  /** Divide the positive logits of tokens that occurred already, and multiply the negative ones. Above 0; default 1: off. */
  repetitionPenalty?: number;
  /** Subtracted from a token's logit for each time it was written. Default 0. */
  frequencyPenalty?: number;
  /** Subtracted once from the logit of every token that was written. Default 0. */
  presencePenalty?: number;
  /** Added to the logits of single tokens, by token id. */
  logitBias?: Record<number, number>;
  /** The same seed, prompt and options give the same text. A whole number from 0; default 0. */
  seed?: number;
  /** End before the first of these texts. */
  stop?: string | string[];
  /** Write on after an end token. Default `false`. */
  ignoreEos?: boolean;
  /** Which drafters guess ahead. Only plain decoding exists so far: `'none'` and `'auto'` are the same. */
  draft?: 'none' | 'auto';
  /** Which guesses count. `'exact'` (default): only those that plain decoding would have written. */
  accept?: 'exact';
  /** Overrides the number given to `load` for this generation. */
  stepsInFlight?: number;
  /** Stops the generation: reading it throws, and its result rejects, with code `aborted`. The model stays usable. */
  signal?: AbortSignal;
}

/** Says what a value should have been, or nothing if it is right. */
type Check = (value: unknown) => string | undefined;

const expect = (what: string, holds: (value: unknown) => boolean): Check => (value) => (holds(value) ? undefined : what);

const number = (what: string, holds: (value: number) => boolean): Check =>
  expect(what, (value) => typeof value === 'number' && Number.isFinite(value) && holds(value));

const wholeNumber = (from: number): Check =>
  number(`a whole number from ${from}`, (value) => Number.isSafeInteger(value) && value >= from);

const finite = number('a finite number', () => true);

const oneOf = (...values: readonly unknown[]): Check =>
  expect(values.map((value) => JSON.stringify(value)).join(' or '), (value) => values.includes(value));

const boolean = oneOf(true, false);

const url = expect('a URL', (value) => typeof value === 'string' || value instanceof URL);

const abortSignal = expect('an AbortSignal', (value) => isObject(value) && typeof value['aborted'] === 'boolean');

const loadChecks: { [name in keyof Required<LoadOptions>]: Check } = {
  onProgress: expect('a function', (value) => typeof value === 'function'),
  signal: abortSignal,
  contextLength: wholeNumber(1),
  worker: expect('true, false or a Worker', (value) => typeof value === 'boolean' || (isObject(value) && 'postMessage' in value)),
  wasmUrl: url,
  cache: boolean,
  stepsInFlight: wholeNumber(1),
  heads: expect('"auto", a URL, a hub id, a File or null', (value) => value === null || isHeadsSource(value)),
  hubUrl: url,
};

const generateChecks: { [name in keyof Required<GenerateOptions>]: Check } = {
  maxTokens: wholeNumber(1),
  temperature: number('a number from 0', (value) => value >= 0),
  topK: wholeNumber(0),
  topP: number('a number above 0, at most 1', (value) => value > 0 && value <= 1),
  minP: number('a number from 0 to 1', (value) => value >= 0 && value <= 1),
  repetitionPenalty: number('a number above 0', (value) => value > 0),
  frequencyPenalty: finite,
  presencePenalty: finite,
  logitBias: expect('an object of numbers by token id', isLogitBias),
  seed: wholeNumber(0),
  stop: expect('a non-empty string or an array of them', (value) => isText(value) || (Array.isArray(value) && value.every(isText))),
  ignoreEos: boolean,
  draft: oneOf('none', 'auto'),
  accept: oneOf('exact'),
  stepsInFlight: wholeNumber(1),
  signal: abortSignal,
};

/** The options of `load` without absent ones, or an `invalid_option` error. */
export function checkLoadOptions(options: LoadOptions): LoadOptions {
  return checkOptions('load', options, loadChecks);
}

/** The options of `generate` without absent ones, or an `invalid_option` error. */
export function checkGenerateOptions(options: GenerateOptions): GenerateOptions {
  return checkOptions('generate', options, generateChecks);
}

/** A prompt as the core takes it, or an `invalid_option` error. Of messages only role and content are kept. */
export function checkPrompt(prompt: unknown): { prompt: string } | { messages: Message[] } {
  return typeof prompt === 'string' ? { prompt } : { messages: checkMessages(prompt) };
}

/** A conversation as the core takes it, or an `invalid_option` error. */
export function checkMessages(messages: unknown): Message[] {
  if (!Array.isArray(messages)) {
    throw new DraftreeError('invalid_option', `the prompt must be a string or an array of messages, not ${show(messages)}`);
  }
  return messages.map((message: unknown, index) => {
    if (!isObject(message) || typeof message['role'] !== 'string' || typeof message['content'] !== 'string') {
      throw new DraftreeError('invalid_option', `message ${index} must be { role, content } with two strings, not ${show(message)}`);
    }
    return { role: message['role'], content: message['content'] };
  });
}

function checkOptions<Options extends object>(call: string, options: Options, checks: Record<string, Check>): Options {
  if (!isObject(options)) {
    throw new DraftreeError('invalid_option', `the options of ${call} must be an object, not ${show(options)}`);
  }
  const given: Record<string, unknown> = {};
  for (const [name, value] of Object.entries(options)) {
    const check = Object.hasOwn(checks, name) ? checks[name] : undefined;
    if (check === undefined) {
      const known = Object.keys(checks);
      const nearest = nearestName(name, known);
      const hint = nearest === undefined ? `known are ${known.join(', ')}` : `did you mean "${nearest}"?`;
      throw new DraftreeError('invalid_option', `${call} has no option "${name}": ${hint}`);
    }
    if (value === undefined) continue;
    const expected = check(value);
    if (expected !== undefined) {
      throw new DraftreeError('invalid_option', `option "${name}" of ${call} must be ${expected}, not ${show(value)}`);
    }
    given[name] = value;
  }
  return given as Options;
}

function isObject(value: unknown): value is Record<string, unknown> {
  return typeof value === 'object' && value !== null;
}

function isHeadsSource(value: unknown): boolean {
  return isText(value) || value instanceof URL || value instanceof File;
}

function isText(value: unknown): boolean {
  return typeof value === 'string' && value !== '';
}

function isLogitBias(value: unknown): boolean {
  return isObject(value) && Object.entries(value).every(([id, bias]) => /^\d+$/.test(id) && Number.isFinite(bias));
}

/** A value as an error message can show it: short, and never throwing. */
function show(value: unknown): string {
  if (typeof value === 'string') return JSON.stringify(value.length > 40 ? `${value.slice(0, 40)}…` : value);
  if (Array.isArray(value)) return `an array of ${value.length}`;
  if (isObject(value)) return 'an object';
  return typeof value === 'function' ? 'a function' : String(value);
}
