//! Draft heads on the device: their weights and buffers, and the launches that fill the candidates which draft.wgsl merges.
//!
//! Heads have a `State` of their own, a row for every node whose children are ranked, so that the kernels of the model serve them
//! too: the matrix product, the output matrix, the embedding. Parallel heads are one round of launches over all depths, recurrent ones
//! a round for each depth; the number of rows is known when they are made. Logits stay in their buffer, a row for each slot.

use super::GpuBackend;
use super::device::Gpu;
use super::head_entry::EntryBuffers;
use super::kernels::Kernel;
use super::layout::{
    CHUNK_BEST_BYTES, HeadShape, HeadSlots, KEPT_BYTES, QUAD, RawHeadCandidate, STATE_BYTES, StateHead, row_stride,
};
use super::plan::{Builder, Grid, Launch, embed_items};
use super::readback::StagingPool;
use super::weights::{GpuMatrix, GpuWeights};
use crate::error::{Error, ErrorCode, Result};
use crate::model::heads::{DraftHeads, HeadForm, HeadMatrix, HeadOutput, HeadVector};
use crate::model::packing::STEP_VALUES;
use crate::model::weights::{Matrix, Vector};
use crate::speculate::grow::{HeadCandidate, HeadCandidates};
use crate::speculate::heads::{BEAM, SHORT_ROWS, TOP_K, chunks, first_slot, levels, slots};

/// Rows of the buffers of heads begin at multiples of this many floats, so that each can be bound by itself
/// (WebGPU's default `minStorageBufferOffsetAlignment` is 256 bytes).
const ROW_FLOATS: usize = 64;
/// Bytes of one candidate.
const CANDIDATE_BYTES: usize = size_of::<RawHeadCandidate>();

/// The draft heads of one model.
#[derive(Debug)]
pub struct GpuHeads {
    pub(super) shape: DraftHeads,
    weights: GpuWeights,
    pub(super) buffers: HeadBuffers,
}

#[derive(Debug)]
pub(super) struct HeadBuffers {
    /// `State` of the nodes whose children are ranked.
    pub state: wgpu::Buffer,
    /// What comes before the first blocks.
    pub entry: EntryBuffers,
    /// `[rows, columns]`, what the first blocks read.
    pub inputs: wgpu::Buffer,
    /// `[slot or depth, hidden]`, what blocks make, and a second one, since a block cannot write what it reads.
    rows: [wgpu::Buffer; 2],
    /// `[slot or depth, drafts]`.
    logits: wgpu::Buffer,
    bests: wgpu::Buffer,
    kept: wgpu::Buffer,
    path_scores: wgpu::Buffer,
    token_map: wgpu::Buffer,
    /// `[slot, TOP_K]`.
    candidates: wgpu::Buffer,
}

/// Floats from one row of a buffer of heads to the next.
pub(super) fn stride(columns: usize) -> usize {
    columns.next_multiple_of(ROW_FLOATS)
}

/// Rows of logits of one draft.
fn logit_rows(heads: &DraftHeads) -> usize {
    match heads.form {
        HeadForm::Parallel => heads.depths,
        HeadForm::Recurrent => slots(heads),
    }
}

/// Rows of the largest launch.
fn widest(heads: &DraftHeads) -> usize {
    match heads.form {
        HeadForm::Parallel => heads.depths,
        HeadForm::Recurrent => BEAM,
    }
}

