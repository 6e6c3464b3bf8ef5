// @ts-check
/**
 * `npm run generate -- --model M --prompt "…"`: runs the built package in a headless browser and streams the text to the terminal.
 *
 * Standard output is the result alone: the text, or with `--json` one JSON object per prompt on one line,
 *
 *     {id, model, adapter, browser, heads?, prompt_tokens, tokens, logprobs?, text, finish_reason, usage, stats}
 *
 * Everything else goes to standard error. `--prompts FILE` runs the rows of a JSON-lines file in order on one loaded model, each from
 * an empty cache. The whole file is read before anything is loaded: a row that is wrong in form ends the command with its line
 * number. A row that fails while running (a prompt longer than the context, say) gives the line `{id, error: {code, message}}` in its
 * place; the rows after it still run, unless the error says that the device or the model is gone; the exit status is then 1.
 * Any other error is one line `{error: {code, message}}`, on standard output with `--json`, else on standard error; exit status 1.
 */
import { readFile } from 'node:fs/promises';
import { pathToFileURL } from 'node:url';
import { snakeCase } from '../www/bench/names.js';
import { browserNames } from './browsers.mjs';
import { build } from './build.mjs';
import { draftOptions, draftSpecs } from './drafting.mjs';
import { describe, Failure, runMain } from './failure.mjs';
import { openModel } from './headless.mjs';
import { resolveHeads, resolveModel } from './models.mjs';
import { helpText, parseOptions } from './options.mjs';
import { say } from './programs.mjs';
import { setup } from './setup.mjs';

/** @typedef {import('./headless.mjs').Message} Message */
/** @typedef {import('./headless.mjs').HeadlessModel} HeadlessModel */
/** @typedef {{ id: string | number, prompt: string | Message[] }} Row */

const USAGE = 'npm run generate -- --prompt TEXT [options]    run the built package in a headless browser';

/** Codes after which no further row can succeed. */
const FATAL_CODES = new Set(['device_lost', 'out_of_memory', 'disposed', 'browser_failed', 'browser_timeout', 'internal']);

export const specs = /** @type {const} */ ({
  model: { type: 'text', value: 'M', help: 'a known name, a .gguf file, a folder, a URL or a hub id; stories260k unless told' },
  prompt: { type: 'text', value: 'TEXT', help: 'raw text to continue; special tokens in it count as such' },
  prompts: { type: 'text', value: 'FILE', help: 'JSON lines {id, prompt} or {id, messages}' },
  chat: { type: 'flag', help: "treat the prompt as a user's message: apply the model's chat template" },
  system: { type: 'text', value: 'TEXT', help: 'system message before it (with --chat)' },
  'max-tokens': { type: 'integer', min: 1, value: 'N', help: 'most tokens to write' },
  temperature: { type: 'number', min: 0, value: 'T', help: '0: always the likeliest token' },
  'top-k': { type: 'integer', min: 0, value: 'K', help: 'sample among the K likeliest tokens' },
  'top-p': { type: 'number', min: 0, max: 1, value: 'P', help: 'sample among the likeliest tokens that together reach P' },
  'min-p': { type: 'number', min: 0, max: 1, value: 'P', help: 'leave out tokens less likely than P times the likeliest' },
  'repetition-penalty': { type: 'number', min: 0, value: 'R', help: 'make tokens that occurred less likely; 1 is off' },
  'frequency-penalty': { type: 'number', value: 'F', help: 'subtracted for each time a token was written' },
  'presence-penalty': { type: 'number', value: 'F', help: 'subtracted once from tokens that were written' },
  seed: { type: 'integer', min: 0, value: 'S', help: 'the same seed gives the same text' },
  stop: { type: 'texts', value: 'S', help: 'end before this text' },
  'ignore-eos': { type: 'flag', help: 'write on after an end token' },
  logprobs: { type: 'integer', min: 0, max: 20, value: 'N', help: 'tell the log-probabilities of all tokens and of the N likeliest at each place (with --json)' },
  ...draftSpecs,
  'steps-in-flight': { type: 'integer', min: 1, value: 'S', help: 'decode steps submitted before their results are read' },
  browser: { type: 'text', choices: browserNames, help: 'chromium unless told' },
  json: { type: 'flag', help: 'one JSON object per prompt' },
  help: { type: 'flag', help: 'this list' },
});

