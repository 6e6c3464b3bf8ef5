/**
 * `draftree/ai-sdk`: a loaded model as a language model of the Vercel AI SDK (specification v4, the one of `ai` 7), for `generateText`,
 * `streamText` and what is built on them.
 *
 * ```js
 * import { load } from 'draftree';
 * import { draftree } from 'draftree/ai-sdk';
 * import { streamText } from 'ai';
 *
 * const model = await load('HuggingFaceTB/SmolLM2-135M-Instruct');
 * const { textStream } = streamText({ model: draftree(model), prompt: 'Why is the sky blue?' });
 * ```
 *
 * The types of the SDK are written down here as far as they are used, so that nothing of it is needed to import this; the tests hold
 * them against the SDK's own. What the model cannot do is a warning where the answer makes sense without it, and else an error.
 *
 * @module draftree/ai-sdk
 */
import type { Generation } from './generation.js'; // Of types, so that the declarations keep it, and the comment above with it.
import { DraftreeError } from './errors.js';
import type { GenerateOptions, Message, Prompt } from './options.js';
import type { FinishReason, GenerationChunk, GenerationResult, GenerationStats, Usage } from './results.js';

/** What is used of a loaded model. */
export interface AiSdkSource {
  /** What is known of it. */
  readonly info: {
    /** The name in the model's own files. */
    readonly name: string;
    /** Whether it takes conversations. */
    readonly hasChatTemplate: boolean;
  };
  /** Writes a text. */
  generate(prompt: Prompt, options: GenerateOptions): Generation;
}

/** A part of a message. */
export interface AiSdkPart {
  /** `text`, or a kind that this model does not read. */
  readonly type: string;
  /** The text, where it is one. */
  readonly text?: string;
}

/** A choice by its kind, as for tools and formats. */
export interface AiSdkChoice {
  /** The kind. */
  type: string;
}

/** A message as the SDK gives it. */
export interface AiSdkMessage {
  /** `system`, `user` or `assistant`; results of tools are an error. */
  role: string;
  /** A text or its parts. Reasoning is left out with a warning; parts of other kinds are an error. */
  content: string | readonly AiSdkPart[];
}

/** What is read of the options of a call. */
export interface AiSdkCallOptions {
  /** The conversation. A model without a chat template takes one message of the user and continues its text. */
  prompt: readonly AiSdkMessage[];
  /** Most tokens to write. Default 256. */
  maxOutputTokens?: number | undefined;
  /** Default 0. */
  temperature?: number | undefined;
  /** End before the first of these texts. */
  stopSequences?: string[] | undefined;
  /** Sample among the likeliest tokens that together reach this probability. */
  topP?: number | undefined;
  /** Sample among so many of the likeliest tokens. */
  topK?: number | undefined;
  /** Subtracted once from the logit of every token that was written. */
  presencePenalty?: number | undefined;
  /** Subtracted from a token's logit for each time it was written. */
  frequencyPenalty?: number | undefined;
  /** The same seed, prompt and options give the same text. */
  seed?: number | undefined;
  /** `json` is a warning: nothing holds the text to a format. */
  responseFormat?: AiSdkChoice | undefined;
  /** A warning: the model is not told of them. */
  tools?: readonly unknown[] | undefined;
  /** A warning where it asks for tools. */
  toolChoice?: AiSdkChoice | undefined;
  /** A warning where it asks for an effort. */
  reasoning?: string | undefined;
  /** Also hand out the chunks of `generate` themselves, which tell where tokens came from. */
  includeRawChunks?: boolean | undefined;
  /** Stops the model. The call or stream fails with the signal's reason. */
  abortSignal?: AbortSignal | undefined;
  /** `draftree`: options of `generate` for this call, which win over all others. */
  providerOptions?: Record<string, Record<string, unknown>> | undefined;
}

/** A setting that has no effect. */
export interface AiSdkWarning {
  /** The model cannot do it. */
  type: 'unsupported';
  /** The setting. */
  feature: string;
  /** What happens instead. */
  details: string;
}

