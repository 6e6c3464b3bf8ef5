// @ts-check
/**
 * The progress of a load, and the faults of everything.
 */
import { DraftreeError } from '../pkg/index.js';
import { byId } from './elements.js';
import { megabytes } from './numbers.js';

/** @import { LoadProgress } from '../pkg/index.js' */

const box = byId('loading', HTMLElement);
const stage = byId('loading-stage', HTMLElement);
const detail = byId('loading-detail', HTMLElement);
const bar = byId('loading-bar', HTMLProgressElement);
const notice = byId('error', HTMLElement);
const message = byId('error-message', HTMLElement);
const code = byId('error-code', HTMLElement);

byId('error-close', HTMLButtonElement).addEventListener('click', () => hideFault());

/** @type {Record<LoadProgress['stage'], string>} */
const stages = {
  download: 'Downloading',
  weights: 'Moving the weights to the GPU',
  compile: 'Preparing the GPU programs',
  check: 'Checking that the GPU computes rightly',
  heads: 'Moving the draft heads to the GPU',
};

/** @param {string} name */
export function showLoading(name) {
  stage.textContent = `Loading ${name}`;
  detail.textContent = '';
  bar.removeAttribute('value');
  box.hidden = false;
  box.scrollIntoView({ block: 'nearest' });
}

/** @param {LoadProgress} progress */
export function showProgress({ stage: current, file, loaded, total }) {
  stage.textContent = stages[current];
  const inBytes = current === 'download' || current === 'weights';
  const amount = inBytes ? `${megabytes(loaded)}${Number.isFinite(total) ? ` of ${megabytes(total)}` : ''}` : '';
  detail.textContent = [file, amount].filter(Boolean).join(' · ');
  if (Number.isFinite(total) && total > 0) bar.value = loaded / total;
  else bar.removeAttribute('value');
}

/** The load is over. */
export function hideLoading() {
  box.hidden = true;
}

/** @param {unknown} error */
export function showFault(error) {
  message.textContent = error instanceof Error ? error.message : String(error);
  code.textContent = error instanceof DraftreeError ? error.code : 'internal';
  notice.hidden = false;
  notice.scrollIntoView({ block: 'nearest' });
}

/** Something new begins; old faults are of no interest. */
export function hideFault() {
  notice.hidden = true;
}
