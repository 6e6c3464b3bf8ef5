/**
 * WebGPU's `subgroups` for the core's device: wgpu's browser backend cannot ask for the feature, so it is added on the way to the
 * browser. The core finds out by itself whether it got it.
 */

/** What is used of a `GPUAdapter`. */
interface Adapter {
  readonly features: ReadonlySet<string>;
  requestDevice(descriptor?: { requiredFeatures?: Iterable<string> }): Promise<unknown>;
}

/** Runs `work`, during which devices are made with the feature where their adapter has it. */
export async function withSubgroups<T>(work: () => Promise<T>): Promise<T> {
  const adapters = (globalThis as { GPUAdapter?: { prototype: Adapter } }).GPUAdapter?.prototype;
  if (adapters === undefined) return work();
  const requestDevice = adapters.requestDevice;
  adapters.requestDevice = function (this: Adapter, descriptor = {}) {
    const wanted = [...(descriptor.requiredFeatures ?? []), ...(this.features.has('subgroups') ? ['subgroups'] : [])];
    return requestDevice.call(this, { ...descriptor, requiredFeatures: wanted });
  };
  try {
    return await work();
  } finally {
    adapters.requestDevice = requestDevice;
  }
}
