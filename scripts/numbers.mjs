// @ts-check
/**
 * Reports of measurements, as tables for people.
 */

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
