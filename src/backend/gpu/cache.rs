//! Buffers whose size follows the length of the text: keys and values, rotations, parts of attention. They grow by doubling.

use super::device::Gpu;
use super::layout::CHUNK;
use crate::backend::MAX_ROWS;
use crate::error::Result;
use crate::model::ModelConfig;

/// Slots a cache begins with.
const FIRST_CAPACITY: usize = 512;

/// Keys and values of every layer, and what attention needs beside them.
#[derive(Debug)]
pub struct Cache {
    /// Slots, scratch rows included.
    pub capacity: usize,
    /// Rows one pass may have: fewer than [`MAX_ROWS`] where the parts of a long context would not fit a binding.
    pub max_rows: usize,
    /// One buffer a layer, `[slot, keys then values]`.
    pub layers: Vec<wgpu::Buffer>,
    /// `[position, head_dim / 2]` pairs of cosine and sine.
    pub rotations: wgpu::Buffer,
    /// `[rows, heads, chunks, head_dim]`, values weighted within their chunk.
    pub parts: wgpu::Buffer,
    /// `[rows, heads, chunks]` pairs of maximum and sum.
    pub chunks: wgpu::Buffer,
}

impl Cache {
    /// An empty cache for a model whose text may reach `context_limit` positions.
    ///
    /// # Errors
    /// `OutOfMemory`.
    pub async fn new(gpu: &Gpu, config: &ModelConfig, context_limit: usize) -> Result<Self> {
        Self::with_capacity(gpu, config, FIRST_CAPACITY.min(Self::full_capacity(context_limit))).await
    }

    /// Slots for a full context and the scratch rows behind it.
    fn full_capacity(context_limit: usize) -> usize {
        (context_limit + MAX_ROWS).next_multiple_of(CHUNK)
    }

    /// The longest context whose buffers this device can bind, at most the model's own.
    pub fn context_limit(gpu: &Gpu, config: &ModelConfig) -> usize {
        let slot_bytes = slot_floats(config) * 4;
        let part_bytes = (config.q_size() * 4).div_ceil(CHUNK);
        let bindable = gpu.caps.max_binding_bytes as usize / slot_bytes.max(part_bytes);
        config.max_position_embeddings.min(bindable.saturating_sub(2 * MAX_ROWS))
    }

    /// Makes room for `slots` slots, keeping what is there. Returns whether buffers were replaced.
    ///
    /// # Errors
    /// `OutOfMemory`; the old cache stays as it was.
    pub async fn reserve(
        &mut self,
        gpu: &Gpu,
        config: &ModelConfig,
        slots: usize,
        context_limit: usize,
    ) -> Result<bool> {
        if slots <= self.capacity {
            return Ok(false);
        }
        let capacity = slots.max(2 * self.capacity).min(Self::full_capacity(context_limit).max(slots));
        let grown = Self::with_capacity(gpu, config, capacity.next_multiple_of(CHUNK)).await?;
        let mut encoder = gpu.device.create_command_encoder(&Default::default());
        let bytes = (self.capacity * slot_floats(config) * 4) as u64;
        for (old, new) in self.layers.iter().zip(&grown.layers) {
            encoder.copy_buffer_to_buffer(old, 0, new, 0, bytes);
        }
        gpu.queue.submit([encoder.finish()]);
        *self = grown;
        Ok(true)
    }

    async fn with_capacity(gpu: &Gpu, config: &ModelConfig, capacity: usize) -> Result<Self> {
        let chunks = capacity.div_ceil(CHUNK);
        let part_row_bytes = (config.q_size() * chunks * 4) as u64;
        let bindable_rows = (gpu.caps.max_binding_bytes / part_row_bytes) as usize;
        let max_rows = bindable_rows.clamp(1, MAX_ROWS);
        let what = format!("a cache of {capacity} positions");
        let cache = gpu
            .scoped(&what, || Self {
                capacity,
                max_rows,
                layers: (0..config.num_hidden_layers)
                    .map(|_| gpu.storage("cache", (capacity * slot_floats(config) * 4) as u64))
                    .collect(),
                rotations: gpu.storage("rotations", (capacity * config.head_dim * 4) as u64),
                parts: gpu.storage("parts", max_rows as u64 * part_row_bytes),
                chunks: gpu.storage("chunks", (max_rows * config.num_attention_heads * chunks * 8) as u64),
            })
            .await?;
        gpu.queue.write_buffer(&cache.rotations, 0, bytemuck::cast_slice(&rotations(config, capacity)));
        Ok(cache)
    }

    /// Chunks of one head.
    pub fn chunk_stride(&self) -> usize {
        self.capacity.div_ceil(CHUNK)
    }
}

fn slot_floats(config: &ModelConfig) -> usize {
    2 * config.kv_size()
}

/// Cosine and sine of every rotary pair, `[positions, head_dim / 2, 2]`, computed in double precision: a device's own sine is
/// inexact for large angles.
pub fn rotations(config: &ModelConfig, positions: usize) -> Vec<f32> {
    let frequencies = config.inverse_frequencies();
    let mut table = Vec::with_capacity(positions * frequencies.len() * 2);
    for position in 0..positions {
        for &frequency in &frequencies {
            // The reference multiplies in single precision, and so do we: the angle is part of the model.
            let (sin, cos) = f64::from(position as f32 * frequency).sin_cos();
            table.extend([cos as f32, sin as f32]);
        }
    }
    table
}
