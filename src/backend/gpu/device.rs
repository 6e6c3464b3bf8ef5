//! Adapter, device, and what they can do; the one place that hears of errors and of a lost device.

use std::sync::{Arc, Mutex};

use crate::error::{Error, ErrorCode, Result};
use crate::model::packing::PackedFormat;

/// A device with its queue. Cheap to clone; all clones are the same device.
#[derive(Debug, Clone)]
pub struct Gpu {
    /// Makes buffers and pipelines.
    pub device: wgpu::Device,
    /// Takes work.
    pub queue: wgpu::Queue,
    /// What the device can do.
    pub caps: DeviceCaps,
    fault: Arc<Mutex<Option<Error>>>,
}

/// What kernels and buffers are fitted to, read once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceCaps {
    /// The adapter in words.
    pub description: String,
    /// The API beneath.
    pub backend: String,
    /// Whether a processor emulates the device: small workgroups then share its cores better.
    pub software: bool,
    /// Invocations of a workgroup in kernels that do not fix it.
    pub workgroup: u32,
    /// Whether four neighbouring invocations are to share what they load; see [`shares_loads`](Self::shares_loads).
    pub quads: bool,
    /// Whether it is a browser's device: it compiles in the background when asked to (src/js/gpu_device.ts), since it would hold up all
    /// work otherwise.
    pub browser: bool,
    /// Largest part of a buffer that one binding can show, in bytes.
    pub max_binding_bytes: u64,
    /// Whether passes can be timed on the device.
    pub timestamps: bool,
}

impl Gpu {
    /// The best device of this machine.
    ///
    /// # Errors
    /// `NoAdapter` when there is none, `LoadFailed` when the adapter gives no device.
    pub async fn request() -> Result<Self> {
        Self::request_known_as("").await
    }

    /// The same, where the caller knows more of the adapter's name than wgpu tells, as in browsers.
    ///
    /// # Errors
    /// As [`request`](Self::request).
    pub async fn request_known_as(name: &str) -> Result<Self> {
        let instance = wgpu::Instance::new(wgpu::InstanceDescriptor::new_without_display_handle());
        let adapter = instance
            .request_adapter(&wgpu::RequestAdapterOptions {
                power_preference: wgpu::PowerPreference::HighPerformance,
                ..Default::default()
            })
            .await
            .map_err(|e| {
                Error::new(
                    ErrorCode::NoAdapter,
                    format!(
                        "no WebGPU adapter was found ({e}); turn on hardware acceleration in the browser, update the \
                         graphics driver, or on a machine without a GPU install a software driver"
                    ),
                )
            })?;
        let features = adapter.features() & (wgpu::Features::TIMESTAMP_QUERY | wgpu::Features::SUBGROUP);
        let limits = adapter.limits();
        let (device, queue) = adapter
            .request_device(&wgpu::DeviceDescriptor {
                label: Some("draftree"),
                required_features: features,
                required_limits: limits.clone(),
                ..Default::default()
            })
            .await
            .map_err(|e| Error::new(ErrorCode::NoAdapter, format!("the WebGPU adapter gave no device: {e}")))?;
        let mut caps =
            DeviceCaps::new(&adapter.get_info(), &limits, features.contains(wgpu::Features::TIMESTAMP_QUERY));
        // llvmpipe finds out by itself that neighbours load the same. A browser whose compiler refuses says so on the page's console,
        // so only the one that is known to understand is asked.
        let may_gain = match caps.browser {
            true => name.to_lowercase().contains("swiftshader"),
            false => caps.software && !caps.description.contains("llvmpipe"),
        };
        if may_gain && caps.has_quad_operations(&device, features).await {
            caps.quads = true;
            caps.workgroup = 4;
        }
        let fault = Arc::new(Mutex::new(None));
        remember_faults(&device, &fault);
        Ok(Self { device, queue, caps, fault })
    }

