// @ts-check
/**
 * The demonstration page: loads the model that comes with it, has it write at once, and then does what the reader asks.
 *
 * The page holds one model and at most one generation. While another model loads the old one stays, so a failed load costs nothing.
 */
import { DraftreeError, load, modelCache } from './pkg/index.js';
import { catalogue } from './catalogue.js';
import { Conversation } from './conversation.js';
import { announce, byId, create } from './elements.js';
import { hideFault, showFault } from './faults.js';
import { chooseFiles, onFiles } from './files.js';
import { put, putPlain, switchLanguageBy, t } from './language.js';
import { startChart } from './live.js';
import { hideLoading, showLoading, showProgress } from './loading.js';
import { showModel, showResult, startCounting } from './numbers.js';
import { keepForOffline } from './offline.js';
import { clearPasses, passOptions, showPass } from './passes.js';
import { race } from './race.js';
import { readSettings } from './settings.js';
import { clearSources, countSources, showDrafters } from './sources.js';
import { Entry, clearTranscript, showWhenEmpty } from './transcript.js';

/** @import { GenerateOptions, Generation, Model, HeadsSource, ModelSource } from './pkg/index.js' */
/** @import { Actions, Turn } from './conversation.js' */

const storyBeginnings = ['Once upon a time', 'Lily and Ben went to the park.', 'There was a little dog named Max.', 'One day, a big bird'];
const questions = ['Why is the sky blue?', 'Write a short poem about rain.', 'Explain what a GPU is to a child.'];

const badge = byId('model-name', HTMLElement);
const composer = byId('composer', HTMLFormElement);
const prompt = byId('prompt', HTMLTextAreaElement);
const promptLabel = byId('prompt-label', HTMLElement);
const suggestions = byId('suggestions', HTMLElement);
const send = byId('send', HTMLButtonElement);
const racing = byId('race', HTMLButtonElement);
const stop = byId('stop', HTMLButtonElement);
const source = byId('source', HTMLInputElement);
const choices = {
  stories: byId('choose-stories', HTMLButtonElement),
  smollm: byId('choose-smollm', HTMLButtonElement),
  qwen: byId('choose-qwen', HTMLButtonElement),
  file: byId('choose-file', HTMLButtonElement),
};

/** @type {Model | undefined} */
let model;
/** What runs, or is about to. @type {{ generation: Generation | undefined } | undefined} */
let writing;
/** @type {AbortController | undefined} */
let loading;
/** What was said so far to the loaded model. */
let conversation = newConversation(false);

/**
 * @param {{ source: ModelSource, heads?: HeadsSource, name: string }} offer what to load, and how to call it while its own name is not known
 * @param {HTMLButtonElement} [choice]
 * @returns {Promise<boolean>} whether it is here now
 */
async function open({ source, heads = 'auto', name }, choice) {
  loading?.abort();
  const abort = new AbortController();
  loading = abort;
  hideFault();
  showLoading(name);
  announce(t('Loading {name}', { name }));
  try {
    const next = await load(source, { heads, onProgress: showProgress, signal: abort.signal });
    await writing?.generation?.abort();
    void model?.dispose();
    model = next;
  } catch (error) {
    if (loading === abort && !isAbort(error)) showFault(error);
    if (model === undefined) showWhenEmpty('No model is loaded.');
    return false;
  } finally {
    if (loading === abort) {
      loading = undefined;
      hideLoading();
    }
  }
  for (const each of Object.values(choices)) each.ariaPressed = String(each === choice);
  showLoaded(model);
  return true;
}

/** @param {Model} loaded */
function showLoaded({ info }) {
  if (info.name === '') put(badge, 'a model without a name');
  else putPlain(badge, info.name);
  showModel(info);
  showDrafters(info);
  put(promptLabel, info.hasChatTemplate ? 'Your message' : 'Beginning of a story');
  put(send, info.hasChatTemplate ? 'Send' : 'Write');
  send.disabled = racing.disabled = false;
  suggestions.replaceChildren(...(info.hasChatTemplate ? questions : storyBeginnings).map(suggestion));
  prompt.value = '';
  clear();
  conversation = newConversation(info.hasChatTemplate);
  showWhenEmpty(info.hasChatTemplate ? 'Ask something.' : 'Begin a story, and the model goes on with it.');
  announce(t('{name} is ready.', { name: badge.textContent ?? '' }));
}

/** @param {boolean} isChat @returns {Conversation<Entry>} */
function newConversation(isChat) {
  /** @type {(given: string, isChat: boolean, actions: Actions) => Entry} */
  const show = (given, isChat, { again, edit }) =>
    new Entry(given, isChat, { again: () => void (isReady() && again()), edit: (text) => void (isReady() && edit(text)) });
  return new Conversation(isChat, show, (turn) => void answer(turn));
}

/** Whether something can be written now; the browser shows which setting is wrong, if one is. */
const isReady = () => model !== undefined && writing === undefined && readSettings() !== undefined;