/**
 * The options of the package's `generate` among the command's, but for those about drafting.
 * @param {import('./options.mjs').Values<typeof specs>} values
 * @returns {Record<string, unknown>}
 */
export function generateOptions(values) {
  /** @type {Record<string, unknown>} */
  const options = {};
  for (const name of /** @type {const} */ ([
    'max-tokens', 'temperature', 'top-k', 'top-p', 'min-p', 'repetition-penalty', 'frequency-penalty', 'presence-penalty',
    'seed', 'stop', 'ignore-eos', 'logprobs', 'steps-in-flight',
  ])) {
    if (values[name] !== undefined) options[name.replaceAll(/-(.)/g, (_, letter) => letter.toUpperCase())] = values[name];
  }
  return options;
}

/**
 * The prompts to run.
 * @param {import('./options.mjs').Values<typeof specs>} values
 * @returns {Promise<Row[]>}
 */
export async function readRows({ prompt, prompts, chat, system }) {
  if (prompt !== undefined && prompts !== undefined) throw new Failure('invalid_option', '--prompt and --prompts exclude each other.');
  if (prompt === undefined && prompts === undefined) throw new Failure('invalid_option', 'Give a --prompt, or --prompts with a file.');
  if (system !== undefined && !chat) throw new Failure('invalid_option', '--system needs --chat.');
  const asked = (/** @type {string} */ text) =>
    chat ? [...(system === undefined ? [] : [{ role: 'system', content: system }]), { role: 'user', content: text }] : text;
  if (prompts === undefined) return [{ id: 1, prompt: asked(/** @type {string} */ (prompt)) }];
  const text = await readFile(prompts, 'utf8').catch((error) => {
    throw new Failure('load_failed', `--prompts ${prompts}: ${error.message}`);
  });
  const rows = parseRows(text, prompts).map((row) => ({ ...row, prompt: typeof row.prompt === 'string' ? asked(row.prompt) : row.prompt }));
  if (rows.length === 0) throw new Failure('invalid_option', `--prompts ${prompts} holds no rows.`);
  return rows;
}

/**
 * The rows of a JSON-lines file. Empty lines are skipped; a row without an id is numbered by its place, from 1.
 * @param {string} text @param {string} place the file, for messages
 * @returns {Row[]}
 */
export function parseRows(text, place) {
  /** @type {Row[]} */
  const rows = [];
  for (const [index, line] of text.split(/\r?\n/).entries()) {
    if (line.trim() === '') continue;
    const wrong = (/** @type {string} */ why) => new Failure('invalid_option', `${place}, line ${index + 1}: ${why}`);
    let row;
    try {
      row = JSON.parse(line);
    } catch (error) {
      throw wrong(`no JSON: ${/** @type {Error} */ (error).message}.`);
    }
    if (typeof row !== 'object' || row === null || Array.isArray(row)) throw wrong('expected an object {id, prompt} or {id, messages}.');
    const { id = rows.length + 1, prompt, messages } = row;
    if (typeof id !== 'string' && typeof id !== 'number') throw wrong('id must be a string or a number.');
    if ((prompt === undefined) === (messages === undefined)) throw wrong('expected either prompt or messages.');
    if (prompt !== undefined && typeof prompt !== 'string') throw wrong('prompt must be a string.');
    if (messages !== undefined && !isConversation(messages)) throw wrong('messages must be a list of {role, content} with two strings each.');
    rows.push({ id, prompt: prompt ?? messages.map((/** @type {Message} */ { role, content }) => ({ role, content })) });
  }
  return rows;
}