impl HeadBuffers {
    fn new(gpu: &Gpu, heads: &DraftHeads, q_size: usize) -> Self {
        let floats = |rows: usize, columns: usize| (rows * stride(columns) * 4) as u64;
        let (rows, most, hidden) = (logit_rows(heads), widest(heads), heads.hidden_size);
        let row_buffer = || gpu.storage("head rows", floats(rows, hidden));
        let map = heads.token_map.as_deref().unwrap_or(&[]);
        let buffers = Self {
            state: gpu.storage("head state", STATE_BYTES),
            entry: EntryBuffers::new(gpu, heads, q_size),
            inputs: gpu.storage("head inputs", floats(most, 2 * hidden)),
            rows: [row_buffer(), row_buffer()],
            logits: gpu.storage("head logits", floats(rows, heads.draft_vocab)),
            bests: gpu.storage("head chunks", (most * chunks(heads.draft_vocab)) as u64 * CHUNK_BEST_BYTES),
            kept: gpu.storage("head candidates kept", rows as u64 * KEPT_BYTES),
            path_scores: gpu.storage("head paths", rows as u64 * 4),
            token_map: gpu.storage("head tokens", map.len() as u64 * 4),
            candidates: gpu.storage("head candidates", (slots(heads) * TOP_K * CANDIDATE_BYTES) as u64),
        };
        gpu.queue.write_buffer(&buffers.token_map, 0, bytemuck::cast_slice(map));
        gpu.queue.write_buffer(&buffers.state, 0, bytemuck::bytes_of(&StateHead::for_rows(0, most)));
        buffers
    }
}

impl GpuHeads {
    /// What they are.
    pub fn shape(&self) -> &DraftHeads {
        &self.shape
    }

    /// Bytes of their packed weights.
    pub fn weight_bytes(&self) -> u64 {
        self.weights.bytes()
    }

    /// The launches that fill the candidates, behind those that leave the next root.
    ///
    /// # Errors
    /// `MissingTensor`, `Internal`.
    pub fn launches(&self, builder: &Builder<'_>) -> Result<HeadLaunches> {
        let mut rounds = Rounds { builder, heads: self, launches: Vec::new() };
        let short = match self.shape.form {
            HeadForm::Parallel => {
                rounds.parallel()?;
                rounds.launches.len()
            }
            HeadForm::Recurrent => {
                let (short, all) = (levels(self.shape.form, self.shape.depths, 1), self.shape.depths);
                (0..short).try_for_each(|depth| rounds.recurrent(depth))?;
                let count = rounds.launches.len();
                (short..all).try_for_each(|depth| rounds.recurrent(depth))?;
                count
            }
        };
        Ok(HeadLaunches { launches: rounds.launches, short })
    }

    pub(super) fn matrix(&self, matrix: HeadMatrix) -> Result<&GpuMatrix> {
        self.weights.matrix(Matrix::Heads(matrix))
    }
}

/// The launches of one draft.
#[derive(Debug, Default)]
pub struct HeadLaunches {
    launches: Vec<Launch>,
    /// How many of them there are behind passes of few rows.
    short: usize,
}

impl HeadLaunches {
    /// All of them.
    pub fn all(&self) -> &[Launch] {
        &self.launches
    }

    /// Those of a step whose pass has so many rows.
    pub fn behind(&self, rows: usize) -> &[Launch] {
        if rows <= SHORT_ROWS { &self.launches[..self.short] } else { &self.launches }
    }
}

/// Appends launches.
pub(super) struct Rounds<'a> {
    pub builder: &'a Builder<'a>,
    pub heads: &'a GpuHeads,
    pub launches: Vec<Launch>,
}

/// A buffer from one of its rows on.
#[derive(Clone, Copy)]
pub(super) struct Rows<'a> {
    pub buffer: &'a wgpu::Buffer,
    pub row: usize,
    /// Floats from one row to the next.
    pub stride: usize,
}

impl<'a> Rows<'a> {
    fn binding(self) -> wgpu::BufferBinding<'a> {
        wgpu::BufferBinding { buffer: self.buffer, offset: (self.row * self.stride * 4) as u64, size: None }
    }
}

