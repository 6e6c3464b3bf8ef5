/**
 * What the package gives back: plain data, produced by the wasm core and passed through unchanged.
 */
import type { Drafter } from './options.js';

/** Where a token came from: chosen by the model with no guess to confirm it (`plain`), or guessed by a drafter and confirmed. */
export type TokenSource = 'plain' | Drafter;

/** A token and the natural logarithm of its probability. */
export interface TokenLogprob {
  /** Its id. */
  token: number;
  /** At most 0. */
  logprob: number;
}

/** What the model made of one place of the text, before temperature and filters. */
export interface PlaceLogprobs extends TokenLogprob {
  /** The most probable tokens there, the highest first, as many as were asked for; `token` is among them only if it belongs there. */
  top: TokenLogprob[];
}

/** A node of the draft tree that a pass had. */
export interface DraftNode {
  /** Its token. */
  token: number;
  /** Its text by itself. */
  text: string;
  /** The index of the node before it; 0, its own, for the root, which is the last token of the text so far. */
  parent: number;
  /** Who guessed it; `plain` for the root. */
  source: TokenSource;
  /** How probable its drafters thought everything from the root to it, from 0 to 1. */
  probability: number;
  /** Whether the pass had a row for it. The most probable nodes come first. */
  verified: boolean;
  /** Whether it was right, as everything before it. */
  accepted: boolean;
}

/** A piece of a running generation: what one pass of the model came to. */
export interface GenerationChunk {
  /** Text that is final: it never splits a character, and the texts of all chunks together are the text of the result. */
  text: string;
  /** The tokens this chunk adds. Their text may arrive with a later chunk when it ends inside a character. */
  tokens: number[];
  /** Where each token came from. The last one of a pass is always `plain`, unless the text ends before it. */
  sources: TokenSource[];
  /** What each token added to `text`: joined, they are the text. */
  pieces: string[];
  /** The log-probabilities of each token, where the option `logprobs` asks for them. */
  logprobs?: PlaceLogprobs[];
  /** The draft tree that the pass had, the root first, where the option `trees` asks for it. */
  tree?: DraftNode[];
}

/** Why a generation ended. */
export type FinishReason =
  /** An end token or a stop string. */
  | 'stop'
  /** `maxTokens` were written. */
  | 'length'
  /** The model's context is full. */
  | 'context'
  /** The reader stopped it: `abort()`, `break` or `return()`. */
  | 'aborted';

/** Token counts of a generation. */
export interface Usage {
  /** Tokens of the prompt, as the model saw it. */
  promptTokens: number;
  /** Tokens written. */
  completionTokens: number;
  /** Both together. */
  totalTokens: number;
  /** Prompt tokens whose keys and values were still in the cache from the generation before, so that no pass was spent on them. */
  reusedPromptTokens: number;
}

/** How a drafter fared at one depth of its trees. */
export interface DepthAcceptance {
  /** 1 for what follows the last token of the text. */
  depth: number;
  /** Passes that came this far and had a guess of this drafter to go on with. */
  offered: number;
  /** Those where a guess of this drafter was right. */
  accepted: number;
}

/** What drafting came to in a generation. */
export interface DraftStats {
  /** Who guessed ahead; nobody in plain decoding. */
  drafters: Drafter[];
  /** Whether trees were grown (`auto`) or had the same shape in every step (`fixed`). */
  tree: 'auto' | 'fixed';
  /** Nodes that a tree could have, the root included. */
  maxNodes: number;
  /** Rows (nodes of the tree, the root included) of the passes in order, equal ones in a row as `[rows, passes]`. */
  rowsPerStep: [rows: number, passes: number][];
  /** By drafter, from depth 1. */
  acceptance: Partial<Record<Drafter, DepthAcceptance[]>>;
  /** Written tokens by where they came from. */
  tokensBySource: Record<TokenSource, number>;
  /** Milliseconds of a pass by its number of rows, as measured when the model was loaded, or on an earlier visit. */
  passMs: Record<string, number>;
}

