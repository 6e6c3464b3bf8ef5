// @ts-check
/**
 * The built package in real browsers: worker, wasm, GPU, streams and the origin's file system, on the model that comes with the page.
 */
import assert from 'node:assert/strict';
import { createHash } from 'node:crypto';
import { readFileSync } from 'node:fs';
import { copyFile, mkdtemp, rm, utimes } from 'node:fs/promises';
import os from 'node:os';
import path from 'node:path';
import { after, before, describe, test } from 'node:test';
import { browserNames, launch, root, serve } from './browsers.mjs';

const model = '/models/stories260K/stories260K-q8_0.gguf';
const modelUrl = new RegExp(`^${path.posix.dirname(model)}/.*\\.gguf$`);

/** A hub with two repositories of this model, of which one promises another digest. */
const sha256 = createHash('sha256').update(readFileSync(path.join(root, model))).digest('hex');
const listing = (/** @type {string} */ digest) =>
  JSON.stringify({ siblings: [{ rfilename: 'README.md', size: 1 }, { rfilename: 'stories260K-q8_0.gguf', lfs: { sha256: digest } }] });
const hubPages = { '/api/models/org/good/revision/main': listing(sha256), '/api/models/org/bad/revision/main': listing('0'.repeat(64)) };

/** What a page offers to the functions that run in it; see {@link prepare}. @typedef {any} InPage */

/** Runs in the page: puts what the tests need within their reach. */
async function prepare() {
  const { load, modelCache } = await import(/** @type {any} */ ('/pkg/index.js'));
  Object.assign(globalThis, {
    load,
    modelCache,
    textOf: async (/** @type {AsyncIterable<{ text: string }>} */ generation) => {
      let text = '';
      for await (const chunk of generation) text += chunk.text;
      return text;
    },
    /** The code of the error that `work` must end with. */
    codeOf: async (/** @type {Promise<unknown>} */ work) => {
      try {
        await work;
        return 'no error';
      } catch (error) {
        const { code, message, name } = /** @type {any} */ (error);
        return { code, message, name };
      }
    },
  });
}

