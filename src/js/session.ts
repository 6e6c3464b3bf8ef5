/**
 * `model.session()`: a conversation that remembers itself, in the shape of the browsers' Prompt API (`LanguageModel`).
 *
 * A session is its messages. Those of one session extend each other, so the model's cache serves every turn; switching between sessions
 * computes again where they differ. When the context is full the oldest exchanges are dropped, and `quotaoverflow` is fired.
 */
import { DraftreeError, abortedError } from './errors.js';
import type { Generation } from './generation.js';
import type { GenerateOptions, Message, Prompt } from './options.js';

/** Options of a session: what opens the conversation, and options of `generate` for every turn. */
export interface SessionOptions extends Omit<GenerateOptions, 'signal'> {
  /** The beginning of the conversation; a system message stays when old turns are dropped. */
  initialPrompts?: Message[];
  /** Destroys the session. */
  signal?: AbortSignal;
}

/** Options of one turn. */
export interface PromptOptions {
  /** Stops the turn; nothing of it is remembered. */
  signal?: AbortSignal;
}

/** What is used of a model. */
interface Writer {
  readonly info: { readonly contextLength: number };
  generate(prompt: Prompt, options: GenerateOptions): Generation;
  countTokens(prompt: Prompt): Promise<number>;
}

/** Tokens that are kept free for an answer, where `maxTokens` does not say. */
const answerRoom = 256;

/** A conversation with a model. Made by {@link Model.session}. */
export class Session extends EventTarget {
  readonly #model: Writer;
  readonly #options: GenerateOptions;
  #messages: Message[];
  #usage: number;
  /** The turn under way; never rejects. */
  #turn: Promise<unknown> = Promise.resolve();
  readonly #ended = new AbortController();

  /** Called when old turns were dropped since the context is full. */
  onquotaoverflow: ((event: Event) => void) | null = null;

  private constructor(model: Writer, { initialPrompts = [], signal, ...options }: SessionOptions, usage: number) {
    super();
    this.#model = model;
    this.#options = options;
    this.#messages = [...initialPrompts];
    this.#usage = usage;
    if (signal?.aborted) this.destroy();
    signal?.addEventListener('abort', () => this.destroy(), { once: true });
  }

  /** @internal */
  static async begin(model: Writer, options: SessionOptions): Promise<Session> {
    const { initialPrompts = [], signal } = options;
    if (signal?.aborted) throw abortedError(signal);
    return new Session(model, options, initialPrompts.length === 0 ? 0 : await model.countTokens(initialPrompts));
  }

  /** Tokens of context that the conversation takes. */
  get inputUsage(): number {
    return this.#usage;
  }

  /** Tokens of context there are. */
  get inputQuota(): number {
    return this.#model.info.contextLength;
  }

  /** The conversation so far. */
  get messages(): readonly Message[] {
    return this.#messages;
  }

  /** The answer to a message, or to several. Turns of a session wait for each other. */
  async prompt(input: string | Message[], options: PromptOptions = {}): Promise<string> {
    let answer = '';
    for await (const text of this.#answer(input, options)) answer += text;
    return answer;
  }

  /** The answer as it is written; cancelling the stream stops the model. */
  promptStreaming(input: string | Message[], options: PromptOptions = {}): ReadableStream<string> {
    const answer = this.#answer(input, options);
    return new ReadableStream<string>(
      {
        pull: async (controller) => {
          const { done, value } = await answer.next();
          if (done) controller.close();
          else controller.enqueue(value);
        },
        cancel: async () => void (await answer.return()),
      },
      { highWaterMark: 0 },
    );
  }

  /** Adds messages to the conversation without an answer. */
  async append(input: string | Message[]): Promise<void> {
    await this.#alone(async () => {
      const messages = await this.#fit([...this.#messages, ...asMessages(input)]);
      this.#remember(messages, await this.#model.countTokens(messages));
    });
  }

  /** Tokens that a message would add. */
  async measureInputUsage(input: string | Message[]): Promise<number> {
    return (await this.#model.countTokens([...this.#messages, ...asMessages(input)])) - this.#usage;
  }

  /** A session that begins with this conversation and goes its own way. */
  async clone({ signal }: PromptOptions = {}): Promise<Session> {
    this.#require();
    if (signal?.aborted) throw abortedError(signal);
    return new Session(this.#model, { ...this.#options, initialPrompts: this.#messages, ...(signal && { signal }) }, this.#usage);
  }

  /** Ends the session and its turn. The model stays. */
  destroy(): void {
    this.#ended.abort();
  }

  async *#answer(input: string | Message[], { signal }: PromptOptions): AsyncGenerator<string, void> {
    const asked = asMessages(input);
    const before = this.#turn;
    let finish!: () => void;
    this.#turn = new Promise<void>((resolve) => {
      finish = resolve;
    });
    try {
      await before;
      this.#require();
      if (signal?.aborted) throw abortedError(signal);
      const messages = await this.#fit([...this.#messages, ...asked]);
      const signals = [this.#ended.signal, ...(signal ? [signal] : [])];
      const generation = this.#model.generate(messages, { ...this.#options, signal: AbortSignal.any(signals) });
      for await (const { text } of generation) if (text !== '') yield text;
      const { text, usage } = await generation.result;
      this.#remember([...messages, { role: 'assistant', content: text }], usage.totalTokens);
    } finally {
      finish();
    }
  }

  /** Waits for the turn under way, and keeps others waiting. */
  async #alone(work: () => Promise<void>): Promise<void> {
    const done = this.#turn.then(() => {
      this.#require();
      return work();
    });
    this.#turn = done.catch(() => {});
    return done;
  }

  /** The messages that the context has room for: without the oldest exchanges, if need be. */
  async #fit(messages: Message[]): Promise<Message[]> {
    const room = this.inputQuota - Math.min(this.#options.maxTokens ?? answerRoom, this.inputQuota / 2);
    let kept = messages;
    while ((await this.#model.countTokens(kept)) > room) {
      const first = kept.findIndex(({ role }) => role !== 'system');
      const next = kept.findIndex(({ role }, index) => index > first && role === 'user');
      // The question itself is never dropped: the model says that it is too long.
      if (first < 0 || next < 0) break;
      kept = [...kept.slice(0, first), ...kept.slice(next)];
    }
    if (kept !== messages) {
      const event = new Event('quotaoverflow');
      this.dispatchEvent(event);
      this.onquotaoverflow?.(event);
    }
    return kept;
  }

  #remember(messages: Message[], usage: number): void {
    this.#messages = messages;
    this.#usage = usage;
  }

  #require(): void {
    if (this.#ended.signal.aborted) throw new DraftreeError('disposed', 'the session was destroyed');
  }
}

function asMessages(input: string | Message[]): Message[] {
  return typeof input === 'string' ? [{ role: 'user', content: input }] : input;
}
