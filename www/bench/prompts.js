// @ts-check
/**
 * Prompts to measure with, each with a category: rows of JSON lines, samples of them, and prompts cut to fit.
 *
 * Runs in a page and in Node. Faults have a `code`, like those of the package and of the commands.
 */

/** @typedef {{ role: string, content: string }} Message */
/** @typedef {{ id: string | number, category: string, prompt: string | Message[] }} Task */

/** A fault of the one who asked. @param {string} message */
export function invalid(message) {
  return Object.assign(new Error(message), { name: 'Failure', code: 'invalid_option' });
}

/**
 * Rows of a file: `{id, category, prompt}`, `{…, messages}` or `{…, turns}`, of which the first is asked.
 * @param {string} text @param {string} place the file, for messages @param {boolean} chat whether the model takes messages
 * @returns {Task[]}
 */
export function parseTasks(text, place, chat) {
  return text.split(/\r?\n/).flatMap((line, index) => {
    if (line.trim() === '') return [];
    const wrong = (/** @type {string} */ why) => invalid(`${place}, line ${index + 1}: ${why}`);
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

/**
 * Some categories of a set, and so many prompts of each, spread over the set.
 * @param {readonly Task[]} tasks
 * @param {{ set: string, categories: readonly string[] | undefined, perCategory: number | undefined }} choice `set` is its name, for messages
 * @returns {Task[]}
 */
export function chooseTasks(tasks, { set, categories, perCategory }) {
  const known = [...new Set(tasks.map(({ category }) => category))];
  const unknown = categories?.find((category) => !known.includes(category));
  if (unknown !== undefined) throw invalid(`${set} has no category ${JSON.stringify(unknown)}; it has ${known.join(', ')}.`);
  return (categories ?? known).flatMap((category) => spread(tasks.filter((task) => task.category === category), perCategory));
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
      if (half < 8) throw invalid(`prompt ${task.id} does not fit into ${limit} tokens.`);
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
