// @ts-check
/**
 * `npm run screenshots [-- page|bench]`: both pages as they are in docs/, on a desktop (1280 px, light) and on a phone (390 px, dark), with something on them.
 */
import path from 'node:path';
import { pathToFileURL } from 'node:url';
import { launch } from './browsers.mjs';
import { build } from './build.mjs';
import { Failure, runMain } from './failure.mjs';
import { parseOptions } from './options.mjs';
import { root, say } from './programs.mjs';
import { serve } from './serve.mjs';
import { setup } from './setup.mjs';
import { siteFolder } from './site.mjs';

const viewports = [{ width: 1280, height: 800, scheme: 'light' }, { width: 390, height: 844, scheme: 'dark' }];

/** @typedef {import('./browsers.mjs').Page} Page */

/** What happens on a page before its picture is taken. @type {Record<string, { file: string, anchor: string, prepare: (page: Page) => Promise<void> }>} */
const pictures = {
  page: {
    file: 'index.html',
    anchor: 'header',
    prepare: async ({ puppeteer }) => {
      const written = (/** @type {number} */ entries) => puppeteer.waitForFunction((count) => document.querySelectorAll('.entry[aria-busy=false]').length === count, {}, entries);
      await written(1);
      await puppeteer.click('#passes-panel summary');
      // A tree of one shape is drafted also where a pass takes no longer than a draft.
      await puppeteer.$eval('#tree', (tree) => void (/** @type {any} */ (tree).value = '2,1,1'));
      await puppeteer.click('#send');
      await written(2);
    },
  },
  bench: {
    file: 'bench.html',
    anchor: '#verdict',
    prepare: async ({ puppeteer }) => {
      await puppeteer.waitForSelector('#run:enabled');
      // Less than the page offers, so that a slow machine has it in a minute.
      await puppeteer.$$eval('[name=draft]', (boxes) => boxes.forEach((box) => (/** @type {any} */ (box).checked = ['auto', 'medusa'].includes(/** @type {any} */ (box).value))));
      await puppeteer.$eval('#repeats', (repeats) => void (/** @type {any} */ (repeats).value = '1'));
      await puppeteer.click('#run');
      await puppeteer.waitForFunction(() => document.querySelector('#status')?.textContent === 'Measured.');
    },
  },
};

/**
 * Runs in the page: brings what matters into a narrow view, and waits until charts are drawn for it.
 * @param {string} anchor
 */
async function show(anchor) {
  for (let frame = 0; frame < 4; frame++) await new Promise((resolve) => requestAnimationFrame(resolve));
  if (innerWidth < 600) document.querySelector(anchor)?.scrollIntoView();
  else scrollTo(0, 0);
}

/** @param {string} folder where the pictures go @param {readonly string[]} names of pages */
export async function takeScreenshots(folder, names) {
  const server = await serve(siteFolder);
  const browser = await launch('chromium');
  try {
    for (const name of names) {
      const { file, anchor, prepare } = /** @type {typeof pictures[string]} */ (pictures[name]);
      const page = await browser.newPage();
      await page.goto(`${server.url}/${file}`);
      await prepare(page);
      for (const { width, height, scheme } of viewports) {
        await page.puppeteer.emulateMediaFeatures([{ name: 'prefers-color-scheme', value: scheme }]);
        await page.puppeteer.setViewport({ width, height });
        await page.evaluate(show, anchor);
        const picture = /** @type {`${string}.png`} */ (path.join(folder, `${name}-${width}.png`));
        await page.puppeteer.screenshot({ path: picture });
        say(path.relative(root, picture));
      }
      await page.close();
    }
  } finally {
    await browser.close();
    await server.close();
  }
}

if (import.meta.url === pathToFileURL(process.argv[1] ?? '').href) {
  await runMain(async () => {
    const [only] = parseOptions(process.argv.slice(2), {}, { positionals: 1 }).positionals;
    const names = Object.keys(pictures);
    if (only !== undefined && !names.includes(only)) throw new Failure('invalid_option', `There are pictures of ${names.join(' and ')}; found ${JSON.stringify(only)}.`);
    await setup({ browsers: ['chromium'] });
    await build();
    await takeScreenshots(path.join(root, 'docs'), only === undefined ? names : [only]);
  });
}
