// @ts-check
/**
 * `npm run heads -- MODEL`: makes the draft heads of a known model from nothing but the model and its prompts, as those under models/ were made.
 *
 * Every stage goes on where a stopped run left off, so it can be stopped at any time and started again. The heads are left in the folder of
 * the work, with a replay of the evaluation's prompts beside them; nothing under models/ is touched.
 */
import { mkdir } from 'node:fs/promises';
import path from 'node:path';
import { Failure, runMain } from './failure.mjs';
import { fetchModel } from './models.mjs';
import { parseOptions } from './options.mjs';
import { cacheFolder, root, runProgram, say } from './programs.mjs';

const prompts = (/** @type {string} */ name) => path.join(root, 'scripts', 'prompts', name);

/**
 * How the heads of a model are made.
 * @typedef {object} Recipe
 * @property {string} model the model that answers, by its name
 * @property {string[][]} answers arguments of the runs that make answers, in order
 * @property {string[]} heads arguments of the training
 * @property {string[]} [joint] arguments of the training in which the model then learns with its heads
 * @property {string} evaluation prompts that are never learnt from; `--evaluate` names others
 * @property {string[]} replay arguments of the evaluation
 */
/** @type {Recipe} */
const stories = {
  model: 'stories260k',
  answers: [
    ['--limit', '2000', '--temperature', '0.7'],
    ['--openings', '--temperature', '0'],
  ],
  heads: [
    ...['--form', 'parallel', '--depths', '4', '--rank', '32', '--draft-vocab', '0', '--epochs', '5', '--lr', '2e-3', '--head-lr', '5e-4'],
    ...['--store', 'q8_0', '--license', 'MIT OR Apache-2.0', '--data', 'stories of the model itself, and greedy continuations of sentences of theirs'],
  ],
  evaluation: prompts('story-openings.jsonl'),
  replay: ['--max-tokens', '200'],
};
/** @type {Record<string, Recipe>} */
const recipes = {
  stories260k: stories,
  'stories260k-medusa2': {
    ...stories,
    joint: [
      ...['--language', 'original', '--head-epochs', '0', '--epochs', '2', '--lr', '1e-3', '--head-factor', '1', '--coefficient', '0.2', '--ramp-share', '0.2'],
      ...['--store', 'q8_0', '--license', 'MIT OR Apache-2.0', '--data', 'stories of the original, and greedy continuations of sentences of theirs'],
    ],
  },
  'smollm2-135m-instruct': {
    model: 'smollm2-135m-instruct',
    answers: [['--prompts', prompts('seed.jsonl'), '--limit', '3500', '--temperature', '0']],
    heads: [
      ...['--form', 'recurrent', '--own-blocks', '--depths', '4', '--draft-vocab', '8192', '--epochs', '2', '--held-out-rows', '8000'],
      ...['--store', 'q8_0', '--license', 'Apache-2.0', '--data', 'greedy answers of the model itself to scripts/prompts/seed.jsonl'],
    ],
    evaluation: path.join(root, 'www', 'prompts', 'repetitive.jsonl'),
    replay: ['--max-tokens', '128'],
  },
};

/** @satisfies {import('./options.mjs').Specs} */
const specs = {
  work: { type: 'text', value: 'DIR', help: 'where answers, states and heads are kept; .cache/heads/MODEL unless told' },
  evaluate: { type: 'text', value: 'FILE', help: 'prompts that are kept out of training and replayed at the end' },
};

await runMain(async () => {
  const { values, positionals } = parseOptions(process.argv.slice(2), specs, { positionals: 1 });
  const [name] = positionals;
  if (name === undefined) {
    const lines = Object.entries(specs).map(([option, { value, help }]) => `  ${`--${option} ${value}`.padEnd(18)} ${help}`);
    return say(['npm run heads -- MODEL', '', `  MODEL is ${Object.keys(recipes).join(' or ')}`, ...lines].join('\n'));
  }
  const recipe = Object.hasOwn(recipes, name) ? recipes[name] : undefined;
  if (!recipe) throw new Failure('invalid_option', `There is no recipe for ${name}, only for ${Object.keys(recipes).join(' and ')}.`);
  const evaluation = path.resolve(values.evaluate ?? recipe.evaluation);
  const original = { model: await fetchModel(recipe.model), work: path.resolve(values.work ?? path.join(cacheFolder, 'heads', recipe.model)) };
  const heads = path.join(original.work, 'heads.safetensors');
  await answer(original, recipe, evaluation);
  await tool(['train', ...folders(original), '--only', 'heads', ...recipe.heads]);
  if (recipe.joint === undefined) return finish(original, heads, recipe, evaluation);
  const work = path.join(original.work, 'joint');
  const joint = { model: path.join(work, `${name}.gguf`), work };
  await tool(['train-joint', ...folders(original), '--heads', heads, '--out', joint.model, ...recipe.joint]);
  await answer(joint, recipe, evaluation);
  await finish(joint, path.join(work, `${name}.heads.safetensors`), recipe, evaluation);
});

/** @typedef {{ model: string, work: string }} Place a model's file, and the folder of its answers and states */
/** @param {Place} place */
function folders({ model, work }) {
  return ['--model', model, '--work', work];
}

/** Has a model answer, and keeps what it thought meanwhile. @param {Place} place @param {Recipe} recipe @param {string} evaluation */
async function answer(place, { answers }, evaluation) {
  await mkdir(place.work, { recursive: true });
  const train = ['train', ...folders(place), '--exclude', evaluation];
  for (const each of answers) await tool([...train, '--only', 'answers', ...each]);
  await tool([...train, '--only', 'states']);
}

/** Calibrates heads, and replays the evaluation. @param {Place} place @param {string} heads @param {Recipe} recipe @param {string} evaluation */
async function finish({ model, work }, heads, { replay }, evaluation) {
  await tool(['calibrate', '--model', model, '--heads', heads, '--states', path.join(work, 'states')]);
  const drafters = ['--draft', 'medusa', '--draft', 'ngram,recycling', '--draft', 'medusa,ngram,recycling', '--nodes', '2,4,8,16,32'];
  await tool(['eval', '--model', model, '--heads', heads, '--prompts', evaluation, '--work', path.join(work, 'eval'), ...drafters, ...replay]);
  say(`The heads are ${path.relative(process.cwd(), heads)}.`);
}

/** Runs the native tool. @param {string[]} args */
function tool(args) {
  return runProgram('cargo', ['run', '--quiet', '--release', '--features', 'cli', '--', ...args]);
}
