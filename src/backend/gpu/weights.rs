//! The model's matrices and vectors in GPU memory, filled as they stream in.
//!
//! A matrix larger than one binding may show (128 MiB by WebGPU's default limits) is kept in parts, cut between groups of rows.

use std::collections::HashMap;

use super::device::Gpu;
use super::layout::{MatmulShape, QUAD, TILE_QUADS, row_stride};
use super::readback;
use crate::error::{Error, ErrorCode, Result};
use crate::model::ModelConfig;
use crate::model::packing::{GROUP_ROWS, PackedFormat, PackedLayout, STEP_VALUES};
use crate::model::weights::{Matrix, Vector, WeightSink};

/// Bytes that may wait for the device before loading pauses: bounds what the browser holds of the weights at once.
const MAX_QUEUED_BYTES: u64 = 32 << 20;

/// All weights of one model.
#[derive(Debug)]
pub struct GpuWeights {
    gpu: Gpu,
    queued: u64,
    matrices: HashMap<Matrix, GpuMatrix>,
    vectors: HashMap<Vector, Vec<f32>>,
}

/// One packed matrix.
#[derive(Debug)]
pub struct GpuMatrix {
    /// Shape and format of the whole.
    pub layout: PackedLayout,
    /// Its parts, first rows first.
    pub parts: Vec<MatrixPart>,
}

/// Consecutive groups of rows of a matrix, in a buffer of their own.
#[derive(Debug)]
pub struct MatrixPart {
    /// The packed words.
    pub buffer: wgpu::Buffer,
    first_group: usize,
    groups: usize,
}

impl GpuMatrix {
    fn group_bytes(&self) -> u64 {
        self.layout.group_words() as u64 * 4
    }

    /// What a kernel must know to multiply by one part.
    pub fn shape(&self, part: &MatrixPart, output_stride: usize, epsilon: f32) -> MatmulShape {
        let first_row = part.first_group * GROUP_ROWS;
        let rows = (part.groups * GROUP_ROWS).min(self.layout.rows - first_row);
        // Floats have no blocks; their kernels count steps.
        let block = self.layout.format.block_values().unwrap_or(STEP_VALUES);
        MatmulShape {
            quads: rows.div_ceil(QUAD) as u32,
            first_quad: (first_row / QUAD) as u32,
            blocks: self.layout.cols.div_ceil(block) as u32,
            group_stride: (self.layout.group_words() / (QUAD * TILE_QUADS)) as u32,
            input_stride: (row_stride(self.layout.cols) / STEP_VALUES) as u32,
            output_stride: (output_stride / QUAD) as u32,
            columns: self.layout.cols as u32,
            epsilon,
            output_offset: 0,
        }
    }

    /// Its format.
    pub fn format(&self) -> PackedFormat {
        self.layout.format
    }
}

impl GpuWeights {
    /// No weights yet.
    pub fn new(gpu: Gpu) -> Self {
        Self { gpu, queued: 0, matrices: HashMap::new(), vectors: HashMap::new() }
    }

    /// A matrix that was loaded.
    ///
    /// # Errors
    /// `MissingTensor`.
    pub fn matrix(&self, matrix: Matrix) -> Result<&GpuMatrix> {
        self.matrices.get(&matrix).ok_or_else(|| missing(&format!("{matrix:?}")))
    }

    /// The matrix that makes logits: the embedding when the model ties them.
    ///
    /// # Errors
    /// `MissingTensor`.
    pub fn lm_head(&self) -> Result<&GpuMatrix> {
        self.matrix(if self.matrices.contains_key(&Matrix::LmHead) { Matrix::LmHead } else { Matrix::Embedding })
    }

    /// Bytes of all matrices.
    pub fn bytes(&self) -> u64 {
        self.matrices.values().map(|matrix| matrix.layout.bytes()).sum()
    }

    /// The gain of a norm, then, where there is one, the bias behind it, as one buffer; and the float offset of the bias.
    ///
    /// # Errors
    /// `MissingTensor`.
    pub fn gain_and_bias(&self, gain: Vector, bias: Option<(Vector, usize)>) -> Result<(wgpu::Buffer, usize)> {
        let gain_values = self.vectors.get(&gain).ok_or_else(|| missing(&format!("{gain:?}")))?;
        let mut values = gain_values.clone();
        values.resize(row_stride(values.len()), 0.0);
        let offset = values.len();
        if let Some((bias, length)) = bias {
            match self.vectors.get(&bias) {
                Some(bias) => values.extend_from_slice(bias),
                None => values.resize(offset + length, 0.0),
            }
        }
        Ok((self.floats(&values), offset))
    }

