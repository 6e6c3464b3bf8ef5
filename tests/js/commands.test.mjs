// @ts-check
/** The parts of the commands that need no browser: options, prompt files, summaries of test runners. */
import assert from 'node:assert/strict';
import { mkdtemp, readdir, readFile, rm, writeFile } from 'node:fs/promises';
import os from 'node:os';
import path from 'node:path';
import { describe, test } from 'node:test';
import { draftOptions, readTree } from '../../scripts/drafting.mjs';
import { generateOptions, parseRows, readRows, specs } from '../../scripts/generate.mjs';
import { stepsToCompare } from '../../scripts/golden.mjs';
import { resolveHeads, resolveModel } from '../../scripts/models.mjs';
import { nearest, parseOptions } from '../../scripts/options.mjs';
import { root } from '../../scripts/programs.mjs';
import { readTasks } from '../../scripts/tasks.mjs';
import { cargoCounts, tapCounts } from '../../scripts/test.mjs';
import { parseTasks, shorten } from '../../www/bench/prompts.js';
import { byCategory, summary } from '../../www/bench/summary.js';

/** @param {RegExp} message @param {string} [code] */
const failure = (message, code = 'invalid_option') => (/** @type {any} */ error) => error.code === code && message.test(error.message);

describe('options', () => {
  test('values of every kind', () => {
    const { values } = parseOptions(['--prompt', '--x', '--max-tokens=5', '--top-p', '0.5', '--stop', 'a', '--stop', '', '--logprobs', '3', '--json'], specs);
    assert.deepEqual(values, { prompt: '--x', 'max-tokens': 5, 'top-p': 0.5, stop: ['a', ''], logprobs: 3, json: true });
    assert.deepEqual(generateOptions(values), { maxTokens: 5, topP: 0.5, stop: ['a', ''], logprobs: 3 });
  });
  test('an empty prompt is a value', () => {
    assert.equal(parseOptions(['--prompt', ''], specs).values.prompt, '');
  });
  for (const [argv, message] of /** @type {[string[], RegExp][]} */ ([
    [['--maxtokens', '5'], /Unknown option --maxtokens; did you mean --max-tokens\?/],
    [['--zzzzzz'], /Unknown option --zzzzzz; known: --model/],
    [['--__proto__'], /Unknown option/],
    [['--seed'], /--seed needs a value/],
    [['--seed', '-1'], /--seed needs a whole number \(at least 0\); found "-1"/],
    [['--seed', '1e20'], /--seed needs a whole number/],
    [['--max-tokens', '0'], /at least 1/],
    [['--max-tokens', '2.5'], /whole number/],
    [['--temperature', 'hot'], /--temperature needs a number/],
    [['--temperature', ''], /--temperature needs a number/],
    [['--top-p', '1.1'], /at most 1/],
    [['--browser', 'safari'], /one of chromium, firefox/],
    [['--json=yes'], /takes no value/],
    [['--seed', '1', '--seed', '2'], /given twice/],
    [['text'], /Unexpected argument "text"/],
  ])) {
    test(`refused: ${argv.join(' ')}`, () => {
      assert.throws(() => parseOptions(argv, specs), failure(message));
    });
  }
  test('the nearest name is near, or none', () => {
    assert.equal(nearest('topK', ['top-p', 'top-k']), 'top-k');
    assert.equal(nearest('colour', ['top-p', 'top-k']), undefined);
  });
});