/** @param {any} messages */
function isConversation(messages) {
  return Array.isArray(messages) && messages.length > 0 && messages.every((m) => typeof m?.role === 'string' && typeof m.content === 'string');
}

/** One line per stage of a load. */
export function stageLines() {
  let last = '';
  return (/** @type {import('./headless.mjs').Progress} */ { stage, total }) => {
    if (stage === last) return;
    last = stage;
    const megabytes = (stage === 'download' || stage === 'weights') && Number.isFinite(total) ? ` (${(total / 1e6).toFixed(1)} MB)` : '';
    say(`  ${stage}${megabytes} …`);
  };
}

/** @param {readonly string[]} argv */
async function main(argv) {
  const { values } = parseOptions(argv, specs);
  if (values.help) return void console.log(helpText(USAGE, specs));
  const rows = await readRows(values);
  const options = { ...generateOptions(values), ...(await draftOptions(values)) };
  const browser = values.browser === 'firefox' ? 'firefox' : 'chromium';
  const name = values.model ?? 'stories260k';
  // Says what is wrong with them before anything takes time.
  await resolveModel(name, '/model/');
  await resolveHeads(values.heads);
  await setup({ browsers: [browser] });
  await build();
  say(`Loading ${name} in ${browser} …`);
  const model = await openModel(name, { browser, heads: values.heads, onProgress: stageLines() });
  try {
    return await runRows(model, name, rows, options, values.json ?? false);
  } finally {
    await model.close();
  }
}

/**
 * @param {HeadlessModel} model @param {string} name @param {Row[]} rows @param {Record<string, unknown>} options @param {boolean} json
 * @returns {Promise<number>} the exit status
 */
async function runRows(model, name, rows, options, json) {
  let status = 0;
  for (const { id, prompt } of rows) {
    if (rows.length > 1) say(`— ${id}`);
    try {
      const result = await model.generate(prompt, options, json ? undefined : (text) => void process.stdout.write(text));
      if (json) {
        printLine({
          id,
          model: name,
          adapter: model.info.adapter,
          browser: model.browserVersion,
          ...(model.info['heads'] === undefined ? {} : { heads: snakeCase(model.info['heads']) }),
          prompt_tokens: result.promptTokens,
          tokens: result.tokens,
          ...(result.logprobs && { logprobs: result.logprobs }),
          text: result.text,
          finish_reason: result.finishReason,
          usage: snakeCase(result.usage),
          stats: snakeCase(result.stats),
        });
      } else {
        process.stdout.write('\n');
        say(summary(result));
      }
    } catch (error) {
      const { code, message } = describe(error);
      if (FATAL_CODES.has(code) || rows.length === 1) throw error;
      report(json, { id, error: { code, message } });
      status = 1;
    }
  }
  return status;
}

/** @param {import('./headless.mjs').Result} result */
function summary({ usage, stats, finishReason }) {
  const { drafters, tokensBySource } = stats.draft;
  const drafted = drafters.map((drafter) => `${tokensBySource[drafter]} by ${drafter}`).join(', ');
  const speed = `${stats.tokensPerSecond.toFixed(1)} tokens/s, ${stats.tokensPerPass.toFixed(2)} a pass${drafted && ` (${drafted})`}`;
  return `${usage.promptTokens} prompt tokens, ${usage.completionTokens} written (${finishReason}), ${speed}`;
}

/** @param {unknown} value */
const printLine = (value) => void process.stdout.write(`${JSON.stringify(value)}\n`);

/** @param {boolean} json @param {unknown} value */
const report = (json, value) => (json ? printLine(value) : say(JSON.stringify(value)));

if (import.meta.url === pathToFileURL(process.argv[1] ?? '').href) {
  const argv = process.argv.slice(2);
  await runMain(
    () => main(argv),
    (error) => report(argv.includes('--json'), { error }),
  );
}
