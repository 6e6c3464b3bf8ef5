// @ts-check
/**
 * The draft trees of the last passes. A kilobyte comes back for each, so they are asked for only while the panel is open.
 */
import { treeElement } from './draft_tree.js';
import { byId, create } from './elements.js';
import { put } from './language.js';

/** @import { GenerationChunk, GenerateOptions } from './pkg/index.js' */

/** How many passes are kept in view. */
const MOST = 8;

const panel = byId('passes-panel', HTMLDetailsElement);
const list = byId('passes-list', HTMLElement);

/** What a generation has to be asked for. @returns {Pick<GenerateOptions, 'trees'>} */
export function passOptions() {
  return panel.open ? { trees: true } : {};
}

/** Forgets the passes. */
export function clearPasses() {
  list.replaceChildren();
}

/** @param {GenerationChunk} chunk what one pass wrote */
export function showPass({ pieces, sources, tree }) {
  if (!panel.open || tree === undefined || pieces.length === 0) return;
  const line = create('li');
  line.append(treeElement(tree, sources.at(-1) === 'plain' ? pieces.at(-1) : undefined));
  list.append(line);
  if (list.childElementCount > MOST) list.firstElementChild?.remove();
}

panel.addEventListener('toggle', () => {
  if (!panel.open || list.childElementCount > 0) return;
  const hint = create('li', { className: 'fact' });
  put(hint, 'Draft trees of the next text are shown here.');
  list.append(hint);
});
