// @ts-check
/** The parts of the commands that need no browser: options, prompt files, summaries of test runners. */
import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { generateOptions, parseRows, readRows, snakeCase, specs } from '../../scripts/generate.mjs';
import { stepsToCompare } from '../../scripts/golden.mjs';
import { nearest, parseOptions } from '../../scripts/options.mjs';
import { cargoCounts, tapCounts } from '../../scripts/test.mjs';

/** @param {RegExp} message @param {string} [code] */
const failure = (message, code = 'invalid_option') => (/** @type {any} */ error) => error.code === code && message.test(error.message);

describe('options', () => {
  test('values of every kind', () => {
    const { values } = parseOptions(['--prompt', '--x', '--max-tokens=5', '--top-p', '0.5', '--stop', 'a', '--stop', '', '--json'], specs);
    assert.deepEqual(values, { prompt: '--x', 'max-tokens': 5, 'top-p': 0.5, stop: ['a', ''], json: true });
    assert.deepEqual(generateOptions(values), { maxTokens: 5, topP: 0.5, stop: ['a', ''] });
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
  test('keys of the JSON output', () => {
    assert.deepEqual(snakeCase({ prefillMs: 1, peakWasmBytes: 2, submits: 3 }), { prefill_ms: 1, peak_wasm_bytes: 2, submits: 3 });
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
