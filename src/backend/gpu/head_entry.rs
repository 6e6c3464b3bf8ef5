//! What draft heads read of a pass, and the launches before their first blocks: the hidden row of the last visited node, fused with
//! what other layers say of it where heads read those, and with what attention finds in the context where they look at it.
//!
//! The output of such layers is kept, normed, for all rows of a pass, since which row is the last one is known only when it ends. The
//! context is that of a layer of the model: its keys and values are in the cache, so heads bring queries alone, and attention to
//! them is the model's own, for one row with a `State` of its own.

use super::device::Gpu;
use super::heads::{GpuHeads, Rounds, Rows, stride};
use super::kernels::Kernel;
use super::layout::{STATE_BYTES, StateHead, row_stride};
use super::plan::{Builder, ChunkRole, Grid, Launch};
use crate::backend::MAX_ROWS;
use crate::error::Result;
use crate::model::heads::{DraftHeads, HeadMatrix, HeadVector};

/// Buffers that are filled before the first blocks.
#[derive(Debug)]
pub struct EntryBuffers {
    /// `[taps, MAX_ROWS, hidden]`.
    taps: wgpu::Buffer,
    /// `[(1 + taps) hidden]`, what fusion reads.
    fusion: wgpu::Buffer,
    /// A gain that changes nothing, `[hidden]`, and behind it a bias that does not either, `[q]`.
    plain: wgpu::Buffer,
    /// `State` of the row that looks at the context.
    state: wgpu::Buffer,
    /// `[q]`.
    queries: wgpu::Buffer,
    /// `[hidden + q]`: that row, and what attention makes of its queries.
    context: wgpu::Buffer,
}

/// Floats that all rows of a layer's output take.
fn tap_floats(hidden_size: usize) -> usize {
    MAX_ROWS * row_stride(hidden_size)
}

impl EntryBuffers {
    /// Those of heads whose model has queries of this width; hardly any where they read the hidden row alone.
    pub fn new(gpu: &Gpu, heads: &DraftHeads, q_size: usize) -> Self {
        let (taps, hidden) = (heads.taps.len(), heads.hidden_size);
        let bytes = |needed: bool, floats: usize| if needed { floats as u64 * 4 } else { 0 };
        let (fuses, looks) = (taps > 0, heads.context_layer.is_some());
        let plain = [vec![1.0f32; row_stride(hidden)], vec![0.0; q_size]].concat();
        let buffers = Self {
            taps: gpu.storage("head taps", bytes(fuses, taps * tap_floats(hidden))),
            fusion: gpu.storage("head fusion", bytes(fuses, stride((1 + taps) * hidden))),
            plain: gpu.storage("no gain", plain.len() as u64 * 4),
            state: gpu.storage("context state", STATE_BYTES),
            queries: gpu.storage("head queries", bytes(looks, stride(q_size))),
            context: gpu.storage("head context", bytes(looks, stride(hidden + q_size))),
        };
        gpu.queue.write_buffer(&buffers.plain, 0, bytemuck::cast_slice(&plain));
        gpu.queue.write_buffer(&buffers.state, 0, bytemuck::bytes_of(&StateHead::for_rows(0, 1)));
        buffers
    }
}

impl GpuHeads {
    /// What keeps the output of a layer, behind it, where the heads read that.
    ///
    /// # Errors
    /// `Internal`.
    pub fn tap(&self, builder: &Builder<'_>, layer: usize) -> Result<Option<Launch>> {
        let Some(tap) = self.shape.taps.layers().position(|tapped| tapped == layer) else { return Ok(None) };
        let entry = &self.buffers.entry;
        let offset = (tap * tap_floats(self.shape.hidden_size) * 4) as u64;
        builder.norm(&entry.plain, wgpu::BufferBinding { buffer: &entry.taps, offset, size: None }).map(Some)
    }
}

impl Rounds<'_> {
    /// The row that heads draft from, as the first input of the first blocks.
    pub(super) fn start(&mut self, shape: &wgpu::Buffer) -> Result<()> {
        let (heads, model) = (self.heads, self.builder.buffers);
        let (b, entry) = (&heads.buffers, &heads.buffers.entry);
        let (taps, hidden) = (heads.shape.taps.len(), heads.shape.hidden_size);
        let fused = if heads.shape.context_layer.is_some() { &entry.context } else { &b.inputs };
        let first = if taps == 0 { fused } else { &entry.fusion };
        let bound = [shape, &model.state, &model.normed, &entry.taps, &b.state, &entry.state, first];
        self.launch(Kernel::HeadStart, &bound, Grid::One, 1)?;
        let row = |buffer, columns: usize| Rows { buffer, row: 0, stride: stride(columns) };
        if taps > 0 {
            let input = row(&entry.fusion, (1 + taps) * hidden);
            self.block(HeadMatrix::Fusion, HeadVector::FusionBias, input, row(fused, hidden), 1)?;
        }
        if let Some(layer) = heads.shape.context_layer {
            self.look_back(layer)?;
            let input = row(&entry.context, hidden + self.builder.config.q_size());
            self.block(HeadMatrix::Context, HeadVector::ContextBias, input, row(&b.inputs, hidden), 1)?;
        }
        Ok(())
    }

    /// Attention of the row to the context, behind it.
    fn look_back(&mut self, layer: usize) -> Result<()> {
        let (heads, builder) = (self.heads, self.builder);
        let (config, cache, entry) = (builder.config, builder.cache, &heads.buffers.entry);
        let hidden = heads.shape.hidden_size;
        let keys_values = &cache.layers[layer];
        let attention = builder.gpu.uniform("context", &builder.attention_shape(row_stride(hidden)));
        let matrix = heads.matrix(HeadMatrix::ContextQuery)?;
        for part in &matrix.parts {
            let shape = matrix.shape(part, 0, config.rms_norm_eps);
            let grid = Grid::Quads(shape.quads as usize);
            let shape = builder.gpu.uniform("context queries", &shape);
            let (words, plain, state) = (&part.buffer, &entry.plain, &entry.state);
            let bound = [&shape, &attention, state, words, plain, &entry.context, &cache.rotations, &entry.queries];
            let resources = bound.into_iter().chain([keys_values]).map(|b| b.as_entire_buffer_binding());
            let kernel = (Kernel::Qkv, Some(matrix.format()));
            self.launches.push(builder.launch_rows(kernel, &resources.collect::<Vec<_>>(), grid, 1)?);
        }
        let kv_heads = config.num_key_value_heads;
        let heads_per_kv = config.num_attention_heads / kv_heads;
        let bound = [&attention, &entry.state, &entry.queries, keys_values, &cache.parts, &cache.chunks];
        self.launch(Kernel::AttentionChunks, &bound, Grid::Chunks { kv_heads, heads_per_kv, role: ChunkRole::All }, 1)?;
        let bound = [&attention, &entry.state, &cache.parts, &cache.chunks].map(|b| b.as_entire_buffer_binding());
        let mixed = wgpu::BufferBinding { buffer: &entry.context, offset: (hidden * 4) as u64, size: None };
        let resources = [&bound[..], &[mixed]].concat();
        self.launches.push(builder.launch_rows((Kernel::AttentionJoin, None), &resources, builder.join_grid(), 1)?);
        Ok(())
    }
}
