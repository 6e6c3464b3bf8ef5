//! What the benchmark page and command time on the device: passes by their number of rows, and kernels.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::backend::Backend as _;
use crate::backend::gpu::GpuBackend;
use crate::backend::gpu::profile::KernelTime;
use crate::engine::Clock;
use crate::error::Result;

/// What to time.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct BenchmarkOptions {
    rows: Vec<usize>,
    /// Positions committed before the pass.
    context: usize,
    repeats: usize,
}

impl Default for BenchmarkOptions {
    fn default() -> Self {
        Self { rows: vec![1, 2, 4, 8, 16, 32], context: 64, repeats: 5 }
    }
}

/// Medians.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct BenchmarkReport {
    context: usize,
    passes: Vec<PassTime>,
    /// Of one pass of each number of rows; `null` where the device has no clock.
    kernels: Option<Vec<KernelTime>>,
    /// Of one draft of the draft heads, where there are some and the device has a clock.
    #[serde(skip_serializing_if = "Option::is_none")]
    head_kernels: Option<Vec<KernelTime>>,
}

#[derive(Debug, Serialize)]
struct PassTime {
    rows: usize,
    ms: f64,
}

/// A measurement lasts at least this long, so that waiting for the device does not count.
const MIN_MS: f64 = 400.0;

/// Times every number of rows in turns, so that whatever else the machine does falls on all of them.
///
/// # Errors
/// `InvalidOption`, `OutOfMemory`, `DeviceLost`.
pub async fn run(backend: &mut GpuBackend, options: &BenchmarkOptions, clock: Clock) -> Result<BenchmarkReport> {
    let mut passes = BTreeMap::new();
    for &rows in &options.rows {
        // The first pass compiles, the second tells how many fill the time.
        backend.run_passes(rows, options.context, 1).await?;
        let began = clock();
        backend.run_passes(rows, options.context, 1).await?;
        passes.insert(rows, (MIN_MS / (clock() - began).max(1.0)).ceil() as usize);
    }
    let mut times: BTreeMap<usize, Vec<f64>> = BTreeMap::new();
    for _ in 0..options.repeats.max(1) {
        for (&rows, &n) in &passes {
            let began = clock();
            let ms = match backend.time_passes(&vec![rows; n], options.context).await? {
                Some(ms) => ms.iter().sum(),
                None => {
                    backend.run_passes(rows, options.context, n).await?;
                    clock() - began
                }
            };
            times.entry(rows).or_default().push(ms / n as f64);
        }
    }
    let mut kernels = Some(Vec::new());
    for &rows in passes.keys() {
        kernels =
            kernels.zip(backend.kernel_times(rows, options.context).await?).map(|(all, times)| [all, times].concat());
    }
    Ok(BenchmarkReport {
        context: options.context,
        passes: times.into_iter().map(|(rows, times)| PassTime { rows, ms: median(times) }).collect(),
        kernels,
        head_kernels: backend.head_times().await?,
    })
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}
