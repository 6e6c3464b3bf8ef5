// @ts-check
/**
 * What was written: one entry per generation, growing while the model writes.
 */
import { byId, create } from './elements.js';
import { piece } from './sources.js';

/** @import { FinishReason, GenerationChunk, TokenSource } from './pkg/index.js' */

const transcript = byId('transcript', HTMLElement);

/** @type {Record<FinishReason, string>} */
const endings = { stop: 'the end', length: 'most tokens reached', context: 'context full: clear to begin anew', aborted: 'stopped' };

/** Whether the reader looks at the end, and so wants to see what comes. */
let follows = true;

transcript.addEventListener('scroll', () => {
  follows = transcript.scrollHeight - transcript.scrollTop - transcript.clientHeight < 40;
});

/** Show this while there is nothing. @param {string} text */
export function showWhenEmpty(text) {
  transcript.dataset['empty'] = text;
}

/** Remove every entry. */
export function clearTranscript() {
  transcript.replaceChildren();
}

/** One prompt and what the model made of it. */
export class Entry {
  #article = create('article');
  #text = create('div', { className: 'text' });
  #written = '';
  /** Text that is not drawn yet, by where it came from. @type {{ source: TokenSource, text: string }[]} */
  #pending = [];
  /** The last piece that was drawn. @type {{ source: TokenSource, node: Text } | undefined} */
  #last;
  #frame = 0;
  #isChat;
  #given;

  /** @param {string} given the prompt @param {boolean} isChat answered, or continued */
  constructor(given, isChat) {
    this.#given = given;
    this.#isChat = isChat;
    this.#article.className = isChat ? 'entry chat' : 'entry';
    this.#article.ariaLabel = isChat ? 'Question and answer' : 'Story';
    this.#article.ariaBusy = 'true';
    const prompt = create('span', { className: 'given', text: given });
    if (isChat) this.#article.append(prompt);
    else this.#text.append(prompt);
    this.#article.append(this.#text);
    transcript.append(this.#article);
    follows = true;
    showEnd();
  }

  /** Everything as it would be copied. */
  get text() {
    return this.#isChat ? this.#written : this.#given + this.#written;
  }

  /** Add tokens; they are drawn with the next frame, however many that holds. @param {GenerationChunk} chunk */
  append({ text, pieces, sources }) {
    this.#written += text;
    this.#pending.push(...pieces.map((text, index) => ({ text, source: sources[index] ?? 'plain' })));
    this.#frame ||= requestAnimationFrame(() => this.#draw());
  }

  /** @param {FinishReason} reason @param {string} note */
  finish(reason, note) {
    this.#close(`${endings[reason]} · ${note}`);
  }

  /** A fault ended it; what was written stays. */
  fail() {
    if (this.#written === '') this.#article.remove();
    else this.#close('broken off');
  }

  /** @param {string} note */
  #close(note) {
    this.#draw();
    this.#article.ariaBusy = 'false';
    const copy = create('button', { className: 'quiet', text: 'Copy' });
    copy.type = 'button';
    copy.addEventListener('click', () => void this.#copy(copy));
    const footer = create('footer');
    footer.append(create('span', { text: note }), copy);
    this.#article.append(footer);
    showEnd();
  }

  #draw() {
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
      this.#text.append(text.slice(0, text.length - word.length), element);
      this.#last = { source, node };
    }
    this.#pending = [];
    showEnd();
  }

  /** @param {HTMLButtonElement} button */
  async #copy(button) {
    try {
      await navigator.clipboard.writeText(this.text);
      button.textContent = 'Copied';
    } catch {
      button.textContent = 'Not allowed';
    }
    setTimeout(() => (button.textContent = 'Copy'), 1500);
  }
}

function showEnd() {
  if (follows) transcript.scrollTop = transcript.scrollHeight;
}
