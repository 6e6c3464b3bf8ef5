/**
 * draftree: small language models in the browser, on WebGPU.
 */
export type {
  ChatCompletion,
  ChatCompletionChunk,
  ChatCompletionRequest,
  ChatMessage,
  CompletionLogprobs,
  CompletionTokenLogprob,
  CompletionUsage,
  Completions,
} from './completions.js';
export { modelCache } from './model_cache.js';
export { DraftreeError, errorCodes } from './errors.js';
export type { ErrorCode } from './errors.js';
export type { Generation } from './generation.js';
export { load } from './model.js';
export type { Model } from './model.js';
export type { CachedFile } from './cache.js';
export type { AcceptRule, Drafter, GenerateOptions, LoadOptions, Message, ModelSource, Prompt, TreeShape } from './options.js';
export type {
  AdapterInfo,
  DepthAcceptance,
  DraftStats,
  FinishReason,
  GenerationChunk,
  GenerationResult,
  GenerationStats,
  LoadProgress,
  ModelInfo,
  PlaceLogprobs,
  TokenLogprob,
  TokenSource,
  Usage,
} from './results.js';
export type { PromptOptions, Session, SessionOptions } from './session.js';