/** Why the text ends. */
export interface AiSdkFinishReason {
  /** As the SDK names it. */
  unified: 'stop' | 'length' | 'other' | 'error';
  /** As this package names it; nothing after an error. */
  raw: FinishReason | undefined;
}

/** Token counts. */
export interface AiSdkUsage {
  /** Tokens of the prompt. */
  inputTokens: {
    /** All of them. */
    total: number | undefined;
    /** Those that were computed. */
    noCache: number | undefined;
    /** Those that were still in the model's cache. */
    cacheRead: number | undefined;
    /** Not counted. */
    cacheWrite: undefined;
  };
  /** Tokens written. */
  outputTokens: {
    /** All of them. */
    total: number | undefined;
    /** All of them: text is what there is. */
    text: number | undefined;
    /** Not told apart. */
    reasoning: undefined;
  };
  /** As this package counts them. */
  raw?: Plain<Usage>;
}

/** Data without its interfaces' names, as the SDK wants what it may copy. */
export type Plain<T> = T extends object ? { [key in keyof T]: Plain<T[key]> } : T;

/** `draftree`: the stats of the generation, acceptance by drafter and depth among them. */
export type AiSdkMetadata = {
  /** The stats, as in the result of `generate`. */
  draftree: Plain<GenerationStats>;
};

/** A text. */
export interface AiSdkText {
  /** The only kind of content there is. */
  type: 'text';
  /** The text itself. */
  text: string;
}

/** Who answers, and since when. */
export interface AiSdkResponse {
  /** When it was asked. */
  timestamp: Date;
  /** The model's name. */
  modelId: string;
}

/** A finished answer. */
export interface AiSdkGenerateResult {
  /** The answer, one text. */
  content: AiSdkText[];
  /** Why it ends. */
  finishReason: AiSdkFinishReason;
  /** Token counts. */
  usage: AiSdkUsage;
  /** What drafting came to. */
  providerMetadata: AiSdkMetadata;
  /** Who answered, and when it was asked. */
  response: AiSdkResponse;
  /** Settings without effect. */
  warnings: AiSdkWarning[];
}

/** The beginning of a stream. */
export interface AiSdkStreamStart {
  /** Comes first. */
  type: 'stream-start';
  /** Settings without effect. */
  warnings: AiSdkWarning[];
}

/** Who answers, within a stream. */
export interface AiSdkStreamResponse extends AiSdkResponse {
  /** Comes second. */
  type: 'response-metadata';
}

/** The bounds of the text. */
export interface AiSdkTextBound {
  /** Before its first piece and behind its last. */
  type: 'text-start' | 'text-end';
  /** The same for all pieces. */
  id: string;
}

/** A piece of the text. */
export interface AiSdkTextDelta {
  /** Between the bounds. */
  type: 'text-delta';
  /** The same for all pieces. */
  id: string;
  /** The piece. */
  delta: string;
}

/** A chunk of `generate`, where `includeRawChunks` asks for it. */
export interface AiSdkRawChunk {
  /** Before the chunk's text. */
  type: 'raw';
  /** The chunk: text, tokens and who guessed them. */
  rawValue: GenerationChunk;
}

/** A fault. */
export interface AiSdkStreamFault {
  /** In the place of the rest of the text; the end follows. */
  type: 'error';
  /** A `DraftreeError`. */
  error: unknown;
}

/** The end of a stream. */
export interface AiSdkStreamEnd {
  /** Comes last. */
  type: 'finish';
  /** Token counts. */
  usage: AiSdkUsage;
  /** Why the text ends. */
  finishReason: AiSdkFinishReason;
  /** What drafting came to; nothing after an error. */
  providerMetadata?: AiSdkMetadata;
}

/** A piece of an answer. */
export type AiSdkStreamPart =
  | AiSdkStreamStart
  | AiSdkStreamResponse
  | AiSdkTextBound
  | AiSdkTextDelta
  | AiSdkRawChunk
  | AiSdkStreamFault
  | AiSdkStreamEnd;

