/**
 * `model.chat.completions.create`: the chat completions of OpenAI's API over {@link Model.generate}, for code that is written for them.
 *
 * Names and defaults are those of that API. What this package adds (drafting, further sampling) goes under `draftree`; what it cannot do is
 * an `invalid_option` error, never left out in silence.
 */
import { DraftreeError } from './errors.js';
import type { Generation } from './generation.js';
import type { GenerateOptions, Message, Prompt } from './options.js';
import type { FinishReason, GenerationResult, PlaceLogprobs, TokenLogprob } from './results.js';
import { nearestName } from './suggest.js';

/** One turn of a conversation; a list of parts must be of texts only. */
export interface ChatMessage {
  /** Usually `system`, `user` or `assistant`. */
  role: string;
  /** What it says. */
  content: string | ChatMessagePart[];
}

/** A part of a message. */
export interface ChatMessagePart {
  /** The model reads text only. */
  type: 'text';
  /** The text. */
  text: string;
}

/** What to answer and how. */
export interface ChatCompletionRequest {
  /** The conversation so far. */
  messages: ChatMessage[];
  /** Given back in the answer; the model is the one that was loaded. */
  model?: string;
  /** Give chunks as they are written. Default `false`. */
  stream?: boolean | null;
  /** What a stream tells besides. */
  stream_options?: {
    /** Whether a last chunk has the usage. Default `false`. */
    include_usage?: boolean;
  } | null;
  /** Most tokens to write. Default 256. */
  max_completion_tokens?: number | null;
  /** The older name of `max_completion_tokens`. */
  max_tokens?: number | null;
  /** Default 1. */
  temperature?: number | null;
  /** Sample among the likeliest tokens that together reach this probability. Default 1. */
  top_p?: number | null;
  /** Subtracted from a token's logit for each time it was written. Default 0. */
  frequency_penalty?: number | null;
  /** Subtracted once from the logit of every token that was written. Default 0. */
  presence_penalty?: number | null;
  /** Added to the logits of single tokens, by token id. */
  logit_bias?: Record<string, number> | null;
  /** The same seed, messages and options give the same answer. Default 0. */
  seed?: number | null;
  /** End before the first of these texts. */
  stop?: string | string[] | null;
  /** Tell the log-probabilities of the answer's tokens. Default `false`. */
  logprobs?: boolean | null;
  /** How many of the most probable tokens to tell at every place, from 0 to 20; needs `logprobs`. */
  top_logprobs?: number | null;
  /** Answers to write: 1. */
  n?: 1 | null;
  /** Ignored. */
  user?: string;
  /** Options of `generate` that the API has no name for. */
  draftree?: Omit<GenerateOptions, 'signal'>;
}

/** Token counts, and what drafting came to. */
export interface CompletionUsage {
  /** Tokens of the conversation, as the model saw it. */
  prompt_tokens: number;
  /** Tokens of the answer. */
  completion_tokens: number;
  /** Both together. */
  total_tokens: number;
  /** What the tokens of the conversation took. */
  prompt_tokens_details: {
    /** Those that were still in the cache. */
    cached_tokens: number;
  };
  /** What the tokens of the answer took. */
  completion_tokens_details: {
    /** Tokens that a drafter guessed rightly. */
    accepted_prediction_tokens: number;
    /** Guesses that were verified in vain. */
    rejected_prediction_tokens: number;
  };
}

/** A token and its log-probability, before temperature and filters. */
export interface CompletionTokenLogprob {
  /** Its text; U+FFFD where it is a part of a character. */
  token: string;
  /** The natural logarithm of its probability. */
  logprob: number;
  /** Its bytes, in UTF-8. */
  bytes: number[];
}

/** A token of an answer with those that were likeliest at its place. */
export interface CompletionPlaceLogprob extends CompletionTokenLogprob {
  /** As many as `top_logprobs` asks for, the likeliest first. */
  top_logprobs: CompletionTokenLogprob[];
}

/** Log-probabilities of the tokens of an answer, the end token among them. */
export interface CompletionLogprobs {
  /** Place by place. */
  content: CompletionPlaceLogprob[];
  /** The model refuses nothing by itself. */
  refusal: null;
}

/** The message that a model answers. */
export interface CompletionMessage {
  /** Who speaks. */
  role: 'assistant';
  /** What it says. */
  content: string;
  /** The model refuses nothing by itself. */
  refusal: null;
}

/** The one answer there is. */
export interface CompletionChoice {
  /** It is the first. */
  index: 0;
  /** The answer. */
  message: CompletionMessage;
  /** Why it ends: `length` also where the context is full. */
  finish_reason: 'stop' | 'length';
  /** Log-probabilities, where they were asked for. */
  logprobs: CompletionLogprobs | null;
}

