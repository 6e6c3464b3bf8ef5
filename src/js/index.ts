/**
 * draftree: small language models in the browser, on WebGPU.
 */
export { modelCache } from './model_cache.js';
export { DraftreeError, errorCodes } from './errors.js';
export type { ErrorCode } from './errors.js';
export type { Generation } from './generation.js';
export { load } from './model.js';
export type { Model } from './model.js';
export type { CachedFile } from './cache.js';
export type { GenerateOptions, LoadOptions, Message, ModelSource, Prompt } from './options.js';
export type {
  AdapterInfo,
  FinishReason,
  GenerationChunk,
  GenerationResult,
  GenerationStats,
  LoadProgress,
  ModelInfo,
  Usage,
} from './results.js';