/** A stream, as the SDK wraps it. */
export interface AiSdkStreamResult {
  /** The pieces. The model keeps pace with their reader; cancelling stops it. */
  stream: ReadableStream<AiSdkStreamPart>;
}

/** A language model of the SDK. */
export interface AiSdkModel {
  /** The version of the SDK's specification. */
  readonly specificationVersion: 'v4';
  /** `draftree`. */
  readonly provider: string;
  /** The name in the model's own files. */
  readonly modelId: string;
  /** None: the model reads text only. */
  readonly supportedUrls: Record<string, RegExp[]>;
  /** A whole answer. */
  doGenerate(options: AiSdkCallOptions): Promise<AiSdkGenerateResult>;
  /** An answer as it is written. */
  doStream(options: AiSdkCallOptions): Promise<AiSdkStreamResult>;
}

/** The id of the one text of an answer. */
const textId = '0';

/**
 * A loaded model for the AI SDK. `defaults` are options of `generate` for every call; settings of a call win over them, and
 * `providerOptions.draftree` over both.
 */
export function draftree(model: AiSdkSource, defaults: Omit<GenerateOptions, 'signal'> = {}): AiSdkModel {
  const modelId = model.info.name;
  const begin = (options: AiSdkCallOptions): { generation: Generation; warnings: AiSdkWarning[]; head: AiSdkResponse } => {
    options.abortSignal?.throwIfAborted();
    const warnings = warningsOf(options);
    const prompt = promptOf(options.prompt, model.info.hasChatTemplate, warnings);
    const generation = model.generate(prompt, { ...defaults, ...optionsOf(options) });
    return { generation, warnings, head: { timestamp: new Date(), modelId } };
  };
  return {
    specificationVersion: 'v4',
    provider: 'draftree',
    modelId,
    supportedUrls: {},
    async doGenerate(options) {
      const { generation, warnings, head } = begin(options);
      try {
        const result = await generation.result;
        return { content: [{ type: 'text', text: result.text }], ...endOf(result), response: head, warnings };
      } catch (error) {
        throw faultOf(error, options.abortSignal);
      }
    },
    async doStream(options) {
      const { generation, warnings, head } = begin(options);
      const opening: AiSdkStreamPart[] = [
        { type: 'stream-start', warnings },
        { type: 'response-metadata', ...head },
        { type: 'text-start', id: textId },
      ];
      return { stream: streamOf(generation, opening, options) };
    },
  };
}

function streamOf(generation: Generation, opening: AiSdkStreamPart[], { abortSignal, includeRawChunks }: AiSdkCallOptions): ReadableStream<AiSdkStreamPart> {
  const parts = partsOf(generation, includeRawChunks === true);
  return new ReadableStream<AiSdkStreamPart>(
    {
      start(controller) {
        for (const part of opening) controller.enqueue(part);
      },
      async pull(controller) {
        try {
          const { done, value } = await parts.next();
          if (done) controller.close();
          else controller.enqueue(value);
        } catch (error) {
          if (abortSignal?.aborted) return controller.error(abortSignal.reason);
          controller.enqueue({ type: 'error', error });
          controller.enqueue({ type: 'finish', usage: unknownUsage, finishReason: { unified: 'error', raw: undefined } });
          controller.close();
        }
      },
      cancel: async () => void (await generation.return()),
    },
    { highWaterMark: 0 },
  );
}

/** What follows the opening. */
async function* partsOf(generation: Generation, withChunks: boolean): AsyncGenerator<AiSdkStreamPart, void> {
  for await (const chunk of generation) {
    if (withChunks) yield { type: 'raw', rawValue: chunk };
    if (chunk.text !== '') yield { type: 'text-delta', id: textId, delta: chunk.text };
  }
  const result = await generation.result;
  yield { type: 'text-end', id: textId };
  yield { type: 'finish', ...endOf(result) };
}

/** The SDK knows an abort by the signal's own reason. */
function faultOf(error: unknown, signal: AbortSignal | undefined): unknown {
  return signal?.aborted ? signal.reason : error;
}

