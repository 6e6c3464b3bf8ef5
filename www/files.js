// @ts-check
/**
 * Models from the user's disk: dropped anywhere on the page, or chosen.
 */
import { byId } from './elements.js';

const overlay = byId('drop', HTMLElement);
const input = byId('file', HTMLInputElement);

/** @param {(files: File[]) => void} take */
export function onFiles(take) {
  // Entering a child fires before leaving its parent, so enters are counted.
  let depth = 0;
  const show = (/** @type {number} */ change) => {
    depth = Math.max(0, depth + change);
    overlay.hidden = depth === 0;
  };
  addEventListener('dragenter', (event) => {
    if (!holdsFiles(event)) return;
    event.preventDefault();
    show(1);
  });
  addEventListener('dragleave', (event) => holdsFiles(event) && show(-1));
  addEventListener('dragover', (event) => holdsFiles(event) && event.preventDefault());
  addEventListener('drop', (event) => {
    if (!holdsFiles(event)) return;
    event.preventDefault();
    show(-depth);
    const files = [...(event.dataTransfer?.files ?? [])];
    if (files.length > 0) take(files);
  });
  input.addEventListener('change', () => {
    const files = [...(input.files ?? [])];
    input.value = '';
    if (files.length > 0) take(files);
  });
}

/** Let the user choose. */
export function chooseFiles() {
  input.click();
}

/** @param {DragEvent} event */
function holdsFiles(event) {
  return event.dataTransfer?.types.includes('Files') ?? false;
}
