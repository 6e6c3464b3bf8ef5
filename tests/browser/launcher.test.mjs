// @ts-check
/** The launcher itself: both browsers give a WebGPU device that computes, pass messages and errors on, and are killed when they hang. */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { browserNames, launch, openSession } from './browsers.mjs';

/** Runs in the page: doubles 64 numbers on the GPU, inside a worker-less page. */
async function doubleOnGpu() {
  const adapter = await navigator.gpu.requestAdapter();
  if (!adapter) throw new Error('no adapter');
  const device = await adapter.requestDevice();
  const code = `@group(0) @binding(0) var<storage, read_write> values: array<f32>;
    @compute @workgroup_size(64) fn main(@builtin(global_invocation_id) id: vec3u) { values[id.x] *= 2.0; }`;
  const pipeline = device.createComputePipeline({ layout: 'auto', compute: { module: device.createShaderModule({ code }) } });
  const { GPUBufferUsage: usage, GPUMapMode: mode } = /** @type {any} */ (globalThis);
  const { STORAGE, COPY_SRC, COPY_DST, MAP_READ } = usage;
  const values = device.createBuffer({ size: 256, usage: STORAGE | COPY_SRC | COPY_DST });
  const readback = device.createBuffer({ size: 256, usage: MAP_READ | COPY_DST });
  device.queue.writeBuffer(values, 0, Float32Array.from({ length: 64 }, (_, i) => i));
  const encoder = device.createCommandEncoder();
  const pass = encoder.beginComputePass();
  pass.setPipeline(pipeline);
  pass.setBindGroup(0, device.createBindGroup({ layout: pipeline.getBindGroupLayout(0), entries: [{ binding: 0, resource: { buffer: values } }] }));
  pass.dispatchWorkgroups(1);
  pass.end();
  encoder.copyBufferToBuffer(values, 0, readback, 0, 256);
  device.queue.submit([encoder.finish()]);
  await readback.mapAsync(mode.READ);
  return [...new Float32Array(readback.getMappedRange())];
}

for (const browser of browserNames) {
  test(`${browser} computes on WebGPU and talks`, async () => {
    const session = await openSession({ browser, isolate: true });
    try {
      const { page } = session;
      assert.match(session.browser.version, browser === 'firefox' ? /^Firefox \d+/ : /^Chromium \d+/);
      assert.deepEqual(await page.evaluate(doubleOnGpu), Array.from({ length: 64 }, (_, i) => 2 * i));
      /** @type {number[]} */
      const messages = [];
      page.onMessage((message) => messages.push(message));
      const isolated = await page.evaluate((count) => {
        for (let i = 0; i < count; i++) /** @type {any} */ (globalThis).sendMessage(i);
        return crossOriginIsolated;
      }, 100);
      assert.equal(isolated, true);
      assert.deepEqual(messages, Array.from({ length: 100 }, (_, i) => i));
      const thrown = page.evaluate(() => Promise.reject(Object.assign(new Error('bad'), { name: 'DraftreeError', code: 'busy' })));
      await assert.rejects(thrown, { name: 'DraftreeError', code: 'busy', message: 'bad' });
      assert.deepEqual(page.errors, []);
      await page.evaluate(() => console.error('wrong'));
      assert.deepEqual(page.errors, ['wrong']);
    } finally {
      await session.close();
    }
  });

  test(`${browser} is killed when it hangs`, async () => {
    const hung = await launch(browser, { timeoutMs: 8000 });
    try {
      const page = await hung.newPage();
      await assert.rejects(page.evaluate(() => new Promise(() => {})), { code: 'browser_timeout' });
    } finally {
      await hung.close();
    }
    assert.throws(() => process.kill(Number(hung.pid), 0), { code: 'ESRCH' });
  });
}
