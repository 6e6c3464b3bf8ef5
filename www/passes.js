// @ts-check
/**
 * What the last passes of the model accepted: the path of guesses that survived, the model's own token behind it, and how probable the model
 * held each of them. Probabilities cost a launch or two a pass, so they are asked for only while the panel is open.
 */
import { byId, create } from './elements.js';
import { put } from './language.js';
import { piece } from './sources.js';

/** @import { GenerationChunk, GenerateOptions } from './pkg/index.js' */

/** How many passes are kept in view. */
const MOST = 8;

const panel = byId('passes-panel', HTMLDetailsElement);
const list = byId('passes-list', HTMLElement);

/** What a generation has to be asked for. @returns {Pick<GenerateOptions, 'logprobs'>} */
export function passOptions() {
  return panel.open ? { logprobs: 0 } : {};
}

/** Forgets the passes. */
export function clearPasses() {
  list.replaceChildren();
}

/** @param {GenerationChunk} chunk what one pass wrote */
export function showPass({ pieces, sources, logprobs }) {
  if (!panel.open || pieces.length === 0) return;
  const line = create('li');
  for (const [index, text] of pieces.entries()) {
    const token = piece(sources[index] ?? 'plain');
    token.classList.add('token');
    token.append(create('span', { className: 'word', text: visible(text) }));
    const logprob = logprobs?.[index]?.logprob;
    if (logprob !== undefined) token.append(create('small', { text: `${Math.round(100 * Math.exp(logprob))} %` }));
    line.append(token);
  }
  list.append(line);
  if (list.childElementCount > MOST) list.firstElementChild?.remove();
}

/** A token's text, with what cannot be seen made visible. @param {string} text */
const visible = (text) => text.replaceAll(' ', '␣').replaceAll('\n', '↵') || '·';

panel.addEventListener('toggle', () => {
  if (!panel.open || list.childElementCount > 0) return;
  const hint = create('li', { className: 'fact' });
  put(hint, 'Passes of the next text are shown here.');
  list.append(hint);
});
