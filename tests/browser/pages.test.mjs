// @ts-check
/**
 * What holds for both pages: nothing that axe finds wrong, light and dark, on a phone and on a desktop; Chinese as well as English; and
 * writing without a network once the site was loaded.
 */
import assert from 'node:assert/strict';
import { readFile } from 'node:fs/promises';
import path from 'node:path';
import { after, before, describe, test } from 'node:test';
import { zh } from '../../www/words.zh.js';
import { launch, root, serve, siteFolder } from './browsers.mjs';

/** @typedef {Awaited<ReturnType<Awaited<ReturnType<typeof launch>>['newPage']>>} Page */

const pages = {
  'index.html': () => document.querySelectorAll('.entry[aria-busy=false]').length > 0,
  'bench.html': () => document.querySelector('#run:enabled') !== null,
};

describe('the pages', { timeout: 300_000 }, () => {
  /** @type {Awaited<ReturnType<typeof launch>>} */
  let browser;
  /** @type {Awaited<ReturnType<typeof serve>>} */
  let server;

  before(async () => {
    server = await serve(siteFolder);
    browser = await launch('chromium');
  });
  after(async () => {
    await browser?.close();
    await server?.close();
  });

  /** @param {keyof typeof pages} name @param {(page: Page) => Promise<void>} body */
  async function visit(name, body) {
    const page = await browser.newPage();
    try {
      await page.goto(`${server.url}/${name}`);
      await page.puppeteer.waitForFunction(pages[name], { timeout: 120_000 });
      await body(page);
      assert.deepEqual(page.errors, []);
    } finally {
      await page.close();
    }
  }

  /** What axe finds wrong. @param {Page} page */
  const violations = (page) =>
    page.evaluate(async () => {
      const { violations } = await /** @type {any} */ (globalThis).axe.run(document, { resultTypes: ['violations'] });
      return violations.map((/** @type {any} */ { id, nodes }) => `${id}: ${nodes.map((/** @type {any} */ { html }) => html.slice(0, 160)).join(' | ')}`);
    });

  /** Everything that can be seen of a page. @type {Record<keyof typeof pages, (page: Page) => Promise<void>>} */
  const everything = {
    'index.html': async (page) => {
      await page.evaluate(() => {
        for (const panel of document.querySelectorAll('details')) panel.open = true;
        /** @type {any} */ (document.querySelector('#maxTokens')).value = '20';
        /** @type {any} */ (document.querySelector('#race')).click();
      });
      await page.puppeteer.waitForFunction(() => document.querySelector('.race[aria-busy=false]'), { timeout: 60_000 });
      await page.evaluate(() => /** @type {any} */ ([...document.querySelectorAll('.entry footer button')].find((button) => button.textContent === 'Edit')).click());
    },
    'bench.html': async (page) => {
      const input = /** @type {any} */ (await page.puppeteer.$('#compare-file'));
      await input.uploadFile(path.join(root, 'tests', 'data', 'benchmark.json'));
      await page.puppeteer.waitForFunction(() => document.querySelectorAll('#tables table').length === 4);
    },
  };

  for (const name of /** @type {(keyof typeof pages)[]} */ (Object.keys(pages))) {
    test(`${name} is accessible, fits a phone, and keeps still for who asks for it`, () =>
      visit(name, async (page) => {
        const { puppeteer } = page;
        await everything[name](page);
        await puppeteer.evaluate(await readFile(path.join(root, 'node_modules', 'axe-core', 'axe.min.js'), 'utf8'));
        for (const scheme of ['light', 'dark']) {
          await puppeteer.emulateMediaFeatures([{ name: 'prefers-color-scheme', value: scheme }, { name: 'prefers-reduced-motion', value: 'reduce' }]);
          for (const width of [1280, 390]) {
            await puppeteer.setViewport({ width, height: 844 });
            assert.deepEqual(await violations(page), [], `${scheme}, ${width}`);
            assert.ok((await page.evaluate(() => document.documentElement.scrollWidth)) <= width, `${scheme}, ${width}`);
          }
        }
        const moving = await page.evaluate(() => document.getAnimations().length);
        assert.equal(moving, 0);
      }));

    test(`${name} speaks Chinese when asked to`, () =>
      visit(name, async (page) => {
        const texts = () =>
          page.evaluate(() => [...document.querySelectorAll('[data-t]')].map((element) => [/** @type {any} */ (element).dataset.t, element.textContent]));
        const english = await texts();
        await everything[name](page);
        assert.equal(await page.evaluate(() => document.documentElement.lang), 'en');
        await page.puppeteer.click('#language');
        assert.equal(await page.evaluate(() => document.documentElement.lang), 'zh');
        for (const [key = '', text] of await texts()) {
          assert.ok(Object.hasOwn(zh, key), `there is no Chinese for ${JSON.stringify(key)}`);
          if (!zh[key]?.includes('{')) assert.equal(text?.trim(), zh[key]);
        }
        await page.puppeteer.reload();
        await page.puppeteer.waitForFunction(pages[name], { timeout: 120_000 });
        assert.equal(await page.evaluate(() => document.querySelector('#language')?.textContent), 'English');
        await page.puppeteer.click('#language');
        const again = await texts();
        for (const [key, text] of english) if (!key?.includes('{')) assert.ok(again.some(([k, t]) => k === key && t === text), `${key} is English again`);
      }));
  }

  test('write without a network once they were loaded', async () => {
    const own = await serve(siteFolder);
    const page = await browser.newPage();
    const written = () => page.puppeteer.waitForFunction(pages['index.html'], { timeout: 120_000 });
    try {
      await page.goto(`${own.url}/`);
      await written();
      await page.evaluate(() => navigator.serviceWorker.ready.then(() => undefined));
      await own.close();
      await page.puppeteer.reload();
      await written();
      assert.match((await page.evaluate(() => document.querySelector('.entry .text')?.textContent)) ?? '', /^Once upon a time.{40}/s);
      assert.equal(await page.evaluate(() => document.querySelector('#error')?.checkVisibility()), false);
      await page.goto(`${own.url}/bench.html`);
      await page.puppeteer.waitForFunction(pages['bench.html'], { timeout: 120_000 });
    } finally {
      await page.close();
    }
  });
});
