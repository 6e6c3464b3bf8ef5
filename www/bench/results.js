// @ts-check
/**
 * A report on the page, as charts and tables, beside another one to compare with; and its ways out, Markdown and JSON.
 */
import { drawBars, drawLines, showKey } from '../chart.js';
import { announce, byId, create } from '../elements.js';
import { put, t } from '../language.js';
import { showFault } from '../faults.js';
import { factsOf, figure, fromJson, isIdentical, tablesOf, toJson, toMarkdown } from './report.js';

/** @import { BarSeries, LineSeries } from '../chart.js' */
/** @import { Report, Table } from './report.js' */

const area = byId('report', HTMLElement);
const empty = byId('empty', HTMLElement);
const verdict = byId('verdict', HTMLElement);
const tables = byId('tables', HTMLElement);
const facts = byId('facts', HTMLElement);
const copy = byId('copy', HTMLButtonElement);
const download = byId('download', HTMLButtonElement);
const compareEnd = byId('compare-end', HTMLButtonElement);
const compareFile = byId('compare-file', HTMLInputElement);

/** @type {Report | undefined} */
let shown;
/** @type {Report | undefined} */
let other;

/** @param {Report} report */
export function showReport(report) {
  shown = report;
  show();
}

function show() {
  const report = shown ?? other;
  area.hidden = report === undefined;
  empty.hidden = report !== undefined;
  compareEnd.hidden = other === undefined;
  copy.disabled = download.disabled = shown === undefined;
  if (report === undefined) return;
  showVerdict(report);
  const compared = other === report ? undefined : other;
  drawCharts(report, compared);
  tables.replaceChildren(...tablesOf(report).map((table) => tableOf(table)));
  if (compared) tables.append(...tablesOf(compared).map((table) => tableOf(table, compared)));
  facts.replaceChildren(
    ...[report, ...(compared ? [compared] : [])].flatMap((each) =>
      factsOf(each).flatMap(([name, value]) => {
        const term = create('dt');
        put(term, name);
        return [term, create('dd', { text: value })];
      }),
    ),
  );
}

/** Whether the tokens were the same, and what was fastest. @param {Report} report */
function showVerdict(report) {
  const fastest = report.drafters.reduce((best, each) => (each.ratio > best.ratio ? each : best), /** @type {Report['drafters'][number]} */ (report.drafters[0]));
  const isWrong = report.accept === 'exact' && !isIdentical(report);
  verdict.classList.toggle('wrong', isWrong);
  const values = { drafter: fastest.drafter, ratio: figure(fastest.ratio), perPass: figure(fastest.tokensPerPass) };
  if (isWrong) put(verdict, 'Some tokens differ from those of plain decoding: this is a fault, please report it.');
  else if (isIdentical(report)) put(verdict, '{drafter} is fastest: {ratio} times plain decoding, {perPass} tokens a pass. All tokens were identical.', values);
  else put(verdict, '{drafter} is fastest: {ratio} times plain decoding, {perPass} tokens a pass. Tokens differ, as the rule of acceptance allows.', values);
}

/** @param {string} id */
function chart(id) {
  const [host, key] = [document.querySelector(`#${id} .chart`), document.querySelector(`#${id} .key`)];
  if (!(host instanceof HTMLElement && key instanceof HTMLElement)) throw new Error(`the page has no chart #${id}`);
  return { host, key };
}

