// @ts-check
/** The pages' texts in Chinese, by their English. @type {Record<string, string>} */
export const zh = {};