/** A whole answer. */
export interface ChatCompletion {
  /** Another one for every answer. */
  id: string;
  /** Its kind in that API. */
  object: 'chat.completion';
  /** Seconds since 1970. */
  created: number;
  /** The name that was asked for, or the loaded model's own. */
  model: string;
  /** The answer. */
  choices: [CompletionChoice];
  /** Token counts. */
  usage: CompletionUsage;
}

/** What a chunk adds to the answer. */
export interface CompletionDelta {
  /** In the first chunk. */
  role?: 'assistant';
  /** The next piece of text. */
  content?: string;
}

/** The next piece of the one answer there is. */
export interface CompletionChunkChoice {
  /** It is the first. */
  index: 0;
  /** What is added. */
  delta: CompletionDelta;
  /** In the last chunk: why the answer ends. */
  finish_reason: 'stop' | 'length' | null;
  /** Log-probabilities of the added tokens, where they were asked for. */
  logprobs: CompletionLogprobs | null;
}

/** A piece of an answer. The first has the role, the last the reason why it ends; one of usage may follow, without a choice. */
export interface ChatCompletionChunk {
  /** The same for all chunks of an answer. */
  id: string;
  /** Its kind in that API. */
  object: 'chat.completion.chunk';
  /** Seconds since 1970, when the answer was asked for. */
  created: number;
  /** The name that was asked for, or the loaded model's own. */
  model: string;
  /** The piece; none in a chunk of usage. */
  choices: CompletionChunkChoice[];
  /** Token counts, in the chunk behind the last one, where they were asked for. */
  usage?: CompletionUsage | null;
}

/** What is used of a model. */
interface Writer {
  readonly info: { readonly name: string };
  generate(prompt: Prompt, options: GenerateOptions): Generation;
  tokenBytes(tokens: Iterable<number>): Promise<Uint8Array[]>;
}

/** The options of `generate` by the names of the API. */
const optionNames = {
  max_tokens: 'maxTokens',
  max_completion_tokens: 'maxTokens',
  temperature: 'temperature',
  top_p: 'topP',
  frequency_penalty: 'frequencyPenalty',
  presence_penalty: 'presencePenalty',
  logit_bias: 'logitBias',
  seed: 'seed',
  stop: 'stop',
} as const;

const otherNames = ['messages', 'model', 'stream', 'stream_options', 'logprobs', 'top_logprobs', 'n', 'user', 'draftree'];

/** Chat completions of one model. */
export class Completions {
  readonly #model: Writer;

  /** @internal */
  constructor(model: Writer) {
    this.#model = model;
  }