for (const browserName of browserNames) {
  describe(`the package in ${browserName}`, { timeout: 300_000 }, () => {
    /** @type {Awaited<ReturnType<typeof launch>>} */
    let browser;
    /** @type {Awaited<ReturnType<typeof serve>>} */
    let server;
    /** @type {Awaited<ReturnType<typeof browser.newPage>>} */
    let page;
    /** @type {string[]} */
    let requests = [];
    /** A folder with a copy of the model that a test may touch. */
    let folder = '';

    before(async () => {
      folder = await mkdtemp(path.join(os.tmpdir(), 'draftree-package-'));
      await copyFile(path.join(root, model), path.join(folder, 'changing.gguf'));
      const models = `${path.dirname(path.join(root, model))}/`;
      server = await serve(root, {
        pages: { '/blank': '<!doctype html><title>blank</title>', ...hubPages },
        mounts: { '/changing/': `${folder}/`, '/org/good/resolve/main/': models, '/org/bad/resolve/main/': models },
        log: (line) => requests.push(line),
      });
      browser = await launch(browserName);
    });
    after(async () => {
      await browser?.close();
      await server?.close();
      await rm(folder, { recursive: true, force: true });
    });

    /** @param {() => Promise<void>} body */
    const inPage = (body) => async () => {
      page = await browser.newPage();
      await page.goto(`${server.url}/blank`);
      await page.evaluate(prepare);
      await page.evaluate(() => /** @type {InPage} */ (globalThis).modelCache.clear());
      requests = [];
      server.faults.length = 0;
      try {
        await body();
      } finally {
        await page.close();
      }
    };
    const modelRequests = () => requests.filter((line) => line.endsWith(model));

    test('loads from a URL, streams, and tells what it did', inPage(async () => {
      const seen = await page.evaluate(async (model) => {
        const { load } = /** @type {InPage} */ (globalThis);
        /** @type {any[]} */
        const progress = [];
        const loaded = await load(model, { onProgress: (/** @type {any} */ each) => progress.push(each) });
        const generation = loaded.generate('Once upon a time', { maxTokens: 20 });
        /** @type {{ text: string, tokens: number[] }[]} */
        const chunks = [];
        for await (const chunk of generation) chunks.push(chunk);
        const result = await generation.result;
        const tokens = await loaded.tokenize('Once upon a time');
        const text = await loaded.detokenize(tokens);
        const count = await loaded.countTokens('Once upon a time');
        await loaded.dispose();
        return { info: loaded.info, progress, chunks, result, tokens: [...tokens], text, count };
      }, model);
      const { chunks, result, info } = seen;
      assert.equal(chunks.map(({ text }) => text).join(''), result.text);
      assert.deepEqual(chunks.flatMap(({ tokens }) => tokens), result.tokens);
      assert.equal(result.tokens.length, 20);
      assert.equal(result.finishReason, 'length');
      assert.equal(result.usage.completionTokens, 20);
      assert.equal(result.usage.totalTokens, 20 + result.usage.promptTokens);
      assert.equal(seen.count, seen.tokens.length);
      assert.match(seen.text, /Once upon a time/);
      assert.equal(info.hasChatTemplate, false);
      assert.ok(info.contextLength > 0 && info.adapter !== undefined);
      assert.deepEqual([...new Set(seen.progress.map(({ stage }) => stage))].slice(0, 3), ['download', 'weights', 'compile']);
      for (const { loaded, total } of seen.progress) assert.ok(loaded <= total);
    }));

    test('loads from a File, on the calling thread too, with the same text', inPage(async () => {
      const texts = await page.evaluate(async (model) => {
        const { load, textOf } = /** @type {InPage} */ (globalThis);
        const file = new File([await (await fetch(model)).blob()], 'model.gguf');
        const texts = [];
        for (const [source, options] of [[file, {}], [[file], { worker: false }], [model, { worker: false }], [model, { cache: false }]]) {
          const loaded = await load(source, options);
          texts.push(await textOf(loaded.generate('Once upon a time', { maxTokens: 16 })));
          await loaded.dispose();
        }
        return texts;
      }, model);
      assert.ok((texts[0]?.length ?? 0) > 10);
      assert.deepEqual(new Set(texts).size, 1);
    }));

    test('break, abort(), signal, stream: each stops the model and leaves it usable', inPage(async () => {
      const seen = await page.evaluate(async (model) => {
        const { load, textOf, codeOf } = /** @type {InPage} */ (globalThis);
        const loaded = await load(model);
        const short = () => textOf(loaded.generate('Once upon a time', { maxTokens: 12 }));
        const whole = await short();

        const broken = loaded.generate('Once upon a time', { maxTokens: 200 });
        for await (const _ of broken) break;
        const afterBreak = await short();

        const aborted = loaded.generate('Once upon a time', { maxTokens: 200 });
        await aborted.next();
        void aborted.abort();
        const afterAbort = await short();

        const controller = new AbortController();
        const signalled = loaded.generate('Once upon a time', { maxTokens: 200, signal: controller.signal });
        await signalled.next();
        controller.abort();
        const signalCode = await codeOf(signalled.next());
        const signalResult = await codeOf(signalled.result);
        const afterSignal = await short();

        const stream = loaded.generate('Once upon a time', { maxTokens: 12 }).toReadableStream();
        let streamed = '';
        const reader = stream.getReader();
        for (let piece; !(piece = await reader.read()).done; ) streamed += piece.value.text;
        const cancelled = loaded.generate('Once upon a time', { maxTokens: 200 }).toReadableStream();
        await cancelled.cancel();
        const afterCancel = await short();

        const first = loaded.generate('Once upon a time', { maxTokens: 12 });
        await first.next();
        const busy = [await codeOf(loaded.generate('Lily').result), await codeOf(loaded.nextLogits([1])), await codeOf(loaded.reset())];
        const afterBusy = (await first.result).text;
        const results = [await broken.result, await aborted.result].map(({ finishReason, text }) => ({ finishReason, text }));
        await loaded.dispose();
        const disposed = [await codeOf(loaded.generate('Lily').result), await codeOf(loaded.tokenize('Lily'))];
        return { whole, texts: [afterBreak, afterAbort, afterSignal, streamed, afterCancel, afterBusy], results, signalCode, signalResult, busy, disposed };
      }, model);
      assert.ok(seen.whole.length > 5);
      assert.deepEqual(seen.texts, seen.texts.map(() => seen.whole));
      for (const { finishReason } of seen.results) assert.equal(finishReason, 'aborted');
      assert.equal(seen.signalCode.code, 'aborted');
      assert.equal(seen.signalResult.code, 'aborted');
      assert.deepEqual(seen.busy.map(({ code }) => code), ['busy', 'busy', 'busy']);
      assert.deepEqual(seen.disposed.map(({ code }) => code), ['disposed', 'disposed']);
    }));

    test('a prompt that goes on from the last one reuses what the model knows of it', inPage(async () => {
      const usages = await page.evaluate(async (model) => {
        const { load } = /** @type {InPage} */ (globalThis);
        const loaded = await load(model);
        const run = async (/** @type {string} */ prompt) => (await loaded.generate(prompt, { maxTokens: 8 }).result).usage;
        const usages = [await run('Once upon a time'), await run('Once upon a time'), await run('Once upon a time there was a dog')];
        await loaded.reset();
        usages.push(await run('Once upon a time'));
        await loaded.dispose();
        return usages;
      }, model);
      const [cold, again, longer, reset] = usages.map(({ reusedPromptTokens }) => reusedPromptTokens);
      assert.equal(cold, 0);
      assert.ok(again > 0 && longer > 0);
      assert.equal(reset, 0);
    }));

    test('bad input is a typed error', inPage(async () => {
      const codes = await page.evaluate(async (model) => {
        const { load, codeOf } = /** @type {InPage} */ (globalThis);
        const loaded = await load(model);
        const codes = {
          option: await codeOf(loaded.generate('x', { maxTokenz: 3 }).result),
          value: await codeOf(loaded.generate('x', { maxTokens: 0 }).result),
          prompt: await codeOf(loaded.generate(7).result),
          missing: await codeOf(load('/models/none.gguf')),
          wasm: await codeOf(load(model, { wasmUrl: '/none.wasm' })),
          garbage: await codeOf(load(new File(['not a model at all, only text'], 'model.gguf'))),
          empty: await codeOf(load(new File([], 'model.gguf'))),
          template: await codeOf(loaded.generate([{ role: 'user', content: 'hi' }]).result),
          long: await codeOf(loaded.generate('Once upon a time. '.repeat(400)).result),
        };
        await loaded.dispose();
        return codes;
      }, model);
      const expected = {
        option: 'invalid_option', value: 'invalid_option', prompt: 'invalid_option', missing: 'load_failed', wasm: 'load_failed',
        garbage: 'bad_model_file', empty: /bad_model_file|truncated_file/, template: 'bad_chat_template', long: 'prompt_too_long',
      };
      for (const [name, code] of Object.entries(expected)) {
        const found = /** @type {Record<string, any>} */ (codes)[name];
        if (code instanceof RegExp) assert.match(found.code, code, name);
        else assert.equal(found.code, code, `${name}: ${found.message}`);
        assert.equal(found.name, 'DraftreeError');
      }
      assert.match(codes.option.message, /maxTokens/);
      assert.match(codes.missing.message, /none\.gguf.*404/);
    }));

    test('a browser without WebGPU, or without an adapter, is told so', inPage(async () => {
      const codes = await page.evaluate(async (model) => {
        const { load, codeOf } = /** @type {InPage} */ (globalThis);
        const gpu = /** @type {any} */ (navigator).gpu;
        Object.defineProperty(gpu, 'requestAdapter', { value: async () => null, configurable: true });
        const noAdapter = await codeOf(load(model, { worker: false }));
        Object.defineProperty(navigator, 'gpu', { value: undefined, configurable: true });
        const noGpu = await codeOf(load(model));
        return { noAdapter, noGpu };
      }, model);
      assert.equal(codes.noGpu.code, 'webgpu_unavailable');
      assert.equal(codes.noAdapter.code, 'no_adapter');
    }));

    test('a second load comes from the cache, also when the server is down', inPage(async () => {
      const loadOnce = () =>
        page.evaluate(async (model) => {
          const { load, modelCache } = /** @type {InPage} */ (globalThis);
          /** @type {Set<string>} */
          const stages = new Set();
          const loaded = await load(model, { heads: null, onProgress: (/** @type {any} */ { stage }) => stages.add(stage) });
          await loaded.dispose();
          return { stages: [...stages], cached: await modelCache.list() };
        }, model);
      const first = await loadOnce();
      assert.ok(first.stages.includes('download'));
      assert.deepEqual(first.cached.map((/** @type {any} */ { url, complete }) => ({ url, complete })), [{ url: server.url + model, complete: true }]);
      assert.deepEqual(modelRequests(), [`200 GET ${model}`]);

      const second = await loadOnce();
      assert.ok(!second.stages.includes('download'));
      assert.deepEqual(modelRequests(), [`200 GET ${model}`, `200 HEAD ${model}`]);

      server.faults.push({ match: modelUrl, status: 503 });
      assert.ok(!(await loadOnce()).stages.includes('download'));
      server.faults.length = 0;

      const left = await page.evaluate(async (model) => {
        const { modelCache } = /** @type {InPage} */ (globalThis);
        return { deleted: await modelCache.delete(model), left: await modelCache.list() };
      }, model);
      assert.deepEqual(left, { deleted: 1, left: [] });
      assert.ok((await loadOnce()).stages.includes('download'));
    }));

    test('what passes cost is measured once, and again when the record is of no use', inPage(async () => {
      const seen = await page.evaluate(async (model) => {
        const { load } = /** @type {InPage} */ (globalThis);
        const folder = await (await navigator.storage.getDirectory()).getDirectoryHandle('draftree');
        const costsOnce = async () => {
          const loaded = await load(model, { heads: null });
          await loaded.dispose();
          return loaded.info.passMs;
        };
        /** The record of the model's file, changed if there is a change. */
        const record = async (change = /** @type {((record: any) => void) | undefined} */ (undefined)) => {
          for await (const [name, handle] of /** @type {any} */ (folder).entries()) {
            if (!name.endsWith('.record')) continue;
            const record = JSON.parse(await (await handle.getFile()).text());
            if (change === undefined) return record;
            change(record);
            const writable = await handle.createWritable();
            await writable.write(JSON.stringify(record));
            await writable.close();
          }
        };
        const first = await costsOnce();
        const kept = (await record()).note;
        const second = await costsOnce();
        /** @type {Record<string, any>[]} */
        const others = [];
        for (const change of /** @type {((note: any) => void)[]} */ ([
          (note) => (note.passMs = { 1: 7, 4: -7 }),
          (note) => Object.assign(note, { passMs: { 1: 7, 4: 7 }, adapter: 'another' }),
        ])) {
          await record((record) => change(record.note));
          others.push(await costsOnce());
        }
        await record((record) => (record.note = { version: kept.version, adapter: kept.adapter, passMs: { 1: 7, 4: 8 }, measuredAt: Date.now() }));
        return { first, kept, second, others, believed: await costsOnce() };
      }, model);
      const isMeasured = (/** @type {Record<string, number>} */ costs) =>
        Object.keys(costs).length > 1 && Object.values(costs).every((ms) => ms > 0 && ms !== 7);
      assert.ok(isMeasured(seen.first), JSON.stringify(seen.first));
      assert.deepEqual(seen.kept.passMs, seen.first);
      assert.deepEqual(seen.second, seen.first);
      for (const costs of seen.others) assert.ok(isMeasured(costs), JSON.stringify(costs));
      assert.deepEqual(seen.believed, { 1: 7, 4: 8 });
    }));

    test('a cached file is replaced when the server has another', inPage(async () => {
      const downloads = () =>
        page.evaluate(async () => {
          const { load } = /** @type {InPage} */ (globalThis);
          let downloads = false;
          const loaded = await load('/changing/changing.gguf', { onProgress: (/** @type {any} */ { stage }) => (downloads ||= stage === 'download') });
          await loaded.dispose();
          return downloads;
        });
      assert.deepEqual([await downloads(), await downloads()], [true, false]);
      await utimes(path.join(folder, 'changing.gguf'), 1, Math.random() * 1e9);
      assert.deepEqual([await downloads(), await downloads()], [true, false]);
    }));

    test('a repository of the hub is listed, checked by its digests, and loads again offline', inPage(async () => {
      const loadFrom = (/** @type {string} */ id) =>
        page.evaluate(async (id) => {
          const { load, codeOf } = /** @type {InPage} */ (globalThis);
          return codeOf(load(id, { hubUrl: '/' }).then((/** @type {any} */ loaded) => loaded.dispose()));
        }, id);
      assert.equal(await loadFrom('org/good'), 'no error');
      const bad = await loadFrom('org/bad');
      assert.equal(bad.code, 'load_failed');
      assert.match(bad.message, /sha256/);
      assert.equal((await loadFrom('org/none')).code, 'load_failed');
      assert.equal((await loadFrom('org/good:Q4_0')).code, 'load_failed');
      server.faults.push({ match: /^\/(api|org)\//, status: 503 });
      assert.equal(await loadFrom('org/good:Q8_0'), 'no error');
    }));

    test('a load that was stopped goes on where it stopped', inPage(async () => {
      server.faults.push({ match: modelUrl, bytesPerSecond: 200_000 });
      const stopped = await page.evaluate(async (model) => {
        const { load, codeOf, modelCache } = /** @type {InPage} */ (globalThis);
        const abort = new AbortController();
        const onProgress = (/** @type {any} */ { loaded }) => {
          if (loaded > 50_000) abort.abort();
        };
        const { code } = await codeOf(load(model, { signal: abort.signal, onProgress }));
        // The worker lets go of the file shortly after the promise rejects.
        await new Promise((resolve) => setTimeout(resolve, 500));
        return { code, cached: await modelCache.list() };
      }, model);
      assert.equal(stopped.code, 'aborted');
      assert.equal(stopped.cached[0].complete, false);
      assert.ok(stopped.cached[0].size > 0);

      server.faults.length = 0;
      const first = await page.evaluate(async (model) => {
        const { load } = /** @type {InPage} */ (globalThis);
        /** @type {number[]} */
        const sizes = [];
        const onProgress = (/** @type {any} */ { stage, loaded }) => stage === 'download' && sizes.push(loaded);
        await (await load(model, { onProgress })).dispose();
        return sizes[0];
      }, model);
      assert.equal(first, stopped.cached[0].size);
      assert.equal(modelRequests().at(-1), `206 GET ${model}`);
    }));

    test('connections that break, and servers without ranges or lengths, are coped with', inPage(async () => {
      const loadOnce = () =>
        page.evaluate(async (model) => {
          const { load, modelCache, textOf } = /** @type {InPage} */ (globalThis);
          await modelCache.clear();
          const loaded = await load(model);
          const text = await textOf(loaded.generate('Once upon a time', { maxTokens: 8 }));
          await loaded.dispose();
          return text;
        }, model);
      const whole = await loadOnce();
      for (const fault of [{ truncate: 150_000 }, { noRange: true, noLength: true }]) {
        server.faults.splice(0, 1, { match: modelUrl, ...fault });
        assert.equal(await loadOnce(), whole);
      }
      assert.ok(modelRequests().includes(`206 GET ${model}`));
    }));

    test('nothing went wrong unseen', inPage(async () => {
      const unhandled = await page.evaluate(async (model) => {
        const { load } = /** @type {InPage} */ (globalThis);
        /** @type {string[]} */
        const unhandled = [];
        addEventListener('unhandledrejection', (event) => unhandled.push(String(event.reason)));
        addEventListener('error', (event) => unhandled.push(event.message));
        const loaded = await load(model);
        loaded.generate('x', { maxTokenz: 1 });
        const generation = loaded.generate('Once upon a time');
        await generation.next();
        await loaded.dispose();
        await new Promise((resolve) => setTimeout(resolve, 100));
        return unhandled;
      }, model);
      assert.deepEqual(unhandled, []);
      assert.deepEqual(page.errors, []);
    }));
  });
}
