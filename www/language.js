// @ts-check
/**
 * The pages in English and Chinese. The English text is the key: in the markup, where `data-t` marks an element whose text is translated and
 * `data-t-label`, `data-t-placeholder` and `data-t-title` its attributes, and in code, where `put` keeps an element's text in the
 * chosen language and `t` gives a text once.
 */
import { zh } from './words.zh.js';

/** @typedef {'en' | 'zh'} Language */
/** @typedef {Record<string, string | number>} Values what stands for `{name}` in a text */

const STORED = 'draftree language';
const ATTRIBUTES = /** @type {const} */ ([
  ['tLabel', 'data-t-label', 'aria-label'],
  ['tPlaceholder', 'data-t-placeholder', 'placeholder'],
  ['tTitle', 'data-t-title', 'title'],
]);

/** @type {Language} */
let language = initial();

/** The choice of an earlier visit, else the browser's language. @returns {Language} */
function initial() {
  try {
    const stored = localStorage.getItem(STORED);
    if (stored === 'en' || stored === 'zh') return stored;
  } catch {
    // A browser that keeps nothing has the choice forgotten.
  }
  return navigator.language.toLowerCase().startsWith('zh') ? 'zh' : 'en';
}

function remember() {
  try {
    localStorage.setItem(STORED, language);
  } catch {
    // As above.
  }
}

/** A text in the chosen language. @param {string} english @param {Values} [values] */
export function t(english, values = {}) {
  const text = language === 'zh' ? (zh[english] ?? english) : english;
  return text.replaceAll(/\{(\w+)\}/g, (whole, name) => String(values[name] ?? whole));
}

/** Sets an element's text, and keeps it in the chosen language. @param {HTMLElement} element @param {string} english @param {Values} [values] */
export function put(element, english, values) {
  element.dataset['t'] = english;
  if (values === undefined) delete element.dataset['tValues'];
  else element.dataset['tValues'] = JSON.stringify(values);
  element.textContent = t(english, values);
}

/** Sets an element's text to one that is the same in every language. @param {HTMLElement} element @param {string} text */
export function putPlain(element, text) {
  delete element.dataset['t'];
  delete element.dataset['tValues'];
  element.textContent = text;
}

/** Sets an element's title like `put` its text. @param {HTMLElement} element @param {string} english */
export function putTitle(element, english) {
  element.dataset['tTitle'] = english;
  element.title = t(english);
}

/** Translates everything that is marked. */
function translatePage() {
  document.documentElement.lang = language;
  for (const element of document.querySelectorAll('[data-t]')) {
    if (!(element instanceof HTMLElement)) continue;
    const english = (element.dataset['t'] ||= element.textContent?.trim().replaceAll(/\s+/g, ' ') ?? '');
    element.textContent = t(english, JSON.parse(element.dataset['tValues'] ?? '{}'));
  }
  for (const [key, mark, attribute] of ATTRIBUTES) {
    for (const element of document.querySelectorAll(`[${mark}]`)) {
      if (!(element instanceof HTMLElement)) continue;
      const english = (element.dataset[key] ||= element.getAttribute(attribute) ?? '');
      element.setAttribute(attribute, t(english));
    }
  }
}

/** Makes a button the switch between the two languages. It names the one that it leads to. @param {HTMLButtonElement} button */
export function switchLanguageBy(button) {
  const show = () => {
    translatePage();
    button.textContent = language === 'zh' ? 'English' : '中文';
    button.lang = language === 'zh' ? 'en' : 'zh';
  };
  button.addEventListener('click', () => {
    language = language === 'zh' ? 'en' : 'zh';
    remember();
    show();
    dispatchEvent(new Event('languagechange'));
  });
  show();
}
