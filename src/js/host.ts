/**
 * The side of the protocol that holds the wasm core: answers the page's messages, in a worker or on the page's own thread.
 *
 * One host serves one model. Work of a generation is queued per generation, so the core is never asked for a second chunk, or freed,
 * while it computes one; `abort` alone goes past the queue, because it is there to end what the queue waits for.
 */
import * as generatedCore from './core/core.js';
import type { Generation as CoreGeneration, Model as CoreModel } from './core/core.js';
import { DraftreeError, asDraftreeError, errorData } from './errors.js';
import { unexpected } from './protocol.js';
import type { Answers, Call, FromHost, GenerateRequest, LoadRequest, ToHost } from './protocol.js';
import { openSource } from './repository.js';
import type { LoadProgress, ModelInfo } from './results.js';

/** Shortest time between two progress messages of one stage, in milliseconds. */
const progressInterval = 50;

/** The generated module, or a stand-in with the same exports. */
export type Core = Pick<typeof generatedCore, 'default' | 'Model'>;

/** A generation on this side. */
interface Running {
  core: Promise<CoreGeneration>;
  /** The end of what was asked of the core so far. */
  queue: Promise<void>;
  isAborted: boolean;
  hasEnded: boolean;
}

/** Answers every message of one page. */
export class Host {
  readonly #post: (message: FromHost) => void;
  readonly #core: Core;
  readonly #loads = new Map<number, AbortController>();
  readonly #generations = new Map<number, Running>();
  #model: CoreModel | undefined;
  #isDisposed = false;

  constructor(post: (message: FromHost) => void, core: Core = generatedCore) {
    this.#post = post;
    this.#core = core;
  }

  /** Take a message. Its answers go through `post`. */
  receive(message: ToHost): void {
    const { id } = message;
    switch (message.op) {
      case 'load':
        return this.#answer(id, 'loading the model', this.#load(id, message.request));
      case 'generate':
        return this.#generate(id, message.request);
      case 'next':
        return this.#next(id);
      case 'abort':
        return this.#abort(id);
      case 'call':
        return this.#answer(id, message.call.method, this.#call(message.call));
      default:
        return unexpected(message);
    }
  }

  #answer(id: number, doing: string, work: Promise<ModelInfo | Answers[keyof Answers]>): void {
    work.then(
      (value) => this.#post({ op: 'done', id, value }),
      (error: unknown) => this.#fail(id, error, doing),
    );
  }

  #fail(id: number, error: unknown, doing: string): void {
    this.#post({ op: 'failed', id, error: errorData(asDraftreeError(error, doing)) });
  }

  async #load(id: number, request: LoadRequest): Promise<ModelInfo> {
    const abort = new AbortController();
    this.#loads.set(id, abort);
    try {
      const report = throttle((progress) => this.#post({ op: 'progress', id, progress }));
      const [source] = await Promise.all([
        openSource(request.source, request.cache, abort.signal, report),
        this.#instantiate(request.wasmUrl ?? new URL('./core/core_bg.wasm', import.meta.url)),
      ]);
      try {
        const { contextLength, stepsInFlight } = request;
        const options = { ...(contextLength !== undefined && { contextLength }), ...(stepsInFlight !== undefined && { stepsInFlight }) };
        const model = await this.#core.Model.load(source, options, report);
        if (abort.signal.aborted || this.#isDisposed) {
          model.free();
          throw new DraftreeError('aborted', 'the load was stopped');
        }
        this.#model = model;
        return model.info();
      } finally {
        source.close();
      }
    } finally {
      abort.abort(); // A download is of no use when its sibling failed.
      this.#loads.delete(id);
    }
  }

  async #instantiate(url: string | URL): Promise<void> {
    try {
      await this.#core.default({ module_or_path: url });
    } catch (error) {
      const why = error instanceof Error ? error.message : String(error);
      throw new DraftreeError('load_failed', `the WebAssembly module ${String(url)} could not be loaded: ${why}`, { cause: error });
    }
  }

  #generate(id: number, { prompt, options }: GenerateRequest): void {
    const core = this.#loaded((model) => model.start({ ...prompt, options }));
    const running: Running = { core, queue: Promise.resolve(), isAborted: false, hasEnded: false };
    this.#generations.set(id, running);
    this.#enqueue(id, running, async () => void (await core));
  }

  #next(id: number): void {
    const running = this.#generations.get(id);
    if (running === undefined) return; // It ended while this credit was on its way.
    this.#enqueue(id, running, async () => {
      const generation = await running.core;
      const chunk = running.isAborted ? undefined : await generation.next();
      if (chunk === undefined || running.isAborted) this.#end(id, running, generation);
      else this.#post({ op: 'chunk', id, chunk });
    });
  }

  #abort(id: number): void {
    this.#loads.get(id)?.abort();
    const running = this.#generations.get(id);
    if (running === undefined || running.isAborted) return;
    running.isAborted = true;
    running.core.then(
      (generation) => {
        if (!running.hasEnded) generation.abort();
      },
      () => {}, // The queue reports it.
    );
    this.#enqueue(id, running, async () => this.#end(id, running, await running.core));
  }

  /** Run `work` when everything asked of this generation before is done; a fault ends the generation. */
  #enqueue(id: number, running: Running, work: () => Promise<void>): void {
    running.queue = running.queue.then(async () => {
      if (running.hasEnded) return;
      try {
        await work();
      } catch (error) {
        running.hasEnded = true;
        this.#generations.delete(id);
        this.#fail(id, error, 'generating');
        running.core.then((generation) => generation.free()).catch(() => {});
      }
    });
  }

  #end(id: number, running: Running, generation: CoreGeneration): void {
    const result = generation.result();
    running.hasEnded = true;
    this.#generations.delete(id);
    this.#post({ op: 'end', id, result });
    generation.free();
  }

  #call(call: Call): Promise<Answers[keyof Answers]> {
    switch (call.method) {
      case 'tokenize':
        return this.#loaded((model) => model.tokenize(call.text, call.addBos));
      case 'detokenize':
        return this.#loaded((model) => model.detokenize(call.ids));
      case 'applyChatTemplate':
        return this.#loaded((model) => model.applyChatTemplate(call.messages, call.addGenerationPrompt));
      case 'benchmark':
        return this.#loaded((model) => model.benchmark(call.options));
      case 'reset':
        return this.#loaded((model) => {
          model.reset();
          return undefined;
        });
      case 'dispose':
        return this.#dispose();
      default:
        return unexpected(call);
    }
  }

  async #loaded<T>(use: (model: CoreModel) => T | Promise<T>): Promise<T> {
    if (this.#isDisposed) throw new DraftreeError('disposed', 'the model was disposed');
    if (this.#model === undefined) throw new DraftreeError('internal', 'the model is used before it was loaded');
    return use(this.#model);
  }

  async #dispose(): Promise<undefined> {
    this.#isDisposed = true;
    for (const load of this.#loads.values()) load.abort();
    const queues = [...this.#generations].map(([id, running]) => {
      this.#abort(id);
      return running.queue;
    });
    await Promise.all(queues);
    this.#model?.free();
    this.#model = undefined;
  }
}

/** Let through the first and last progress of each stage and, in between, one every {@link progressInterval}. */
function throttle(report: (progress: LoadProgress) => void): (progress: LoadProgress) => void {
  let last = 0;
  let stage: LoadProgress['stage'] | undefined;
  return (progress) => {
    const now = performance.now();
    if (progress.stage === stage && now - last < progressInterval && progress.loaded < progress.total) return;
    last = now;
    stage = progress.stage;
    report(progress);
  };
}
