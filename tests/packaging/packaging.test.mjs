// @ts-check
/**
 * The package as people get it: the tarball, installed unchanged into the kinds of project there are, writes known tokens in Chromium and
 * nothing to the console's errors.
 *
 * What a project needs besides comes from the npm registry and is kept; where it is neither kept nor reachable, that project is skipped.
 */
import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import { readdirSync, readFileSync } from 'node:fs';
import path from 'node:path';
import { after, before, describe, test } from 'node:test';
import { launch } from '../../scripts/browsers.mjs';
import { root } from '../../scripts/programs.mjs';
import { serve } from '../../scripts/serve.mjs';
import { addModel, install, modelFolder, pack, runTool, startVite } from './fixtures.mjs';

const TOKENS = 24;
const golden = JSON.parse(readFileSync(path.join(root, 'tests', 'data', 'stories260K-q8_0.json'), 'utf8'));
/** What every app writes after "Once upon a time". */
const known = golden.prompts.find((/** @type {{ name: string }} */ { name }) => name === 'once').greedy_ids.slice(0, TOKENS);

const STRICT_POLICY =
  "default-src 'none'; script-src 'self' 'wasm-unsafe-eval'; worker-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/** @typedef {{ url: string, close: () => Promise<void> }} Site */
/** @typedef {import('node:test').TestContext} TestContext */

describe('the packed package', { timeout: 600_000 }, () => {
  /** @type {Awaited<ReturnType<typeof launch>>} */
  let browser;
  let tarball = '';

  before(async () => {
    tarball = await pack();
    browser = await launch('chromium');
  });
  after(() => browser?.close());

  /**
   * A test of the package in the app of this name; skipped where its modules cannot be had.
   * @param {string} name @param {(folder: string) => Promise<void>} body
   */
  const inApp = (name, body) => async (/** @type {TestContext} */ t) => {
    const folder = await install(name, tarball);
    if (folder === undefined) return t.skip('its modules are not here and the npm registry cannot be reached');
    await body(folder);
  };

  /** @param {string} folder @param {Record<string, string>} [headers] */
  const serveFolder = (folder, headers = {}) => serve(folder, { headers, mounts: { '/model/': `${modelFolder}/` } });

  /**
   * What the page of a site writes into its `<output>`, and the errors of its console.
   * @param {Site} site
   */
  async function visit(site) {
    const page = await browser.newPage();
    try {
      await page.goto(`${site.url}/`);
      const output = await page.evaluate(async () => {
        for (const deadline = performance.now() + 90_000; performance.now() < deadline; await new Promise((resolve) => setTimeout(resolve, 50))) {
          const text = document.querySelector('output')?.textContent;
          if (text) return text;
        }
        return 'nothing was written in 90 s';
      });
      return { output, errors: page.errors };
    } finally {
      await page.close();
      await site.close();
    }
  }

  /** @param {Site} site */
  async function writesKnownTokens(site) {
    const { output, errors } = await visit(site);
    assert.equal(output, JSON.stringify(known), errors.join('\n'));
    assert.deepEqual(errors, []);
  }

  test('holds what was built', inApp('plain', async (folder) => {
    const installed = path.join(folder, 'node_modules', 'draftree');
    const files = (/** @type {string} */ place) => readdirSync(place, { recursive: true, withFileTypes: true }).filter((entry) => entry.isFile());
    const listed = (/** @type {string} */ place) => files(place).map(({ parentPath, name }) => path.relative(place, path.join(parentPath, name))).sort();
    const built = path.join(root, 'pkg');
    assert.deepEqual(listed(installed), listed(built));
    for (const file of listed(built)) assert.ok(readFileSync(path.join(installed, file)).equals(readFileSync(path.join(built, file))), file);
  }));

  test('runs in a page with an import map', inApp('plain', async (folder) => writesKnownTokens(await serveFolder(folder))));

  test('runs under a strict Content-Security-Policy', inApp('csp', async (folder) => {
    await writesKnownTokens(await serveFolder(folder, { 'Content-Security-Policy': STRICT_POLICY }));
  }));

  test('names the policy that keeps it from running', inApp('csp', async (folder) => {
    const policy = STRICT_POLICY.replace(" 'wasm-unsafe-eval'", '');
    const { output } = await visit(await serveFolder(folder, { 'Content-Security-Policy': policy }));
    assert.match(output, /^load_failed: .*Content.Security.Policy/i);
  }));

  test('runs in Vite’s development server', inApp('vite', async (folder) => {
    await addModel(folder);
    await writesKnownTokens(await startVite(folder));
  }));

  test('runs in what Vite builds', inApp('vite', async (folder) => {
    await runTool(folder, 'vite/bin/vite.js', 'build');
    await writesKnownTokens(await serveFolder(path.join(folder, 'dist')));
  }));

  test('runs in what webpack builds', inApp('webpack', async (folder) => {
    await runTool(folder, 'webpack-cli/bin/cli.js');
    await writesKnownTokens(await serveFolder(folder));
  }));

  test('runs in a client component of Next.js', inApp('next', async (folder) => {
    await runTool(folder, 'next/dist/bin/next', 'build');
    await writesKnownTokens(await serveFolder(path.join(folder, 'out')));
  }));

  test('runs as a language model of the AI SDK', inApp('ai-sdk', async (folder) => {
    await runTool(folder, 'vite/bin/vite.js', 'build');
    const { output, errors } = await visit(await serveFolder(path.join(folder, 'dist')));
    assert.deepEqual(errors, []);
    const { text, streamed, ...rest } = JSON.parse(output);
    assert.match(text, /^, there was a little girl/);
    assert.equal(streamed, text);
    assert.deepEqual({ ...rest, tokensPerPass: rest.tokensPerPass.every((/** @type {number} */ each) => each >= 1) }, {
      outputTokens: [TOKENS, TOKENS],
      finishReasons: ['length', 'length'],
      tokensPerPass: true,
    });
  }));

  test('can be imported on a server', inApp('plain', async (folder) => {
    const program = `const all = await Promise.all(['draftree', 'draftree/ai-sdk'].map((name) => import(name)));
      console.log(all.flatMap((module) => Object.keys(module)).join());
      await all[0].load('org/name').catch(({ code }) => console.log(code));`;
    const output = execFileSync(process.execPath, ['--input-type=module', '--eval', program], { cwd: folder, encoding: 'utf8' });
    assert.equal(output, 'DraftreeError,errorCodes,load,modelCache,draftree\nwebgpu_unavailable\n');
  }));

  test('has types that a strict project takes', inApp('types', async (folder) => {
    await runTool(root, 'typescript/bin/tsc', '-p', folder);
  }));
});
