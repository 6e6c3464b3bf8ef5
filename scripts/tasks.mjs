// @ts-check
/**
 * The prompts that drafters are compared on, each with a category.
 *
 * `repetitive` are ten tasks of our own whose answers repeat much of what was given (summarise, rewrite, extract, translate …), or, for
 * models that do not chat, ten stories that repeat themselves. `spec-bench` is a sample of Spec-Bench, read where it lies beside the
 * project; its texts have mixed licences and are not part of it. Any other name is a file of JSON lines.
 */
import { readFile } from 'node:fs/promises';
import path from 'node:path';
import { chooseTasks, parseTasks } from '../www/bench/prompts.js';
import { Failure } from './failure.mjs';
import { root } from './programs.mjs';

/** @typedef {import('../www/bench/prompts.js').Task} Task */

const SPEC_BENCH = path.join(root, '..', 'shared', 'data', 'spec_bench.jsonl');

/**
 * @param {string} set `repetitive`, `spec-bench` or a file
 * @param {object} choice
 * @param {boolean} choice.chat whether the model takes messages
 * @param {readonly string[] | undefined} choice.categories only these
 * @param {number | undefined} choice.perCategory only so many of each category, spread over the set
 * @returns {Promise<Task[]>}
 */
export async function readTasks(set, { chat, categories, perCategory }) {
  const own = path.join(root, 'www', 'prompts', chat ? 'repetitive.jsonl' : 'repetitive-stories.jsonl');
  const file = { repetitive: own, 'spec-bench': SPEC_BENCH }[set] ?? set;
  const text = await readFile(file, 'utf8').catch((error) => {
    throw new Failure('load_failed', `--prompts is repetitive, spec-bench or a file of JSON lines; ${path.relative(process.cwd(), file)}: ${error.message}.`);
  });
  return chooseTasks(parseTasks(text, file, chat), { set, categories, perCategory });
}
