/**
 * The messages between the page and the side that holds the wasm core (a worker, or the same thread).
 *
 * Both unions are switched over exhaustively. Every request carries an id chosen by the page and gets exactly one final answer:
 * `done`, `failed`, or, for a generation, `end` or `failed`. A generation hands out one `chunk` for each `next`, never more: the page's
 * pull is the credit, so a slow reader slows the GPU and nothing piles up in the message queue.
 */
import type { ErrorData } from './errors.js';
import type { GenerateOptions, Message } from './options.js';
import type { GenerationChunk, GenerationResult, LoadProgress, ModelInfo } from './results.js';
import type { HeadsDescription, SourceDescription } from './source.js';

/** What to continue and how. */
export interface GenerateRequest {
  prompt: { prompt: string } | { messages: Message[] };
  options: Omit<GenerateOptions, 'signal'>;
}

/** What the host needs to load a model. */
export interface LoadRequest {
  source: SourceDescription;
  heads: HeadsDescription;
  wasmUrl?: string;
  cache: boolean;
  contextLength?: number;
}

/** Short calls: one question, one answer. */
export type Call =
  | { method: 'tokenize'; text: string; addBos?: boolean }
  | { method: 'detokenize'; ids: Uint32Array }
  | { method: 'tokenBytes'; ids: Uint32Array }
  | { method: 'applyChatTemplate'; messages: Message[]; addGenerationPrompt: boolean }
  | { method: 'nextLogits'; ids: Uint32Array }
  | { method: 'benchmark'; options: Record<string, unknown> }
  | { method: 'reset' }
  | { method: 'dispose' };

/** The answer to each short call. */
export interface Answers {
  tokenize: Uint32Array;
  detokenize: string;
  tokenBytes: Uint8Array[];
  applyChatTemplate: string;
  nextLogits: Float32Array;
  benchmark: Record<string, unknown>;
  reset: undefined;
  dispose: undefined;
}

/** From the page to the host. */
export type ToHost =
  | { op: 'load'; id: number; request: LoadRequest }
  | { op: 'generate'; id: number; request: GenerateRequest }
  | { op: 'next'; id: number }
  | { op: 'abort'; id: number }
  | { op: 'call'; id: number; call: Call };

/** From the host to the page. */
export type FromHost =
  | { op: 'progress'; id: number; progress: LoadProgress }
  | { op: 'chunk'; id: number; chunk: GenerationChunk }
  | { op: 'end'; id: number; result: GenerationResult }
  | { op: 'done'; id: number; value: ModelInfo | Answers[keyof Answers] }
  | { op: 'failed'; id: number; error: ErrorData };

/** Reached only if a message of an unknown kind was let through by the compiler. */
export function unexpected(message: never): never {
  throw new Error(`message of an unknown kind: ${JSON.stringify(message)}`);
}
