// @ts-check
/**
 * The benchmark page: loads the chosen model, measures as planned, and shows what there is so far after every prompt.
 */
import { DraftreeError } from '../pkg/index.js';
import { announce, byId } from '../elements.js';
import { hideFault, showFault } from '../faults.js';
import { put, switchLanguageBy, t } from '../language.js';
import { hideLoading, showLoading, showProgress } from '../loading.js';
import { chosenModel, onRun, readPlan } from './form.js';
import { measure } from './measure.js';
import { makeReport } from './report.js';
import { showReport } from './results.js';
import { PageRunner, browserName } from './runner.js';

/** @import { Measured, Step } from './measure.js' */

const run = byId('run', HTMLButtonElement);
const cancel = byId('cancel', HTMLButtonElement);
const running = byId('running', HTMLElement);
const stage = byId('running-stage', HTMLElement);
const detail = byId('running-detail', HTMLElement);
const bar = byId('running-bar', HTMLProgressElement);

/** @type {AbortController | undefined} */
let current;

async function start() {
  const choice = current === undefined ? chosenModel() : undefined;
  if (choice === undefined) return;
  const abort = new AbortController();
  current = abort;
  hideFault();
  showRunning(true);
  /** @type {PageRunner | undefined} */
  let runner;
  try {
    showLoading(choice.name);
    announce(t('Loading {name}', { name: choice.name }));
    runner = await PageRunner.load(choice.source, { heads: choice.heads ?? 'auto', onProgress: showProgress, signal: abort.signal });
    hideLoading();
    await measureWith(runner, choice.name, abort.signal);
  } catch (error) {
    if (!isAbort(error)) showFault(error);
  } finally {
    hideLoading();
    showRunning(false);
    current = undefined;
    await runner?.dispose();
  }
}

/** @param {PageRunner} runner @param {string} model @param {AbortSignal} signal */
async function measureWith(runner, model, signal) {
  const { plan, prompts, missing } = await readPlan(runner.info);
  const browser = await browserName();
  /** @type {Measured} */
  const measured = { rows: [], passes: [], loadMs: [] };
  const began = performance.now();
  let complete = false;
  const report = () => showReport(makeReport(runner.info, plan, measured, { model, browser, prompts, complete, date: new Date() }));
  if (missing.length === 0) put(stage, 'Measuring');
  else put(stage, 'Measuring, without {drafters}, which this model does not have', { drafters: missing.join(', ') });
  running.hidden = false;
  try {
    for await (const step of measure(runner, plan, measured)) {
      if (signal.aborted) return;
      showStep(step, performance.now() - began);
      if (step.row) report();
    }
    complete = true;
    report();
    announce(t('Measured.'));
  } finally {
    running.hidden = true;
  }
}

/** @param {Step} step @param {number} elapsed */
function showStep({ done, total, row }, elapsed) {
  bar.value = done / total;
  const seconds = Math.round((elapsed / done) * ((total - done) / 1000));
  const values = { done, total, what: row ? `${row.variant}, ${row.id}` : '…', seconds, minutes: Math.ceil(seconds / 60) };
  put(detail, seconds < 90 ? '{done} of {total} · {what} · about {seconds} s left' : '{done} of {total} · {what} · about {minutes} min left', values);
}

/** @param {boolean} isRunning */
function showRunning(isRunning) {
  const hadFocus = document.activeElement === (isRunning ? run : cancel);
  run.hidden = isRunning;
  cancel.hidden = !isRunning;
  if (hadFocus) (isRunning ? cancel : run).focus();
  bar.removeAttribute('value');
  detail.textContent = '';
}

/** @param {unknown} error */
function isAbort(error) {
  return error instanceof DraftreeError && error.code === 'aborted';
}

const stop = () => {
  current?.abort();
  announce(t('Stopped.'));
};
onRun(() => void start());
cancel.addEventListener('click', stop);
byId('loading-cancel', HTMLButtonElement).addEventListener('click', stop);
addEventListener('keydown', (event) => void (event.key === 'Escape' && current && stop()));
switchLanguageBy(byId('language', HTMLButtonElement));
run.disabled = false;
