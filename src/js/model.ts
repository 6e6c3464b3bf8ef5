/**
 * `load` and the {@link Model} it gives: options are checked, a host is started, and every method is a message to it.
 */
import { Channel, localPort, workerPort } from './channel.js';
import { Completions } from './completions.js';
import { asyncDispose, dispose } from './disposal.js';
import { DraftreeError, abortedError, asDraftreeError } from './errors.js';
import { Generation } from './generation.js';
import { checkGenerateOptions, checkLoadOptions, checkMessages, checkPrompt } from './options.js';
import type { GenerateOptions, LoadOptions, Message, ModelSource, Prompt } from './options.js';
import type { GenerateRequest, LoadRequest } from './protocol.js';
import type { ModelInfo } from './results.js';
import { Session } from './session.js';
import type { SessionOptions } from './session.js';
import { absoluteUrl, describeHeads, describeSource } from './source.js';

/** How long a host may take to let go of its GPU memory before its worker is terminated all the same, in milliseconds. */
const goodbyeTimeout = 2000;

/**
 * Load a model, from the network or from files, ready to generate. Rejects with a {@link DraftreeError}.
 *
 * ```js
 * await using model = await load('HuggingFaceTB/SmolLM2-135M-Instruct', { onProgress });
 * for await (const { text } of model.generate('Once upon a time')) out.append(text);
 * ```
 */
export async function load(source: ModelSource, options: LoadOptions = {}): Promise<Model> {
  const { onProgress, signal, worker = true, wasmUrl, cache = true, contextLength, stepsInFlight, heads, hubUrl } = checkLoadOptions(options);
  const request: LoadRequest = {
    source: describeSource(source, hubUrl),
    heads: describeHeads(heads, hubUrl),
    cache,
    ...(wasmUrl !== undefined && { wasmUrl: absoluteUrl(wasmUrl).href }),
    ...(contextLength !== undefined && { contextLength }),
  };
  if (signal?.aborted) throw abortedError(signal);
  requireWebGpu();

  const channel = new Channel(worker === false ? localPort() : workerPort(worker === true ? startWorker() : worker));
  const { id, info } = channel.load(request, onProgress);
  const defaults = stepsInFlight === undefined ? {} : { stepsInFlight };
  const stop = (): void => {
    channel.abort(id);
    void closeKindly(channel, info, abortedError(signal));
  };
  try {
    if (signal === undefined) return new Model(channel, await info, defaults);
    const stopped = new Promise<never>((_, reject) => {
      signal.addEventListener('abort', () => reject(abortedError(signal)), { once: true });
    });
    signal.addEventListener('abort', stop, { once: true });
    return new Model(channel, await Promise.race([info, stopped]), defaults);
  } catch (error) {
    if (!signal?.aborted) channel.close(asDraftreeError(error, 'loading the model'));
    throw error;
  } finally {
    signal?.removeEventListener('abort', stop);
  }
}

/**
 * A loaded model. It writes one text at a time: {@link Model.generate} while another generation runs fails with code `busy`.
 * Made by {@link load}.
 */
export class Model {
  /** What is known of the model. */
  readonly info: ModelInfo;
  /** The shape of OpenAI's API: `model.chat.completions.create({ messages, stream: true })`. */
  readonly chat: {
    /** Answers conversations. */
    readonly completions: Completions;
  } = { completions: new Completions(this) };
  readonly #channel: Channel;
  /** Options of `generate` that were given to `load`. */
  readonly #defaults: GenerateOptions;
  #current: Generation | undefined;
  #disposal: Promise<void> | undefined;

  /** @internal */
  constructor(channel: Channel, info: ModelInfo, defaults: GenerateOptions = {}) {
    this.#channel = channel;
    this.#defaults = defaults;
    this.info = info;
  }

