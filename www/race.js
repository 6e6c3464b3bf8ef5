// @ts-check
/**
 * A race on one prompt, plain decoding against drafting, side by side. The model writes one text at a time, so they run one after the other,
 * each from an empty cache; then both can be seen again together, at the pace they had.
 */
import { ColouredText } from './coloured_text.js';
import { create } from './elements.js';
import { duration, rate } from './figures.js';
import { put, putPlain, t } from './language.js';
import { addToTranscript, copyButton, quietButton, showEnd } from './transcript.js';

/** @import { Generation, GenerateOptions, GenerationChunk, GenerationResult, Message, Model } from './pkg/index.js' */

/** One of the two. */
class Lane {
  element = create('section', { className: 'lane' });
  #name = create('h2');
  #clock = create('p', { className: 'clock' });
  #text = new ColouredText(showEnd);
  /** @type {{ at: number, chunk: GenerationChunk }[]} */
  #record = [];
  #timer = 0;
  /** @type {GenerationResult | undefined} */
  result;

  /** @param {string} english its name */
  constructor(english) {
    put(this.#name, english);
    put(this.#clock, 'waits');
    this.element.append(this.#name, this.#clock, this.#text.element);
  }

  /** From the call to the last token, in milliseconds. */
  get ms() {
    return this.result ? this.result.stats.timeToFirstTokenMs + this.result.stats.decodeMs : NaN;
  }

  /** @param {Generation} generation */
  async run(generation) {
    const began = performance.now();
    this.element.ariaBusy = 'true';
    try {
      for await (const chunk of generation) {
        const at = performance.now() - began;
        this.#record.push({ at, chunk });
        this.#text.append(chunk);
        this.#showClock(at);
      }
      this.result = await generation.result;
      this.#showResult(this.result);
    } finally {
      this.element.ariaBusy = 'false';
      this.#text.draw();
    }
  }

  /** Writes it once more, at its pace. @returns {Promise<void>} */
  replay() {
    clearTimeout(this.#timer);
    this.#text.begin();
    const began = performance.now();
    let next = 0;
    return new Promise((resolve) => {
      const step = () => {
        const elapsed = performance.now() - began;
        for (let each = this.#record[next]; each !== undefined && each.at <= elapsed; each = this.#record[++next]) this.#text.append(each.chunk);
        const waiting = this.#record[next];
        if (waiting === undefined) {
          if (this.result) this.#showResult(this.result);
          return resolve();
        }
        this.#showClock(elapsed);
        this.#timer = setTimeout(step, Math.min(100, waiting.at - elapsed));
      };
      step();
    });
  }

  /** @param {number} ms */
  #showClock(ms) {
    putPlain(this.#clock, duration(ms));
  }

  /** @param {GenerationResult} result */
  #showResult({ usage, stats }) {
    const values = { time: duration(this.ms), tokens: usage.completionTokens, speed: rate(stats.tokensPerSecond), perPass: stats.tokensPerPass.toFixed(2) };
    put(this.#clock, '{tokens} tokens in {time} · {speed} tokens/s · {perPass} a pass', values);
  }
}

/**
 * @param {Model} model @param {string} given @param {string | Message[]} asked @param {GenerateOptions} options
 * @param {(generation: Generation) => void} onStart of each of the two, so that it can be stopped
 * @returns {Promise<string>} what came of it
 */
export async function race(model, given, asked, options, onStart) {
  const article = create('article', { className: 'entry race' });
  article.ariaBusy = 'true';
  const lanes = create('div', { className: 'lanes' });
  const [plain, drafted] = [new Lane('Plain'), new Lane('Drafted')];
  lanes.append(plain.element, drafted.element);
  article.append(create('span', { className: 'given', text: given }), lanes);
  addToTranscript(article);
  const verdict = create('span', { className: 'verdict' });
  try {
    const { draft } = options;
    for (const [lane, who] of /** @type {const} */ ([[plain, 'none'], [drafted, draft === 'none' ? 'auto' : draft]])) {
      await model.reset();
      const generation = model.generate(asked, { ...options, ...(who !== undefined && { draft: who }) });
      onStart(generation);
      await lane.run(generation);
      if (lane.result?.finishReason === 'aborted') break;
    }
    showVerdict(verdict, plain, drafted);
  } catch (error) {
    put(verdict, 'broken off');
    throw error;
  } finally {
    article.ariaBusy = 'false';
    const footer = create('footer');
    footer.append(verdict, copyButton(() => `${given}${plain.result?.text ?? ''}\n\n${verdict.textContent}`));
    if (drafted.result) footer.append(quietButton('See both together', () => void Promise.all([plain.replay(), drafted.replay()])));
    article.append(footer);
    showEnd();
  }
  return verdict.textContent ?? t('stopped');
}

/** @param {HTMLElement} verdict @param {Lane} plain @param {Lane} drafted */
function showVerdict(verdict, plain, drafted) {
  const [one, two] = [plain.result, drafted.result];
  if (one === undefined || two === undefined || two.finishReason === 'aborted') return put(verdict, 'stopped');
  const values = { times: (plain.ms / drafted.ms).toFixed(2) };
  if (one.tokens.join() === two.tokens.join()) put(verdict, 'Drafting was {times} times as fast, with the same tokens.', values);
  else put(verdict, 'Drafting was {times} times as fast, with other tokens.', values);
}
