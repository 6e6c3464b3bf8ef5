// @ts-check
/**
 * The page's elements by id, with their types, checked once: a renamed id fails when the page loads, not when it is used.
 */

/**
 * @template {HTMLElement} T
 * @param {string} id
 * @param {new () => T} type
 * @returns {T}
 */
export function byId(id, type) {
  const element = document.getElementById(id);
  if (!(element instanceof type)) throw new Error(`the page has no ${type.name} #${id}`);
  return element;
}

/**
 * A new element with text and class.
 * @template {keyof HTMLElementTagNameMap} K
 * @param {K} tag
 * @param {{ className?: string, text?: string }} [options]
 * @returns {HTMLElementTagNameMap[K]}
 */
export function create(tag, { className = '', text = '' } = {}) {
  const element = document.createElement(tag);
  element.className = className;
  element.textContent = text;
  return element;
}

const status = byId('status', HTMLElement);

/**
 * Tell people who listen to the page instead of seeing it. Meant for what has ended or begun, never for single tokens.
 * @param {string} text
 */
export function announce(text) {
  status.textContent = text;
}
