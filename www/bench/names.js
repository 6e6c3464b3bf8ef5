// @ts-check
/**
 * Keys of objects in the two spellings there are: `prefillMs` in code, `prefill_ms` in files and on the command line.
 */

/**
 * Also in what the values hold.
 * @param {object} object
 * @returns {Record<string, unknown>}
 */
export function snakeCase(object) {
  return renamed(object, (key) => key.replaceAll(/[A-Z]/g, (letter) => `_${letter.toLowerCase()}`));
}

/**
 * The other way round.
 * @param {object} object
 * @returns {Record<string, unknown>}
 */
export function camelCase(object) {
  return renamed(object, (key) => key.replaceAll(/_([a-z])/g, (_, letter) => letter.toUpperCase()));
}

/** @param {object} object @param {(key: string) => string} rename @returns {Record<string, unknown>} */
function renamed(object, rename) {
  return Object.fromEntries(Object.entries(object).map(([key, value]) => [rename(key), renamedIn(value, rename)]));
}

/** @param {unknown} value @param {(key: string) => string} rename @returns {unknown} */
function renamedIn(value, rename) {
  if (Array.isArray(value)) return value.map((each) => renamedIn(each, rename));
  return typeof value === 'object' && value !== null ? renamed(value, rename) : value;
}
