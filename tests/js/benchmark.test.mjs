// @ts-check
/** The benchmark that page and command share: what is run in which order, what rows come to, and reports that are written and read again. */
import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { measurePage, pageNames } from '../../scripts/site.mjs';
import { measure } from '../../www/bench/measure.js';
import { camelCase, snakeCase } from '../../www/bench/names.js';
import { fromJson, isIdentical, makeReport, tablesOf, toJson, toMarkdown } from '../../www/bench/report.js';
import { median, spreadOf } from '../../www/bench/summary.js';

/** @import { Measured, Plan, Runner } from '../../www/bench/measure.js' */

const info = /** @type {any} */ ({
  name: 'fake', architecture: 'llama', parameters: 260_000, quantisation: 'Q8_0', weightBytes: 400_000, contextLength: 512,
  adapter: { description: 'none', backend: 'none', software: true }, version: '0.0.1', hasChatTemplate: false, drafters: ['ngram'],
});

/** A runner without a model: drafted passes write two tokens. @param {string[]} log @param {(draft: unknown) => number[]} write @returns {Runner} */
function fakeRunner(log, write) {
  const run = (/** @type {string} */ how) => async (/** @type {any} */ prompt, /** @type {any} */ { draft, maxTokens }) => {
    log.push(`${how} ${draft} ${maxTokens === 1 ? 'one token' : prompt.slice(0, 5)}`);
    const tokens = write(draft);
    const passes = draft === 'none' ? tokens.length : tokens.length / 2;
    const acceptance = draft === 'none' ? {} : { ngram: [{ depth: 1, offered: 10, accepted: 4 }] };
    return /** @type {any} */ ({
      tokens,
      usage: { promptTokens: 7 },
      stats: { timeToFirstTokenMs: 10, decodeMs: 10 * passes - 10, passes, peakWasmBytes: 1000, draft: { acceptance } },
    });
  };
  return {
    info,
    generate: run('anew'),
    generateAgain: run('again'),
    countTokens: async () => 7,
    benchmark: async ({ rows }) => ({ passes: rows.map((rows) => ({ rows, ms: rows + 1 })) }),
    reload: async () => log.push('reload'),
  };
}

/** @type {Plan} */
const plan = {
  tasks: [{ id: 'a', category: 'x', prompt: 'first' }, { id: 'b', category: 'y', prompt: 'second' }],
  variants: [{ name: 'ngram', options: { draft: 'ngram' } }, { name: 'auto', options: { draft: 'auto' } }],
  repeats: 2,
  maxTokens: 8,
  maxPromptTokens: 100,
  sizes: [1, 4],
  options: {},
};
const circumstances = { model: 'fake', browser: 'Node', prompts: 'two', complete: true, date: new Date(0) };

/** @param {(draft: unknown) => number[]} write */
async function measured(write) {
  /** @type {string[]} */
  const log = [];
  /** @type {Measured} */
  const found = { rows: [], passes: [], loadMs: [] };
  /** @type {string[]} */
  const steps = [];
  for await (const { done, total } of measure(fakeRunner(log, write), plan, found)) steps.push(`${done}/${total}`);
  return { log, found, steps, report: makeReport(info, plan, found, circumstances) };
}

const same = () => [1, 2, 3, 4];

