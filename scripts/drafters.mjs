// @ts-check
/**
 * `npm run bench -- --drafters`: each drafter against plain decoding, measured and reported by the benchmark page's own modules
 * (`www/bench`), with a line for every prompt while it runs.
 */
import { measure } from '../www/bench/measure.js';
import { snakeCase } from '../www/bench/names.js';
import { isIdentical, makeReport, spreadText, toJson } from '../www/bench/report.js';
import { readDraft } from './drafting.mjs';
import { printReport, printTable } from './numbers.mjs';
import { say } from './programs.mjs';

/** @typedef {import('../www/bench/measure.js').Plan} Plan */
/** @typedef {import('../www/bench/measure.js').Row} Row */
/** @typedef {import('../www/bench/report.js').Report} Report */

/** Numbers of rows that passes have. */
const SIZES = [1, 2, 4, 8, 16];

/**
 * @param {import('./headless.mjs').HeadlessModel} model @param {readonly string[]} drafters as for `--draft`
 * @param {Omit<Plan, 'variants' | 'sizes'>} settings @param {{ model: string, prompts: string }} names
 * @returns {Promise<Report>}
 */
export async function compareDrafters(model, drafters, settings, names) {
  const variants = drafters.map((name) => ({ name, options: { draft: /** @type {any} */ (readDraft(name)) } }));
  const plan = { ...settings, variants, sizes: SIZES };
  /** @type {import('../www/bench/measure.js').Measured} */
  const measured = { rows: [], passes: [], loadMs: [] };
  for await (const { row } of measure(model, plan, measured)) if (row) say(rowLine(row));
  return makeReport(model.info, plan, measured, { ...names, browser: model.browserVersion, complete: true, date: new Date() });
}

/** @param {Row} row */
function rowLine({ variant, id, category, promptTokens, tokens, passes, ratio, identical }) {
  return (
    `  ${variant.padEnd(10)} ${String(id).padEnd(14)} ${category.padEnd(16)} ${String(promptTokens).padStart(4)} + ${String(tokens).padEnd(3)} ` +
    `${(tokens / passes).toFixed(2)} tokens/pass  ${ratio.toFixed(2)}x${identical ? '' : '  OTHER TOKENS'}`
  );
}

/** @param {Report} report @param {boolean} json @returns {number} the exit status: 1 for tokens that the exact rule does not allow */
export function printComparison(report, json) {
  if (json) console.log(toJson(report));
  else {
    const { drafters, passes, loadMs, ...circumstances } = report;
    printReport(report.model, snakeCase({
      ...circumstances,
      loadMs: spreadText(loadMs),
      passes: passes.map(({ rows, ms, timesOneRow }) => ({ rows, ms: ms.median, low: ms.low, high: ms.high, timesOneRow })),
      drafters: drafters.map(({ drafter, ratio, medianRatio, tokensPerPass, tokensPerSecond, plainTokensPerSecond, promptTokensPerSecond, identical }) => ({
        drafter, ratio, medianRatio, tokensPerPass, tokensPerSecond, plainTokensPerSecond, promptTokensPerSecond, identical,
      })),
    }));
    printTable('times plain decoding, by category', byCategory(drafters, 'ratio'));
    printTable('tokens per pass, by category', byCategory(drafters, 'tokensPerPass'));
  }
  return report.accept !== 'exact' || isIdentical(report) ? 0 : 1;
}

/** One line a category, one column a drafter. @param {Report['drafters']} drafters @param {'ratio' | 'tokensPerPass'} figure */
function byCategory(drafters, figure) {
  return (drafters[0]?.categories ?? []).map(({ category }, row) => ({
    category,
    ...Object.fromEntries(drafters.map(({ drafter, categories }) => [drafter, categories[row]?.[figure]])),
  }));
}