describe('commands', () => {
  test('what a command runs is defined before it runs', async () => {
    // A constant below the call that uses it is not there yet; a function is.
    const folder = path.join(root, 'scripts');
    const names = (await readdir(folder)).filter((name) => name.endsWith('.mjs'));
    const runs = await Promise.all(names.map(async (name) => (await readFile(path.join(folder, name), 'utf8')).split(/^.*await runMain\(/m).slice(1).join('')));
    assert.ok(runs.filter((text) => text !== '').length > 5, 'there are commands');
    const late = names.filter((_, i) => /^(export )?(const|let|class) /m.test(runs[i] ?? ''));
    assert.deepEqual(late, []);
  });
});

describe('drafting', () => {
  test('options as the package takes them', async () => {
    const { values } = parseOptions(['--draft', 'ngram, recycling', '--tree=dense:4,3,2', '--max-nodes', '8', '--accept', 'topk:3,0.5'], specs);
    assert.deepEqual(await draftOptions(values), { draft: ['ngram', 'recycling'], tree: 'dense:4,3,2', maxNodes: 8, accept: { topK: { k: 3, tolerance: 0.5 } } });
    assert.deepEqual(await draftOptions({ draft: 'auto', tree: 'auto', accept: 'exact' }), { draft: 'auto', tree: 'auto', accept: 'exact' });
    assert.deepEqual(await draftOptions({ accept: 'typical' }), { accept: { typical: {} } });
    assert.deepEqual(await draftOptions({ accept: 'typical:0.09,0.3' }), { accept: { typical: { epsilon: 0.09, alpha: 0.3 } } });
    assert.deepEqual(await draftOptions({}), {});
  });
  test('a tree is a list of JSON or Python, given or in a file', async () => {
    const paths = [[0], [0, 0], [1]];
    assert.deepEqual(await readTree('[[0], [0, 0], [1]]'), paths);
    const folder = await mkdtemp(path.join(os.tmpdir(), 'draftree-tree-'));
    const file = path.join(folder, 'tree.py');
    await writeFile(file, '[(0,), (0, 0),\n  (1,),\n]\n');
    assert.deepEqual(await readTree(file), paths);
    await rm(folder, { recursive: true });
  });
  for (const [given, message] of /** @type {[Parameters<typeof draftOptions>[0], RegExp][]} */ ([
    [{ tree: 'nowhere.json' }, /--tree is auto, dense:4,3,2.*nowhere\.json/],
    [{ tree: '[[0], ' }, /expected a list of rank paths/],
    [{ accept: 'exact:1' }, /--accept is exact/],
    [{ accept: 'typical:1,2,3' }, /--accept is exact/],
    [{ accept: 'topk:,' }, /--accept is exact/],
    [{ accept: 'loose' }, /found "loose"/],
  ])) {
    test(`refused: ${JSON.stringify(given)}`, () => assert.rejects(draftOptions(given), failure(message)));
  }
});

describe('draft heads', () => {
  test('a file is served, others go to the package as they are', async () => {
    const { options, mounts } = await resolveHeads(path.join(root, 'package.json'));
    assert.deepEqual(options('http://x'), { heads: 'http://x/heads/package.json' });
    assert.deepEqual(Object.keys(mounts), ['/heads/package.json']);
    for (const heads of ['https://example.org/h.safetensors', 'org/name']) assert.deepEqual((await resolveHeads(heads)).options(''), { heads });
    assert.deepEqual((await resolveHeads('none')).options(''), { heads: null });
    assert.deepEqual((await resolveHeads(undefined)).options(''), {});
    await assert.rejects(resolveHeads('nowhere/heads.safetensors'), failure(/there is no file nowhere/, 'load_failed'));
  });
});

describe('models', () => {
  test('draft heads beside a file are served with it', async () => {
    const { mounts, file } = await resolveModel('stories260k', '/model/');
    assert.deepEqual(Object.keys(mounts), ['/model/stories260K-q8_0.gguf', '/model/stories260K-q8_0.heads.safetensors']);
    assert.equal(mounts['/model/stories260K-q8_0.heads.safetensors'], file?.replace('.gguf', '.heads.safetensors'));
    assert.deepEqual((await resolveModel(root, '/model/')).mounts, { '/model/': root.replace(/\/$/, '') });
    const alone = path.join(root, 'package.json');
    assert.deepEqual((await resolveModel(alone, '/model/')).mounts, { '/model/package.json': alone });
  });
});

describe('comparing drafters', () => {
  const row = { id: 1, category: 'a', promptTokens: 10, prefillMs: 100, tokens: 20, passes: 10, ms: 100, plainMs: 200, ratio: 2, identical: true };
  const rows = /** @type {any[]} */ ([row, { ...row, category: 'b', tokens: 10, passes: 10, ms: 200, plainMs: 100, ratio: 0.5, identical: false }]);
  test('sums count long answers for more, medians do not', () => {
    const { ratio, medianRatio, tokensPerPass, tokensPerSecond, identical } = summary(rows);
    assert.deepEqual({ ratio, medianRatio, tokensPerPass, tokensPerSecond, identical }, { ratio: 1, medianRatio: 1.25, tokensPerPass: 1.5, tokensPerSecond: 100, identical: false });
    assert.deepEqual(byCategory(rows).map(({ category, ratio, identical }) => [category, ratio, identical]), [['a', 2, true], ['b', 0.5, false]]);
  });
  test('both sets of ours have ten prompts, all different', async () => {
    for (const chat of [true, false]) {
      const tasks = await readTasks('repetitive', { chat, categories: undefined, perCategory: undefined });
      assert.equal(new Set(tasks.map(({ id }) => id)).size, 10);
      assert.ok(tasks.every(({ prompt }) => (typeof prompt === 'string') !== chat));
    }
  });
  test('a sample is spread over its category', async () => {
    const lines = Array.from({ length: 10 }, (_, i) => JSON.stringify({ id: i, category: i < 6 ? 'a' : 'b', turns: [`ask ${i}`] }));
    const folder = await mkdtemp(path.join(os.tmpdir(), 'draftree-tasks-'));
    const file = path.join(folder, 'tasks.jsonl');
    await writeFile(file, lines.join('\n'));
    const ids = async (/** @type {any} */ choice) => (await readTasks(file, { chat: true, ...choice })).map(({ id }) => id);
    assert.deepEqual(await ids({ perCategory: 2 }), [0, 3, 6, 8]);
    assert.deepEqual(await ids({ categories: ['b'] }), [6, 7, 8, 9]);
    await assert.rejects(ids({ categories: ['c'] }), failure(/no category "c"; it has a, b/));
    await rm(folder, { recursive: true });
  });
  test('rows that are no tasks are refused by line', () => {
    assert.throws(() => parseTasks('{"prompt":"x"}\n{"id":1}', 'f', true), failure(/f, line 2: expected a prompt/));
    assert.throws(() => parseTasks('{"messages":[]}', 'f', false), failure(/takes no messages/));
    assert.throws(() => parseTasks('null', 'f', false), failure(/line 1/));
  });
  test('a long prompt loses its middle', async () => {
    const count = async (/** @type {any} */ prompt) => (typeof prompt === 'string' ? prompt : prompt[1].content).length;
    const long = `begin ${'x'.repeat(500)} end`;
    const { prompt } = await shorten({ id: 1, category: 'a', prompt: long }, 100, count);
    assert.ok(typeof prompt === 'string' && prompt.length <= 100 && prompt.startsWith('begin') && prompt.endsWith('end'));
    const chat = await shorten({ id: 1, category: 'a', prompt: [{ role: 'system', content: 's' }, { role: 'user', content: long }] }, 100, count);
    assert.ok(await count(chat.prompt) <= 100);
    await assert.rejects(shorten({ id: 7, category: 'a', prompt: long }, 3, count), failure(/prompt 7 does not fit/));
  });
});

describe('prompts', () => {
  test('rows of a file', () => {
    const text = '{"id":"a","prompt":""}\r\n\n{"messages":[{"role":"user","content":"x","extra":1}]}\n{"id":0,"prompt":"y"}';
    assert.deepEqual(parseRows(text, 'f'), [
      { id: 'a', prompt: '' },
      { id: 2, prompt: [{ role: 'user', content: 'x' }] },
      { id: 0, prompt: 'y' },
    ]);
  });
  for (const [line, message] of /** @type {[string, RegExp][]} */ ([
    ['{', /f, line 2: no JSON/],
    ['[]', /expected an object/],
    ['{"id":1}', /either prompt or messages/],
    ['{"prompt":"x","messages":[]}', /either prompt or messages/],
    ['{"prompt":1}', /prompt must be a string/],
    ['{"messages":[]}', /messages must be a list/],
    ['{"messages":[{"role":"user"}]}', /messages must be a list/],
    ['{"id":{},"prompt":"x"}', /id must be/],
  ])) {
    test(`refused: ${line}`, () => {
      assert.throws(() => parseRows(`{"prompt":"fine"}\n${line}`, 'f'), failure(message));
    });
  }
  test('--chat makes messages of a prompt', async () => {
    const messages = [{ role: 'system', content: 's' }, { role: 'user', content: 'p' }];
    assert.deepEqual(await readRows({ prompt: 'p', chat: true, system: 's' }), [{ id: 1, prompt: messages }]);
    assert.deepEqual(await readRows({ prompt: 'p' }), [{ id: 1, prompt: 'p' }]);
  });
  test('what does not go together is refused', async () => {
    await assert.rejects(readRows({}), failure(/Give a --prompt/));
    await assert.rejects(readRows({ prompt: 'p', prompts: 'f' }), failure(/exclude each other/));
    await assert.rejects(readRows({ prompt: 'p', system: 's' }), failure(/needs --chat/));
    await assert.rejects(readRows({ prompts: '/nowhere' }), failure(/nowhere/, 'load_failed'));
  });
});

describe('summaries', () => {
  test('of cargo', () => {
    const output = 'test result: ok. 3 passed; 0 failed; 1 ignored; 0 measured\nx\ntest result: FAILED. 2 passed; 4 failed; 0 ignored; 0 measured\n';
    assert.deepEqual(cargoCounts(output), { passed: 5, failed: 4, skipped: 1 });
  });
  test("of Node's runner", () => {
    const report = '# tests 9\n# suites 1\n# pass 4\n# fail 1\n# cancelled 1\n# skipped 2\n# todo 1\n# duration_ms 5\n';
    assert.deepEqual(tapCounts(report), { passed: 4, failed: 2, skipped: 3 });
  });
  test('golden steps end at the first near-tie', () => {
    const golden = { name: '', messages: null, text: '', prompt_ids: [], greedy_ids: [1, 2, 3] };
    assert.equal(stepsToCompare({ ...golden, margins: [1, 0.0009, 1] }), 1);
    assert.equal(stepsToCompare({ ...golden, margins: [1, 0.001, 1] }), 3);
  });
});
