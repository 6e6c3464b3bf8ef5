//! Time of passes and of kernels, for the benchmark.

use std::collections::BTreeMap;

use super::GpuBackend;
use super::kernels::Tile;
use super::plan::{PassSize, Purpose};
use super::readback::StagingPool;
use crate::error::Result;
use crate::speculate::tree::Tree;

/// Launches of one kernel in a pass, and the time they took together.
#[derive(Debug, Clone, PartialEq, serde::Serialize)]
pub struct KernelTime {
    /// The kernel.
    pub name: &'static str,
    /// Launches.
    pub launches: u32,
    /// Milliseconds of all of them.
    pub ms: f64,
}

/// Queries in one set at most, by WebGPU.
const MAX_QUERIES: usize = 4096;

impl GpuBackend {
    /// Time of every kernel in one pass of `rows` rows, by the device's own clock; `None` where it has none.
    ///
    /// # Errors
    /// As [`run_passes`](Self::run_passes).
    pub async fn kernel_times(&mut self, rows: usize, context: usize) -> Result<Option<Vec<KernelTime>>> {
        self.prepare_pass(rows, context).await?;
        let launches = self.plan.launches(Purpose::Evaluate);
        let n_queries = 2 * launches.len();
        if !self.gpu.caps.timestamps || n_queries > MAX_QUERIES {
            return Ok(None);
        }
        let device = &self.gpu.device;
        let query_set = device.create_query_set(&wgpu::QuerySetDescriptor {
            label: Some("kernel times"),
            ty: wgpu::QueryType::Timestamp,
            count: n_queries as u32,
        });
        let bytes = n_queries as u64 * 8;
        let resolved = device.create_buffer(&wgpu::BufferDescriptor {
            label: Some("kernel times"),
            size: bytes,
            usage: wgpu::BufferUsages::QUERY_RESOLVE | wgpu::BufferUsages::COPY_SRC,
            mapped_at_creation: false,
        });
        let mut encoder = device.create_command_encoder(&Default::default());
        for (i, launch) in launches.iter().enumerate() {
            let mut pass = encoder.begin_compute_pass(&wgpu::ComputePassDescriptor {
                label: None,
                timestamp_writes: Some(wgpu::ComputePassTimestampWrites {
                    query_set: &query_set,
                    beginning_of_pass_write_index: Some(2 * i as u32),
                    end_of_pass_write_index: Some(2 * i as u32 + 1),
                }),
            });
            let size = PassSize::fitted(rows, context + rows);
            launch.encode(&self.kernels, &mut pass, size, self.gpu.caps.workgroup as usize)?;
        }
        encoder.resolve_query_set(&query_set, 0..n_queries as u32, &resolved, 0);
        let copy = StagingPool::new(self.gpu.clone(), bytes).copy(&mut encoder, &resolved, 0);
        self.gpu.queue.submit([encoder.finish()]);
        let names: Vec<_> = launches.iter().map(|launch| launch.variant(Tile::Rows1).kernel.name()).collect();
        let period_ms = f64::from(self.gpu.queue.get_timestamp_period()) / 1e6;
        let ticks: Vec<u64> =
            copy.read().wait(|bytes| bytes.chunks_exact(8).map(bytemuck::pod_read_unaligned).collect()).await?;
        let mut times: BTreeMap<&'static str, KernelTime> = BTreeMap::new();
        for (name, ticks) in names.into_iter().zip(ticks.chunks_exact(2)) {
            let time = times.entry(name).or_insert(KernelTime { name, launches: 0, ms: 0.0 });
            time.launches += 1;
            time.ms += ticks[1].saturating_sub(ticks[0]) as f64 * period_ms;
        }
        Ok(Some(times.into_values().collect()))
    }

    pub(super) async fn prepare_pass(&mut self, rows: usize, context: usize) -> Result<()> {
        let tree = Tree::chain(&vec![0; rows])?;
        self.load_tree(context, &tree).await
    }
}
