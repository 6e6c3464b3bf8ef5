// @ts-check
/**
 * A benchmark's report: made of what was measured, written as JSON and as Markdown, and read again to compare with.
 *
 * The page's download and `npm run bench -- --drafters --json` are the same file. Runs in a page and in Node.
 */
import { camelCase, snakeCase } from './names.js';
import { invalid } from './prompts.js';
import { spreadOf, summarise } from './summary.js';

/** @import { AdapterInfo, ModelInfo } from '../pkg/index.js' */
/** @import { Measured, Plan } from './measure.js' */
/** @import { Spread } from './summary.js' */

const FORMAT = 'draftree-benchmark';
const FORMAT_VERSION = 1;

/**
 * @typedef {object} Report
 * @property {string} format
 * @property {number} formatVersion
 * @property {string} date
 * @property {string} model what was asked for
 * @property {{ name: string, architecture: string, parameters: number, quantisation: string, weightBytes: number, contextLength: number }} modelInfo
 * @property {string} browser
 * @property {AdapterInfo} adapter
 * @property {string} version of the package
 * @property {string} prompts the set
 * @property {number} repeats
 * @property {number} maxTokens
 * @property {string} accept the rule of acceptance
 * @property {number} temperature
 * @property {boolean} complete whether it ran to its end
 * @property {{ rows: number, ms: Spread, timesOneRow: number }[]} passes
 * @property {Spread} loadMs loads from the cache
 * @property {number} peakWasmBytes
 * @property {number} weightBytes on the GPU
 * @property {ReturnType<typeof summarise>[]} drafters
 */
/** @typedef {{ model: string, browser: string, prompts: string, complete: boolean, date: Date }} Circumstances */

/** @param {ModelInfo} info @param {Plan} plan @param {Measured} measured @param {Circumstances} circumstances @returns {Report} */
export function makeReport(info, plan, measured, { model, browser, prompts, complete, date }) {
  const { name, architecture, parameters, quantisation, weightBytes, contextLength } = info;
  const { accept = 'exact', temperature = 0 } = plan.options;
  const times = measured.passes.flat();
  const passes = plan.sizes.map((rows) => ({ rows, ms: spreadOf(times.filter((time) => time.rows === rows).map(({ ms }) => ms)) }));
  const one = passes.find(({ rows }) => rows === 1)?.ms.median ?? NaN;
  return {
    format: FORMAT,
    formatVersion: FORMAT_VERSION,
    date: date.toISOString(),
    model,
    modelInfo: { name, architecture, parameters, quantisation, weightBytes, contextLength },
    browser,
    adapter: info.adapter,
    version: info.version,
    prompts,
    repeats: plan.repeats,
    maxTokens: plan.maxTokens,
    accept: typeof accept === 'string' ? accept : JSON.stringify(accept),
    temperature,
    complete,
    passes: passes.filter(({ ms }) => ms.count > 0).map((pass) => ({ ...pass, timesOneRow: pass.ms.median / one })),
    loadMs: spreadOf(measured.loadMs),
    peakWasmBytes: Math.max(0, ...measured.rows.map((row) => row.peakWasmBytes)),
    weightBytes,
    drafters: plan.variants
      .map(({ name }) => ({ name, rows: measured.rows.filter(({ variant }) => variant === name) }))
      .filter(({ rows }) => rows.length > 0)
      .map(({ name, rows }) => summarise(name, rows)),
  };
}

/** Whether all tokens were those of plain decoding. @param {Report} report */
export const isIdentical = ({ drafters }) => drafters.every(({ identical }) => identical);

/** @param {Report} report @returns {string} one line */
export const toJson = (report) => JSON.stringify(snakeCase(report));

/** @param {string} text @param {string} place the file, for messages @returns {Report} */
export function fromJson(text, place) {
  let value;
  try {
    value = JSON.parse(text);
  } catch (error) {
    throw invalid(`${place} is no JSON: ${/** @type {Error} */ (error).message}.`);
  }
  if (value?.format !== FORMAT || value.format_version !== FORMAT_VERSION) {
    const found = value?.format === undefined ? 'no format' : `${value.format} ${value.format_version}`;
    throw invalid(`${place}: expected a report of format ${FORMAT} ${FORMAT_VERSION}, found ${found}; open a file that this page or \`npm run bench -- --drafters --json\` wrote.`);
  }
  return /** @type {Report} */ (camelCase(value));
}

