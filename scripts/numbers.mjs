// @ts-check
/**
 * Reports of measurements: middle values, and tables for people.
 */

/** @param {readonly number[]} values */
export function median(values) {
  const sorted = [...values].sort((a, b) => a - b);
  const middle = sorted.length >> 1;
  return sorted.length % 2 ? Number(sorted[middle]) : (Number(sorted[middle - 1]) + Number(sorted[middle])) / 2;
}

/** Lists as tables, single values as lines. @param {string} title @param {Record<string, unknown>} report */
export function printReport(title, report) {
  console.log(title);
  for (const [key, value] of Object.entries(report)) {
    if (Array.isArray(value) && value.every((row) => typeof row === 'object' && row !== null)) printTable(key, value);
    else console.log(`${key}: ${typeof value === 'number' ? rounded(value) : typeof value === 'string' ? value : JSON.stringify(value)}`);
  }
}

/** @param {string} title @param {Record<string, unknown>[]} rows */
export function printTable(title, rows) {
  const keys = [...new Set(rows.flatMap((row) => Object.keys(row)))];
  const cells = [keys, ...rows.map((row) => keys.map((key) => (typeof row[key] === 'number' ? rounded(row[key]) : String(row[key] ?? ''))))];
  const widths = keys.map((_, column) => Math.max(...cells.map((line) => String(line[column]).length)));
  console.log(`${title}:`);
  for (const line of cells) console.log(`  ${line.map((cell, column) => cell.padEnd(Number(widths[column]))).join('  ')}`.trimEnd());
}

/** @param {number} value */
const rounded = (value) => (Number.isInteger(value) ? String(value) : Math.abs(value) >= 100 ? value.toFixed(0) : value.toPrecision(3));

/**
 * Keys in the spelling of the command line's JSON, also in what they hold: `prefillMs` → `prefill_ms`.
 * @param {object} object
 * @returns {Record<string, unknown>}
 */
export function snakeCase(object) {
  return Object.fromEntries(
    Object.entries(object).map(([key, value]) => [key.replaceAll(/[A-Z]/g, (letter) => `_${letter.toLowerCase()}`), snakeCaseIn(value)]),
  );
}

/** @param {unknown} value @returns {unknown} */
function snakeCaseIn(value) {
  if (Array.isArray(value)) return value.map(snakeCaseIn);
  return typeof value === 'object' && value !== null ? snakeCase(value) : value;
}