/** Measurements of a generation. Times are milliseconds of wall clock. */
export interface GenerationStats {
  /** From the call until the results of the first pass were known: the prompt, and that pass. */
  prefillMs: number;
  /** From there to the results of the last pass. */
  decodeMs: number;
  /** From the call until the first token was known to the CPU: the same as `prefillMs`. */
  timeToFirstTokenMs: number;
  /** Written tokens per second of `decodeMs`, without those of the first pass. 0 where one pass wrote them all. */
  tokensPerSecond: number;
  /** Decode passes of the model; the prompt's are not counted. */
  passes: number;
  /** Written tokens per pass, after trimming at the stop. */
  tokensPerPass: number;
  /** Compute dispatches of one decode pass. */
  dispatchesPerPass: number;
  /** Command buffers submitted while decoding. */
  submits: number;
  /** Decode steps that were submitted before their results were read. */
  stepsInFlight: number;
  /** Largest size of the wasm memory so far. */
  peakWasmBytes: number;
  /** Time the core took to bring the weights to the GPU, without the download. */
  loadMs: number;
  /**
   * What the rule of acceptance promises of the text: that it is, token for token, that of plain decoding (`exact`), that it is as likely
   * (`distribution`), or nothing (`lossy`).
   */
  guarantee: 'exact' | 'distribution' | 'lossy';
  /** What drafting came to. */
  draft: DraftStats;
  /** What is not as it should be, though the text is right. */
  warnings: string[];
}

/** A finished generation. */
export interface GenerationResult {
  /** The whole text, without the stop string or end token that ended it. */
  text: string;
  /** The tokens of `text`. */
  tokens: number[];
  /** The log-probabilities of each of them, where the option `logprobs` asks for them. */
  logprobs?: PlaceLogprobs[];
  /** The prompt as the model saw it: after the chat template, with the beginning-of-text token where the model wants one. */
  promptTokens: number[];
  /** Why it ended. */
  finishReason: FinishReason;
  /** Token counts. */
  usage: Usage;
  /** Measurements. */
  stats: GenerationStats;
}

/** The GPU a model runs on, as far as the browser tells. */
export interface AdapterInfo {
  /** Its name. */
  description: string;
  /** What the description came through, such as `webgpu`. */
  backend: string;
  /** Whether the processor does the GPU's work. */
  software: boolean;
}

/** What is known of a loaded model. */
export interface ModelInfo {
  /** The name in the model's own files. */
  name: string;
  /** The family whose forward pass is used, such as `llama` or `qwen2`. */
  architecture: string;
  /** Number of weights. */
  parameters: number;
  /** Most tokens a prompt and its continuation can have together. */
  contextLength: number;
  /** Number of tokens there are. */
  vocabSize: number;
  /** Number of layers. */
  layers: number;
  /** Numbers in the state of a token between two layers. */
  hiddenSize: number;
  /** Whether {@link Model.generate} accepts messages. Base models continue plain text only. */
  hasChatTemplate: boolean;
  /** The kind of file, such as `GGUF` or `safetensors`. */
  format: string;
  /** How the weights lie in the file, such as `Q4_1`. */
  quantisation: string;
  /** The GPU it runs on. */
  adapter: AdapterInfo;
  /** Time to bring the weights to the GPU, in milliseconds, without the download. */
  loadMs: number;
  /** Bytes of weights in GPU memory, those of draft heads among them. */
  weightBytes: number;
  /** Who can guess ahead for this model: what `draft: 'auto'` merges. */
  drafters: Drafter[];
  /** Milliseconds of a pass by its number of rows on this device: what decides how many guesses a pass verifies. */
  passMs: Record<string, number>;
  /** The version of this package. */
  version: string;
  /** The draft heads, where there are some. */
  heads?: HeadsInfo;
}

/** What is known of the draft heads of a model. */
export interface HeadsInfo {
  /** `parallel` heads see the model's state only, `recurrent` ones also every token drafted since. */
  form: 'parallel' | 'recurrent';
  /** How many tokens ahead they guess. */
  depths: number;
  /** Residual blocks of each head. */
  layers: number;
  /** How many tokens they can guess. */
  draftVocabulary: number;
  /** Rank of the correction by the previous token; 0 where there is none. */
  rank: number;
  /** Milliseconds that one draft takes here, as measured when the model loaded. */
  draftMs: number;
  /** Why they may guess badly: they say they were made for another model. */
  warning?: string;
}

/** Where a load stands. */
export interface LoadProgress {
  /**
   * `download`: bytes from the network into the cache · `weights`: bytes from the cache or disk to the GPU · `compile`: GPU programs ·
   * `check`: the self-check that compares a known pass on GPU and CPU · `heads`: bytes of draft heads to the GPU, where there are some.
   */
  stage: 'download' | 'weights' | 'compile' | 'check' | 'heads';
  /** The file being read, where there is one. */
  file?: string;
  /** Work done in this stage: bytes for `download`, `weights` and `heads`, items for the others. */
  loaded: number;
  /** Work of this stage. `Infinity` while a server does not say how long a file is, so that `loaded / total` stays a fraction. */
  total: number;
}