impl<'a> Rounds<'a> {
    fn parallel(&mut self) -> Result<()> {
        let (heads, b) = (self.heads, &self.heads.buffers);
        let DraftHeads { depths, layers, hidden_size, .. } = heads.shape;
        let shape = self.shape(0, 0, depths);
        self.start(&shape)?;
        let rows = |layer: usize, row| Rows { buffer: &b.rows[layer % 2], row, stride: stride(hidden_size) };
        let input = Rows { buffer: &b.inputs, row: 0, stride: stride(hidden_size) };
        self.block(HeadMatrix::Trunk, HeadVector::TrunkBias, input, rows(0, 0), 1)?;
        for (head, layer) in (0..depths).flat_map(|head| (1..layers).map(move |layer| (head, layer))) {
            let (matrix, bias) = (HeadMatrix::Block { head, layer }, HeadVector::BlockBias { head, layer });
            self.block(matrix, bias, rows(layer - 1, head), rows(layer, head), 1)?;
        }
        match heads.shape.output {
            HeadOutput::Own => {
                for head in 0..depths {
                    self.output(head, rows(layers - 1, head), head, 1)?;
                }
            }
            HeadOutput::Target | HeadOutput::Shared => self.output(0, rows(layers - 1, 0), 0, depths)?,
        }
        self.rank(&shape, depths)?;
        self.correct(&shape, slots(&heads.shape))
    }

    /// The level of recurrent heads that ranks the children of nodes at `depth`.
    fn recurrent(&mut self, depth: usize) -> Result<()> {
        let (heads, b) = (self.heads, &self.heads.buffers);
        let hidden = heads.shape.hidden_size;
        let slot = first_slot(depth, BEAM);
        let nodes = if depth == 0 { 1 } else { BEAM };
        let shape = self.shape(depth, slot, nodes);
        if depth == 0 {
            self.start(&shape)?;
        } else {
            let bound = [&shape, &b.state, &b.candidates, &b.path_scores, &b.rows[0], &b.inputs];
            self.launch(Kernel::HeadExpand, &bound, Grid::One, 1)?;
        }
        self.embed(nodes)?;
        let head = heads.shape.block_of(depth);
        let (matrix, bias) = (HeadMatrix::Block { head, layer: 0 }, HeadVector::BlockBias { head, layer: 0 });
        let input = Rows { buffer: &b.inputs, row: 0, stride: stride(2 * hidden) };
        let states = Rows { buffer: &b.rows[0], row: slot, stride: stride(hidden) };
        self.block(matrix, bias, input, states, nodes)?;
        self.output(depth, states, slot, nodes)?;
        self.rank(&shape, nodes)?;
        self.correct(&shape, nodes)
    }

    /// What kernels must know of the nodes at `depth` whose slots begin at `slot`, with so many rows of logits.
    fn shape(&self, depth: usize, slot: usize, rows: usize) -> wgpu::Buffer {
        let heads = &self.heads.shape;
        let (hidden, recurrent) = (heads.hidden_size, heads.form == HeadForm::Recurrent);
        let columns = if recurrent { 2 * hidden } else { hidden };
        let quads = |floats: usize| (floats / QUAD) as u32;
        let shape = HeadShape {
            hidden_quads: quads(hidden),
            normed_stride: quads(row_stride(hidden)),
            input_stride: quads(stride(columns)),
            row_stride: quads(stride(hidden)),
            vocabulary: self.builder.config.vocab_size as u32,
            drafts: heads.draft_vocab as u32,
            logit_stride: quads(stride(heads.draft_vocab)),
            chunks: chunks(heads.draft_vocab) as u32,
            is_recurrent: recurrent.into(),
            depths: heads.depths as u32,
            depth: depth as u32,
            first_slot: slot as u32,
            parents: if depth == 1 { 1 } else { BEAM as u32 },
            first_parent: first_slot(depth.saturating_sub(1), BEAM) as u32,
            rows: rows as u32,
            nodes: if recurrent { rows } else { slots(heads) } as u32,
            taps: heads.taps.len() as u32,
        };
        self.builder.gpu.uniform("heads", &shape)
    }

    pub(super) fn launch(&mut self, kernel: Kernel, buffers: &[&wgpu::Buffer], grid: Grid, rows: usize) -> Result<()> {
        let resources: Vec<_> = buffers.iter().map(|buffer| buffer.as_entire_buffer_binding()).collect();
        self.launches.push(self.builder.launch_rows((kernel, None), &resources, grid, rows)?);
        Ok(())
    }

