// @ts-check
/**
 * A hundred generations leave memory as they found it: buffers on the GPU, the wasm module's memory, and the page's heap.
 *
 * On the calling thread, where the device's calls can be counted; what runs is the same as in a worker. In Chromium, which collects
 * garbage when it is told to.
 */
import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import { launch, root, serve } from './browsers.mjs';

const WARM_UP = 20;
const GENERATIONS = 100;
/** Staging buffers lie ready for the steps in flight: as many as happened to be unused when the last text ended. */
const STAGING = { buffers: 4, bytes: 4 * 16_384 };
/** Of a generation, at most: the browser's own records of what ran. */
const MOST_HEAP_BYTES = 2000;

/** @typedef {{ gpuBytes: number, gpuBuffers: number, bindGroups: number, wasmBytes: number, heapBytes: number }} Memory */

/** @type {Awaited<ReturnType<typeof launch>>} */
let browser;
/** @type {Awaited<ReturnType<typeof serve>>} */
let server;

before(async () => {
  server = await serve(root, { pages: { '/blank': '<!doctype html><title>blank</title><link rel="icon" href="data:,">' } });
  browser = await launch('chromium', { args: ['--js-flags=--expose-gc', '--enable-precise-memory-info'] });
});
after(async () => {
  await browser?.close();
  await server?.close();
});

/** Runs in the page: from here on counts what is alive on the GPU, not destroyed and not collected. */
function countGpuObjects() {
  const live = { gpuBytes: 0, gpuBuffers: 0, bindGroups: 0 };
  const { GPUDevice, GPUBuffer } = /** @type {any} */ (globalThis);
  const { createBuffer, createBindGroup } = GPUDevice.prototype;
  const { destroy } = GPUBuffer.prototype;
  const counted = new WeakSet();
  const forget = (/** @type {number} */ size) => {
    live.gpuBytes -= size;
    live.gpuBuffers--;
  };
  const buffers = new FinalizationRegistry(forget);
  const bindGroups = new FinalizationRegistry(() => live.bindGroups--);
  GPUDevice.prototype.createBuffer = function (/** @type {{ size: number }} */ descriptor) {
    const buffer = createBuffer.call(this, descriptor);
    live.gpuBytes += descriptor.size;
    live.gpuBuffers++;
    counted.add(buffer);
    buffers.register(buffer, descriptor.size, buffer);
    return buffer;
  };
  GPUBuffer.prototype.destroy = function () {
    if (counted.delete(this)) {
      buffers.unregister(this);
      forget(this.size);
    }
    return destroy.call(this);
  };
  GPUDevice.prototype.createBindGroup = function (/** @type {object} */ descriptor) {
    const group = createBindGroup.call(this, descriptor);
    live.bindGroups++;
    bindGroups.register(group, undefined);
    return group;
  };
  Object.assign(globalThis, { live });
}

/** Runs in the page: so many generations, of every kind in turn, and the memory they leave. @param {number} count @returns {Promise<Memory>} */
async function generate(count) {
  const { model, live, gc } = /** @type {any} */ (globalThis);
  const kinds = [
    { draft: 'auto' },
    { draft: 'none', temperature: 0.8 },
    { tree: 'dense:4,3,2', draft: ['ngram', 'recycling'], logprobs: 3 },
    { accept: 'rejection', temperature: 0.7, topK: 20, repetitionPenalty: 1.1 },
    { draft: 'auto', maxTokens: 100 },
  ];
  let wasmBytes = 0;
  for (let round = 0; round < count; round++) {
    const prompt = 'Once upon a time there was a dog. '.repeat(1 + (round % 3));
    const generation = model.generate(prompt, { maxTokens: 12, seed: round, ...kinds[round % kinds.length] });
    if (round % 4 === 3) for await (const _ of generation) break;
    else for await (const _ of generation);
    wasmBytes = (await generation.result).stats.peakWasmBytes;
  }
  for (let times = 0; times < 5; times++) {
    gc();
    await new Promise((resolve) => setTimeout(resolve, 50));
  }
  return { ...live, wasmBytes, heapBytes: /** @type {any} */ (performance).memory.usedJSHeapSize };
}

test('a hundred generations leave memory as they found it', { timeout: 300_000 }, async (t) => {
  const page = await browser.newPage();
  await page.goto(`${server.url}/blank`);
  await page.evaluate(countGpuObjects);
  await page.evaluate(async () => {
    const { load } = await import(/** @type {any} */ ('/pkg/index.js'));
    Object.assign(globalThis, { model: await load('/models/stories260K/stories260K-q8_0.gguf', { heads: null, worker: false, stepsInFlight: 4 }) });
  });
  const begin = await page.evaluate(generate, WARM_UP);
  const end = await page.evaluate(generate, GENERATIONS);
  await page.evaluate(() => /** @type {any} */ (globalThis).model.dispose());
  const tell = (/** @type {Memory} */ memory) => Object.entries(memory).map(([name, value]) => `${name} ${value.toLocaleString('en')}`).join(', ');
  t.diagnostic(`after ${WARM_UP} generations: ${tell(begin)}`);
  t.diagnostic(`after ${GENERATIONS} more:    ${tell(end)}`);
  assert.ok(begin.gpuBytes > 0 && begin.bindGroups > 0, 'the device that is counted is the one in use');
  assert.equal(end.wasmBytes, begin.wasmBytes);
  assert.equal(end.bindGroups, begin.bindGroups);
  assert.ok(end.gpuBuffers - begin.gpuBuffers <= STAGING.buffers && end.gpuBytes - begin.gpuBytes <= STAGING.bytes, 'buffers on the GPU grew');
  assert.ok(end.heapBytes - begin.heapBytes < GENERATIONS * MOST_HEAP_BYTES, 'the heap grew');
  assert.deepEqual(page.errors, []);
});
