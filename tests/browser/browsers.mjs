// @ts-check
/** What browser tests need: a browser, a server for files and faults, and the built package with a model loaded. */
export { browserNames, launch } from '../../scripts/browsers.mjs';
export { BLANK_PAGE, HeadlessModel, openSession } from '../../scripts/headless.mjs';
export { root } from '../../scripts/programs.mjs';
export { serve } from '../../scripts/serve.mjs';
export { siteFolder } from '../../scripts/site.mjs';