function endOf({ finishReason, usage, stats }: GenerationResult): Pick<AiSdkGenerateResult, 'finishReason' | 'usage' | 'providerMetadata'> {
  const unified = { stop: 'stop', length: 'length', context: 'length', aborted: 'other' } as const;
  return {
    finishReason: { unified: unified[finishReason], raw: finishReason },
    usage: {
      inputTokens: {
        total: usage.promptTokens,
        noCache: usage.promptTokens - usage.reusedPromptTokens,
        cacheRead: usage.reusedPromptTokens,
        cacheWrite: undefined,
      },
      outputTokens: { total: usage.completionTokens, text: usage.completionTokens, reasoning: undefined },
      raw: usage,
    },
    providerMetadata: { draftree: stats },
  };
}

const unknownUsage: AiSdkUsage = {
  inputTokens: { total: undefined, noCache: undefined, cacheRead: undefined, cacheWrite: undefined },
  outputTokens: { total: undefined, text: undefined, reasoning: undefined },
};

/** The options of `generate` by the names of the SDK. */
const optionNames = {
  maxOutputTokens: 'maxTokens',
  temperature: 'temperature',
  topK: 'topK',
  topP: 'topP',
  presencePenalty: 'presencePenalty',
  frequencyPenalty: 'frequencyPenalty',
  seed: 'seed',
  stopSequences: 'stop',
  abortSignal: 'signal',
} as const;

/** Options that were not given are left out: they must not hide the defaults. */
function optionsOf(call: AiSdkCallOptions): GenerateOptions {
  const named = Object.entries(optionNames).map(([theirs, ours]) => [ours, call[theirs as keyof typeof optionNames]]);
  const given = named.filter(([, value]) => value !== undefined && value !== null);
  return { ...Object.fromEntries(given), ...call.providerOptions?.['draftree'] };
}

function warningsOf({ tools = [], toolChoice, responseFormat, reasoning = 'provider-default' }: AiSdkCallOptions): AiSdkWarning[] {
  const warnings: AiSdkWarning[] = [];
  const warn = (feature: string, details: string): void => void warnings.push({ type: 'unsupported', feature, details });
  if (tools.length > 0) warn('tools', 'the model is not told of them and calls none');
  if (toolChoice !== undefined && !['auto', 'none'].includes(toolChoice.type)) warn('toolChoice', 'the model calls no tools');
  if (responseFormat?.type === 'json') warn('responseFormat', 'nothing holds the text to JSON; ask for it in the prompt');
  if (!['provider-default', 'none'].includes(reasoning)) warn('reasoning', 'the effort cannot be chosen');
  return warnings;
}

function promptOf(messages: readonly AiSdkMessage[], hasChatTemplate: boolean, warnings: AiSdkWarning[]): Prompt {
  const read = messages.map((message, index) => messageOf(message, index, warnings));
  if (hasChatTemplate) return read;
  const [only, ...more] = read;
  if (only?.role === 'user' && more.length === 0) return only.content;
  throw invalid(
    `this model has no chat template and continues plain text: expected one message of the user, found ${read.map(({ role }) => role).join(', ')}; ` +
      'give `prompt` alone, or load a model that chats',
  );
}

function messageOf({ role, content }: AiSdkMessage, index: number, warnings: AiSdkWarning[]): Message {
  if (typeof content === 'string') return { role, content };
  const texts = content.map(({ type, text }) => {
    if (type === 'text') return text ?? '';
    if (type !== 'reasoning') throw invalid(`message ${index} (${role}): expected parts of type "text", found "${type}"; this model reads text only`);
    warnings.push({ type: 'unsupported', feature: 'reasoning parts', details: `that of message ${index} is left out of the prompt` });
    return '';
  });
  return { role, content: texts.join('') };
}

function invalid(what: string): DraftreeError {
  return new DraftreeError('invalid_option', `draftree/ai-sdk: ${what}`);
}
