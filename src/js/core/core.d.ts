/**
 * The wasm core as wasm-bindgen exports it (`src/web`), for compiling without a built core.
 * In the package, `pkg/core/core.d.ts` is the generated one.
 */
import type { KnownCosts } from '../costs.js';
import type { GenerateOptions, Message } from '../options.js';
import type { ByteSource } from '../repository.js';
import type { GenerationChunk, GenerationResult, LoadProgress, ModelInfo } from '../results.js';

/** What the core's `load` understands. */
export interface CoreLoadOptions {
  contextLength?: number;
  knownCosts?: KnownCosts;
}

/** A prompt, or messages for the chat template, and how to continue them. */
export interface CoreRequest {
  prompt?: string;
  messages?: Message[];
  options?: Omit<GenerateOptions, 'signal'>;
}

export class Model {
  private constructor();
  static load(
    source: ByteSource,
    heads: ByteSource | 'auto' | null,
    options: CoreLoadOptions,
    onProgress?: (progress: { stage: Exclude<LoadProgress['stage'], 'download'>; loaded: number; total: number }) => void,
  ): Promise<Model>;
  info(): ModelInfo;
  tokenize(text: string, addBos?: boolean): Uint32Array;
  detokenize(ids: Uint32Array): string;
  tokenBytes(ids: Uint32Array): Uint8Array[];
  applyChatTemplate(messages: Message[], addGenerationPrompt?: boolean): string;
  start(request: CoreRequest): Generation;
  nextLogits(ids: Uint32Array): Promise<Float32Array>;
  benchmark(options: Record<string, unknown>): Promise<Record<string, unknown>>;
  reset(): void;
  free(): void;
}

export class Generation {
  private constructor();
  next(): Promise<GenerationChunk | undefined>;
  result(): GenerationResult;
  abort(): void;
  free(): void;
}

export default function init(options?: { module_or_path: string | URL }): Promise<unknown>;
