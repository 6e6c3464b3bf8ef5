// @ts-check
/**
 * The notice of what went wrong.
 */
import { byId } from './elements.js';

const notice = byId('error', HTMLElement);
const message = byId('error-message', HTMLElement);
const code = byId('error-code', HTMLElement);

byId('error-close', HTMLButtonElement).addEventListener('click', () => hideFault());

/** @param {unknown} error of the package's kind, with a code, or any other */
export function showFault(error) {
  const { code: known } = /** @type {{ code?: unknown }} */ (error ?? {});
  message.textContent = error instanceof Error ? error.message : String(error);
  code.textContent = typeof known === 'string' ? known : 'internal';
  notice.hidden = false;
  notice.scrollIntoView({ block: 'nearest' });
}

/** Something new begins; old faults are of no interest. */
export function hideFault() {
  notice.hidden = true;
}