/** @param {string} text */
function suggestion(text) {
  const button = create('button', { text });
  button.type = 'button';
  button.lang = 'en';
  button.classList.add('writes');
  button.addEventListener('click', () => void write(text));
  return button;
}

/** @param {string} text the beginning of a story, or a message */
async function write(text) {
  if (model === undefined || !isReady()) return;
  const isChat = model.info.hasChatTemplate;
  if (isChat && text.trim() === '') return prompt.focus();
  prompt.value = isChat ? '' : text;
  if (!(await answer(conversation.add(text)))) prompt.value ||= text;
}

/** Has the model write a turn. @param {Turn<Entry>} turn @returns {Promise<boolean>} whether it did */
async function answer(turn) {
  return run(async (model, options, current) => {
    const { entry } = turn;
    const count = startCounting();
    const draw = startChart();
    clearSources();
    clearPasses();
    current.generation = model.generate(conversation.promptOf(turn), { ...options, ...passOptions() });
    announce(t('Writing.'));
    try {
      for await (const chunk of current.generation) {
        entry.append(chunk);
        count(chunk.tokens.length);
        draw(chunk.tokens.length);
        countSources(chunk.sources);
        showPass(chunk);
      }
      const result = await current.generation.result;
      entry.finish(result.finishReason, { tokens: result.usage.completionTokens, seed: options.seed ?? 0 });
      showResult(result);
      turn.answer = result.text;
      announce(t('Written: {text}', { text: entry.text }));
    } catch (error) {
      if (!entry.fail()) conversation.remove(turn);
      throw error;
    }
  });
}

/** Has the model write the prompt plainly, and then with drafting. @param {string} text */
async function raceOn(text) {
  if (text.trim() === '') return prompt.focus();
  await run(async (model, options, current) => {
    announce(t('The race begins: plain decoding first.'));
    const outcome = await race(model, text, conversation.promptOf(undefined, text), options, (generation) => (current.generation = generation));
    announce(outcome);
  });
}

/**
 * Runs what generates, if nothing does, and shows what goes wrong with it.
 * @param {(model: Model, options: GenerateOptions, current: { generation: Generation | undefined }) => Promise<void>} body
 * @returns {Promise<boolean>} whether it ran to its end
 */
async function run(body) {
  const options = model === undefined || writing !== undefined ? undefined : readSettings();
  if (model === undefined || options === undefined) return false;
  hideFault();
  writing = { generation: undefined };
  showWriting(true);
  try {
    await body(model, options, writing);
    return true;
  } catch (error) {
    showFault(error);
    return false;
  } finally {
    writing = undefined;
    showWriting(false);
  }
}

/** @param {boolean} isWriting */
function showWriting(isWriting) {
  document.body.classList.toggle('writing', isWriting);
  const hadFocus = document.activeElement === (isWriting ? send : stop);
  stop.hidden = !isWriting;
  send.hidden = racing.hidden = isWriting;
  if (hadFocus) (isWriting ? stop : send).focus();
  for (const button of document.querySelectorAll('button.writes')) if (button instanceof HTMLButtonElement) button.disabled = isWriting;
}

async function clear() {
  if (writing) await writing.generation?.abort();
  conversation.clear();
  clearTranscript();
  clearPasses();
}

/** @param {unknown} error */
function isAbort(error) {
  return error instanceof DraftreeError && error.code === 'aborted';
}

composer.addEventListener('submit', (event) => {
  event.preventDefault();
  void write(prompt.value);
});

prompt.addEventListener('keydown', (event) => {
  if (event.key !== 'Enter' || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  if (!send.disabled) composer.requestSubmit();
});

addEventListener('keydown', (event) => {
  if (event.key !== 'Escape') return;
  void writing?.generation?.abort();
  loading?.abort();
});

stop.addEventListener('click', () => void writing?.generation?.abort());
racing.addEventListener('click', () => void raceOn(prompt.value));
byId('loading-cancel', HTMLButtonElement).addEventListener('click', () => loading?.abort());
byId('clear', HTMLButtonElement).addEventListener('click', () => {
  void clear();
  prompt.value = '';
  prompt.focus();
});

for (const [name, offer] of Object.entries(catalogue)) {
  const choice = choices[/** @type {keyof typeof catalogue} */ (name)];
  choice.addEventListener('click', () => void open(offer, choice));
}
choices.file.addEventListener('click', chooseFiles);
onFiles((files) => void open({ source: files, name: files.map(({ name }) => name).join(', ') }, choices.file));

byId('source-form', HTMLFormElement).addEventListener('submit', (event) => {
  event.preventDefault();
  const named = source.value.trim();
  void open({ source: named, name: named });
});

byId('clear-cache', HTMLButtonElement).addEventListener('click', async () => {
  const count = await modelCache.clear();
  announce(t('{count} files deleted.', { count }));
});

switchLanguageBy(byId('language', HTMLButtonElement));
showWhenEmpty('The model is on its way.');
keepForOffline();
if (await open(catalogue.stories, choices.stories)) await write(storyBeginnings[0] ?? '');
