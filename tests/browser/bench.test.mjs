// @ts-check
/**
 * The benchmark page: it measures the embedded model to the end, says that the tokens were the same, and its reports go out and come back.
 */
import assert from 'node:assert/strict';
import { mkdtemp, readFile, readdir, rm, writeFile } from 'node:fs/promises';
import os from 'node:os';
import path from 'node:path';
import { after, before, describe, test } from 'node:test';
import { fromJson } from '../../www/bench/report.js';
import { browserNames, launch, serve, siteFolder } from './browsers.mjs';

for (const browserName of browserNames) {
  describe(`the benchmark page in ${browserName}`, { timeout: 300_000 }, () => {
    /** @type {Awaited<ReturnType<typeof launch>>} */
    let browser;
    /** @type {Awaited<ReturnType<typeof serve>>} */
    let server;
    /** @type {Awaited<ReturnType<typeof browser.newPage>>} */
    let page;
    /** @type {string} */
    let folder;

    before(async () => {
      folder = await mkdtemp(path.join(os.tmpdir(), 'draftree-bench-'));
      server = await serve(siteFolder);
      browser = await launch(browserName);
      page = await browser.newPage();
      await page.goto(`${server.url}/bench.html`);
      await page.puppeteer.waitForSelector('#run:enabled');
    });
    after(async () => {
      await browser?.close();
      await server?.close();
      await rm(folder, { recursive: true, force: true });
    });

    /** One prompt, one variant: as little as makes a report. @param {string[]} drafters */
    const choose = (drafters) =>
      page.evaluate((drafters) => {
        const form = /** @type {any} */ (document.querySelector('#plan'));
        for (const box of form.querySelectorAll('[name=draft]')) box.checked = drafters.includes(box.value);
        form.elements.perCategory.value = '1';
        form.elements.repeats.value = '1';
        form.elements.maxTokens.value = '16';
        form.dispatchEvent(new Event('change'));
      }, drafters);

    const rowsOf = (/** @type {string} */ title) =>
      page.evaluate((title) => {
        const table = [...document.querySelectorAll('#tables table')].find((table) => table.querySelector('caption')?.textContent === title);
        return [...(table?.querySelectorAll('tbody tr') ?? [])].map((row) => [...row.querySelectorAll('td')].map((cell) => cell.textContent));
      }, title);

    /** @param {string} text @param {string} name */
    async function compareWith(text, name) {
      const file = path.join(folder, name);
      await writeFile(file, text);
      const input = /** @type {any} */ (await page.puppeteer.$('#compare-file'));
      await input.uploadFile(file);
    }

    test('measures to the end, with the same tokens', async () => {
      await choose(['ngram']);
      assert.equal(await page.evaluate(() => document.querySelector('#amount')?.textContent), 'variants: 1 · prompts: 1 · repeats: 1');
      await page.puppeteer.click('#run');
      await page.puppeteer.waitForFunction(() => document.querySelector('#status')?.textContent === 'Measured.', { timeout: 200_000 });
      const [speed = []] = await rowsOf('Speed');
      assert.deepEqual([speed[0], speed.at(-1)], ['ngram', 'yes']);
      assert.ok(speed.slice(1, -1).every((cell) => Number.parseFloat(cell ?? '') > 0), String(speed));
      assert.deepEqual((await rowsOf('Passes')).map(([rows]) => rows), ['1', '2', '4', '8', '16']);
      const seen = await page.evaluate(() => ({
        verdict: document.querySelector('#verdict')?.textContent,
        charts: [...document.querySelectorAll('.chart canvas')].map((canvas) => /** @type {any} */ (canvas).width > 100),
        facts: document.querySelector('#facts')?.textContent,
        isRunning: document.querySelector('#running')?.checkVisibility(),
      }));
      assert.match(seen.verdict ?? '', /All tokens were identical/);
      assert.deepEqual(seen.charts, [true, true, true, true]);
      assert.match(seen.facts ?? '', /stories260K, Q8_0.*(Chrom|Firefox)[^ ]* \d+/s);
      assert.equal(seen.isRunning, false);
      assert.deepEqual(page.errors, []);
    });

    async function downloaded() {
      const session = await page.puppeteer.createCDPSession();
      await session.send('Browser.setDownloadBehavior', { behavior: 'allow', downloadPath: folder, eventsEnabled: true });
      const finished = new Promise((resolve) => session.on('Browser.downloadProgress', ({ state }) => state === 'completed' && resolve(undefined)));
      await page.puppeteer.click('#download');
      await finished;
      const [name] = (await readdir(folder)).filter((name) => name.startsWith('draftree-stories260K'));
      return readFile(path.join(folder, name ?? 'nothing was downloaded'), 'utf8');
    }

    // Firefox's driver cannot tell where downloads go.
    if (browserName === 'chromium') {
      test('what it downloads is what it can compare with', async () => {
        const text = await downloaded();
        const report = fromJson(text, 'download');
        assert.deepEqual([report.modelInfo.name, report.repeats, report.maxTokens, report.complete], ['stories260K', 1, 16, true]);
        assert.ok(report.browser.length > 3 && report.adapter.description.length > 3);
        await compareWith(text, 'other.json');
        await page.puppeteer.waitForFunction(() => document.querySelector('#status')?.textContent === 'Compared with other.json.');
        assert.equal(await page.evaluate(() => document.querySelectorAll('#tables table').length), 8);
        await page.puppeteer.click('#compare-end');
        assert.equal(await page.evaluate(() => document.querySelectorAll('#tables table').length), 4);
      });
    }

    test('a file that is no report gives a readable error', async () => {
      await compareWith('{"format":"something"}', 'wrong.json');
      await page.puppeteer.waitForFunction(() => document.querySelector('#error')?.checkVisibility());
      const message = await page.evaluate(() => document.querySelector('#error-message')?.textContent);
      assert.match(message ?? '', /wrong\.json: expected a report of format draftree-benchmark/);
      await page.puppeteer.click('#error-close');
    });

    test('stops when told, and can start again', async () => {
      await page.puppeteer.click('#run');
      await page.puppeteer.waitForSelector('#running', { visible: true });
      await page.puppeteer.click('#cancel');
      await page.puppeteer.waitForSelector('#run', { visible: true });
      assert.equal(await page.evaluate(() => document.querySelector('#error')?.checkVisibility()), false);
      assert.equal(await page.evaluate(() => document.querySelector('#running')?.checkVisibility()), false);
      assert.deepEqual(page.errors, []);
    });

    test('a choice of nothing says what to do', async () => {
      await choose([]);
      await page.puppeteer.click('#run');
      await page.puppeteer.waitForFunction(() => document.querySelector('#error')?.checkVisibility());
      assert.match((await page.evaluate(() => document.querySelector('#error-message')?.textContent)) ?? '', /choose a size of trees, and a drafter that this model has: auto, /);
    });
  });
}
