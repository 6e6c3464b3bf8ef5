/**
 * The page's side of the protocol: gives every request an id, and every id its answer.
 *
 * Nothing that waits here waits for ever. When the other side dies, sends what cannot be read, or is closed, every waiting call and
 * generation is told, and later ones fail at once with the same error.
 */
import { DraftreeError, asDraftreeError } from './errors.js';
import { unexpected } from './protocol.js';
import type { Answers, Call, FromHost, GenerateRequest, LoadRequest, ToHost } from './protocol.js';
import type { GenerationChunk, GenerationResult, LoadProgress, ModelInfo } from './results.js';

/** A way to a host. */
export interface Port {
  post(message: ToHost): void;
  /** Called once, before the first message: where answers go, and where the news of the other side's end goes. */
  connect(receive: (message: FromHost) => void, die: (error: DraftreeError) => void): void;
  /** Release the other side without asking it. */
  close(): void;
}

/** What a generation is told. */
export interface GenerationListener {
  chunk(chunk: GenerationChunk): void;
  end(result: GenerationResult): void;
  fail(error: DraftreeError): void;
}

/** A call that waits for its answer. */
interface PendingCall {
  resolve(value: never): void;
  reject(error: DraftreeError): void;
  onProgress?: ((progress: LoadProgress) => void) | undefined;
}

/** Requests and answers over one port. */
export class Channel {
  readonly #port: Port;
  readonly #calls = new Map<number, PendingCall>();
  readonly #generations = new Map<number, GenerationListener>();
  #lastId = 0;
  #closed: DraftreeError | undefined;

  constructor(port: Port) {
    this.#port = port;
    port.connect(
      (message) => this.#receive(message),
      (error) => this.close(error),
    );
  }

  /** Start to load; the id is for {@link abort}. */
  load(request: LoadRequest, onProgress?: (progress: LoadProgress) => void): { id: number; info: Promise<ModelInfo> } {
    const id = ++this.#lastId;
    return { id, info: this.#ask<ModelInfo>(id, { op: 'load', id, request }, onProgress) };
  }

  /** One question, one answer. */
  call<C extends Call>(call: C): Promise<Answers[C['method']]> {
    const id = ++this.#lastId;
    return this.#ask(id, { op: 'call', id, call });
  }

  /** Start a generation; its chunks come one for each {@link next}. */
  generate(request: GenerateRequest, listener: GenerationListener): number {
    const id = ++this.#lastId;
    if (this.#closed !== undefined) listener.fail(this.#closed);
    else {
      this.#generations.set(id, listener);
      this.#port.post({ op: 'generate', id, request });
    }
    return id;
  }

  /** Let a generation send one chunk more. */
  next(id: number): void {
    if (this.#generations.has(id)) this.#port.post({ op: 'next', id });
  }

  /** Ask a load or generation to stop. It answers as usual when it has. */
  abort(id: number): void {
    if (this.#calls.has(id) || this.#generations.has(id)) this.#port.post({ op: 'abort', id });
  }

  /** Release the other side; whatever still waits fails with `error`. */
  close(error: DraftreeError): void {
    if (this.#closed !== undefined) return;
    this.#closed = error;
    this.#port.close();
    const waiting = [...this.#calls.values()];
    const generations = [...this.#generations.values()];
    this.#calls.clear();
    this.#generations.clear();
    for (const { reject } of waiting) reject(error);
    for (const listener of generations) listener.fail(error);
  }

  #ask<T>(id: number, message: ToHost, onProgress?: (progress: LoadProgress) => void): Promise<T> {
    return new Promise<T>((resolve, reject) => {
      if (this.#closed !== undefined) return reject(this.#closed);
      this.#calls.set(id, { resolve, reject, onProgress });
      try {
        this.#port.post(message);
      } catch (error) {
        // The browser could not copy an argument.
        this.#calls.delete(id);
        reject(asDraftreeError(error, 'sending the request'));
      }
    });
  }

  #receive(message: FromHost): void {
    const { id } = message;
    switch (message.op) {
      case 'progress':
        return this.#calls.get(id)?.onProgress?.(message.progress);
      case 'done': {
        const call = this.#calls.get(id);
        this.#calls.delete(id);
        return call?.resolve(message.value as never);
      }
      case 'chunk':
        return this.#generations.get(id)?.chunk(message.chunk);
      case 'end': {
        const generation = this.#generations.get(id);
        this.#generations.delete(id);
        return generation?.end(message.result);
      }
      case 'failed': {
        const error = new DraftreeError(message.error.code, message.error.message);
        const call = this.#calls.get(id);
        const generation = this.#generations.get(id);
        this.#calls.delete(id);
        this.#generations.delete(id);
        call?.reject(error);
        return generation?.fail(error);
      }
      default:
        return unexpected(message);
    }
  }
}

/** A host in a worker. The worker is the port's own: closing terminates it. */
export function workerPort(worker: Worker): Port {
  let isHeard = false;
  return {
    post: (message) => worker.postMessage(message),
    connect(receive, die) {
      worker.onmessage = ({ data }: MessageEvent<FromHost>) => {
        isHeard = true;
        receive(data);
      };
      worker.onerror = (event) => {
        event.preventDefault();
        const what = event.message ? `: ${event.message}` : '';
        die(
          isHeard
            ? new DraftreeError('internal', `the worker of the model failed${what}; load the model again`)
            : new DraftreeError('load_failed', `the worker of the model did not start${what}; are worker.js and its modules served, and does the Content-Security-Policy allow them?`),
        );
      };
      worker.onmessageerror = () => die(new DraftreeError('internal', 'a message of the worker could not be read'));
    },
    close: () => worker.terminate(),
  };
}

/** A host on the calling thread, loaded when it is needed. Messages are handed over in order and are not copied. */
export function localPort(): Port {
  let post: (message: ToHost) => void = () => {};
  return {
    post: (message) => post(message),
    connect(receive, die) {
      const host = import('./host.js').then(({ Host }) => new Host(receive));
      host.catch((error: unknown) => die(new DraftreeError('load_failed', `the wasm core could not be imported: ${String(error)}`)));
      post = (message) => void host.then((ready) => ready.receive(message), () => {});
    },
    close() {
      post = () => {};
    },
  };
}
