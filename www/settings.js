// @ts-check
/**
 * The settings form as options of `generate`.
 */
import { byId } from './elements.js';

/** @import { Drafter, GenerateOptions } from './pkg/index.js' */

const form = byId('settings', HTMLFormElement);
const panel = byId('settings-panel', HTMLDetailsElement);

form.addEventListener('submit', (event) => event.preventDefault());

/**
 * The options, or nothing if a field is wrong; the browser then shows which.
 * @returns {GenerateOptions | undefined}
 */
export function readSettings() {
  if (!form.checkValidity()) {
    panel.open = true;
    form.reportValidity();
    return undefined;
  }
  const fields = new FormData(form);
  /** @type {GenerateOptions} */
  const options = { seed: Math.floor(Math.random() * 2 ** 31) };
  // The list offers what the loaded model has.
  const draft = fields.get('draft');
  if (draft !== null) options.draft = /** @type {Drafter} */ (draft);
  const tree = String(fields.get('tree') ?? '');
  if (tree !== '') options.tree = `dense:${tree}`;
  for (const name of /** @type {const} */ ([
    'maxTokens', 'temperature', 'topK', 'topP', 'minP', 'repetitionPenalty', 'seed', 'stepsInFlight',
  ])) {
    const text = String(fields.get(name) ?? '');
    if (text !== '') options[name] = Number(text);
  }
  const stop = String(fields.get('stop') ?? '')
    .split(/\r?\n/)
    .filter((line) => line !== '')
    .map((line) => line.replaceAll('\\n', '\n').replaceAll('\\t', '\t'));
  if (stop.length > 0) options.stop = stop;
  return options;
}
