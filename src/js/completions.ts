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
  role: string;
  content: string | { type: 'text'; text: string }[];
}

/** What to answer and how. */
export interface ChatCompletionRequest {
  messages: ChatMessage[];
  /** Given back in the answer; the model is the one that was loaded. */
  model?: string;
  /** Give chunks as they are written. Default `false`. */
  stream?: boolean | null;
  stream_options?: { include_usage?: boolean } | null;
  /** Most tokens to write. Default 256. */
  max_completion_tokens?: number | null;
  /** The older name of `max_completion_tokens`. */
  max_tokens?: number | null;
  /** Default 1. */
  temperature?: number | null;
  top_p?: number | null;
  frequency_penalty?: number | null;
  presence_penalty?: number | null;
  logit_bias?: Record<string, number> | null;
  seed?: number | null;
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
  prompt_tokens: number;
  completion_tokens: number;
  total_tokens: number;
  /** `cached_tokens`: tokens of the prompt that were still in the cache. */
  prompt_tokens_details: { cached_tokens: number };
  /** Tokens that a drafter guessed rightly, and guesses that were verified in vain. */
  completion_tokens_details: { accepted_prediction_tokens: number; rejected_prediction_tokens: number };
}

/** A token and its log-probability, before temperature and filters. */
export interface CompletionTokenLogprob {
  /** Its text; U+FFFD where it is a part of a character. */
  token: string;
  logprob: number;
  bytes: number[];
}

/** Log-probabilities of the tokens of an answer, the end token among them. */
export interface CompletionLogprobs {
  content: (CompletionTokenLogprob & { top_logprobs: CompletionTokenLogprob[] })[];
  refusal: null;
}

/** A whole answer. */
export interface ChatCompletion {
  id: string;
  object: 'chat.completion';
  /** Seconds since 1970. */
  created: number;
  model: string;
  choices: [
    {
      index: 0;
      message: { role: 'assistant'; content: string; refusal: null };
      finish_reason: 'stop' | 'length';
      logprobs: CompletionLogprobs | null;
    },
  ];
  usage: CompletionUsage;
}

/** A piece of an answer. The first has the role, the last the reason why it ends; one of usage may follow, without a choice. */
export interface ChatCompletionChunk {
  id: string;
  object: 'chat.completion.chunk';
  created: number;
  model: string;
  choices: {
    index: 0;
    delta: { role?: 'assistant'; content?: string };
    finish_reason: 'stop' | 'length' | null;
    logprobs: CompletionLogprobs | null;
  }[];
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
    delta: { role?: 'assistant'; content?: string },
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
