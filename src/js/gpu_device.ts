/**
 * What the core's device needs of WebGPU and wgpu's browser backend cannot ask for: the feature `subgroups`, and compilation in the
 * background. Both are added on the way from the core to the browser; without them the core works too, and slower.
 */

/** What is used of a shader module's and a pipeline's descriptor. */
interface ShaderDescriptor {
  code: string;
}
interface PipelineDescriptor {
  label?: string;
  compute: { module: object; entryPoint?: string; constants?: Record<string, number> };
}

/** What is used of a `GPUDevice`. */
interface Device {
  createShaderModule(descriptor: ShaderDescriptor): object;
  createComputePipeline(descriptor: PipelineDescriptor): object;
  createComputePipelineAsync(descriptor: PipelineDescriptor): Promise<object>;
  popErrorScope(): Promise<unknown>;
}

/** What is used of a `GPUAdapter`. */
interface Adapter {
  readonly features: ReadonlySet<string>;
  requestDevice(descriptor?: { requiredFeatures?: Iterable<string> }): Promise<Device>;
}

/** The end of the label of a pipeline that the core does not need yet; `LATER` in src/backend/gpu/kernels.rs. */
const LATER = ' (later)';

/** Runs `work`; devices that are made meanwhile have all that this module adds. */
export async function withFullDevices<T>(work: () => Promise<T>): Promise<T> {
  const adapters = (globalThis as { GPUAdapter?: { prototype: Adapter } }).GPUAdapter?.prototype;
  if (adapters === undefined) return work();
  const requestDevice = adapters.requestDevice;
  adapters.requestDevice = async function (this: Adapter, descriptor = {}) {
    const subgroups = this.features.has('subgroups') ? ['subgroups'] : [];
    const requiredFeatures = [...(descriptor.requiredFeatures ?? []), ...subgroups];
    return compilingLater(await requestDevice.call(this, { ...descriptor, requiredFeatures }));
  };
  try {
    return await work();
  } finally {
    adapters.requestDevice = requestDevice;
  }
}

/**
 * Lets a device compile pipelines without holding up what is submitted meanwhile, which `createComputePipeline` does for seconds. One
 * whose label ends in {@link LATER} is compiled in the background, and what is returned for it must not be used; the error scope
 * around the call closes when it is done, and the next call for the same shader returns it. They are compiled in order, no more of them at once
 * than leaves half of the processor to what does not wait for them.
 */
function compilingLater(device: Device): Device {
  const { createShaderModule, createComputePipeline, createComputePipelineAsync, popErrorScope } = device;
  const sources = new WeakMap<object, string>();
  const finished = new Map<string, object>();
  let compiling: Promise<void>[] = [];
  const lanes = Array.from({ length: Math.max(1, (globalThis.navigator?.hardwareConcurrency ?? 2) >> 1) }, () => Promise.resolve());
  let begun = 0;
  device.createShaderModule = (descriptor) => {
    const module = createShaderModule.call(device, descriptor);
    sources.set(module, descriptor.code);
    return module;
  };
  device.createComputePipeline = (descriptor) => {
    const { module, entryPoint, constants } = descriptor.compute;
    const key = JSON.stringify([sources.get(module), entryPoint, constants]);
    if (descriptor.label?.endsWith(LATER)) {
      const lane = begun++ % lanes.length;
      const done = (lanes[lane] ?? Promise.resolve()).then(() => createComputePipelineAsync.call(device, descriptor)).then(
        (pipeline) => void finished.set(key, pipeline),
        () => undefined, // The next call for it says why.
      );
      lanes[lane] = done;
      compiling.push(done);
      return {};
    }
    const pipeline = finished.get(key) ?? createComputePipeline.call(device, descriptor);
    finished.delete(key);
    return pipeline;
  };
  device.popErrorScope = async () => {
    const inScope = compiling;
    compiling = [];
    const error = await popErrorScope.call(device);
    await Promise.all(inScope);
    return error;
  };
  return device;
}
