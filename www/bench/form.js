// @ts-check
/**
 * What is to be measured, as the form says: the model, the prompts by category, and the plan.
 */
import { catalogue } from '../catalogue.js';
import { byId, create } from '../elements.js';
import { put } from '../language.js';
import { chooseTasks, invalid, parseTasks } from './prompts.js';

/** @import { AcceptRule, Drafter, GenerateOptions, ModelInfo, HeadsSource, ModelSource } from '../pkg/index.js' */
/** @import { Plan, Variant } from './measure.js' */
/** @import { Task } from './prompts.js' */

/** Numbers of rows whose passes are timed. */
const SIZES = [1, 2, 4, 8, 16];
/** Longer prompts take more time than they tell. */
const MAX_PROMPT_TOKENS = 256;

/** @type {Record<string, AcceptRule>} */
const rules = { exact: 'exact', rejection: 'rejection', typical: { typical: {} }, topK: { topK: {} } };

const form = byId('plan', HTMLFormElement);
const model = byId('model', HTMLSelectElement);
const other = byId('other', HTMLInputElement);
const file = byId('file', HTMLInputElement);
const categories = byId('categories', HTMLElement);
const amount = byId('amount', HTMLElement);

/** Prompts for models that chat, and for those that continue a text. @type {Promise<{ chat: Task[], text: Task[] }>} */
const sets = Promise.all([true, false].map(readSet)).then(([chat = [], text = []]) => ({ chat, text }));

/** @param {boolean} chat @returns {Promise<Task[]>} */
async function readSet(chat) {
  const url = new URL(`../prompts/${chat ? 'repetitive' : 'repetitive-stories'}.jsonl`, import.meta.url);
  const answer = await fetch(url);
  if (!answer.ok) throw invalid(`${url} answered ${answer.status}: put the folder prompts beside this page.`);
  return parseTasks(await answer.text(), url.pathname, chat);
}

/** Shows the fields that the choice of the model asks for. */
async function showFields() {
  byId('other-row', HTMLElement).hidden = model.value !== 'other';
  byId('file-row', HTMLElement).hidden = model.value !== 'file';
  other.required = model.value === 'other';
  file.required = model.value === 'file';
  const { chat, text } = await sets;
  const offer = offered();
  const tasks = [...(offer?.chats === false ? [] : chat), ...(offer?.chats ? [] : text)];
  categories.replaceChildren(...[...new Set(tasks.map(({ category }) => category))].map(categoryBox));
  showAmount();
}

/** The named model that is chosen, if it is one. */
const offered = () => catalogue[/** @type {keyof typeof catalogue} */ (model.value)];

/** @param {string} category */
function categoryBox(category) {
  const label = create('label');
  const box = create('input');
  Object.assign(box, { type: 'checkbox', name: 'category', value: category, checked: true });
  const name = create('span');
  put(name, category);
  label.append(box, ' ', name);
  return label;
}

/** How much it will be. */
function showAmount() {
  const fields = new FormData(form);
  const count = variants(fields).length;
  const repeats = Number(fields.get('repeats'));
  const prompts = fields.getAll('category').length * Number(fields.get('perCategory'));
  put(amount, 'variants: {variants} · prompts: {prompts} · repeats: {repeats}', { variants: count, prompts, repeats });
}

/**
 * Every drafter with every size of trees.
 * @param {FormData} fields
 * @returns {Variant[]}
 */
function variants(fields) {
  const sizes = fields.getAll('nodes').map(String);
  return fields.getAll('draft').flatMap((value) =>
    sizes.map((size) => {
      const draft = /** @type {Drafter | 'auto'} */ (value);
      return size === 'auto' ? { name: draft, options: { draft } } : { name: `${draft}, ${size} nodes`, options: { draft, maxNodes: Number(size) } };
    }),
  );
}

/** @returns {{ source: ModelSource, heads?: HeadsSource, name: string } | undefined} nothing if a field is wrong; the browser then shows which */
export function chosenModel() {
  if (!form.reportValidity()) return undefined;
  const offer = offered();
  if (offer) return offer;
  if (model.value === 'other') return { source: other.value.trim(), name: other.value.trim() };
  const files = [...(file.files ?? [])];
  return { source: files, name: files.map(({ name }) => name).join(', ') };
}

/**
 * The plan for a loaded model.
 * @param {ModelInfo} info
 * @returns {Promise<{ plan: Plan, prompts: string, missing: string[] }>} `missing` are drafters that were chosen and that the model does not have
 */
export async function readPlan({ hasChatTemplate, drafters }) {
  const fields = new FormData(form);
  const { chat, text } = await sets;
  const all = hasChatTemplate ? chat : text;
  const known = all.map(({ category }) => category);
  const wanted = fields.getAll('category').map(String).filter((category) => known.includes(category));
  if (wanted.length === 0) throw invalid(`No prompts are chosen for this model: choose at least one category of ${[...new Set(known)].join(', ')}.`);
  const has = (/** @type {unknown} */ draft) => draft === 'auto' || drafters.includes(/** @type {Drafter} */ (draft));
  const chosen = variants(fields).filter(({ options: { draft } }) => has(draft));
  const missing = fields.getAll('draft').filter((draft) => !has(draft)).map(String);
  if (chosen.length === 0) throw invalid(`Nothing is chosen to compare: choose a size of trees, and a drafter that this model has: auto, ${drafters.join(', ')}.`);
  const set = hasChatTemplate ? 'repetitive' : 'repetitive-stories';
  /** @type {GenerateOptions} */
  const options = { accept: rules[String(fields.get('accept'))] ?? 'exact', temperature: Number(fields.get('temperature')) };
  const plan = {
    tasks: chooseTasks(all, { set, categories: wanted, perCategory: Number(fields.get('perCategory')) }),
    variants: chosen,
    repeats: Number(fields.get('repeats')),
    maxTokens: Number(fields.get('maxTokens')),
    maxPromptTokens: MAX_PROMPT_TOKENS,
    sizes: SIZES,
    options,
  };
  return { plan, prompts: set, missing };
}

/** @param {() => void} run */
export function onRun(run) {
  form.addEventListener('submit', (event) => {
    event.preventDefault();
    run();
  });
}

model.addEventListener('change', () => void showFields());
form.addEventListener('change', showAmount);
await showFields();
