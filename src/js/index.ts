/**
 * Small language models in the browser, on WebGPU: {@link load} a model, and {@link Model.generate} text with it.
 *
 * @module draftree
 */
export type {
  ChatCompletion,
  ChatCompletionChunk,
  ChatCompletionRequest,
  ChatMessage,
  ChatMessagePart,
  CompletionChoice,
  CompletionChunkChoice,
  CompletionDelta,
  CompletionLogprobs,
  CompletionMessage,
  CompletionPlaceLogprob,
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
export type { AcceptRule, Drafter, GenerateOptions, HeadsSource, LoadOptions, Message, ModelSource, Prompt, TopKRule, TreeShape, TypicalRule } from './options.js';
export type {
  AdapterInfo,
  DepthAcceptance,
  DraftNode,
  DraftStats,
  FinishReason,
  GenerationChunk,
  GenerationResult,
  GenerationStats,
  HeadsInfo,
  LoadProgress,
  ModelInfo,
  PlaceLogprobs,
  TokenLogprob,
  TokenSource,
  Usage,
} from './results.js';
export type { PromptOptions, Session, SessionOptions } from './session.js';
