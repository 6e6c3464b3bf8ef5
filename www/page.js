// @ts-check
/**
 * The demonstration page: loads the model that comes with it, has it write at once, and then does what the reader asks.
 *
 * The page holds one model and at most one generation. While another model loads the old one stays, so a failed load costs nothing.
 */
import { DraftreeError, load, modelCache } from './pkg/index.js';
import { announce, byId, create } from './elements.js';
import { chooseFiles, onFiles } from './files.js';
import { hideFault, showFault } from './faults.js';
import { hideLoading, showLoading, showProgress } from './loading.js';
import { showModel, showResult, startCounting } from './numbers.js';
import { readSettings } from './settings.js';
import { clearSources, countSources, showDrafters } from './sources.js';
import { Entry, clearTranscript, showWhenEmpty } from './transcript.js';

/** @import { Generation, Message, Model, ModelSource } from './pkg/index.js' */

const stories = new URL('./models/stories260K/stories260K-q8_0.gguf', import.meta.url);
const smollm = 'HuggingFaceTB/SmolLM2-135M-Instruct';

const storyBeginnings = ['Once upon a time', 'Lily and Ben went to the park.', 'There was a little dog named Max.', 'One day, a big bird'];
const questions = ['Why is the sky blue?', 'Write a short poem about rain.', 'Explain what a GPU is to a child.'];

const badge = byId('model-name', HTMLElement);
const composer = byId('composer', HTMLFormElement);
const prompt = byId('prompt', HTMLTextAreaElement);
const promptLabel = byId('prompt-label', HTMLElement);
const suggestions = byId('suggestions', HTMLElement);
const send = byId('send', HTMLButtonElement);
const stop = byId('stop', HTMLButtonElement);
const source = byId('source', HTMLInputElement);
const choices = {
  stories: byId('choose-stories', HTMLButtonElement),
  smollm: byId('choose-smollm', HTMLButtonElement),
  file: byId('choose-file', HTMLButtonElement),
};

/** @type {Model | undefined} */
let model;
/** @type {Generation | undefined} */
let generation;
/** @type {AbortController | undefined} */
let loading;
/** What was said so far, for models that chat. @type {Message[]} */
let history = [];

/**
 * @param {ModelSource} from
 * @param {string} name how to call it while its own name is not known
 * @param {HTMLButtonElement} [choice]
 * @returns {Promise<boolean>} whether it is here now
 */
async function open(from, name, choice) {
  loading?.abort();
  const abort = new AbortController();
  loading = abort;
  hideFault();
  showLoading(name);
  announce(`Loading ${name}.`);
  try {
    const next = await load(from, { onProgress: showProgress, signal: abort.signal });
    await generation?.abort();
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
  badge.textContent = info.name || 'a model without a name';
  badge.title = badge.textContent;
  showModel(info);
  showDrafters(info);
  promptLabel.textContent = info.hasChatTemplate ? 'Your message' : 'Beginning of a story';
  send.textContent = info.hasChatTemplate ? 'Send' : 'Write';
  send.disabled = false;
  showWhenEmpty(info.hasChatTemplate ? 'Ask something.' : 'Begin a story, and the model goes on with it.');
  suggestions.replaceChildren(...(info.hasChatTemplate ? questions : storyBeginnings).map(suggestion));
  prompt.value = '';
  clear();
  announce(`${badge.textContent} is ready.`);
}

/** @param {string} text */
function suggestion(text) {
  const button = create('button', { text });
  button.type = 'button';
  button.addEventListener('click', () => void write(text));
  return button;
}

/** @param {string} text the beginning of a story, or a message */
async function write(text) {
  const options = model === undefined || generation !== undefined ? undefined : readSettings();
  if (model === undefined || options === undefined) return;
  const isChat = model.info.hasChatTemplate;
  if (isChat && text.trim() === '') return prompt.focus();
  hideFault();
  prompt.value = isChat ? '' : text;
  const entry = new Entry(text, isChat);
  const asked = isChat ? [...history, { role: 'user', content: text }] : text;
  const count = startCounting();
  clearSources();
  generation = model.generate(asked, options);
  showWriting(true);
  announce('Writing.');
  try {
    for await (const chunk of generation) {
      entry.append(chunk);
      count(chunk.tokens.length);
      countSources(chunk.sources);
    }
    const result = await generation.result;
    entry.finish(result.finishReason, `${result.usage.completionTokens} tokens · seed ${options.seed}`);
    showResult(result);
    if (Array.isArray(asked)) history = [...asked, { role: 'assistant', content: result.text }];
    announce(`Written: ${entry.text}`);
  } catch (error) {
    entry.fail();
    showFault(error);
    prompt.value ||= text;
  } finally {
    generation = undefined;
    showWriting(false);
  }
}

/** @param {boolean} isWriting */
function showWriting(isWriting) {
  document.body.classList.toggle('writing', isWriting);
  const hadFocus = document.activeElement === (isWriting ? send : stop);
  stop.hidden = !isWriting;
  send.hidden = isWriting;
  if (hadFocus) (isWriting ? stop : send).focus();
  for (const button of suggestions.querySelectorAll('button')) button.disabled = isWriting;
}

async function clear() {
  await generation?.abort();
  history = [];
  clearTranscript();
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
  void generation?.abort();
  loading?.abort();
});

stop.addEventListener('click', () => void generation?.abort());
byId('loading-cancel', HTMLButtonElement).addEventListener('click', () => loading?.abort());
byId('clear', HTMLButtonElement).addEventListener('click', () => {
  void clear();
  prompt.value = '';
  prompt.focus();
});

choices.stories.addEventListener('click', () => void open(stories, 'Stories 260K', choices.stories));
choices.smollm.addEventListener('click', () => void open(smollm, 'SmolLM2', choices.smollm));
choices.file.addEventListener('click', chooseFiles);
onFiles((files) => void open(files, files.map(({ name }) => name).join(', '), choices.file));

byId('source-form', HTMLFormElement).addEventListener('submit', (event) => {
  event.preventDefault();
  void open(source.value.trim(), source.value.trim());
});

byId('clear-cache', HTMLButtonElement).addEventListener('click', async () => {
  const count = await modelCache.clear();
  announce(`${count} files deleted.`);
});

showWhenEmpty('The model is on its way.');
if (await open(stories, 'Stories 260K', choices.stories)) await write(storyBeginnings[0] ?? '');
