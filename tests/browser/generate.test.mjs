// @ts-check
/** `npm run generate` as a person or a script runs it: what is on standard output, in what order, and how it ends. */
import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { mkdtemp, rm, writeFile } from 'node:fs/promises';
import os from 'node:os';
import path from 'node:path';
import { after, before, test } from 'node:test';
import { root } from './browsers.mjs';

/** @type {string} */
let folder;
before(async () => void (folder = await mkdtemp(path.join(os.tmpdir(), 'draftree-generate-'))));
after(() => rm(folder, { recursive: true }));

/**
 * @param {...string} args
 * @returns {Promise<{ status: number | null, lines: string[], errors: string }>} the lines of standard output, and standard error
 */
function generate(...args) {
  const child = spawn(process.execPath, [path.join(root, 'scripts', 'generate.mjs'), ...args], { stdio: ['ignore', 'pipe', 'pipe'] });
  let output = '';
  let errors = '';
  child.stdout.setEncoding('utf8').on('data', (text) => (output += text));
  child.stderr.setEncoding('utf8').on('data', (text) => (errors += text));
  return new Promise((resolve) => {
    child.on('close', (status) => resolve({ status, lines: output.split('\n').slice(0, -1), errors }));
  });
}

test('text goes to standard output, everything else to standard error', async () => {
  const { status, lines, errors } = await generate('--prompt', 'Once upon a time', '--max-tokens', '8');
  assert.equal(status, 0, errors);
  assert.equal(lines.length, 1);
  assert.match(String(lines[0]), /^, there was a little/);
  assert.match(errors, /5 prompt tokens, 8 written \(length\)/);
});

test('--json prints one object on one line', async () => {
  const { status, lines, errors } = await generate('--prompt', 'Once upon a time', '--max-tokens', '8', '--json', '--steps-in-flight', '2');
  assert.equal(status, 0, errors);
  assert.equal(lines.length, 1);
  const row = JSON.parse(String(lines[0]));
  assert.deepEqual(Object.keys(row), ['id', 'model', 'adapter', 'browser', 'heads', 'prompt_tokens', 'tokens', 'text', 'finish_reason', 'usage', 'stats']);
  assert.equal(row.model, 'stories260k');
  assert.match(row.browser, /^Chromium/);
  assert.deepEqual(row.prompt_tokens, [1, 403, 407, 261, 378]);
  assert.deepEqual(row.tokens, [432, 383, 286, 261, 376, 298, 315, 421]);
  assert.equal(row.finish_reason, 'length');
  assert.equal(row.usage.prompt_tokens, 5);
  assert.equal(row.usage.completion_tokens, 8);
  for (const key of ['prefill_ms', 'decode_ms', 'passes', 'tokens_per_pass', 'dispatches_per_pass', 'submits', 'steps_in_flight', 'peak_wasm_bytes', 'load_ms']) {
    assert.equal(typeof row.stats[key], 'number', key);
  }
  assert.equal(row.stats.steps_in_flight, 2);
});

test('--logprobs tells of every token, and drafting does not change it', async () => {
  const written = await Promise.all(
    ['none', 'auto'].map((draft) => generate('--prompt', 'Once upon a time', '--max-tokens', '8', '--json', '--logprobs', '3', '--draft', draft)),
  );
  const [plain, drafted] = written.map(({ status, lines, errors }) => {
    assert.equal(status, 0, errors);
    return JSON.parse(String(lines[0]));
  });
  assert.deepEqual(drafted.logprobs, plain.logprobs);
  assert.deepEqual(plain.logprobs.map((/** @type {any} */ { token }) => token), plain.tokens);
  for (const { token, logprob, top } of plain.logprobs) {
    assert.equal(top.length, 3);
    assert.deepEqual(top[0], { token, logprob }, 'the likeliest token is written');
    assert.ok(logprob < 0 && top[0].logprob >= top[1].logprob && top[1].logprob >= top[2].logprob);
  }
});

test('--prompts runs every row from an empty cache, in order, past one that fails', async () => {
  const file = path.join(folder, 'rows.jsonl');
  const rows = [
    { id: 'first', prompt: 'Once upon a time' },
    { id: 'long', prompt: 'one day '.repeat(600) },
    { id: 3, prompt: 'Once upon a time' },
    { id: 'chat', messages: [{ role: 'user', content: 'hi' }] },
  ];
  await writeFile(file, rows.map((row) => JSON.stringify(row)).join('\n'));
  const { status, lines, errors } = await generate('--prompts', file, '--max-tokens', '8', '--json', '--browser', 'firefox');
  assert.equal(status, 1, errors);
  const printed = lines.map((line) => JSON.parse(line));
  assert.deepEqual(printed.map(({ id }) => id), ['first', 'long', 3, 'chat']);
  assert.equal(printed[1].error.code, 'prompt_too_long');
  assert.equal(printed[3].error.code, 'bad_chat_template');
  assert.deepEqual(printed[2].tokens, printed[0].tokens);
  assert.equal(printed[2].usage.reused_prompt_tokens, 0);
});

for (const [title, args, code, message] of /** @type {[string, string[], string, RegExp][]} */ ([
  ['an unknown option', ['--promt', 'x'], 'invalid_option', /did you mean --prompt\?/],
  ['no tokens to write', ['--prompt', 'x', '--max-tokens', '0'], 'invalid_option', /at least 1/],
  ['a seed out of range', ['--prompt', 'x', '--seed', '-1'], 'invalid_option', /--seed/],
  ['an unknown model', ['--prompt', 'x', '--model', 'storie260k'], 'load_failed', /did you mean stories260k/],
  ['a URL that gives nothing', ['--prompt', 'x', '--model', 'http://127.0.0.1:9/m.gguf'], 'load_failed', /m\.gguf/],
])) {
  test(`${title} is one JSON line and exit status 1`, async () => {
    const { status, lines } = await generate(...args, '--json');
    assert.equal(status, 1);
    assert.equal(lines.length, 1);
    const { error } = JSON.parse(String(lines[0]));
    assert.equal(error.code, code);
    assert.match(error.message, message);
  });
}

test('a damaged file is one JSON line and exit status 1', async () => {
  const file = path.join(folder, 'bad.gguf');
  await writeFile(file, 'this is no model');
  const { status, lines } = await generate('--prompt', 'x', '--model', file, '--json');
  assert.equal(status, 1);
  assert.equal(JSON.parse(String(lines[0])).error.code, 'bad_model_file');
});
