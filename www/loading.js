// @ts-check
/**
 * The progress of a load.
 */
import { byId } from './elements.js';
import { megabytes } from './figures.js';
import { put } from './language.js';

/** @import { LoadProgress } from './pkg/index.js' */

const box = byId('loading', HTMLElement);
const stage = byId('loading-stage', HTMLElement);
const detail = byId('loading-detail', HTMLElement);
const bar = byId('loading-bar', HTMLProgressElement);

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
  put(stage, 'Loading {name}', { name });
  detail.textContent = '';
  bar.removeAttribute('value');
  box.hidden = false;
  box.scrollIntoView({ block: 'nearest' });
}

/** @param {LoadProgress} progress */
export function showProgress({ stage: current, file, loaded, total }) {
  put(stage, stages[current]);
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