describe('measuring', () => {
  test('a variant runs between two plain runs, on a model that has learnt nothing, in another order each time', async () => {
    const { log, found, steps } = await measured(same);
    assert.deepEqual(log.slice(0, 11), [
      'reload', 'anew none The s', 'anew ngram The s',
      'anew none one token', 'again none first', 'again ngram first', 'again none first',
      'anew none one token', 'again none secon', 'again ngram secon', 'again none secon',
    ]);
    assert.deepEqual(found.rows.map(({ variant, id }) => `${variant} ${id}`), ['ngram a', 'ngram b', 'auto a', 'auto b', 'auto a', 'auto b', 'ngram a', 'ngram b']);
    assert.deepEqual([steps[0], steps.at(-1), steps.length], ['1/12', '12/12', 12]);
  });
  test('what it comes to', async () => {
    const { report } = await measured(same);
    const [ngram] = report.drafters;
    assert.deepEqual([ngram?.drafter, ngram?.ratio, ngram?.tokensPerPass, ngram?.tokensPerSecond, ngram?.plainTokensPerSecond], ['ngram', 2, 2, 200, 100]);
    assert.deepEqual(ngram?.acceptance, [{ drafter: 'ngram', depth: 1, offered: 40, accepted: 16 }]);
    assert.deepEqual(ngram?.categories.map(({ category, prompts }) => [category, prompts]), [['x', 1], ['y', 1]]);
    assert.deepEqual(report.passes.map(({ rows, ms, timesOneRow }) => [rows, ms.median, ms.count, timesOneRow]), [[1, 2, 4, 1], [4, 5, 4, 2.5]]);
    assert.ok(isIdentical(report));
  });
  test('other tokens are noticed', async () => {
    const { report } = await measured((draft) => (draft === 'auto' ? [1, 2, 3, 5] : same()));
    assert.deepEqual(report.drafters.map(({ drafter, identical }) => [drafter, identical]), [['ngram', true], ['auto', false]]);
    assert.equal(isIdentical(report), false);
    assert.match(toMarkdown(report), /\| auto \|.*\| NO \|/);
  });
});

describe('figures', () => {
  test('quartiles', () => {
    assert.deepEqual(spreadOf([4, 1, 3, 2, 5]), { median: 3, low: 2, high: 4, count: 5 });
    assert.deepEqual(spreadOf([1, 2]), { median: 1.5, low: 1.25, high: 1.75, count: 2 });
    assert.equal(median([7]), 7);
    assert.ok(Number.isNaN(median([])));
  });
  test('keys of files and of code', () => {
    const inCode = { prefillMs: 1, peakWasmBytes: 2, draft: { rowsPerStep: [[1, 2]], passMs: { 1: 3 } } };
    const inFiles = { prefill_ms: 1, peak_wasm_bytes: 2, draft: { rows_per_step: [[1, 2]], pass_ms: { 1: 3 } } };
    assert.deepEqual(snakeCase(inCode), inFiles);
    assert.deepEqual(camelCase(inFiles), inCode);
  });
});

describe('reports', () => {
  test('are the same after they were written and read', async () => {
    const { report } = await measured(same);
    assert.deepEqual(fromJson(toJson(report), 'f'), JSON.parse(JSON.stringify(report)));
  });
  test('other files are refused, with what to do', () => {
    const refused = (/** @type {RegExp} */ message) => (/** @type {any} */ error) => error.code === 'invalid_option' && message.test(error.message);
    assert.throws(() => fromJson('{', 'f.json'), refused(/f\.json is no JSON/));
    assert.throws(() => fromJson('{"a":1}', 'f.json'), refused(/expected a report of format draftree-benchmark 1, found no format; open a file/));
    assert.throws(() => fromJson('{"format":"draftree-benchmark","format_version":2}', 'f'), refused(/found draftree-benchmark 2/));
    assert.throws(() => fromJson('null', 'f'), refused(/found no format/));
  });
  test('as Markdown, tables have as many cells as columns', async () => {
    const { report } = await measured(same);
    for (const { title, columns, rows } of tablesOf(report)) {
      assert.ok(rows.length > 0, title);
      for (const row of rows) assert.equal(row.length, columns.length, title);
    }
    const tables = toMarkdown(report).split('\n\n').filter((part) => part.startsWith('|'));
    assert.equal(tables.length, 4);
    for (const table of tables) assert.equal(new Set(table.trim().split('\n').map((line) => line.split('|').length)).size, 1);
  });
});

test('the JavaScript of a page is counted with what it imports', async () => {
  for (const name of pageNames) {
    const { files, raw, gzip } = await measurePage(name);
    assert.ok(files > 5 && gzip > 1000 && raw > gzip, name);
  }
});