  /**
   * Answer a conversation. With `stream: true` an async iterable of chunks, of which leaving the loop stops the model; else the whole answer.
   * Fails with a {@link DraftreeError}.
   */
  create(request: ChatCompletionRequest & { stream: true }, options?: { signal?: AbortSignal }): Promise<AsyncIterable<ChatCompletionChunk>>;
  create(request: ChatCompletionRequest & { stream?: false | null }, options?: { signal?: AbortSignal }): Promise<ChatCompletion>;
  create(request: ChatCompletionRequest, options?: { signal?: AbortSignal }): Promise<ChatCompletion | AsyncIterable<ChatCompletionChunk>>;
  async create(request: ChatCompletionRequest, { signal }: { signal?: AbortSignal } = {}): Promise<ChatCompletion | AsyncIterable<ChatCompletionChunk>> {
    const generateOptions = optionsOf(request);
    const generation = this.#model.generate(messagesOf(request), { ...generateOptions, ...(signal && { signal }) });
    const head = { id: `chatcmpl-${randomId()}`, created: Math.floor(Date.now() / 1000), model: request.model ?? this.#model.info.name };
    if (request.stream === true) return chunks(this.#model, generation, head, request.stream_options?.include_usage === true);
    const result = await generation.result;
    const message = { role: 'assistant', content: result.text, refusal: null } as const;
    const logprobs = await logprobsOf(this.#model, result);
    return {
      ...head,
      object: 'chat.completion',
      choices: [{ index: 0, message, finish_reason: finishReason(result.finishReason), logprobs }],
      usage: usageOf(result),
    };
  }
}

async function* chunks(
  model: Writer,
  generation: Generation,
  head: Pick<ChatCompletionChunk, 'id' | 'created' | 'model'>,
  includesUsage: boolean,
): AsyncGenerator<ChatCompletionChunk, void> {
  const chunk = (
    delta: CompletionDelta,
    finish: 'stop' | 'length' | null,
    logprobs: CompletionLogprobs | null = null,
  ): ChatCompletionChunk => ({
    ...head,
    object: 'chat.completion.chunk',
    choices: [{ index: 0, delta, finish_reason: finish, logprobs }],
    ...(includesUsage && { usage: null }),
  });
  yield chunk({ role: 'assistant', content: '' }, null);
  for await (const piece of generation) {
    const logprobs = await logprobsOf(model, piece);
    if (piece.text !== '' || logprobs !== null) yield chunk({ content: piece.text }, null, logprobs);
  }
  const result = await generation.result;
  yield chunk({}, finishReason(result.finishReason));
  if (includesUsage) yield { ...head, object: 'chat.completion.chunk', choices: [], usage: usageOf(result) };
}

function optionsOf(request: ChatCompletionRequest): GenerateOptions {
  if (typeof request !== 'object' || request === null) throw invalid('the request must be an object with messages');
  const options: Record<string, unknown> = { temperature: 1 };
  for (const [name, value] of Object.entries(request)) {
    if (otherNames.includes(name) || value === undefined || value === null) continue;
    if (!Object.hasOwn(optionNames, name)) {
      const known = [...Object.keys(optionNames), ...otherNames];
      const nearest = nearestName(name, known);
      throw invalid(`"${name}" is not supported: ${nearest === undefined ? `known are ${known.join(', ')}` : `did you mean "${nearest}"?`}`);
    }
    options[optionNames[name as keyof typeof optionNames]] = value;
  }
  if ((request.n ?? 1) !== 1) throw invalid(`n must be 1, not ${String(request.n)}: one answer is written at a time`);
  const { logprobs, top_logprobs: top } = request;
  if (typeof (logprobs ?? false) !== 'boolean') throw invalid(`logprobs must be true or false, not ${String(logprobs)}`);
  if (logprobs) options['logprobs'] = top ?? 0;
  else if (top !== undefined && top !== null) throw invalid('top_logprobs needs logprobs: true');
  return { ...options, ...request.draftree };
}

/** The log-probabilities of an answer or a piece of one, with the texts of all tokens. */
async function logprobsOf(model: Writer, { logprobs }: { logprobs?: PlaceLogprobs[] }): Promise<CompletionLogprobs | null> {
  if (logprobs === undefined) return null;
  const ids = [...new Set(logprobs.flatMap(({ token, top }) => [token, ...top.map(({ token }) => token)]))];
  const bytes = await model.tokenBytes(ids);
  const decoder = new TextDecoder('utf-8', { ignoreBOM: true });
  const texts = new Map(ids.map((id, index) => [id, { token: decoder.decode(bytes[index]), bytes: [...(bytes[index] ?? [])] }]));
  const named = ({ token, logprob }: TokenLogprob): CompletionTokenLogprob => ({ token: '', bytes: [], ...texts.get(token), logprob });
  return { content: logprobs.map((place) => ({ ...named(place), top_logprobs: place.top.map(named) })), refusal: null };
}

function messagesOf({ messages }: ChatCompletionRequest): Message[] {
  if (!Array.isArray(messages)) throw invalid('messages must be an array of { role, content }');
  return messages.map(({ role, content }, index) => {
    if (!Array.isArray(content)) return { role, content };
    const texts = content.map((part) => {
      if (part?.type !== 'text') throw invalid(`message ${index} has a part of type ${JSON.stringify(part?.type)}: this model reads text only`);
      return part.text;
    });
    return { role, content: texts.join('') };
  });
}

/** A full context counts as a length, as in that API. */
function finishReason(reason: FinishReason): 'stop' | 'length' {
  return reason === 'length' || reason === 'context' ? 'length' : 'stop';
}

function usageOf({ usage, stats }: GenerationResult): CompletionUsage {
  const { plain, ...drafted } = stats.draft.tokensBySource;
  const accepted = Object.values(drafted).reduce((sum, count) => sum + count, 0);
  const verified = stats.draft.rowsPerStep.reduce((sum, [rows, passes]) => sum + (rows - 1) * passes, 0);
  return {
    prompt_tokens: usage.promptTokens,
    completion_tokens: usage.completionTokens,
    total_tokens: usage.totalTokens,
    prompt_tokens_details: { cached_tokens: usage.reusedPromptTokens },
    completion_tokens_details: { accepted_prediction_tokens: accepted, rejected_prediction_tokens: Math.max(0, verified - accepted) },
  };
}

function randomId(): string {
  return Array.from(crypto.getRandomValues(new Uint8Array(12)), (byte) => byte.toString(16).padStart(2, '0')).join('');
}

function invalid(what: string): DraftreeError {
  return new DraftreeError('invalid_option', `chat.completions.create: ${what}`);
}
