// @ts-check
/**
 * Text that grows while a model writes, with a colour and an underline for where each token came from.
 */
import { create } from './elements.js';
import { piece } from './sources.js';

/** @import { GenerationChunk, TokenSource } from './pkg/index.js' */

export class ColouredText {
  element = create('div', { className: 'text' });
  #written = '';
  /** What is not drawn yet. @type {{ source: TokenSource, text: string }[]} */
  #pending = [];
  /** The last piece that was drawn. @type {{ source: TokenSource, node: Text } | undefined} */
  #last;
  #frame = 0;
  #onDrawn;

  /** @param {() => void} [onDrawn] called when more of it is to be seen */
  constructor(onDrawn = () => {}) {
    this.#onDrawn = onDrawn;
  }

  /** What the model wrote. */
  get written() {
    return this.#written;
  }

  /** Begins anew, after what was given. @param {...Node} given */
  begin(...given) {
    cancelAnimationFrame(this.#frame);
    this.#frame = 0;
    this.#written = '';
    this.#pending = [];
    this.#last = undefined;
    this.element.replaceChildren(...given);
  }

  /** Adds tokens; they are drawn with the next frame, however many that holds. @param {Pick<GenerationChunk, 'text' | 'pieces' | 'sources'>} chunk */
  append({ text, pieces, sources }) {
    this.#written += text;
    this.#pending.push(...pieces.map((text, index) => ({ text, source: sources[index] ?? 'plain' })));
    this.#frame ||= requestAnimationFrame(() => this.draw());
  }

  /** Draws what is not drawn yet, now. */
  draw() {
    cancelAnimationFrame(this.#frame);
    this.#frame = 0;
    for (const { source, text } of this.#pending) {
      if (text === '') continue;
      if (this.#last?.source === source) {
        this.#last.node.appendData(text);
        continue;
      }
      // Space before a word is not underlined.
      const word = text.trimStart();
      const node = document.createTextNode(word);
      const element = piece(source);
      element.append(node);
      this.element.append(text.slice(0, text.length - word.length), element);
      this.#last = { source, node };
    }
    this.#pending = [];
    this.#onDrawn();
  }
}
