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
  /** What it says. */
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

/**
 * What guesses the next tokens, for one pass of the model to verify: `medusa`, draft heads that were trained for the model and loaded with
 * it; `ngram`, what followed the last words when they stood in the text before; `recycling`, what passes of the model held likely after
 * a token, kept from one generation to the next.
 */
export type Drafter = 'medusa' | 'ngram' | 'recycling';

/**
 * The shape of the trees of guesses: `'auto'`, grown so that the likeliest guesses are verified; `'dense:4,3,2'`, four children of the root
 * with three children each, and so on; or a list of rank paths, where `[0, 2]` is the third-best child of the best child of the root and
 * every parent must be listed too. A tree has at most 63 nodes besides the root.
 */
export type TreeShape = 'auto' | `dense:${string}` | number[][];

/**
 * Which guesses count. With `'exact'`, those that the model chooses itself: the text is that of plain decoding, token for token.
 * With `'rejection'`, those of speculative sampling (Leviathan et al. 2023): another text than that of plain decoding with the same seed,
 * drawn from the same distribution. The others are lossy: `typical` takes guesses that are likely enough where the model itself is unsure
 * (Cai et al. 2024; by default `epsilon` 0.09, `alpha` 0.3), `topK` those among the `k` best whose score is within `tolerance` of the
 * best (Xia et al. 2023).
 */
export type AcceptRule = 'exact' | 'rejection' | TypicalRule | TopKRule;

/** A lossy rule: a guess passes if its probability is above the smaller of `epsilon` and `alpha` · exp(−entropy). */
export interface TypicalRule {
  /** The bounds. */
  typical: {
    /** The probability that always suffices. Default 0.09. */
    epsilon?: number;
    /** The share of exp(−entropy) that suffices where the model is unsure. Default 0.3. */
    alpha?: number;
  };
}

/** A lossy rule: a guess passes among the best, if it is not much worse than the best of all. */
export interface TopKRule {
  /** The bounds. */
  topK: {
    /** Among so many. Default 3. */
    k?: number;
    /** With a score so much below the best at most. Default 1. */
    tolerance?: number;
  };
}

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
  /**
   * Who guesses ahead: `'auto'` (default), every drafter that has something to work with and as many guesses as pay; `'none'`, plain
   * decoding; one drafter; or several, whose guesses are merged into one tree. Unless `accept` says otherwise only speed depends on it.
   */
  draft?: 'auto' | 'none' | Drafter | Drafter[];
  /** The shape of the trees of guesses. `'auto'` (default) chooses it anew in every step; others are verified whole in every step. */
  tree?: TreeShape;
  /** Nodes of an `'auto'` tree at most, the root included, from 1 to 64. Default 16. Fewer are verified where more do not pay. */
  maxNodes?: number;
  /** Which guesses count. Default `'exact'`. */
  accept?: AcceptRule;
  /**
   * Tell the log-probability of every token, and those of the `logprobs` most probable tokens at its place, from 0 to 20: in chunks and in
   * the result. They are those of the distribution after penalties and `logitBias`, before temperature and filters, and drafting
   * does not change them. Absent: off.
   */
  logprobs?: number;
  /**
   * Tell with every chunk the draft tree that its pass had, in `chunk.tree`: what was guessed, by whom, how probable it was thought, and which
   * path was right. Default `false`; a kilobyte more comes back of every pass.
   */
  trees?: boolean;
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

const drafters: readonly Drafter[] = ['medusa', 'ngram', 'recycling'];

/** One name, or a list of drafters; what is no name is told the nearest one. */
const draft: Check = (value) => {
  const isList = Array.isArray(value) && value.length > 0;
  const known: readonly string[] = isList ? drafters : ['auto', 'none', ...drafters];
  const unknown = (isList ? value : [value]).filter((name) => !known.includes(name));
  if (unknown.length === 0) return undefined;
  const nearest = typeof unknown[0] === 'string' ? nearestName(unknown[0], known) : undefined;
  const hint = nearest === undefined ? '' : ` (${show(unknown[0])}: did you mean "${nearest}"?)`;
  return `"auto", "none", or one or a list of "${drafters.join('", "')}"${hint}`;
};

const tree = expect('"auto", "dense:" with counts as in "dense:4,3,2", or an array of rank paths as in [[0], [0, 0], [1]]', (value) =>
  Array.isArray(value)
    ? value.length > 0 && value.every((path) => Array.isArray(path) && path.length > 0 && path.every(isIndex))
    : typeof value === 'string' && /^(auto|dense:\d+(,\d+)*)$/.test(value),
);

const accept = expect(
  '"exact", "rejection", { typical: { epsilon, alpha } } or { topK: { k, tolerance } }',
  (value) =>
    value === 'exact' ||
    value === 'rejection' ||
    (isObject(value) &&
      Object.keys(value).length === 1 &&
      (isNumbers(value['typical'], ['epsilon', 'alpha']) || isNumbers(value['topK'], ['k', 'tolerance']))),
);

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
  draft,
  tree,
  maxNodes: number('a whole number from 1 to 64', (value) => Number.isInteger(value) && value >= 1 && value <= 64),
  accept,
  logprobs: number('a whole number from 0 to 20', (value) => Number.isInteger(value) && value >= 0 && value <= 20),
  trees: boolean,
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

function isIndex(value: unknown): boolean {
  return Number.isSafeInteger(value) && (value as number) >= 0;
}

/** Whether a value is an object of numbers from 0 under some of these names. */
function isNumbers(value: unknown, names: readonly string[]): boolean {
  return isObject(value) && Object.entries(value).every(([name, each]) => names.includes(name) && Number.isFinite(each) && (each as number) >= 0);
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
