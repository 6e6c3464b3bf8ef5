// @ts-check
/**
 * Where tokens came from: the colours of the text, the legend that explains them, and the choice of drafters.
 */
import { byId, create } from './elements.js';
import { put, putTitle } from './language.js';

/** @import { Drafter, ModelInfo, TokenSource } from './pkg/index.js' */

const paper = byId('paper', HTMLElement);
const legend = byId('legend', HTMLElement);
const choice = byId('draft', HTMLSelectElement);
const isShown = byId('show-sources', HTMLInputElement);

/** @type {Record<TokenSource, string>} */
const explanations = {
  plain: 'chosen by the model in a pass of its own',
  medusa: 'guessed by a draft head, confirmed by the model',
  ngram: 'guessed from what followed the same words before, confirmed by the model',
  recycling: 'guessed from what the model once held likely here, confirmed by the model',
};

/** @type {Record<Drafter, string>} */
const drafterNames = { medusa: 'draft heads', ngram: 'n-gram lookup', recycling: 'token recycling' };

/** @type {Map<TokenSource, { item: HTMLElement, count: HTMLElement, tokens: number }>} */
const entries = new Map();
for (const item of legend.querySelectorAll('li')) {
  const source = /** @type {TokenSource} */ (item.dataset['source']);
  const [sample, count] = item.querySelectorAll('span');
  if (sample === undefined || count === undefined) throw new Error(`the legend of ${source} is not complete`);
  sample.classList.add('by', source);
  putTitle(item, explanations[source]);
  entries.set(source, { item, count, tokens: 0 });
}

const showOrHide = () => paper.classList.toggle('coloured', isShown.checked);
isShown.addEventListener('change', showOrHide);
showOrHide();

/** Offer the drafters that a model has. @param {ModelInfo} info */
export function showDrafters({ drafters }) {
  const chosen = choice.value;
  const options = [['auto', 'auto'], ['none', 'none'], ...drafters.map((drafter) => [drafter, drafterNames[drafter]])];
  choice.replaceChildren(
    ...options.map(([value = '', text = '']) => {
      const option = create('option');
      put(option, text);
      option.value = value;
      option.defaultSelected = value === 'auto';
      return option;
    }),
  );
  choice.value = options.some(([value]) => value === chosen) ? chosen : 'auto';
  for (const [source, { item }] of entries) item.hidden = source !== 'plain' && !drafters.includes(source);
}

/** Count from zero. */
export function clearSources() {
  for (const entry of entries.values()) {
    entry.tokens = 0;
    entry.count.textContent = '';
  }
}

/** @param {readonly TokenSource[]} sources of the tokens that came */
export function countSources(sources) {
  for (const source of sources) {
    const entry = entries.get(source);
    if (entry !== undefined) entry.count.textContent = String(++entry.tokens);
  }
}

/** An empty piece of text that says where its tokens came from. @param {TokenSource} source */
export function piece(source) {
  const element = create('span', { className: `by ${source}` });
  if (source !== 'plain') putTitle(element, explanations[source]);
  return element;
}
