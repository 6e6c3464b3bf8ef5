// @ts-check
/**
 * `npm run golden -- --model M --browser B`: compares what the built package writes with recorded reference outputs, token for token.
 *
 * A golden file holds, for each prompt, the prompt's tokens and 128 greedy tokens of a float32 reference, with the margin (first logit
 * minus second) of every step. Two float32 implementations differ by about 1e-4 in the logits, so tokens must be equal up to the first
 * step whose margin is below 1e-3; what follows a near-tie may differ and is not compared. The five largest logits of the first steps
 * must agree within 1e-3. Golden files lie in `../shared/golden` where
 * that folder exists; `tests/data` has an extract for the embedded model.
 */
import { readFile } from 'node:fs/promises';
import path from 'node:path';
import { pathToFileURL } from 'node:url';
import { browserNames } from './browsers.mjs';
import { build } from './build.mjs';
import { Failure, runMain } from './failure.mjs';
import { stageLines } from './generate.mjs';
import { openModel } from './headless.mjs';
import { parseOptions } from './options.mjs';
import { root, say } from './programs.mjs';
import { setup } from './setup.mjs';

/**
 * One prompt of a golden file.
 * @typedef {object} Case
 * @property {string} name
 * @property {import('./headless.mjs').Message[] | null} messages what the chat template was given, if anything
 * @property {string} text the prompt, after the chat template
 * @property {number[]} prompt_ids
 * @property {number[]} greedy_ids generation did not stop at an end token
 * @property {number[]} margins
 * @property {{ step: number, top5: [number, number][] }[]} logits the five largest of the first steps
 */
/** @typedef {{ name: string, compared: number, seconds: number, fault?: string }} Outcome `compared`: steps that had to be equal */

const SMALLEST_MARGIN = 1e-3;
/** How far a logit may be from the reference. */
const LARGEST_LOGIT_ERROR = 1e-3;
const FOLDERS = [path.join(root, '..', 'shared', 'golden'), path.join(root, 'tests', 'data')];

/** Golden files of the known models. @type {Record<string, string>} */
const GOLDEN_OF = {
  stories260k: 'stories260K-q8_0',
  'smollm2-135m-instruct': 'SmolLM2-135M-Instruct.Q4_1',
  'qwen2.5-coder-0.5b-instruct': 'Qwen2.5-Coder-0.5B-Instruct.Q4_K_M',
  'gemma-3-270m': 'gemma-3-270m.Q4_K_M',
};

/**
 * The cases of a golden file.
 * @param {string} name without `.json`
 * @returns {Promise<Case[]>}
 */
export async function readGolden(name) {
  for (const folder of FOLDERS) {
    const text = await readFile(path.join(folder, `${name}.json`), 'utf8').catch(() => undefined);
    if (text !== undefined) return JSON.parse(text).prompts;
  }
  throw new Failure('load_failed', `There is no golden file ${name}.json in ${FOLDERS.map((folder) => path.relative(root, folder)).join(' or ')}.`);
}

/** How many steps of a case have to be equal. @param {Pick<Case, 'greedy_ids' | 'margins'>} golden */
export function stepsToCompare({ margins, greedy_ids: ids }) {
  const nearTie = margins.findIndex((margin) => margin < SMALLEST_MARGIN);
  return nearTie < 0 ? ids.length : nearTie;
}

/**
 * Runs one case: the prompt's tokens from its text, the prompt through the chat template where there are messages, then the continuation.
 * @param {import('./headless.mjs').HeadlessModel} model @param {Case} golden
 * @returns {Promise<Outcome>}
 */
export async function runCase(model, golden) {
  const { name, text, messages, prompt_ids: promptIds, greedy_ids: ids } = golden;
  const begin = performance.now();
  const compared = stepsToCompare(golden);
  const tokenized = await model.tokenize(text);
  const result = await model.generate(messages ?? text, { maxTokens: ids.length, ignoreEos: true, temperature: 0 });
  const seconds = (performance.now() - begin) / 1000;
  const fault =
    difference('the tokens of the text', tokenized, promptIds, promptIds.length) ??
    difference('the prompt', result.promptTokens, promptIds, promptIds.length) ??
    difference('step', result.tokens, ids, compared) ??
    (result.tokens.length === ids.length ? undefined : `${result.tokens.length} tokens written (${result.finishReason}), expected ${ids.length}`) ??
    (await logitsFault(model, golden));
  return { name, compared, seconds, ...(fault === undefined ? {} : { fault }) };
}

/**
 * The first logit that is further from the reference than float32 allows.
 * @param {import('./headless.mjs').HeadlessModel} model @param {Case} golden
 */
async function logitsFault(model, { prompt_ids: promptIds, greedy_ids: ids, logits }) {
  for (const { step, top5 } of logits) {
    const found = await model.logits([...promptIds, ...ids.slice(0, step)], top5.map(([id]) => id));
    for (const [i, [id, expected]] of top5.entries()) {
      const off = Math.abs((found[i] ?? NaN) - expected);
      if (!(off <= LARGEST_LOGIT_ERROR)) return `logit of token ${id} at step ${step}: ${found[i]}, expected ${expected}`;
    }
  }
  return undefined;
}

/**
 * Where two lists differ within their first `length` entries.
 * @param {string} what @param {readonly number[]} found @param {readonly number[]} expected @param {number} length
 */
function difference(what, found, expected, length) {
  if (what !== 'step' && found.length !== expected.length) return `${what}: ${found.length} tokens, expected ${expected.length}`;
  for (let i = 0; i < length; i++) {
    if (found[i] !== expected[i]) return `${what} ${i}: token ${found[i]}, expected ${expected[i]}`;
  }
  return undefined;
}

/** @param {readonly string[]} argv */
async function main(argv) {
  const { values } = parseOptions(argv, {
    model: { type: 'text', help: 'a known name, or a file or folder with --golden; smollm2-135m-instruct unless told' },
    golden: { type: 'text', help: 'the golden file, without .json' },
    browser: { type: 'text', choices: browserNames, help: 'chromium unless told' },
    cases: { type: 'integer', min: 1, help: 'only the first N prompts' },
  });
  const name = values.model ?? 'smollm2-135m-instruct';
  const goldenName = values.golden ?? GOLDEN_OF[name];
  if (!goldenName) throw new Failure('invalid_option', `Name the golden file of ${name} with --golden.`);
  const cases = (await readGolden(goldenName)).slice(0, values.cases);
  const browser = values.browser === 'firefox' ? 'firefox' : 'chromium';
  await setup({ browsers: [browser] });
  await build();
  say(`Loading ${name} in ${browser} …`);
  const model = await openModel(name, { browser, onProgress: stageLines() });
  try {
    console.log(`${name} against ${goldenName} in ${model.browserVersion}`);
    let faults = 0;
    for (const golden of cases) {
      const { compared, seconds, fault } = await runCase(model, golden);
      if (fault) faults++;
      const steps = `${compared} of ${golden.greedy_ids.length} steps`;
      console.log(`  ${golden.name.padEnd(14)} ${String(golden.prompt_ids.length).padStart(4)} prompt tokens  ${steps.padEnd(16)} ${seconds.toFixed(1).padStart(6)} s  ${fault ?? 'equal'}`);
    }
    console.log(`${cases.length - faults} equal, ${faults} different`);
    return faults ? 1 : 0;
  } finally {
    await model.close();
  }
}

if (import.meta.url === pathToFileURL(process.argv[1] ?? '').href) await runMain(() => main(process.argv.slice(2)));
