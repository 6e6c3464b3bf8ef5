// @ts-check
/**
 * The demonstration page as a visitor meets it: it writes by itself, obeys the keyboard, fits a phone, and breaks nothing.
 */
import assert from 'node:assert/strict';
import { after, before, describe, test } from 'node:test';
import { browserNames, launch, serve, siteFolder } from './browsers.mjs';

for (const browserName of browserNames) {
  describe(`the page in ${browserName}`, { timeout: 300_000 }, () => {
    /** @type {Awaited<ReturnType<typeof launch>>} */
    let browser;
    /** @type {Awaited<ReturnType<typeof serve>>} */
    let server;
    /** @type {string[]} */
    const requests = [];

    before(async () => {
      server = await serve(siteFolder, { log: (line) => requests.push(line) });
      browser = await launch(browserName);
    });
    after(async () => {
      await browser?.close();
      await server?.close();
    });

    /** @param {{ width: number, height: number }} viewport @param {(page: Awaited<ReturnType<typeof browser.newPage>>) => Promise<void>} body */
    async function visit(viewport, body) {
      const page = await browser.newPage();
      await page.puppeteer.setViewport(viewport);
      await page.goto(`${server.url}/`);
      try {
        await body(page);
      } finally {
        await page.close();
      }
    }

    /** @param {Awaited<ReturnType<typeof browser.newPage>>} page @param {number} count */
    const finished = (page, count) =>
      page.puppeteer.waitForFunction((count) => document.querySelectorAll('.entry[aria-busy=false]').length === count, { timeout: 120_000 }, count);

    /** Presses the button of an entry that has this text. @param {Awaited<ReturnType<typeof browser.newPage>>} page @param {string} text */
    const press = (page, text) =>
      page.evaluate((text) => {
        const buttons = [...document.querySelectorAll('.entry footer button')];
        /** @type {any} */ (buttons.find((button) => button.textContent === text)).click();
      }, text);

    test('writes a story at once, from its own origin, without an error', () =>
      visit({ width: 1280, height: 800 }, async (page) => {
        await finished(page, 1);
        const seen = await page.evaluate(() => ({
          text: document.querySelector('.entry .text')?.textContent ?? '',
          speed: document.querySelector('#speed')?.textContent ?? '',
          passes: document.querySelector('#passes')?.textContent ?? '',
          adapter: document.querySelector('#adapter')?.textContent ?? '',
          status: document.querySelector('[role=status]')?.textContent ?? '',
          fault: document.querySelector('#error')?.checkVisibility(),
          loading: document.querySelector('#loading')?.checkVisibility(),
        }));
        assert.match(seen.text, /^Once upon a time.{40}/s);
        assert.ok(Number(seen.speed) > 0);
        assert.ok(Number(seen.passes.replaceAll(',', '')) > 0);
        assert.match(seen.adapter, /^GPU: ./);
        assert.match(seen.status, /^Written: Once upon a time/);
        assert.equal(seen.fault, false);
        assert.equal(seen.loading, false);
        assert.deepEqual(page.errors, []);
        assert.deepEqual(requests.filter((line) => !/^(200|206|304)/.test(line)), []);
      }));

    test('tells where tokens came from, and can be told not to', () =>
      visit({ width: 1280, height: 800 }, async (page) => {
        await finished(page, 1);
        const write = async (/** @type {string} */ draft, /** @type {number} */ count) => {
          await page.puppeteer.select('#draft', draft);
          await page.evaluate(() => {
            /** @type {any} */ (document.querySelector('#temperature')).value = '0';
            /** @type {any} */ (document.querySelector('#maxTokens')).value = '60';
            // Whether a grown tree pays is a matter of time.
            /** @type {any} */ (document.querySelector('#tree')).value = '1,1,1';
            /** @type {any} */ (document.querySelector('#prompt')).value = 'The bus stopped, and a girl got on the bus. The bus stopped, and';
          });
          await page.puppeteer.click('#send');
          await finished(page, count);
          return page.evaluate(() => {
            const number = (/** @type {Element | null | undefined} */ element) => Number(element?.textContent?.replaceAll(',', '') ?? NaN);
            const entry = [...document.querySelectorAll('.entry')].at(-1);
            const counts = Object.fromEntries([...document.querySelectorAll('#legend li')].map((item) => [/** @type {any} */ (item).dataset.source, number(item.querySelector('.count'))]));
            const marked = [...(entry?.querySelectorAll('.by:not(.plain)') ?? [])];
            return {
              text: entry?.querySelector('.text')?.textContent,
              counts,
              tokens: number(document.querySelector('#tokens')),
              passes: number(document.querySelector('#passes')),
              perPass: number(document.querySelector('#tokens-per-pass')),
              titles: marked.every((element) => /** @type {any} */ (element).title !== ''),
              lines: new Set(marked.map((element) => getComputedStyle(element).textDecorationStyle)).size,
              marked: marked.length,
            };
          });
        };
        const options = await page.evaluate(() => [...document.querySelectorAll('#draft option')].map((option) => /** @type {any} */ (option).value));
        assert.deepEqual(options, ['auto', 'none', 'medusa', 'ngram', 'recycling']);
        const drafted = await write('ngram', 2);
        assert.ok(drafted.marked > 0 && drafted.titles);
        assert.equal(Object.values(drafted.counts).reduce((a, b) => a + b, 0), drafted.tokens);
        assert.ok((drafted.counts['ngram'] ?? 0) > 0);
        assert.ok(Math.abs(drafted.perPass - drafted.tokens / drafted.passes) < 0.01);
        const plain = await write('none', 3);
        assert.equal(plain.text, drafted.text);
        assert.deepEqual([plain.marked, plain.counts['plain'], plain.perPass], [0, plain.tokens, 1]);
        const underlines = () => page.evaluate(() => getComputedStyle(/** @type {Element} */ (document.querySelector('.by.ngram'))).textDecorationLine);
        assert.equal(await underlines(), 'underline');
        await page.puppeteer.click('#show-sources');
        assert.equal(await underlines(), 'none');
        assert.deepEqual(page.errors, []);
      }));

    test('Enter writes, Escape stops, the settings apply, Clear clears', () =>
      visit({ width: 1280, height: 800 }, async (page) => {
        await finished(page, 1);
        const { puppeteer } = page;
        await page.evaluate(() => {
          /** @type {any} */ (document.querySelector('#settings-panel')).open = true;
          /** @type {any} */ (document.querySelector('#maxTokens')).value = '5';
          /** @type {any} */ (document.querySelector('#prompt')).value = '';
        });
        await puppeteer.type('#prompt', 'Lily saw a dog');
        await puppeteer.keyboard.press('Enter');
        await finished(page, 2);
        assert.match((await page.evaluate(() => document.querySelectorAll('.entry footer')[1]?.textContent)) ?? '', /most tokens reached · 5 tokens/);
        await page.evaluate(() => (/** @type {any} */ (document.querySelector('#maxTokens')).value = '400'));
        await puppeteer.keyboard.press('Enter');
        await puppeteer.waitForSelector('.entry[aria-busy=true]');
        await puppeteer.keyboard.press('Escape');
        await finished(page, 3);
        assert.match((await page.evaluate(() => document.querySelectorAll('.entry footer')[2]?.textContent)) ?? '', /stopped|the end/);
        await puppeteer.click('#clear');
        await puppeteer.waitForFunction(() => document.querySelectorAll('.entry').length === 0);
        assert.deepEqual(page.errors, []);
      }));

    test('a turn can be written again, and edited', () =>
      visit({ width: 1280, height: 800 }, async (page) => {
        await finished(page, 1);
        const { puppeteer } = page;
        const text = () => page.evaluate(() => document.querySelector('.entry .text')?.textContent ?? '');
        await page.evaluate(() => {
          /** @type {any} */ (document.querySelector('#maxTokens')).value = '12';
          /** @type {any} */ (document.querySelector('#temperature')).value = '0';
        });
        const first = await text();
        await press(page, 'Again');
        await finished(page, 1);
        const again = await text();
        assert.ok(again.startsWith('Once upon a time,') && again.length < first.length, again);
        await press(page, 'Edit');
        await puppeteer.waitForSelector('.edit textarea');
        assert.equal(await page.evaluate(() => document.activeElement?.tagName), 'TEXTAREA');
        await puppeteer.keyboard.press('Escape');
        assert.equal(await page.evaluate(() => document.activeElement?.textContent), 'Edit');
        await press(page, 'Edit');
        await puppeteer.type('.edit textarea', ' Tom ran.');
        await puppeteer.keyboard.press('Enter');
        await puppeteer.waitForFunction(() => document.querySelector('.edit') === null);
        await finished(page, 1);
        assert.match(await text(), /^Once upon a time Tom ran\../);
        assert.deepEqual(page.errors, []);
      }));

    test('a race writes the same text twice, and says so', () =>
      visit({ width: 1280, height: 800 }, async (page) => {
        await finished(page, 1);
        await page.evaluate(() => {
          /** @type {any} */ (document.querySelector('#maxTokens')).value = '40';
          /** @type {any} */ (document.querySelector('#seed')).value = '3';
        });
        await page.puppeteer.click('#race');
        await finished(page, 2);
        const lanes = () =>
          page.evaluate(() => [...document.querySelectorAll('.lane')].map((lane) => ['h2', '.clock', '.text'].map((part) => lane.querySelector(part)?.textContent ?? '')));
        const [plain = [], drafted = []] = await lanes();
        assert.deepEqual([plain[0], drafted[0]], ['Plain', 'Drafted']);
        assert.ok(plain[2] !== undefined && plain[2].length > 40);
        assert.equal(drafted[2], plain[2]);
        assert.match(plain[1] ?? '', /^40 tokens in .* 1\.00 a pass$/);
        const said = await page.evaluate(() => [document.querySelector('.race .verdict')?.textContent, document.querySelector('[role=status]')?.textContent]);
        assert.match(said[0] ?? '', /^Drafting was [\d.]+ times as fast, with the same tokens\.$/);
        assert.equal(said[1], said[0]);
        await press(page, 'See both together');
        await page.puppeteer.waitForFunction(
          (text, clock) => [...document.querySelectorAll('.lane')].every((lane) => lane.querySelector('.text')?.textContent === text) && document.querySelector('.clock')?.textContent === clock,
          { timeout: 60_000 }, plain[2], plain[1],
        );
        assert.deepEqual(page.errors, []);
      }));

    test('shows the last draft trees, and how fast they were', () =>
      visit({ width: 1280, height: 800 }, async (page) => {
        await finished(page, 1);
        await page.evaluate(() => {
          /** @type {any} */ (document.querySelector('#passes-panel')).open = true;
          /** @type {any} */ (document.querySelector('#maxTokens')).value = '60';
          /** @type {any} */ (document.querySelector('#tree')).value = '2,1';
        });
        await page.puppeteer.click('#send');
        await finished(page, 2);
        const seen = await page.evaluate(() => ({
          passes: [...document.querySelectorAll('#passes-list > li')].map((pass) =>
            [...pass.querySelectorAll('.token:not(.root)')].map((token) => ({
              source: token.classList.item(1),
              text: token.querySelector('.word')?.textContent ?? '',
              percent: Number.parseInt(token.querySelector('small')?.textContent ?? '', 10),
              accepted: token.classList.contains('accepted'),
            })),
          ),
          text: document.querySelectorAll('.entry .text')[1]?.textContent ?? '',
          chart: document.querySelectorAll('#live-chart canvas').length,
          key: document.querySelector('#live-key')?.textContent,
        }));
        assert.ok(seen.passes.length > 1 && seen.passes.length <= 8, String(seen.passes.length));
        // Two guesses, one below each, and the model's own token.
        for (const pass of seen.passes) {
          const guesses = pass.filter(({ source }) => source !== 'plain');
          assert.ok(guesses.length <= 4 && guesses.every(({ percent }) => percent >= 0 && percent <= 100), JSON.stringify(pass));
        }
        for (const pass of seen.passes.slice(0, -1)) assert.equal(pass.filter(({ accepted }) => accepted).at(-1)?.source, 'plain');
        assert.ok(seen.passes.flat().some(({ accepted }) => !accepted), 'guesses that were wrong are shown');
        const end = seen.passes.flat().filter(({ accepted }) => accepted).map(({ text }) => text.replaceAll('␣', ' ').replaceAll('↵', '\n').replace('·', '')).join('');
        assert.ok(seen.text.endsWith(end), `${seen.text} ends with ${end}`);
        assert.deepEqual([seen.chart, seen.key], [1, 'tokens/stokens/pass']);
        assert.deepEqual(page.errors, []);
      }));

    test('a file that is no model gives a readable error, and the old model stays', () =>
      visit({ width: 1280, height: 800 }, async (page) => {
        await finished(page, 1);
        await page.evaluate(() => {
          const files = new DataTransfer();
          files.items.add(new File(['this is no model, only a text'], 'text.gguf'));
          dispatchEvent(Object.assign(new DragEvent('dragenter', { dataTransfer: files, cancelable: true })));
          dispatchEvent(new DragEvent('drop', { dataTransfer: files, cancelable: true }));
        });
        await page.puppeteer.waitForFunction(() => document.querySelector('#error')?.checkVisibility());
        assert.equal(await page.evaluate(() => document.querySelector('#error-code')?.textContent), 'bad_model_file');
        assert.equal(await page.evaluate(() => document.querySelector('#drop')?.checkVisibility()), false);
        await page.puppeteer.click('#error-close');
        await page.puppeteer.click('#send');
        await finished(page, 2);
        assert.deepEqual(page.errors, []);
      }));

    test('fits a phone', () =>
      visit({ width: 390, height: 844 }, async (page) => {
        await finished(page, 1);
        const width = await page.evaluate(() => document.documentElement.scrollWidth);
        assert.ok(width <= 390);
        const small = await page.evaluate(() =>
          [...document.querySelectorAll('main button, main input:not([type=checkbox]), main select')]
            .filter((element) => element.checkVisibility() && element.getBoundingClientRect().height < 32)
            .map((element) => element.id || element.textContent),
        );
        assert.deepEqual(small, []);
      }));

    test('everything that can be operated has a name', () =>
      visit({ width: 1280, height: 800 }, async (page) => {
        const nameless = await page.evaluate(() =>
          [...document.querySelectorAll('button, input, select, textarea, [role=log], aside, main > section')]
            .filter((element) => {
              const labels = /** @type {any} */ (element).labels ?? [];
              return !(element.getAttribute('aria-label') || element.getAttribute('aria-labelledby') || labels.length > 0 || element.textContent?.trim());
            })
            .map((element) => element.outerHTML),
        );
        assert.deepEqual(nameless, []);
      }));
  });
}
