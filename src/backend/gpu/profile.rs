//! Time of passes and of kernels, for the benchmark.

use std::collections::BTreeMap;

use super::GpuBackend;
use super::device::Gpu;
use super::plan::{PassSize, Purpose};
use super::readback::StagingPool;
use crate::error::Result;
use crate::speculate::tree::Tree;

/// Launches of one kernel in a pass, and the time they took together.
#[derive(Debug, Clone, PartialEq, serde::Serialize)]
pub struct KernelTime {
    /// The kernel.
    pub name: &'static str,
    /// Rows of the pass.
    pub rows: usize,
    /// Launches.
    pub launches: u32,
    /// Milliseconds of all of them.
    pub ms: f64,
}

/// Queries in one set at most, by WebGPU.
const MAX_QUERIES: usize = 4096;

/// The device's own clock, read at the beginning and end of compute passes. What comes between the device and the page does not count.
#[derive(Debug)]
pub(super) struct DeviceClock {
    gpu: Gpu,
    query_set: wgpu::QuerySet,
    n_queries: u32,
}

impl DeviceClock {
    /// A clock for so many compute passes; `None` where the device has none, or not for so many.
    pub(super) fn new(gpu: &Gpu, passes: usize) -> Option<Self> {
        let n_queries = 2 * passes;
        (gpu.caps.timestamps && n_queries <= MAX_QUERIES).then(|| {
            let query_set = gpu.device.create_query_set(&wgpu::QuerySetDescriptor {
                label: Some("times"),
                ty: wgpu::QueryType::Timestamp,
                count: n_queries as u32,
            });
            Self { gpu: gpu.clone(), query_set, n_queries: n_queries as u32 }
        })
    }

    /// What the compute pass of this number writes.
    pub(super) fn writes(&self, pass: usize) -> wgpu::ComputePassTimestampWrites<'_> {
        wgpu::ComputePassTimestampWrites {
            query_set: &self.query_set,
            beginning_of_pass_write_index: Some(2 * pass as u32),
            end_of_pass_write_index: Some(2 * pass as u32 + 1),
        }
    }

    /// Milliseconds of the clock at the beginning and end of every compute pass, in order; all must have been submitted.
    ///
    /// # Errors
    /// `DeviceLost`.
    pub(super) async fn read(self) -> Result<Vec<(f64, f64)>> {
        let bytes = u64::from(self.n_queries) * 8;
        let resolved = self.gpu.device.create_buffer(&wgpu::BufferDescriptor {
            label: Some("times"),
            size: bytes,
            usage: wgpu::BufferUsages::QUERY_RESOLVE | wgpu::BufferUsages::COPY_SRC,
            mapped_at_creation: false,
        });
        let mut encoder = self.gpu.device.create_command_encoder(&Default::default());
        encoder.resolve_query_set(&self.query_set, 0..self.n_queries, &resolved, 0);
        let copy = StagingPool::new(self.gpu.clone(), bytes).copy(&mut encoder, &resolved, 0);
        self.gpu.queue.submit([encoder.finish()]);
        let period_ms = f64::from(self.gpu.queue.get_timestamp_period()) / 1e6;
        let ticks: Vec<u64> =
            copy.read().wait(|bytes| bytes.chunks_exact(8).map(bytemuck::pod_read_unaligned).collect()).await?;
        // Ticks are far from zero; their differences are what is exact in a float.
        let first = ticks.iter().copied().min().unwrap_or(0);
        let ms = |tick: u64| (tick - first) as f64 * period_ms;
        Ok(ticks.chunks_exact(2).map(|pair| (ms(pair[0]), ms(pair[1]))).collect())
    }
}

impl GpuBackend {
    /// Time of every kernel in one pass of `rows` rows, by the device's own clock; `None` where it has none.
    ///
    /// # Errors
    /// As `run_passes`.
    pub async fn kernel_times(&mut self, rows: usize, context: usize) -> Result<Option<Vec<KernelTime>>> {
        self.times(Purpose::Evaluate, rows, context).await
    }

    /// Time of every kernel in one draft of the draft heads; `None` where there are no heads or no clock.
    ///
    /// # Errors
    /// `OutOfMemory`, `DeviceLost`.
    pub async fn head_times(&mut self) -> Result<Option<Vec<KernelTime>>> {
        if self.heads.is_none() { Ok(None) } else { self.times(Purpose::Heads, 1, 1).await }
    }

    async fn times(&mut self, purpose: Purpose<'_>, rows: usize, context: usize) -> Result<Option<Vec<KernelTime>>> {
        self.prepare_pass(rows, context).await?;
        let size = PassSize::fitted(rows, context + rows);
        let launches = self.plan.launches(purpose, size);
        let Some(clock) = DeviceClock::new(&self.gpu, launches.len()) else { return Ok(None) };
        let mut encoder = self.gpu.device.create_command_encoder(&Default::default());
        for (i, launch) in launches.iter().enumerate() {
            let mut pass = encoder.begin_compute_pass(&wgpu::ComputePassDescriptor {
                label: None,
                timestamp_writes: Some(clock.writes(i)),
            });
            launch.encode(&self.kernels, &mut pass, size, self.gpu.caps.workgroup as usize)?;
        }
        self.gpu.queue.submit([encoder.finish()]);
        let names: Vec<_> = launches.iter().map(|launch| launch.name()).collect();
        let mut times: BTreeMap<&'static str, KernelTime> = BTreeMap::new();
        for (name, (began, ended)) in names.into_iter().zip(clock.read().await?) {
            let time = times.entry(name).or_insert(KernelTime { name, rows, launches: 0, ms: 0.0 });
            time.launches += 1;
            time.ms += (ended - began).max(0.0);
        }
        Ok(Some(times.into_values().collect()))
    }

    pub(super) async fn prepare_pass(&mut self, rows: usize, context: usize) -> Result<()> {
        let tree = Tree::chain(&vec![0; rows])?;
        let size = PassSize::fitted(rows, context + rows);
        for launch in self.plan.launches(Purpose::Evaluate, size) {
            self.kernels.compiled(launch.variant(size, self.gpu.caps.workgroup as usize)).await?;
        }
        self.load_tree(context, &tree).await
    }
}
