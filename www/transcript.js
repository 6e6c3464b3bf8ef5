// @ts-check
/**
 * What was written: one entry per turn, growing while the model writes, that can be copied, written again and edited.
 */
import { ColouredText } from './coloured_text.js';
import { byId, create } from './elements.js';
import { put } from './language.js';

/** @import { FinishReason, GenerationChunk } from './pkg/index.js' */
/** @import { Values } from './language.js' */
/** @import { Actions } from './conversation.js' */

const transcript = byId('transcript', HTMLElement);

/** @type {Record<FinishReason, string>} */
const endings = {
  stop: 'the end · {tokens} tokens · seed {seed}',
  length: 'most tokens reached · {tokens} tokens · seed {seed}',
  context: 'context full: clear to begin anew · {tokens} tokens · seed {seed}',
  aborted: 'stopped · {tokens} tokens · seed {seed}',
};

/** Whether the reader looks at the end, and so wants to see what comes. */
let follows = true;

transcript.addEventListener('scroll', () => {
  follows = transcript.scrollHeight - transcript.scrollTop - transcript.clientHeight < 40;
});

/** What stands there while there is nothing. */
const hint = create('p', { className: 'hint-empty' });

/** Show this while there is nothing. @param {string} english */
export function showWhenEmpty(english) {
  put(hint, english);
  if (transcript.querySelector('.entry') === null) transcript.replaceChildren(hint);
}

/** Remove everything. */
export function clearTranscript() {
  transcript.replaceChildren(hint);
}

/** Adds an element at the end, and keeps the end in view. @param {HTMLElement} element */
export function addToTranscript(element) {
  hint.remove();
  transcript.append(element);
  follows = true;
  showEnd();
}

/** Keeps the end in view for who looks there. */
export function showEnd() {
  if (follows) transcript.scrollTop = transcript.scrollHeight;
}

/** A quiet button. @param {string} english @param {() => void} onClick */
export function quietButton(english, onClick) {
  const button = create('button', { className: 'quiet' });
  button.type = 'button';
  put(button, english);
  button.addEventListener('click', onClick);
  return button;
}

/** A button that copies. @param {() => string} text */
export function copyButton(text) {
  const button = quietButton('Copy', async () => {
    try {
      await navigator.clipboard.writeText(text());
      put(button, 'Copied');
    } catch {
      put(button, 'Not allowed');
    }
    setTimeout(() => put(button, 'Copy'), 1500);
  });
  return button;
}

/** One prompt and what the model made of it. */
export class Entry {
  #article = create('article');
  #text = new ColouredText(showEnd);
  #given;
  #isChat;
  #actions;

  /** @param {string} given the prompt @param {boolean} isChat answered, or continued @param {Actions} actions */
  constructor(given, isChat, actions) {
    this.#given = given;
    this.#isChat = isChat;
    this.#actions = actions;
    this.#article.className = isChat ? 'entry chat' : 'entry';
    this.begin(given);
    addToTranscript(this.#article);
  }

  /** Everything as it would be copied. */
  get text() {
    return this.#isChat ? this.#text.written : this.#given + this.#text.written;
  }

  /** Begins, or begins anew. @param {string} given */
  begin(given) {
    this.#given = given;
    this.#article.ariaBusy = 'true';
    const prompt = create('span', { className: 'given', text: given });
    if (this.#isChat) {
      this.#text.begin();
      this.#article.replaceChildren(prompt, this.#text.element);
    } else {
      this.#text.begin(prompt);
      this.#article.replaceChildren(this.#text.element);
    }
  }

  /** @param {GenerationChunk} chunk */
  append(chunk) {
    this.#text.append(chunk);
  }

  /** @param {FinishReason} reason @param {Values} values */
  finish(reason, values) {
    this.#close(endings[reason], values);
  }

  /** A fault ended it; what was written stays. @returns {boolean} whether there is anything to keep */
  fail() {
    if (this.#text.written === '') this.remove();
    else this.#close('broken off');
    return this.#text.written !== '';
  }

  remove() {
    this.#article.remove();
  }

  /** @param {string} ending @param {Values} [values] */
  #close(ending, values) {
    this.#text.draw();
    this.#article.ariaBusy = 'false';
    const note = create('span');
    put(note, ending, values);
    const again = quietButton('Again', () => this.#actions.again());
    const edit = quietButton('Edit', () => this.#edit(edit));
    again.classList.add('writes');
    edit.classList.add('writes');
    const footer = create('footer');
    footer.append(note, copyButton(() => this.text), again, edit);
    this.#article.append(footer);
    showEnd();
  }

  /** A field for the prompt in its place. @param {HTMLButtonElement} button */
  #edit(button) {
    if (this.#article.querySelector('.edit')) return;
    const form = create('form', { className: 'edit' });
    const label = create('label');
    const name = create('span');
    put(name, this.#isChat ? 'Your message' : 'Beginning of a story');
    const field = create('textarea');
    field.value = this.#given;
    field.rows = 2;
    label.append(name, field);
    const leave = () => {
      form.remove();
      button.focus();
    };
    const save = create('button', { className: 'writes' });
    put(save, 'Write anew');
    form.append(label, save, quietButton('Cancel', leave));
    form.addEventListener('submit', (event) => {
      event.preventDefault();
      if (field.value.trim() !== '' || !this.#isChat) this.#actions.edit(field.value);
    });
    form.addEventListener('keydown', (event) => {
      if (event.key === 'Escape') {
        event.stopPropagation();
        leave();
      } else if (event.key === 'Enter' && !event.shiftKey && !event.isComposing && event.target === field) {
        event.preventDefault();
        if (!save.disabled) form.requestSubmit();
      }
    });
    this.#article.prepend(form);
    field.focus();
  }
}