/** Three digits, as many as a measurement is worth. @param {number} value */
export function figure(value) {
  if (!Number.isFinite(value)) return '–';
  return Math.abs(value) >= 100 ? Math.round(value).toLocaleString('en') : value.toPrecision(3);
}

/** The middle, and the quartiles where there are several values. @param {Spread} spread */
export function spreadText({ median, low, high, count }) {
  return count > 1 ? `${figure(median)} (${figure(low)}–${figure(high)})` : figure(median);
}

/** @typedef {{ title: string, columns: string[], rows: string[][] }} Table words are English; a page may translate title and columns */

/** The report as tables, for the page and for Markdown. @param {Report} report @returns {Table[]} */
export function tablesOf({ drafters, passes }) {
  const yes = (/** @type {boolean} */ identical) => (identical ? 'yes' : 'NO');
  return [
    {
      title: 'Speed',
      columns: ['drafter', 'tokens/s', 'plain tokens/s', 'times plain', 'tokens/pass', 'first token, ms', 'same tokens'],
      rows: drafters.map(({ drafter, spread, identical }) => [
        drafter,
        ...[spread.tokensPerSecond, spread.plainTokensPerSecond, spread.ratio, spread.tokensPerPass, spread.firstTokenMs].map(spreadText),
        yes(identical),
      ]),
    },
    {
      title: 'Passes',
      columns: ['rows', 'ms', 'times one row'],
      rows: passes.map(({ rows, ms, timesOneRow }) => [String(rows), spreadText(ms), figure(timesOneRow)]),
    },
    {
      title: 'Acceptance by depth',
      columns: ['drafter', 'guesses of', 'depth', 'offered', 'accepted', 'part'],
      rows: drafters.flatMap(({ drafter, acceptance }) =>
        acceptance.map(({ drafter: by, depth, offered, accepted }) => [drafter, by, ...[depth, offered, accepted].map(String), `${Math.round((100 * accepted) / offered)} %`]),
      ),
    },
    {
      title: 'By category',
      columns: ['drafter', 'category', 'prompts', 'times plain', 'tokens/pass', 'same tokens'],
      rows: drafters.flatMap(({ drafter, categories }) =>
        categories.map(({ category, prompts, ratio, tokensPerPass, identical }) => [drafter, category, String(prompts), figure(ratio), figure(tokensPerPass), yes(identical)]),
      ),
    },
  ];
}

/** What was measured, and where. @param {Report} report @returns {[name: string, value: string][]} */
export function factsOf(report) {
  const { modelInfo, adapter } = report;
  return [
    ['model', `${modelInfo.name || report.model}, ${modelInfo.quantisation}, ${(modelInfo.parameters / 1e6).toPrecision(3)} million weights`],
    ['adapter', `${adapter.description || 'not named by the browser'}${adapter.software ? ' (software)' : ''}`],
    ['browser', report.browser],
    ['draftree', report.version],
    ['date', report.date.slice(0, 16).replace('T', ' ')],
    ['prompts', `${report.prompts}, ${report.repeats} × ${report.maxTokens} tokens`],
    ['acceptance', `${report.accept}, temperature ${report.temperature}`],
    ['memory', `${(report.weightBytes / 1e6).toFixed(1)} MB of weights on the GPU, ${(report.peakWasmBytes / 1e6).toFixed(1)} MB of WebAssembly at most`],
    ['load from the cache', `${spreadText(report.loadMs)} ms`],
  ];
}

/** @param {Report} report */
export function toMarkdown(report) {
  const line = (/** @type {readonly string[]} */ cells) => `| ${cells.map((cell) => cell.replaceAll('|', '\\|')).join(' | ')} |`;
  const facts = factsOf(report).map(([name, value]) => `- ${name}: ${value}`);
  const tables = tablesOf(report)
    .filter(({ rows }) => rows.length > 0)
    .map(({ title, columns, rows }) => [`### ${title}`, '', line(columns), line(columns.map(() => '---')), ...rows.map(line)].join('\n'));
  const note = report.complete ? [] : ['Not complete: it was stopped, or still ran.'];
  return [`## draftree benchmark`, facts.join('\n'), ...note, 'Medians, with quartiles in brackets.', ...tables].join('\n\n').concat('\n');
}
