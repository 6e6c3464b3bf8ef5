// @ts-check
/**
 * Numbers as people read them.
 */

/** @param {number} bytes */
export function megabytes(bytes) {
  const mega = bytes / 1e6;
  return `${mega.toFixed(mega < 10 ? 1 : 0)} MB`;
}

/** @param {number} count */
export function amount(count) {
  return new Intl.NumberFormat('en', { notation: 'compact' }).format(count);
}

/** @param {number} milliseconds */
export function duration(milliseconds) {
  return milliseconds < 1000 ? `${Math.round(milliseconds)} ms` : `${(milliseconds / 1000).toFixed(1)} s`;
}

/** @param {number} perSecond */
export function rate(perSecond) {
  return perSecond.toFixed(perSecond < 100 ? 1 : 0);
}