    /// A bias of this length, zeros where there is none.
    pub fn bias(&self, bias: Vector, length: usize) -> wgpu::Buffer {
        self.vectors.get(&bias).map_or_else(|| self.floats(&vec![0.0; length]), |values| self.floats(values))
    }

    fn floats(&self, values: &[f32]) -> wgpu::Buffer {
        let buffer = self.gpu.storage("vectors", values.len() as u64 * 4);
        self.gpu.queue.write_buffer(&buffer, 0, bytemuck::cast_slice(values));
        buffer
    }
}

fn missing(what: &str) -> Error {
    Error::new(ErrorCode::MissingTensor, format!("{what} was not among the weights that were loaded"))
}

impl WeightSink for GpuWeights {
    fn format(&self, smallest: PackedFormat) -> PackedFormat {
        self.gpu.caps.weight_format(smallest)
    }

    fn begin(&mut self, matrix: Matrix, layout: PackedLayout) -> Result<()> {
        let group_bytes = layout.group_words() as u64 * 4;
        let groups_per_part = (self.gpu.caps.max_binding_bytes / group_bytes) as usize;
        if groups_per_part == 0 {
            return Err(Error::new(
                ErrorCode::UnsupportedModel,
                format!(
                    "{matrix:?}: 64 rows take {group_bytes} bytes, but this device binds at most {}",
                    self.gpu.caps.max_binding_bytes
                ),
            ));
        }
        let parts = (0..layout.groups())
            .step_by(groups_per_part)
            .map(|first_group| {
                let groups = groups_per_part.min(layout.groups() - first_group);
                let buffer = self.gpu.storage(&format!("{matrix:?}"), groups as u64 * group_bytes);
                MatrixPart { buffer, first_group, groups }
            })
            .collect();
        self.matrices.insert(matrix, GpuMatrix { layout, parts });
        Ok(())
    }

    fn write(&mut self, matrix: Matrix, offset: u64, bytes: &[u8]) -> Result<()> {
        let target = self.matrices.get(&matrix).ok_or_else(|| missing(&format!("{matrix:?}")))?;
        let mut words: Vec<u32>;
        let mut bytes = bytes;
        if self.gpu.caps.shares_loads() {
            words = bytemuck::pod_collect_to_vec(bytes);
            target.layout.reorder_for_quads(&mut words);
            bytes = bytemuck::cast_slice(&words);
        }
        let (mut at, mut rest) = (offset, bytes);
        for part in &target.parts {
            let begin = part.first_group as u64 * target.group_bytes();
            let end = begin + part.groups as u64 * target.group_bytes();
            if rest.is_empty() || at < begin || at >= end {
                continue;
            }
            let (now, later) = rest.split_at(rest.len().min((end - at) as usize));
            self.gpu.queue.write_buffer(&part.buffer, at - begin, now);
            at += now.len() as u64;
            rest = later;
        }
        self.queued += bytes.len() as u64;
        Ok(())
    }

    fn vector(&mut self, vector: Vector, values: &[f32]) -> Result<()> {
        self.vectors.insert(vector, values.to_vec());
        Ok(())
    }

    async fn drain(&mut self) -> Result<()> {
        if self.queued < MAX_QUEUED_BYTES {
            return self.gpu.check();
        }
        self.queued = 0;
        self.gpu.queue.submit([]);
        readback::settle(&self.gpu).await
    }
}

/// A group is a whole number of tiles.
const _: () = assert!(GROUP_ROWS.is_multiple_of(QUAD * TILE_QUADS));

/// The model sizes that kernels rely on.
///
/// # Errors
/// `UnsupportedModel` when a size is no multiple of four, or the device cannot bind one row of the cache.
pub fn check_sizes(config: &ModelConfig) -> Result<()> {
    for (name, size) in [
        ("hidden_size", config.hidden_size),
        ("intermediate_size", config.intermediate_size),
        ("head_dim", config.head_dim),
    ] {
        if !size.is_multiple_of(QUAD) {
            return Err(Error::new(
                ErrorCode::UnsupportedModel,
                format!("{name} must be a multiple of {QUAD} to run on the GPU, found {size}"),
            ));
        }
    }
    Ok(())
}