    /// The first fault the device reported, if any.
    ///
    /// # Errors
    /// `DeviceLost`, `OutOfMemory`, or `Internal` for a validation error.
    pub fn check(&self) -> Result<()> {
        match self.fault.lock() {
            Ok(fault) => fault.clone().map_or(Ok(()), Err),
            Err(_) => Err(Error::new(ErrorCode::Internal, "the device's error handler failed")),
        }
    }

    /// Watches for what the device says of the calls from now on, until [`Watch::report`].
    pub fn watch(&self) -> Watch {
        Watch {
            gpu: self.clone(),
            memory: self.device.push_error_scope(wgpu::ErrorFilter::OutOfMemory),
            validation: self.device.push_error_scope(wgpu::ErrorFilter::Validation),
        }
    }

    /// Runs `allocate` and waits for what the device says of it.
    ///
    /// # Errors
    /// As [`Watch::report`].
    pub async fn scoped<T>(&self, what: &str, allocate: impl FnOnce() -> T) -> Result<T> {
        let watch = self.watch();
        let result = allocate();
        watch.report(what).await?;
        Ok(result)
    }

    /// A buffer for kernels, zeroed.
    pub fn storage(&self, label: &str, bytes: u64) -> wgpu::Buffer {
        let usage = wgpu::BufferUsages::STORAGE | wgpu::BufferUsages::COPY_DST | wgpu::BufferUsages::COPY_SRC;
        self.buffer(label, bytes, usage)
    }

    /// A uniform buffer with these contents.
    pub fn uniform<T: bytemuck::Pod>(&self, label: &str, value: &T) -> wgpu::Buffer {
        let usage = wgpu::BufferUsages::UNIFORM | wgpu::BufferUsages::COPY_DST;
        let buffer = self.buffer(label, size_of::<T>() as u64, usage);
        self.queue.write_buffer(&buffer, 0, bytemuck::bytes_of(value));
        buffer
    }

    /// A buffer that the CPU can read.
    pub fn staging(&self, bytes: u64) -> wgpu::Buffer {
        self.buffer("staging", bytes, wgpu::BufferUsages::MAP_READ | wgpu::BufferUsages::COPY_DST)
    }

    fn buffer(&self, label: &str, bytes: u64, usage: wgpu::BufferUsages) -> wgpu::Buffer {
        let size = bytes.max(16).next_multiple_of(16);
        self.device.create_buffer(&wgpu::BufferDescriptor {
            label: Some(label),
            size,
            usage,
            mapped_at_creation: false,
        })
    }
}

impl DeviceCaps {
    /// Whether four neighbouring invocations load a quarter of a product's inputs each and hand them round, by the quad operations of
    /// WebGPU's `subgroups`: where a processor emulates the device, a load costs as much as thirty multiplications.
    pub fn shares_loads(&self) -> bool {
        self.quads && self.workgroup.is_multiple_of(4)
    }

    /// Whether a thread is to take many queries through a committed chunk of attention: where a processor emulates the device, loads
    /// cost more than the registers of more sums, unless a head has so few values that code costs more than either.
    pub fn shares_chunks(&self, head_dim: usize) -> bool {
        self.software && head_dim >= 32
    }

    /// A shader's text as the device's compiler wants it: a browser's asks for the name of what a shader needs, naga refuses it.
    pub fn with_directives(&self, source: &str) -> String {
        let needed = self.browser && source.contains("quadSwap");
        format!("{}{source}", if needed { "enable subgroups;\n" } else { "" })
    }

    /// Whether shaders may use the quad operations. In a browser a shader that does is tried, because wgpu does not know of the feature
    /// there (src/js/gpu_device.ts asks for it).
    async fn has_quad_operations(&self, device: &wgpu::Device, features: wgpu::Features) -> bool {
        const PROBE: &str = "@group(0) @binding(0) var<storage, read_write> x: array<u32>;
            @compute @workgroup_size(4) fn probe(@builtin(local_invocation_index) i: u32) { x[i] = quadSwapX(i); }";
        if !self.browser {
            return features.contains(wgpu::Features::SUBGROUP);
        }
        let scope = device.push_error_scope(wgpu::ErrorFilter::Validation);
        let _ = device.create_shader_module(wgpu::ShaderModuleDescriptor {
            label: Some("probe"),
            source: wgpu::ShaderSource::Wgsl(self.with_directives(PROBE).into()),
        });
        scope.pop().await.is_none()
    }

