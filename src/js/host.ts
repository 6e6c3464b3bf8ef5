/**
 * The side of the protocol that holds the wasm core: answers the page's messages, in a worker or on the page's own thread.
 *
 * One host serves one model, and everything that is asked of a loaded core waits in one queue, so that the core is never entered
 * twice: not asked for a second chunk, tokens, or its own end while it computes. An abort takes effect between two chunks.
 */
import * as generatedCore from './core/core.js';
import type { Generation as CoreGeneration, Model as CoreModel } from './core/core.js';
import { newCosts, readCosts } from './costs.js';
import { DraftreeError, asDraftreeError, errorData } from './errors.js';
import { withFullDevices } from './gpu_device.js';
import { unexpected } from './protocol.js';
import type { Answers, Call, FromHost, GenerateRequest, LoadRequest, ToHost } from './protocol.js';
import { openModel } from './repository.js';
import type { LoadProgress, ModelInfo } from './results.js';

/** Shortest time between two progress messages of one stage, in milliseconds. */
const progressInterval = 50;

/** The generated module, or a stand-in with the same exports. */
export type Core = Pick<typeof generatedCore, 'default' | 'Model'>;

/** A generation on this side. */
interface Running {
  /** Here once the prompt was processed. */
  core?: CoreGeneration;
  isAborted: boolean;
}

/** Answers every message of one page. */
export class Host {
  readonly #post: (message: FromHost) => void;
  readonly #core: Core;
  readonly #loads = new Map<number, AbortController>();
  readonly #generations = new Map<number, Running>();
  #model: CoreModel | undefined;
  #isDisposed = false;
  /** The end of what was asked of the core so far; never rejects. */
  #queue: Promise<unknown> = Promise.resolve();

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
      const [{ model: source, heads }] = await Promise.all([
        openModel(request.source, request.heads, request.cache, abort.signal, report),
        this.#instantiate(request.wasmUrl ?? new URL('./core/core_bg.wasm', import.meta.url)),
      ]);
      try {
        const { contextLength } = request;
        const knownCosts = readCosts(await source.notes?.read());
        const options = { ...(contextLength !== undefined && { contextLength }), ...(knownCosts && { knownCosts }) };
        const model = await withFullDevices(async () => this.#core.Model.load(source, heads, options, report));
        if (abort.signal.aborted) {
          model.free();
          throw new DraftreeError('aborted', 'the load was stopped');
        }
        this.#model = model;
        const info: ModelInfo = model.info();
        const costs = newCosts(info, knownCosts);
        if (costs !== undefined) await source.notes?.write(costs);
        return info;
      } finally {
        source.close();
        if (typeof heads === 'object') heads?.close();
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
    const running: Running = { isAborted: false };
    this.#generations.set(id, running);
    this.#advance(id, async () => {
      running.core = await this.#loaded().start({ ...prompt, options });
    });
  }

  #next(id: number): void {
    this.#advance(id, async (running) => {
      // Chunks without tokens tell that a piece of a long prompt was computed: a moment at which an abort is heard.
      let chunk;
      do {
        chunk = running.isAborted ? undefined : await running.core?.next();
      } while (chunk?.tokens.length === 0 && !running.isAborted);
      if (chunk === undefined || running.isAborted) this.#end(id, running);
      else this.#post({ op: 'chunk', id, chunk });
    });
  }

  #abort(id: number): void {
    this.#loads.get(id)?.abort();
    const running = this.#generations.get(id);
    if (running === undefined || running.isAborted) return;
    running.isAborted = true;
    this.#advance(id, async () => this.#end(id, running));
  }

  /** Queue a step of a generation. One that has ended by then is left alone; a fault ends it. */
  #advance(id: number, step: (running: Running) => Promise<void>): void {
    const done = this.#enqueue(async () => {
      const running = this.#generations.get(id);
      if (running === undefined) return;
      try {
        await step(running);
      } catch (error) {
        this.#generations.delete(id);
        this.#fail(id, error, 'generating');
        running.core?.free();
      }
    });
    done.catch(() => {}); // After a trap, freeing may fail too; the fault was reported.
  }

  #end(id: number, { core, isAborted }: Running): void {
    if (core === undefined) throw new DraftreeError('internal', 'a generation ended before it began');
    if (isAborted) core.abort();
    const result = core.result();
    this.#generations.delete(id);
    this.#post({ op: 'end', id, result });
    core.free();
  }

  #call(call: Call): Promise<Answers[keyof Answers]> {
    if (call.method === 'dispose') return this.#dispose();
    return this.#enqueue(async () => {
      const model = this.#loaded();
      switch (call.method) {
        case 'tokenize':
          return model.tokenize(call.text, call.addBos);
        case 'detokenize':
          return model.detokenize(call.ids);
        case 'tokenBytes':
          return model.tokenBytes(call.ids);
        case 'applyChatTemplate':
          return model.applyChatTemplate(call.messages, call.addGenerationPrompt);
        case 'nextLogits':
          return model.nextLogits(call.ids);
        case 'benchmark':
          return model.benchmark(call.options);
        case 'reset':
          return void model.reset();
        default:
          return unexpected(call);
      }
    });
  }

  #enqueue<T>(work: () => Promise<T>): Promise<T> {
    const done = this.#queue.then(work);
    this.#queue = done.catch(() => {});
    return done;
  }

  #loaded(): CoreModel {
    if (this.#isDisposed) throw new DraftreeError('disposed', 'the model was disposed');
    if (this.#model === undefined) throw new DraftreeError('internal', 'the model is used before it was loaded');
    return this.#model;
  }

  async #dispose(): Promise<undefined> {
    for (const load of this.#loads.values()) load.abort();
    for (const id of this.#generations.keys()) this.#abort(id);
    await this.#enqueue(async () => {
      this.#isDisposed = true;
      this.#model?.free();
      this.#model = undefined;
    });
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
