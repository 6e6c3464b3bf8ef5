// @ts-check
/**
 * A stand-in for the wasm core that writes its prompt back word by word. It checks what the real one relies on: that it is asked for
 * one chunk at a time and not used after `free`.
 */

/** What the stand-in was made to do, and what it saw. */
export const core = {
  /** Milliseconds per chunk. */
  pace: 0,
  /** Milliseconds of prefill. */
  prefill: 0,
  /** Thrown by the chunk of this number. @type {{ at: number, error: Error } | undefined} */
  fault: undefined,
  /** Chunks computed since the start. */
  steps: 0,
  /** Models and generations not freed. */
  alive: 0,
  /** Options of the last generation. @type {Record<string, unknown>} */
  options: {},
  async default() {},
  Model: class Model {
    /** @type {Generation | undefined} */
    #running;
    #isFree = false;
    /** @param {any} source @param {any} _heads @param {any} _options @param {any} onProgress */
    static async load(source, _heads, _options, onProgress) {
      for (const [index, { size }] of source.files.entries()) {
        await source.read(index, 0, size);
        onProgress?.({ stage: 'weights', loaded: size, total: size });
      }
      core.alive++;
      return new Model();
    }
    info() {
      return { name: 'echo', version: '0', contextLength: 200, hasChatTemplate: true, adapter: { description: 'none' }, drafters: ['ngram'], passMs: { 1: 1, 4: 2 } };
    }
    /** @param {string} text */
    tokenize(text) {
      if (this.#running?.isBusy) throw new Error('entered twice');
      return Uint32Array.from(text, (character) => character.codePointAt(0) ?? 0);
    }
    /** @param {Uint32Array} ids */
    detokenize(ids) {
      return String.fromCodePoint(...ids);
    }
    /** Token 1 is a part of a character. @param {Uint32Array} ids */
    tokenBytes(ids) {
      return Array.from(ids, (id) => Uint8Array.of(id === 1 ? 0xc3 : 97 + id));
    }
    /** @param {{ role: string, content: string }[]} messages @param {boolean} [open] */
    applyChatTemplate(messages, open) {
      return messages.map(({ role, content }) => `${role}:${content};`).join('') + (open ? 'assistant:' : '');
    }
    /** @param {any} request */
    async start({ prompt, messages, options }) {
      if (this.#isFree) throw new Error('used after free');
      await sleep(core.prefill);
      if (prompt === '') throw Object.assign(new Error('nothing to continue'), { name: 'DraftreeError', code: 'empty_prompt' });
      core.options = options;
      const promptTokens = (prompt ?? this.applyChatTemplate(messages, true)).length;
      this.#running = new Generation(prompt ?? messages.at(-1).content, options, promptTokens);
      return this.#running;
    }
    async benchmark() {
      return {};
    }
    reset() {}
    free() {
      if (this.#isFree) throw new Error('freed twice');
      this.#isFree = true;
      core.alive--;
    }
  },
};

class Generation {
  /** @param {string} prompt @param {{ maxTokens?: number, logprobs?: number }} options @param {number} promptTokens */
  constructor(prompt, { maxTokens = 256, logprobs }, promptTokens) {
    this.top = logprobs;
    this.promptTokens = promptTokens;
    this.words = prompt.split(' ').slice(0, maxTokens).map((word) => `${word} `);
    this.text = '';
    this.count = 0;
    this.isBusy = false;
    this.isAborted = false;
    this.isFree = false;
    core.alive++;
  }
  async next() {
    if (this.isBusy || this.isFree) throw new Error(this.isFree ? 'used after free' : 'asked twice');
    this.isBusy = true;
    await sleep(core.pace);
    this.isBusy = false;
    const word = this.words[this.count];
    if (this.isAborted || word === undefined) return undefined;
    core.steps++;
    if (core.fault?.at === this.count) throw core.fault.error;
    this.text += word;
    const token = this.count++;
    return { text: word, tokens: [token], ...this.#logprobs([token]) };
  }
  /** Where they are asked for: each token has -1, and those that follow it by number are the most probable. @param {number[]} tokens */
  #logprobs(tokens) {
    const { top } = this;
    if (top === undefined) return {};
    return { logprobs: tokens.map((token) => ({ token, logprob: -1, top: Array.from({ length: top }, (_, rank) => ({ token: token + rank, logprob: -1 - rank })) })) };
  }
  result() {
    if (this.isFree || this.isBusy) throw new Error('result too early or too late');
    const tokens = Array.from({ length: this.count }, (_, index) => index);
    const { promptTokens, text, count } = this;
    return {
      text,
      tokens,
      ...this.#logprobs(tokens),
      finishReason: this.isAborted ? 'aborted' : 'stop',
      usage: { promptTokens, completionTokens: count, totalTokens: promptTokens + text.length, reusedPromptTokens: 1 },
      // Every second word by a drafter, in passes of four rows.
      stats: { draft: { tokensBySource: { plain: Math.ceil(count / 2), ngram: Math.floor(count / 2) }, rowsPerStep: [[4, Math.ceil(count / 2)]] } },
    };
  }
  abort() {
    if (this.isFree || this.isBusy) throw new Error('aborted after free or while busy');
    this.isAborted = true;
  }
  free() {
    if (this.isFree || this.isBusy) throw new Error('freed twice or while busy');
    this.isFree = true;
    core.alive--;
  }
}

/** @param {number} milliseconds */
const sleep = (milliseconds) => new Promise((resolve) => setTimeout(resolve, milliseconds));