    /// The packed format that suits the device, given the smallest that holds a matrix exactly. A processor that emulates a GPU
    /// spends a sixth of a 4-bit product on half-precision scales, and has memory to spare.
    pub fn weight_format(&self, smallest: PackedFormat) -> PackedFormat {
        match smallest {
            PackedFormat::Q4 if self.software => PackedFormat::Q4Wide,
            other => other,
        }
    }

    fn new(info: &wgpu::AdapterInfo, limits: &wgpu::Limits, timestamps: bool) -> Self {
        let mut description = [info.name.as_str(), info.driver.as_str(), info.driver_info.as_str()]
            .into_iter()
            .filter(|part| !part.is_empty())
            .collect::<Vec<_>>()
            .join(", ");
        if description.is_empty() {
            description = "unnamed adapter".to_owned();
        }
        let lower = description.to_lowercase();
        let software = info.device_type == wgpu::DeviceType::Cpu
            || ["swiftshader", "llvmpipe", "lavapipe", "warp"].iter().any(|name| lower.contains(name));
        Self {
            description,
            backend: format!("{:?}", info.backend),
            software,
            workgroup: if software { 8 } else { 64 },
            quads: false,
            browser: info.backend == wgpu::Backend::BrowserWebGpu,
            max_binding_bytes: limits.max_storage_buffer_binding_size.min(limits.max_buffer_size),
            timestamps,
        }
    }
}

/// Calls under watch; see [`Gpu::watch`].
pub struct Watch {
    gpu: Gpu,
    memory: wgpu::ErrorScopeGuard,
    validation: wgpu::ErrorScopeGuard,
}

impl Watch {
    /// Ends the watch at once; the future tells what the device says of the calls.
    ///
    /// # Errors
    /// `OutOfMemory` when memory is short; `Internal` for a call that the device refuses.
    pub fn report(self, what: &str) -> impl Future<Output = Result<()>> + use<> {
        let Self { gpu, memory, validation } = self;
        let validation = validation.pop();
        let memory = memory.pop();
        let what = what.to_owned();
        async move {
            if let Some(e) = memory.await {
                return Err(out_of_memory(&what, &e));
            }
            if let Some(e) = validation.await {
                return Err(Error::new(ErrorCode::Internal, format!("{what}: {e}")));
            }
            gpu.check()
        }
    }
}

fn out_of_memory(what: &str, e: &wgpu::Error) -> Error {
    Error::new(
        ErrorCode::OutOfMemory,
        format!("{what}: the device has not enough memory ({e}); close other pages, use a smaller context or model"),
    )
}

/// Remembers the first fault; later ones follow from it.
fn remember_faults(device: &wgpu::Device, fault: &Arc<Mutex<Option<Error>>>) {
    let remember = |fault: &Mutex<Option<Error>>, error: Error| {
        if let Ok(mut slot) = fault.lock() {
            slot.get_or_insert(error);
        }
    };
    let uncaptured = Arc::clone(fault);
    device.on_uncaptured_error(Arc::new(move |e: wgpu::Error| {
        let error = match &e {
            wgpu::Error::OutOfMemory { .. } => out_of_memory("running the model", &e),
            _ => Error::new(ErrorCode::Internal, format!("the device refused a call: {e}")),
        };
        remember(&uncaptured, error);
    }));
    let lost = Arc::clone(fault);
    device.set_device_lost_callback(move |reason, message| {
        let error = Error::new(
            ErrorCode::DeviceLost,
            format!("the GPU device was lost ({reason:?}: {message}); load the model again, with a smaller context if memory was short"),
        );
        remember(&lost, error);
    });
}
