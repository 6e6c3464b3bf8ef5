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
import { Failure } from './failure.mjs';
import { root } from './programs.mjs';

/** @typedef {import('./headless.mjs').Message} Message */
/** @typedef {{ id: string | number, category: string, prompt: string | Message[] }} Task */

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
  const own = path.join(root, 'scripts', 'prompts', chat ? 'repetitive.jsonl' : 'repetitive-stories.jsonl');
  const file = { repetitive: own, 'spec-bench': SPEC_BENCH }[set] ?? set;
  const text = await readFile(file, 'utf8').catch((error) => {
    throw new Failure('load_failed', `--prompts is repetitive, spec-bench or a file of JSON lines; ${path.relative(process.cwd(), file)}: ${error.message}.`);
  });
  const tasks = parseTasks(text, file, chat);
  const known = [...new Set(tasks.map(({ category }) => category))];
  const unknown = categories?.find((category) => !known.includes(category));
  if (unknown !== undefined) throw new Failure('invalid_option', `${set} has no category ${JSON.stringify(unknown)}; it has ${known.join(', ')}.`);
  return (categories ?? known).flatMap((category) => spread(tasks.filter((task) => task.category === category), perCategory));
}

/**
 * Rows of a file: `{id, category, prompt}`, `{…, messages}` or `{…, turns}`, of which the first is asked.
 * @param {string} text @param {string} place the file, for messages @param {boolean} chat
 * @returns {Task[]}
 */
export function parseTasks(text, place, chat) {
  return text.split(/\r?\n/).flatMap((line, index) => {
    if (line.trim() === '') return [];
    const wrong = (/** @type {string} */ why) => new Failure('invalid_option', `${place}, line ${index + 1}: ${why}`);
    let row;
    try {
      row = JSON.parse(line);
    } catch (error) {
      throw wrong(`no JSON: ${/** @type {Error} */ (error).message}.`);
    }
    const { id = index + 1, category = 'all', prompt, messages, turns } = row ?? {};
    const asked = typeof prompt === 'string' ? prompt : Array.isArray(turns) && typeof turns[0] === 'string' ? turns[0] : undefined;
    if (asked !== undefined) return [{ id, category, prompt: chat ? [{ role: 'user', content: asked }] : asked }];
    if (chat && Array.isArray(messages) && messages.every((m) => typeof m?.role === 'string' && typeof m.content === 'string')) {
      return [{ id, category, prompt: messages }];
    }
    throw wrong(chat ? 'expected a prompt, turns, or messages with role and content.' : 'expected a prompt or turns; this model takes no messages.');
  });
}

/** `count` of a list, evenly spaced. @template T @param {T[]} list @param {number | undefined} count @returns {T[]} */
function spread(list, count = list.length) {
  return list.filter((_, index) => Math.floor((index * count) / list.length) !== Math.floor(((index - 1) * count) / list.length));
}

/**
 * The task with its middle cut out until it has no more than `limit` tokens: what is asked stands at the beginning or at the end.
 * @param {Task} task @param {number} limit @param {(prompt: string | Message[]) => Promise<number>} count
 * @returns {Promise<Task>}
 */
export async function shorten(task, limit, count) {
  let { prompt } = task;
  for (let tokens = await count(prompt); tokens > limit; tokens = await count(prompt)) {
    const cut = (/** @type {string} */ text) => {
      const half = Math.floor((text.length * Math.min(0.95, (limit / tokens) * 0.98)) / 2);
      if (half < 8) throw new Failure('invalid_option', `prompt ${task.id} does not fit into ${limit} tokens.`);
      return `${text.slice(0, half).trimEnd()} … ${text.slice(-half).trimStart()}`;
    };
    if (typeof prompt === 'string') prompt = cut(prompt);
    else {
      const longest = prompt.reduce((a, b) => (b.content.length > a.content.length ? b : a));
      prompt = prompt.map((message) => (message === longest ? { ...message, content: cut(message.content) } : message));
    }
  }
  return { ...task, prompt };
}
