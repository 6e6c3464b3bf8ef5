//! Log-probabilities of emitted tokens: their buffers, their launches behind the walk, and their way back beside the record.

use super::device::Gpu;
use super::kernels::Kernel;
use super::layout::{CHUNK_QUADS, LOGPROB_BYTES, QUAD};
use super::plan::{Builder, Grid, Launch};
use crate::error::Result;
use crate::model::ModelConfig;
use crate::sampling::MAX_TOP_LOGPROBS;
use crate::speculate::accept::MAX_EMITTED;

/// Bytes of `ChunkMass` in shaders/lib/logprobs.wgsl.
const CHUNK_MASS_BYTES: usize = 12;

/// Most bytes that come back of one step.
pub const MAX_BYTES: u64 = bytes(MAX_EMITTED, MAX_TOP_LOGPROBS);

/// Bytes that come back of a step of `rows` rows, with the `top` most probable tokens of every place.
pub const fn bytes(rows: usize, top: usize) -> u64 {
    let places = if rows < MAX_EMITTED { rows } else { MAX_EMITTED };
    (places * (1 + top)) as u64 * LOGPROB_BYTES
}

/// Buffers that only log-probabilities use.
#[derive(Debug)]
pub struct LogprobBuffers {
    /// `[visited, chunks]`.
    chunks: wgpu::Buffer,
    /// `[visited, 1 + top]`: the emitted token, then the most probable ones.
    pub results: wgpu::Buffer,
}

impl LogprobBuffers {
    /// Allocates; call it under [`Gpu::scoped`].
    pub fn new(gpu: &Gpu, config: &ModelConfig) -> Self {
        let chunks = config.vocab_size.div_ceil(QUAD * CHUNK_QUADS);
        Self {
            chunks: gpu.storage("chunks of probability", (MAX_EMITTED * chunks * CHUNK_MASS_BYTES) as u64),
            results: gpu.storage("log-probabilities", MAX_BYTES),
        }
    }
}

/// The launches behind the walk, while the logits of its rows are still there.
///
/// # Errors
/// `Internal`.
pub fn launches(builder: &Builder<'_>) -> Result<[Launch; 2]> {
    let (b, l) = (builder.buffers, &builder.buffers.logprobs);
    let chunks = builder.config.vocab_size.div_ceil(QUAD * CHUNK_QUADS);
    let of_chunks = [&b.sampling, &b.state, &b.logits, &l.chunks];
    let joined = [&b.sampling, &b.state, &b.logits, &b.draft.text, &l.chunks, &l.results];
    Ok([
        builder.launch(Kernel::LogprobChunks, None, &of_chunks, Grid::Items(chunks))?,
        builder.launch(Kernel::Logprobs, None, &joined, Grid::Rows)?,
    ])
}
