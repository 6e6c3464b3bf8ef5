// @ts-check
/**
 * What measured rows come to: sums over prompts, and the middle and quartiles of every figure.
 *
 * Runs in a page and in Node.
 */

/** @import { Row } from './measure.js' */

/** The middle of some values and the quartiles around it. @typedef {{ median: number, low: number, high: number, count: number }} Spread */
/** @typedef {{ drafter: string, depth: number, offered: number, accepted: number }} Acceptance */

/** The value below which a part of the values lies. @param {readonly number[]} values @param {number} part from 0 to 1 */
function quantile(values, part) {
  const sorted = [...values].sort((a, b) => a - b);
  const place = (sorted.length - 1) * part;
  const [below, above] = [sorted[Math.floor(place)] ?? NaN, sorted[Math.ceil(place)] ?? NaN];
  return below + (above - below) * (place - Math.floor(place));
}

/** @param {readonly number[]} values */
export const median = (values) => quantile(values, 0.5);

/** @param {readonly number[]} values @returns {Spread} */
export function spreadOf(values) {
  return { median: median(values), low: quantile(values, 0.25), high: quantile(values, 0.75), count: values.length };
}

/** Sums over prompts, so that long answers count for more. @param {readonly Row[]} rows */
export function summary(rows) {
  const total = (/** @type {(row: Row) => number} */ figure) => rows.reduce((sum, row) => sum + figure(row), 0);
  const [tokens, ms, plainMs] = [total((row) => row.tokens), total((row) => row.ms), total((row) => row.plainMs)];
  return {
    ratio: plainMs / ms,
    medianRatio: median(rows.map((row) => row.ratio)),
    tokensPerPass: tokens / total((row) => row.passes),
    tokensPerSecond: (1000 * tokens) / ms,
    plainTokensPerSecond: (1000 * tokens) / plainMs,
    promptTokensPerSecond: (1000 * total((row) => row.promptTokens)) / total((row) => row.prefillMs),
    identical: rows.every((row) => row.identical),
  };
}

/** @param {readonly Row[]} rows */
export function byCategory(rows) {
  return [...new Set(rows.map(({ category }) => category))].map((category) => {
    const mine = rows.filter((row) => row.category === category);
    const { ratio, tokensPerPass, identical } = summary(mine);
    return { category, prompts: mine.length, ratio, tokensPerPass, identical };
  });
}

/** How often drafters were right, by drafter and depth. @param {readonly Row[]} rows @returns {Acceptance[]} */
export function acceptanceOf(rows) {
  /** @type {Map<string, Acceptance>} */
  const found = new Map();
  for (const { draft } of rows) {
    for (const [drafter, depths] of Object.entries(draft.acceptance)) {
      for (const { depth, offered, accepted } of depths) {
        const entry = found.get(`${drafter} ${depth}`) ?? { drafter, depth, offered: 0, accepted: 0 };
        found.set(`${drafter} ${depth}`, { ...entry, offered: entry.offered + offered, accepted: entry.accepted + accepted });
      }
    }
  }
  return [...found.values()].filter(({ offered }) => offered > 0).sort((a, b) => a.drafter.localeCompare(b.drafter) || a.depth - b.depth);
}

/** One row a prompt: tokens and passes of the first repeat, and times that are medians. @param {readonly Row[]} rows @returns {Row[]} */
function middleRows(rows) {
  return [...new Set(rows.map(({ id }) => id))].map((id) => {
    const repeats = rows.filter((row) => row.id === id);
    const [first] = /** @type {[Row, ...Row[]]} */ (repeats);
    const over = (/** @type {(row: Row) => number} */ figure) => median(repeats.map(figure));
    return {
      ...first,
      prefillMs: over((row) => row.prefillMs),
      ms: over((row) => row.ms),
      plainMs: over((row) => row.plainMs),
      ratio: over((row) => row.ratio),
      identical: repeats.every(({ identical }) => identical),
    };
  });
}

/**
 * Everything about one variant.
 * @param {string} drafter the variant's name @param {readonly Row[]} rows its rows, of all repeats
 */
export function summarise(drafter, rows) {
  const prompts = middleRows(rows);
  const over = (/** @type {(row: Row) => number} */ figure) => spreadOf(rows.map(figure));
  return {
    drafter,
    ...summary(prompts),
    spread: {
      ratio: over((row) => row.ratio),
      tokensPerPass: over((row) => row.tokens / row.passes),
      tokensPerSecond: over((row) => (1000 * row.tokens) / row.ms),
      plainTokensPerSecond: over((row) => (1000 * row.tokens) / row.plainMs),
      firstTokenMs: over((row) => row.prefillMs),
    },
    acceptance: acceptanceOf(rows),
    categories: byCategory(prompts),
    prompts,
  };
}
