//! What draft heads read of a pass, and the launches before their first blocks: the hidden row of the last visited node, fused with
//! what other layers say of it where heads read those.
//!
//! The output of such layers is kept, normed, for all rows of a pass, since which row is the last one is known only when it ends.

use super::device::Gpu;
use super::heads::{GpuHeads, Rounds, Rows, stride};
use super::kernels::Kernel;
use super::layout::row_stride;
use super::plan::{Builder, Grid, Launch};
use crate::backend::MAX_ROWS;
use crate::error::Result;
use crate::model::heads::{DraftHeads, HeadMatrix, HeadVector};

/// Buffers that are filled before the first blocks.
#[derive(Debug)]
pub struct EntryBuffers {
    /// `[taps, MAX_ROWS, hidden]`.
    taps: wgpu::Buffer,
    /// `[(1 + taps) hidden]`, what fusion reads.
    inputs: wgpu::Buffer,
    /// A gain that changes nothing, `[hidden]`.
    ones: wgpu::Buffer,
}

/// Floats that all rows of a layer's output take.
fn tap_floats(hidden_size: usize) -> usize {
    MAX_ROWS * row_stride(hidden_size)
}

impl EntryBuffers {
    /// Those of heads; hardly any where they read the hidden row alone.
    pub fn new(gpu: &Gpu, heads: &DraftHeads) -> Self {
        let (taps, hidden) = (heads.taps.len(), heads.hidden_size);
        let floats = |count: usize| if taps == 0 { 0 } else { count as u64 * 4 };
        let ones = vec![1.0f32; if taps == 0 { 0 } else { row_stride(hidden) }];
        let buffers = Self {
            taps: gpu.storage("head taps", floats(taps * tap_floats(hidden))),
            inputs: gpu.storage("head fusion", floats(stride((1 + taps) * hidden))),
            ones: gpu.storage("no gain", floats(ones.len())),
        };
        gpu.queue.write_buffer(&buffers.ones, 0, bytemuck::cast_slice(&ones));
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
        builder.norm(&entry.ones, wgpu::BufferBinding { buffer: &entry.taps, offset, size: None }).map(Some)
    }
}

impl Rounds<'_> {
    /// The row that heads draft from, as the first input of the first blocks.
    pub(super) fn start(&mut self, shape: &wgpu::Buffer) -> Result<()> {
        let (heads, model) = (self.heads, self.builder.buffers);
        let (b, entry) = (&heads.buffers, &heads.buffers.entry);
        let (taps, hidden) = (heads.shape.taps.len(), heads.shape.hidden_size);
        let inputs = if taps == 0 { &b.inputs } else { &entry.inputs };
        let bound = [shape, &model.state, &model.normed, &entry.taps, &b.state, inputs];
        self.launch(Kernel::HeadStart, &bound, Grid::One, 1)?;
        if taps == 0 {
            return Ok(());
        }
        let input = Rows { buffer: &entry.inputs, row: 0, stride: stride((1 + taps) * hidden) };
        let output = Rows { buffer: &b.inputs, row: 0, stride: stride(hidden) };
        self.block(HeadMatrix::Fusion, HeadVector::FusionBias, input, output, 1)
    }
}