    /// The embedding of each row's token, behind the state it is added to.
    fn embed(&mut self, rows: usize) -> Result<()> {
        let (builder, b) = (self.builder, &self.heads.buffers);
        let hidden = self.heads.shape.hidden_size;
        let embedding = builder.weights.matrix(Matrix::Embedding)?;
        for part in &embedding.parts {
            let mut shape = embedding.shape(part, stride(2 * hidden), 0.0);
            shape.output_offset = (hidden / QUAD) as u32;
            let shape = builder.gpu.uniform("head embedding", &shape);
            let resources = [&shape, &b.state, &part.buffer, &b.inputs].map(|b| b.as_entire_buffer_binding());
            let kernel = (Kernel::Embed, Some(embedding.format()));
            self.launches.push(builder.launch_rows(
                kernel,
                &resources,
                Grid::Items(embed_items(builder.config)),
                rows,
            )?);
        }
        Ok(())
    }

    /// A matrix product over `rows` rows. Bindings: shape, state, weights, inputs, `after`.
    fn product(
        &mut self,
        kernel: Kernel,
        matrix: &GpuMatrix,
        (input, output_stride): (Rows<'_>, usize),
        after: &[wgpu::BufferBinding<'_>],
        rows: usize,
    ) -> Result<()> {
        for part in &matrix.parts {
            let mut shape = matrix.shape(part, output_stride, 0.0);
            shape.input_stride = (input.stride / STEP_VALUES) as u32;
            let grid = Grid::Quads(shape.quads as usize);
            let shape = self.builder.gpu.uniform(kernel.name(), &shape);
            let before = [&shape, &self.heads.buffers.state, &part.buffer].map(|b| b.as_entire_buffer_binding());
            let resources = [&before[..], &[input.binding()], after].concat();
            let kernel = (kernel, Some(matrix.format()));
            self.launches.push(self.builder.launch_rows(kernel, &resources, grid, rows)?);
        }
        Ok(())
    }

    pub(super) fn block(
        &mut self,
        matrix: HeadMatrix,
        bias: HeadVector,
        input: Rows<'_>,
        output: Rows<'_>,
        rows: usize,
    ) -> Result<()> {
        let heads = self.heads;
        let matrix = heads.matrix(matrix)?;
        let bias = heads.weights.bias(Vector::Heads(bias), matrix.layout.rows);
        let after = [bias.as_entire_buffer_binding(), output.binding()];
        self.product(Kernel::HeadBlock, matrix, (input, output.stride), &after, rows)
    }

    /// Logits of the last rows of `head` and, where they share its output matrix, of those behind it.
    fn output(&mut self, head: usize, rows: Rows<'_>, slot: usize, count: usize) -> Result<()> {
        let heads = self.heads;
        let matrix = match heads.shape.output {
            HeadOutput::Target => self.builder.weights.lm_head()?,
            _ => heads.matrix(HeadMatrix::Output(heads.shape.output_of(head)))?,
        };
        let logits = Rows { buffer: &heads.buffers.logits, row: slot, stride: stride(heads.shape.draft_vocab) };
        self.product(Kernel::LmHead, matrix, (rows, logits.stride), &[logits.binding()], count)
    }

    fn rank(&mut self, shape: &wgpu::Buffer, rows: usize) -> Result<()> {
        let (b, sampling) = (&self.heads.buffers, &self.builder.buffers.sampling);
        let bound = [sampling, shape, &b.state, &b.logits, &b.token_map, &b.bests];
        self.launch(Kernel::HeadChunks, &bound, Grid::Items(chunks(self.heads.shape.draft_vocab)), rows)?;
        let bound = [shape, &b.state, &b.bests, &b.token_map, &b.kept, &b.candidates];
        self.launch(Kernel::HeadRank, &bound, Grid::RowThreads, rows)
    }

    /// What the tokens of `nodes` nodes make of the candidates, where the heads have a correction.
    fn correct(&mut self, shape: &wgpu::Buffer, nodes: usize) -> Result<()> {
        if self.heads.shape.rank == 0 {
            return Ok(());
        }
        let (b, builder) = (&self.heads.buffers, self.builder);
        let matrix = self.heads.matrix(HeadMatrix::Correction)?;
        let [part] = &matrix.parts[..] else { return Err(too_large(&builder.gpu.caps, "the correction")) };
        let matrix_shape = builder.gpu.uniform("correction", &matrix.shape(part, 0, 0.0));
        let bound = [&builder.buffers.sampling, shape, &matrix_shape, &b.state, &part.buffer, &b.kept, &b.candidates];
        let resources = bound.map(|b| b.as_entire_buffer_binding());
        let kernel = (Kernel::HeadCorrect, Some(matrix.format()));
        self.launches.push(builder.launch_rows(kernel, &resources, Grid::RowThreads, nodes)?);
        Ok(())
    }
}

fn too_large(caps: &super::device::DeviceCaps, what: &str) -> Error {
    Error::new(
        ErrorCode::UnsupportedModel,
        format!(
            "{what} of the draft heads takes more than the {} bytes that this device binds at once; use heads with a smaller draft \
             vocabulary or rank",
            caps.max_binding_bytes
        ),
    )
}

impl GpuBackend {
    /// Lets draft heads of this model draft, whose matrices were [streamed](crate::model::heads::stream_heads) to `weights`.
    ///
    /// # Errors
    /// `MissingTensor`; `UnsupportedModel` for heads too large for the device's bindings; `OutOfMemory`.
    pub async fn set_heads(&mut self, shape: DraftHeads, weights: GpuWeights) -> Result<()> {
        let logit_bytes = (logit_rows(&shape) * stride(shape.draft_vocab) * 4) as u64;
        if logit_bytes > self.gpu.caps.max_binding_bytes {
            return Err(too_large(&self.gpu.caps, "the logits"));
        }
        let q_size = self.config.q_size();
        let buffers =
            self.gpu.scoped("buffers of the draft heads", || HeadBuffers::new(&self.gpu, &shape, q_size)).await?;
        let are_depths = shape.form == HeadForm::Parallel && shape.rank == 0;
        let draft = &mut self.buffers.draft;
        draft.head_slots = HeadSlots { count: slots(&shape), are_depths };
        draft.head_candidates = buffers.candidates.clone();
        self.heads = Some(GpuHeads { shape, weights, buffers });
        let watch = self.gpu.watch();
        let planned = self.new_plan().and_then(|plan| {
            // Compiled now, not when the user waits for a text.
            plan.compile_heads(&self.kernels)?;
            Ok(plan)
        });
        let reported = watch.report("preparing the draft heads' kernels");
        self.plan = planned?;
        reported.await
    }

    /// What the heads proposed in the last step that ran: for looking at them, and for comparing them with the reference.
    ///
    /// # Errors
    /// `DeviceLost`.
    pub async fn head_candidates(&self) -> Result<HeadCandidates> {
        let HeadSlots { count, are_depths } = self.buffers.draft.head_slots;
        let pool = StagingPool::new(self.gpu.clone(), (count * TOP_K * CANDIDATE_BYTES).next_multiple_of(QUAD) as u64);
        let mut encoder = self.gpu.device.create_command_encoder(&Default::default());
        let copy = pool.copy(&mut encoder, &self.buffers.draft.head_candidates, 0);
        self.gpu.queue.submit([encoder.finish()]);
        let listed = |bytes: &[u8]| -> Vec<HeadCandidate> {
            let raw = bytes.chunks_exact(CANDIDATE_BYTES).map(bytemuck::pod_read_unaligned::<RawHeadCandidate>);
            let found = raw.take_while(|candidate| candidate.token != u32::MAX);
            let candidate = |raw: RawHeadCandidate| HeadCandidate {
                token: raw.token,
                log_probability: raw.log_probability,
                next: (raw.next_slot != u32::MAX).then_some(raw.next_slot as usize),
            };
            found.map(candidate).collect()
        };
        let slots = copy.read().wait(|bytes| bytes.chunks_exact(TOP_K * CANDIDATE_BYTES).map(listed).collect()).await?;
        Ok(HeadCandidates { slots, by_depth: are_depths, draws: None })
    }
}
