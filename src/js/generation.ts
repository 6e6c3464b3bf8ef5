/**
 * A running generation as its reader sees it: an async iterator, a promise of the result, a stream.
 *
 * It pulls. Each `next()` lets the model advance by one chunk, so a reader that pauses pauses the GPU. Only asking for `result` lets
 * the generation run by itself, because whoever awaits the result may never read: then chunks are kept here until they are read.
 */
import { DraftreeError, abortedError } from './errors.js';
import type { Channel, GenerationListener } from './channel.js';
import { asyncDispose } from './disposal.js';
import type { GenerateRequest } from './protocol.js';
import type { GenerationChunk, GenerationResult } from './results.js';

/** A call of `next()` that waits for a chunk. */
interface Waiter {
  resolve(result: IteratorResult<GenerationChunk, undefined>): void;
  reject(error: DraftreeError): void;
}

const finished: IteratorReturnResult<undefined> = { done: true, value: undefined };

/**
 * A text being written. Read it with `for await`, as a stream, or just await its `result`; leaving the loop stops it.
 * It has one reader: several loops over one generation share its chunks between them.
 */
export class Generation implements AsyncIterableIterator<GenerationChunk, undefined> {
  /** @internal Settles, never rejecting, when the model is free for another generation. */
  readonly released: Promise<void>;
  readonly #result: Promise<GenerationResult>;
  readonly #waiters: Waiter[] = [];
  #unread: GenerationChunk[] = [];
  #resolveResult!: (result: GenerationResult) => void;
  #rejectResult!: (error: DraftreeError) => void;
  #release!: () => void;
  #channel: Channel | undefined;
  #id = 0;
  /** Chunks that were asked for and have not come. */
  #credits = 0;
  #runsByItself = false;
  #isStopping = false;
  #isOver = false;
  /** The fault that nobody who reads has seen yet. */
  #fault: DraftreeError | undefined;

  /** @internal */
  constructor() {
    this.#result = new Promise((resolve, reject) => {
      this.#resolveResult = resolve;
      this.#rejectResult = reject;
    });
    // A reader of the chunks learns of a fault there; not asking for the result as well is no oversight.
    this.#result.catch(() => {});
    this.released = new Promise((resolve) => {
      this.#release = resolve;
    });
  }

  /** @internal Begin, unless it was stopped before it could. */
  start(channel: Channel, request: GenerateRequest): void {
    if (this.#isOver) return this.#release();
    const listener: GenerationListener = {
      chunk: (chunk) => this.#take(chunk),
      end: (result) => this.#finish(result),
      fail: (error) => this.fail(error),
    };
    this.#channel = channel;
    this.#id = channel.generate(request, listener);
    for (let credit = 0; credit < this.#credits; credit++) channel.next(this.#id);
    if (this.#isStopping) channel.abort(this.#id);
  }

  /** @internal End with a fault, without the model's doing. */
  fail(error: DraftreeError): void {
    this.#release();
    this.#settle(error);
  }

  /** @internal Stop when the signal fires. */
  follow(signal: AbortSignal | undefined): void {
    if (signal === undefined) return;
    const onAbort = (): void => {
      this.#stop();
      this.#settle(abortedError(signal));
    };
    if (signal.aborted) return onAbort();
    signal.addEventListener('abort', onAbort, { once: true });
    void this.released.then(() => signal.removeEventListener('abort', onAbort));
  }

  /**
   * The finished generation. Rejects if the generation fails or its signal fires; resolves with what was written, and finish reason
   * `aborted`, if its reader stopped it. Asking for it lets the generation run to its end without being read.
   */
  get result(): Promise<GenerationResult> {
    if (!this.#runsByItself) {
      this.#runsByItself = true;
      if (this.#credits === 0) this.#ask();
    }
    return this.#result;
  }

  /** The next piece of text. */
  next(): Promise<IteratorResult<GenerationChunk, undefined>> {
    const chunk = this.#unread.shift();
    if (chunk !== undefined) return Promise.resolve({ done: false, value: chunk });
    if (this.#fault !== undefined) {
      const fault = this.#fault;
      this.#fault = undefined;
      return Promise.reject(fault);
    }
    if (this.#isOver) return Promise.resolve(finished);
    return new Promise((resolve, reject) => {
      this.#waiters.push({ resolve, reject });
      if (this.#waiters.length > this.#credits) this.#ask();
    });
  }

  /** Stop, and wait until the model is free. This is what leaving a `for await` loop calls. */
  async return(): Promise<IteratorResult<GenerationChunk, undefined>> {
    this.#unread = [];
    this.#fault = undefined;
    await this.abort();
    return finished;
  }

  /**
   * Stop writing. Reading then ends without an error and `result` holds what was written so far. The promise settles when the model
   * is free; the next `generate` may be called without waiting for it. Does nothing to a generation that is over.
   */
  abort(): Promise<void> {
    this.#stop();
    return this.released;
  }

  /** The chunks as a stream. Cancelling it stops the generation. */
  toReadableStream(): ReadableStream<GenerationChunk> {
    return new ReadableStream<GenerationChunk>(
      {
        pull: async (controller) => {
          const { done, value } = await this.next();
          if (done) controller.close();
          else controller.enqueue(value);
        },
        cancel: async () => {
          await this.return();
        },
      },
      { highWaterMark: 0 },
    );
  }

  /** For `for await`. */
  [Symbol.asyncIterator](): this {
    return this;
  }

  /** For `await using`: stops what is still being written. */
  async [asyncDispose](): Promise<void> {
    await this.return();
  }

  /** @internal Whether the model is still at work for a reader that wants it. */
  get isRunning(): boolean {
    return !this.#isOver && !this.#isStopping;
  }

  #ask(): void {
    if (this.#isOver || this.#isStopping) return;
    this.#credits++;
    this.#channel?.next(this.#id);
  }

  #take(chunk: GenerationChunk): void {
    this.#credits--;
    if (this.#isOver) return;
    const waiter = this.#waiters.shift();
    if (waiter !== undefined) waiter.resolve({ done: false, value: chunk });
    else this.#unread.push(chunk);
    if (this.#runsByItself && this.#credits === 0) this.#ask();
  }

  #stop(): void {
    if (this.#isOver || this.#isStopping) return;
    this.#isStopping = true;
    this.#channel?.abort(this.#id);
  }

  #finish(result: GenerationResult): void {
    this.#release();
    this.#settle(result);
  }

  /** What ends the generation first, decides how it ended. */
  #settle(outcome: GenerationResult | DraftreeError): void {
    if (this.#isOver) return;
    this.#isOver = true;
    const waiters = this.#waiters.splice(0);
    if (outcome instanceof DraftreeError) {
      const first = waiters.shift();
      if (first === undefined) this.#fault = outcome;
      else first.reject(outcome);
      this.#rejectResult(outcome);
    } else {
      this.#resolveResult(outcome);
    }
    for (const { resolve } of waiters) resolve(finished);
  }
}
