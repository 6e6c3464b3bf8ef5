// @ts-check
/** What is added to the core's device: the feature, and pipelines that are compiled in the background. */
import assert from 'node:assert/strict';
import { before, test } from 'node:test';
import { withFullDevices } from '../../pkg/gpu_device.js';

class FakeDevice {
  /** @type {(() => void)[]} */
  finish = [];
  /** @param {{ code: string }} descriptor */
  createShaderModule = ({ code }) => ({ code });
  /** @param {{ compute: { module: { code: string } } }} descriptor */
  createComputePipeline = ({ compute }) => `${compute.module.code} at once`;
  /** @param {{ compute: { module: { code: string } } }} descriptor */
  createComputePipelineAsync = ({ compute }) =>
    new Promise((resolve) => this.finish.push(() => resolve(`${compute.module.code} in the background`)));
  popErrorScope = async () => null;
}

class FakeAdapter {
  features = new Set(['subgroups']);
  /** @type {unknown} */
  asked;
  /** @param {unknown} descriptor */
  async requestDevice(descriptor) {
    this.asked = descriptor;
    return new FakeDevice();
  }
}

/** Lets what was promised by now go on. */
const turn = () => new Promise((resolve) => setImmediate(resolve));

before(() => Object.assign(globalThis, { GPUAdapter: FakeAdapter }));

test('a pipeline of a later time is compiled behind its error scope and handed out once', async () => {
  const plain = FakeAdapter.prototype.requestDevice;
  const adapter = new FakeAdapter();
  /** @type {any} */
  const device = await withFullDevices(() => adapter.requestDevice({ label: 'x', requiredFeatures: ['timestamp-query'] }));
  assert.deepEqual(adapter.asked, { label: 'x', requiredFeatures: ['timestamp-query', 'subgroups'] });
  assert.equal(FakeAdapter.prototype.requestDevice, plain, 'the page gets its own back');

  const descriptor = (/** @type {string} */ label) => ({ label, compute: { module: device.createShaderModule({ code: 'a' }) } });
  device.createComputePipeline(descriptor('kernel (later)'));
  let closed = false;
  const scope = device.popErrorScope().then(() => (closed = true));
  await turn();
  assert.equal(closed, false, 'the scope waits');
  for (const finish of device.finish) finish();
  await scope;
  assert.equal(device.createComputePipeline(descriptor('kernel')), 'a in the background');
  assert.equal(device.createComputePipeline(descriptor('kernel')), 'a at once');
});

test('pipelines of a later time are compiled in order, on half of the cores', async () => {
  for (const [hardwareConcurrency, lanes] of /** @type {const} */ ([[undefined, 1], [1, 1], [2, 1], [4, 2]])) {
    Object.defineProperty(globalThis, 'navigator', { value: { hardwareConcurrency }, configurable: true });
    /** @type {any} */
    const device = await withFullDevices(() => new FakeAdapter().requestDevice({}));
    for (const code of ['a', 'b', 'c']) device.createComputePipeline({ label: `${code} (later)`, compute: { module: { code } } });
    const done = device.popErrorScope();
    await turn();
    assert.equal(device.finish.length, lanes, `${hardwareConcurrency} cores`);
    while (device.finish.length > 0) {
      device.finish.shift()();
      await turn();
    }
    await done;
  }
});