  /**
   * Continue a text, or answer a conversation. The work starts at once and then keeps pace with the reader, so a generation that is not
   * read must be stopped with `abort()`.
   *
   * Never throws: what is wrong with the arguments, or with the moment (`busy`), is reported to the reader and by `result`.
   * Messages that begin like the last prompt and its answer reuse what the model still knows of them (`usage.reusedPromptTokens`).
   */
  generate(prompt: Prompt, options: GenerateOptions = {}): Generation {
    const generation = new Generation();
    try {
      const { signal, ...rest } = checkGenerateOptions(options);
      const request: GenerateRequest = { prompt: checkPrompt(prompt), options: { ...this.#defaults, ...rest } };
      if (this.#disposal !== undefined) throw disposedError();
      if (signal?.aborted) throw abortedError(signal);
      const previous = this.#current;
      if (previous?.isRunning) {
        throw new DraftreeError('busy', 'the model is generating; read that generation to its end or stop it with abort() first');
      }
      this.#current = generation;
      generation.follow(signal);
      void this.#startAfter(previous, generation, request);
    } catch (error) {
      generation.fail(asDraftreeError(error, 'starting a generation'));
    }
    return generation;
  }

  /** A conversation that remembers itself, in the shape of the browsers' Prompt API. */
  session(options: SessionOptions = {}): Promise<Session> {
    return Session.begin(this, options);
  }

  /** The tokens of a text. Special tokens written in it count as such. `addBos` defaults to what the model wants. */
  tokenize(text: string, options: { addBos?: boolean } = {}): Promise<Uint32Array> {
    const { addBos } = options;
    return this.#channel.call({ method: 'tokenize', text, ...(addBos !== undefined && { addBos }) });
  }

  /** The text of tokens. */
  detokenize(tokens: Iterable<number>): Promise<string> {
    return this.#channel.call({ method: 'detokenize', ids: Uint32Array.from(tokens) });
  }

  /** The bytes of each token alone, as in the middle of a text: several tokens may share one character. */
  tokenBytes(tokens: Iterable<number>): Promise<Uint8Array[]> {
    return this.#channel.call({ method: 'tokenBytes', ids: Uint32Array.from(tokens) });
  }

  /** How many tokens of context a prompt takes: of a conversation, as its chat template writes it. */
  async countTokens(prompt: Prompt): Promise<number> {
    if (typeof prompt === 'string') return (await this.tokenize(prompt)).length;
    return (await this.tokenize(await this.applyChatTemplate(prompt), { addBos: false })).length;
  }

  /** The text that the model's chat template makes of a conversation, by default with the opening of the answer. */
  async applyChatTemplate(messages: Message[], options: { addGenerationPrompt?: boolean } = {}): Promise<string> {
    const { addGenerationPrompt = true } = options;
    return this.#channel.call({ method: 'applyChatTemplate', messages: checkMessages(messages), addGenerationPrompt });
  }

  /**
   * Forget what was written so far, so that the next generation starts from an empty context. Only its speed is affected. What drafters
   * learnt of the model stays.
   */
  async reset(): Promise<void> {
    await this.#channel.call({ method: 'reset' });
  }

  /**
   * The logits of every token that could follow `ids`, before any sampling: one number for each id of the vocabulary. They are computed
   * from an empty cache, which the next `generate` then finds replaced. For measuring, scoring and comparing engines.
   */
  nextLogits(ids: ArrayLike<number>): Promise<Float32Array> {
    return this.#channel.call({ method: 'nextLogits', ids: Uint32Array.from(ids) });
  }

  /** Time the passes of this model on this device. What can be asked and what comes back is for tools, and may change. */
  benchmark(options: Record<string, unknown> = {}): Promise<Record<string, unknown>> {
    return this.#channel.call({ method: 'benchmark', options });
  }

  /** Stop what is running and free the GPU memory and the worker. Whatever still waits fails with code `disposed`. */
  dispose(): Promise<void> {
    if (this.#disposal === undefined) {
      this.#current?.fail(disposedError());
      const goodbye = this.#channel.call({ method: 'dispose' });
      this.#disposal = closeKindly(this.#channel, goodbye, disposedError());
    }
    return this.#disposal;
  }

  /** For `using`; does not wait. */
  [dispose](): void {
    void this.dispose();
  }

  /** For `await using`. */
  [asyncDispose](): Promise<void> {
    return this.dispose();
  }

  async #startAfter(previous: Generation | undefined, generation: Generation, request: GenerateRequest): Promise<void> {
    await previous?.released;
    generation.start(this.#channel, request);
  }
}

/** Close when the host has answered, or when it takes too long. */
async function closeKindly(channel: Channel, answer: Promise<unknown>, error: DraftreeError): Promise<void> {
  let timer: ReturnType<typeof setTimeout> | undefined;
  const timeout = new Promise<void>((resolve) => {
    timer = setTimeout(resolve, goodbyeTimeout);
  });
  await Promise.race([answer, timeout]).catch(() => {});
  clearTimeout(timer);
  channel.close(error);
}

function startWorker(): Worker {
  // Bundlers find the worker by this exact form.
  return new Worker(new URL('./worker.js', import.meta.url), { type: 'module' });
}

function requireWebGpu(): void {
  if (globalThis.navigator !== undefined && 'gpu' in navigator && navigator.gpu) return;
  const why =
    globalThis.isSecureContext === false
      ? 'this page is not a secure context; serve it over https or from localhost'
      : 'use a current version of Chrome, Edge, Firefox or Safari, and check that hardware acceleration is on';
  throw new DraftreeError('webgpu_unavailable', `this browser offers no WebGPU (navigator.gpu): ${why}`);
}

function disposedError(): DraftreeError {
  return new DraftreeError('disposed', 'the model was disposed');
}
