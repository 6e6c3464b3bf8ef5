// @ts-check
/**
 * The options about drafting that several commands have, as options of the package's `generate` (but for `--heads`, which `load` takes).
 */
import { readFile } from 'node:fs/promises';
import { Failure } from './failure.mjs';

export const draftSpecs = /** @type {const} */ ({
  draft: { type: 'text', value: 'WHO', help: 'auto, none, or some of medusa, ngram, recycling with commas between them' },
  heads: { type: 'text', value: 'FILE', help: 'draft heads: a file, a URL or a hub id; none leaves out those beside the model' },
  tree: { type: 'text', value: 'TREE', help: 'auto, dense:4,3,2, a list of rank paths, or a file that holds one' },
  'max-nodes': { type: 'integer', min: 1, max: 64, value: 'N', help: 'nodes of an auto tree at most, the root included' },
  accept: { type: 'text', value: 'RULE', help: 'exact, rejection, typical[:EPSILON,ALPHA] or topk[:K,TOLERANCE]; the last two are lossy' },
});

/**
 * @param {import('./options.mjs').Values<typeof draftSpecs>} values
 * @returns {Promise<Record<string, unknown>>}
 */
export async function draftOptions({ draft, tree, 'max-nodes': maxNodes, accept }) {
  return {
    ...(draft === undefined ? {} : { draft: readDraft(draft) }),
    ...(tree === undefined ? {} : { tree: await readTree(tree) }),
    ...(maxNodes === undefined ? {} : { maxNodes }),
    ...(accept === undefined ? {} : { accept: readAccept(accept) }),
  };
}

/** Who drafts; the package knows the names. @param {string} text @returns {string | string[]} */
export function readDraft(text) {
  return text.includes(',') ? text.split(',').map((name) => name.trim()) : text;
}

/**
 * The shape of trees. Lists are JSON, or Python as in the files that draft heads are published with (`[(0,), (0, 0), (1,)]`).
 * @param {string} text
 * @returns {Promise<string | number[][]>}
 */
export async function readTree(text) {
  if (/^(auto|dense:.*)$/.test(text)) return text;
  const isList = /^\s*\[/.test(text);
  const list = isList ? text : await readFile(text, 'utf8').catch((error) => {
    throw new Failure('invalid_option', `--tree is auto, dense:4,3,2, a list of rank paths or a file that holds one; ${text}: ${error.message}.`);
  });
  try {
    const paths = JSON.parse(list.replaceAll('(', '[').replaceAll(')', ']').replaceAll(/,\s*\]/g, ']'));
    if (Array.isArray(paths)) return paths;
  } catch {
    // Said below, like any other value that is no list.
  }
  throw new Failure('invalid_option', `--tree${isList ? '' : ` ${text}`}: expected a list of rank paths, as in [[0], [0, 0], [1]].`);
}

/** @param {string} text @returns {string | Record<string, Record<string, number>>} */
export function readAccept(text) {
  const [, rule = '', numbers] = /^(\w+)(?::(.*))?$/.exec(text) ?? [];
  const names = { exact: [], rejection: [], typical: ['epsilon', 'alpha'], topk: ['k', 'tolerance'] }[rule];
  const values = numbers === undefined ? [] : numbers.split(',').map((number) => (number.trim() === '' ? NaN : Number(number)));
  if (names === undefined || values.length > names.length || values.some((value) => !Number.isFinite(value))) {
    throw new Failure('invalid_option', `--accept is exact, rejection, typical[:EPSILON,ALPHA] or topk[:K,TOLERANCE]; found ${JSON.stringify(text)}.`);
  }
  if (names.length === 0) return rule;
  return { [rule === 'topk' ? 'topK' : rule]: Object.fromEntries(values.map((value, i) => [names[i], value])) };
}