/** @param {Report} report @param {Report | undefined} compared */
function drawCharts(report, compared) {
  const reports = compared ? [report, compared] : [report];
  const names = [...new Set(reports.flatMap(({ drafters }) => drafters.map(({ drafter }) => drafter)))];
  const named = (/** @type {Report} */ { date }, /** @type {string} */ name) => (compared ? `${name}, ${date.slice(0, 16).replace('T', ' ')}` : name);
  const spreads = (/** @type {Report} */ { drafters }, /** @type {'tokensPerSecond' | 'plainTokensPerSecond' | 'tokensPerPass'} */ what) =>
    names.map((name) => drafters.find(({ drafter }) => drafter === name)?.spread[what]);

  // Plain decoding stands beside each drafter as it was measured with it: a machine is not equally fast at all times.
  const speeds = /** @type {const} */ ([['plain', 'plainTokensPerSecond'], ['drafted', 'tokensPerSecond']]);
  drawBarChart('chart-speed', names, reports.flatMap((each, at) =>
    speeds.map(([name, what]) => ({ name: named(each, t(name)), isOther: at > 0, spreads: spreads(each, what) }))));
  drawBarChart('chart-passes', names, reports.map((each, at) => ({ name: named(each, t('tokens/pass')), isOther: at > 0, spreads: spreads(each, 'tokensPerPass') })));

  const sizes = [...new Set(reports.flatMap(({ passes }) => passes.map(({ rows }) => rows)))].sort((a, b) => a - b);
  drawLineChart('chart-cost', sizes, reports.map((each, at) => ({
    name: named(each, t('ms')),
    isOther: at > 0,
    values: sizes.map((rows) => each.passes.find((pass) => pass.rows === rows)?.ms.median ?? null),
  })));

  const lines = reports.flatMap((each, at) => each.drafters.flatMap(({ drafter, acceptance }) =>
    [...new Set(acceptance.map((entry) => entry.drafter))].map((by) => ({
      name: named(each, drafter.startsWith(by) ? drafter : `${drafter}: ${by}`),
      isOther: at > 0,
      found: new Map(acceptance.filter((entry) => entry.drafter === by).map(({ depth, offered, accepted }) => [depth, (100 * accepted) / offered])),
    }))));
  const depths = [...new Set(lines.flatMap(({ found }) => [...found.keys()]))].sort((a, b) => a - b);
  drawLineChart('chart-depth', depths, lines.map(({ found, ...line }) => ({ ...line, values: depths.map((depth) => found.get(depth) ?? null) })), 100);
}

/** @param {string} id @param {string[]} categories @param {BarSeries[]} series */
function drawBarChart(id, categories, series) {
  const { host, key } = chart(id);
  drawBars(host, categories, series);
  showKey(key, series.length > 1 ? series : []);
}

/** @param {string} id @param {number[]} xs @param {LineSeries[]} series @param {number} [most] */
function drawLineChart(id, xs, series, most) {
  const { host, key } = chart(id);
  drawLines(host, xs, series, most === undefined ? {} : { most });
  showKey(key, series.length > 1 ? series : []);
}

/** @param {Table} table @param {Report} [of] the other report, whose date it then bears */
function tableOf({ title, columns, rows }, of) {
  const box = create('div', { className: 'scroll' });
  // What scrolls is reached by the keyboard.
  box.tabIndex = 0;
  box.role = 'region';
  box.ariaLabel = t(title);
  const table = create('table');
  const caption = create('caption');
  const name = create('span');
  put(name, title);
  caption.append(name, of ? ` · ${of.date.slice(0, 16).replace('T', ' ')}` : '');
  const head = create('tr');
  head.append(...columns.map((column) => {
    const cell = create('th');
    cell.scope = 'col';
    put(cell, column);
    return cell;
  }));
  const [thead, tbody] = [create('thead'), create('tbody')];
  thead.append(head);
  tbody.append(...rows.map((row) => {
    const line = create('tr');
    line.append(...row.map((text) => create('td', { text, className: text === 'NO' ? 'wrong' : '' })));
    return line;
  }));
  table.append(caption, thead, tbody);
  box.append(table);
  return box;
}

copy.addEventListener('click', async () => {
  if (shown === undefined) return;
  try {
    await navigator.clipboard.writeText(toMarkdown(shown));
    announce(t('Copied.'));
    put(copy, 'Copied');
  } catch {
    put(copy, 'Not allowed');
  }
  setTimeout(() => put(copy, 'Copy as Markdown'), 1500);
});

download.addEventListener('click', () => {
  if (shown === undefined) return;
  const link = create('a');
  link.href = URL.createObjectURL(new Blob([toJson(shown)], { type: 'application/json' }));
  link.download = `draftree-${shown.modelInfo.name || 'model'}-${shown.date.slice(0, 16).replaceAll(':', '')}.json`;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
});

byId('compare', HTMLButtonElement).addEventListener('click', () => compareFile.click());
compareFile.addEventListener('change', async () => {
  const [file] = compareFile.files ?? [];
  if (file === undefined) return;
  try {
    other = fromJson(await file.text(), file.name);
    show();
    announce(t('Compared with {name}.', { name: file.name }));
  } catch (error) {
    showFault(error);
  }
  compareFile.value = '';
});
compareEnd.addEventListener('click', () => {
  other = undefined;
  show();
});

// Charts have the page's colours and words.
matchMedia('(prefers-color-scheme: dark)').addEventListener('change', show);
addEventListener('languagechange', show);
