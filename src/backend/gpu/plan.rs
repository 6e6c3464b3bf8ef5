//! Which kernels a pass launches, in order, over which buffers: made once, and again only when the cache grows.

use super::cache::Cache;
use super::device::Gpu;
use super::drafting::{DraftBuffers, DraftLaunches};
use super::heads::GpuHeads;
use super::kernels::{Kernel, Kernels, Special, Tile, Variant};
use super::layout::{
    AttentionShape, CHUNK, CHUNK_QUADS, NormShape, QUAD, RECORD_BYTES, RECORD_SLOTS, STATE_BYTES, SamplingShape,
    TILE_QUADS, row_stride,
};
use super::logprobs::{self, LogprobBuffers};
use super::rules::RuleBuffers;
use super::weights::{GpuMatrix, GpuWeights};
use crate::backend::MAX_ROWS;
use crate::error::Result;
use crate::model::ModelConfig;
use crate::model::packing::{PackedFormat, STEP_VALUES};
use crate::model::weights::{Matrix, Vector};
use crate::sampling::SamplingParams;
use crate::speculate::accept::AcceptRule;
use crate::speculate::{DraftPlan, Sources};

/// Buffers of a fixed size that kernels share.
#[derive(Debug)]
pub struct Buffers {
    /// `State` of shaders/lib/state.wgsl.
    pub state: wgpu::Buffer,
    /// The record ring.
    pub records: wgpu::Buffer,
    /// `Sampling` of shaders/lib/sampling.wgsl.
    pub sampling: wgpu::Buffer,
    /// `[vocabulary]`, what penalties count.
    pub history: wgpu::Buffer,
    /// `[vocabulary]`, logit bias.
    pub bias: wgpu::Buffer,
    /// `[rows, vocabulary]`.
    pub logits: wgpu::Buffer,
    residual: wgpu::Buffer,
    /// `[rows, hidden]`, what the last norm of a pass made.
    pub normed: wgpu::Buffer,
    queries: wgpu::Buffer,
    mixed: wgpu::Buffer,
    activations: wgpu::Buffer,
    /// `[rows, chunks]`, the best token of every part of a row.
    pub candidates: wgpu::Buffer,
    /// What only drafting uses.
    pub draft: DraftBuffers,
    /// `[rows]`, the lowest logit in play.
    pub thresholds: wgpu::Buffer,
    /// What only the rules of acceptance use.
    pub rules: RuleBuffers,
    /// What only log-probabilities use.
    pub logprobs: LogprobBuffers,
}

impl Buffers {
    /// Buffers for a model whose text may reach `context_limit` positions.
    ///
    /// # Errors
    /// `OutOfMemory`.
    pub async fn new(gpu: &Gpu, config: &ModelConfig, context_limit: usize) -> Result<Self> {
        let vocabulary = config.vocab_size.next_multiple_of(QUAD) as u64;
        let rows = |floats: usize| (MAX_ROWS * row_stride(floats) * 4) as u64;
        let chunks = config.vocab_size.div_ceil(QUAD * CHUNK_QUADS) as u64;
        gpu.scoped("buffers for one pass", || Self {
            state: gpu.storage("state", STATE_BYTES),
            records: gpu.storage("records", RECORD_SLOTS as u64 * RECORD_BYTES),
            sampling: gpu.uniform("sampling", &<SamplingShape as bytemuck::Zeroable>::zeroed()),
            history: gpu.storage("history", vocabulary * 4),
            bias: gpu.storage("bias", vocabulary * 4),
            logits: gpu.storage("logits", MAX_ROWS as u64 * vocabulary * 4),
            residual: gpu.storage("residual", rows(config.hidden_size)),
            normed: gpu.storage("normed", rows(config.hidden_size)),
            queries: gpu.storage("queries", rows(config.q_size())),
            mixed: gpu.storage("mixed", rows(config.q_size())),
            activations: gpu.storage("activations", rows(config.intermediate_size)),
            candidates: gpu.storage("candidates", MAX_ROWS as u64 * chunks * 8),
            draft: DraftBuffers::new(gpu, config, context_limit),
            thresholds: gpu.storage("thresholds", MAX_ROWS as u64 * 4),
            rules: RuleBuffers::new(gpu),
            logprobs: LogprobBuffers::new(gpu, config),
        })
        .await
    }
}

/// A matrix product of several rows is cut into tiles of fewer rows until there are so many workgroups: one would keep one core busy.
const LEAST_WORKGROUPS: usize = 2;

/// How many workgroups a launch has.
#[derive(Debug, Clone, Copy)]
pub enum Grid {
    /// One thread per item, times rows.
    Items(usize),
    /// One thread per register tile of this many quads, times row tiles.
    Quads(usize),
    /// One thread per chunk of positions, key head, and some of that head's queries.
    Chunks { kv_heads: usize, heads_per_kv: usize, role: ChunkRole },
    /// One thread per quad of a cache slot, times layers.
    Columns { columns: usize, layers: usize },
    /// One thread a row.
    RowThreads,
    /// One workgroup a row.
    Rows,
    /// One workgroup.
    One,
}

/// Which part of attention a launch takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ChunkRole {
    /// All chunks, four queries a thread.
    All,
    /// Committed chunks, twelve queries a thread, where a pass has rows enough.
    Committed,
    /// All others; all, where the committed ones are not taken yet.
    Rest,
}

/// Queries that a thread takes through a chunk, and through a committed one under [`ChunkRole::Committed`].
const CHUNK_QUERIES: [usize; 2] = [4, 12];
/// Rows from which on those are worth a launch of their own.
const SHARED_ROWS: usize = 3;

/// One kernel launch.
#[derive(Debug)]
pub struct Launch {
    kernel: Kernel,
    format: Option<PackedFormat>,
    group: wgpu::BindGroup,
    grid: Grid,
    /// Rows, where they are not the pass's.
    rows: Option<usize>,
    /// Whether the tokens of draft ids stand in a map.
    mapped: bool,
}

/// What is known of a pass when it is encoded.
#[derive(Debug, Clone, Copy)]
pub struct PassSize {
    /// Rows.
    pub rows: usize,
    /// Register tile that suits the matrix products. Results do not depend on it.
    pub tile: Tile,
    /// Positions that attention may have to look at, at most.
    pub positions: usize,
    /// Chance decides.
    pub noisy: bool,
    /// The next tree has a fixed shape.
    pub listed: bool,
}

impl Launch {
    /// The variant that computes in a pass of this size.
    pub fn variant(&self, size: PassSize, workgroup: usize) -> Variant {
        let size = self.own_size(size);
        let mut special = Special { noisy: size.noisy, listed: size.listed, mapped: self.mapped, ..Special::default() };
        let mut tile = size.tile;
        match self.grid {
            Grid::Chunks { role, .. } => {
                special.committed = role == ChunkRole::Committed;
                special.tree = role == ChunkRole::Rest && size.rows >= SHARED_ROWS;
            }
            Grid::Quads(quads) => {
                let of_tile = quads.div_ceil(TILE_QUADS).div_ceil(workgroup);
                while of_tile * size.rows.div_ceil(tile.rows()) < LEAST_WORKGROUPS
                    && let Some(smaller) = tile.smaller()
                {
                    tile = smaller;
                }
            }
            _ => {}
        }
        Variant::new(self.kernel, self.format, tile).specialised(special)
    }

    /// Whether a pass of this size has the launch at all.
    fn applies(&self, size: PassSize) -> bool {
        !matches!(self.grid, Grid::Chunks { role: ChunkRole::Committed, .. }) || size.rows >= SHARED_ROWS
    }

    /// The variant to compute with now: attention takes committed chunks apart once both kernels of that are compiled.
    fn variant_now(&self, kernels: &Kernels, size: PassSize, workgroup: usize) -> Result<Option<Variant>> {
        let variant = self.variant(size, workgroup);
        let Grid::Chunks { role, .. } = self.grid else { return Ok(Some(variant)) };
        if role == ChunkRole::All || size.rows < SHARED_ROWS {
            return Ok(Some(variant));
        }
        let all = Variant::new(self.kernel, self.format, size.tile);
        let part = |committed| all.specialised(Special { committed, tree: !committed, ..Special::default() });
        let (committed, tree) = (kernels.is_ready(part(true))?, kernels.is_ready(part(false))?);
        Ok(match (committed && tree, role) {
            (true, _) => Some(variant),
            (false, ChunkRole::Rest) => Some(all),
            (false, _) => None,
        })
    }

    /// The kernel's name.
    pub fn name(&self) -> &'static str {
        self.kernel.name()
    }

    fn own_size(&self, size: PassSize) -> PassSize {
        self.rows.map_or(size, |rows| PassSize { rows, tile: Tile::for_rows(rows), ..size })
    }

    /// Appends the launch to a compute pass.
    ///
    /// # Errors
    /// `Internal` for a shader that cannot be composed.
    pub fn encode(
        &self,
        kernels: &Kernels,
        pass: &mut wgpu::ComputePass<'_>,
        size: PassSize,
        workgroup: usize,
    ) -> Result<()> {
        let Some(variant) = self.variant_now(kernels, size, workgroup)? else { return Ok(()) };
        let (tile, pipeline) = kernels.ready(variant)?;
        let size = self.own_size(size);
        pass.set_pipeline(&pipeline);
        pass.set_bind_group(0, &self.group, &[]);
        let threads = |items: usize| items.div_ceil(workgroup) as u32;
        let rows = size.rows as u32;
        let (x, y, z) = match self.grid {
            Grid::Items(items) => (threads(items), rows, 1),
            Grid::Quads(quads) => (threads(quads.div_ceil(TILE_QUADS)), size.rows.div_ceil(tile.rows()) as u32, 1),
            Grid::Chunks { kv_heads, heads_per_kv, .. } => {
                let Special { committed, tree, .. } = variant.special;
                let queries = size.rows * heads_per_kv;
                let of_committed = size.positions / CHUNK * queries.div_ceil(CHUNK_QUERIES[usize::from(committed)]);
                let chunks_of_tree = (CHUNK - 1 + size.rows).div_ceil(CHUNK);
                let of_tree = chunks_of_tree * size.rows * heads_per_kv.div_ceil(CHUNK_QUERIES[0]);
                let units = if tree { 0 } else { of_committed } + if committed { 0 } else { of_tree };
                (threads(units * kv_heads), 1, 1)
            }
            Grid::Columns { columns, layers } => (threads(columns), layers as u32, 1),
            Grid::RowThreads => (threads(size.rows), 1, 1),
            Grid::Rows => (rows, 1, 1),
            Grid::One => (1, 1, 1),
        };
        pass.dispatch_workgroups(x, y, z);
        Ok(())
    }
}

impl PassSize {
    /// A pass with the smallest tile that takes its rows.
    pub fn fitted(rows: usize, positions: usize) -> Self {
        Self { rows, tile: Tile::for_rows(rows), positions, noisy: false, listed: false }
    }

    /// A piece of a prompt. It keeps to two tiles, so that a short piece does not wait for another one's compilation.
    pub fn prefill(rows: usize, positions: usize) -> Self {
        let tile = if rows < Tile::LARGEST.rows() { Tile::PROMPT } else { Tile::LARGEST };
        Self { tile, ..Self::fitted(rows, positions) }
    }
}

/// The launches of every kind of pass.
#[derive(Debug)]
pub struct Plan {
    /// Embedding and all layers but the last one's tail.
    body: Vec<Launch>,
    /// What the last layer does after its keys and values are written: a prompt's rows need none of it.
    tail: Vec<Launch>,
    /// Final norm and logits.
    head: Vec<Launch>,
    process: Launch,
    threshold: Launch,
    sample: Launch,
    draft: DraftLaunches,
    logprobs: [Launch; 2],
}

/// What a pass is for.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Purpose<'a> {
    /// Keys and values of a piece of the prompt.
    Prefill,
    /// Logits, for whoever looks at them.
    Evaluate,
    /// What draft heads do for one draft, alone, in a step of these rows.
    Heads,
    /// A decode step of these rows.
    Decode {
        /// How the generation chooses.
        sampling: &'a SamplingParams,
        /// How the generation drafts.
        draft: &'a DraftPlan,
        /// Who of that does in this step.
        drafters: Sources,
        /// Which drafted tokens pass.
        rule: AcceptRule,
        /// Rows of the pass.
        rows: usize,
        /// Whether log-probabilities were asked for.
        logprobs: bool,
    },
}

impl Plan {
    /// Bind groups for a model's weights over these buffers.
    ///
    /// # Errors
    /// `MissingTensor`, `Internal`.
    pub fn new(
        gpu: &Gpu,
        kernels: &Kernels,
        config: &ModelConfig,
        weights: &GpuWeights,
        buffers: &Buffers,
        cache: &Cache,
        heads: Option<&GpuHeads>,
    ) -> Result<Self> {
        let builder = Builder { gpu, kernels, config, weights, buffers, cache, heads };
        let mut body = builder.embed()?;
        let mut tail = Vec::new();
        for layer in 0..config.num_hidden_layers {
            body.append(&mut tail);
            let (qkv, rest) = builder.layer(layer)?;
            body.extend(qkv);
            tail = rest;
            tail.extend(heads.map(|heads| heads.tap(&builder, layer)).transpose()?.flatten());
        }
        let sampling = |kernel, buffers: &[&wgpu::Buffer], grid| builder.launch(kernel, None, buffers, grid);
        let b = buffers;
        let quads = config.vocab_size.div_ceil(QUAD);
        Ok(Self {
            body,
            tail,
            head: builder.lm_head()?,
            process: sampling(
                Kernel::ProcessLogits,
                &[&b.sampling, &b.state, &b.history, &b.bias, &b.logits],
                Grid::Items(quads),
            )?,
            threshold: sampling(Kernel::Threshold, &[&b.sampling, &b.state, &b.logits, &b.thresholds], Grid::Rows)?,
            sample: sampling(
                Kernel::Sample,
                &[&b.sampling, &b.state, &b.logits, &b.thresholds, &b.candidates],
                Grid::Items(quads.div_ceil(CHUNK_QUADS)),
            )?,
            draft: DraftLaunches::new(&builder)?,
            logprobs: logprobs::launches(&builder)?,
        })
    }

    /// Has the device compile what draft heads need.
    ///
    /// # Errors
    /// `Internal` for a shader that cannot be composed.
    pub fn compile_heads(&self, kernels: &Kernels) -> Result<()> {
        let (size, workgroup) = (PassSize::fitted(1, 1), kernels.gpu().caps.workgroup as usize);
        self.draft
            .heads()
            .all()
            .iter()
            .try_for_each(|launch| kernels.pipeline(launch.variant(size, workgroup)).map(drop))
    }

    /// What drafting launches besides heads, in passes of this size.
    fn drafting(&self, kernels: &Kernels, size: PassSize) -> impl Iterator<Item = Variant> {
        let workgroup = kernels.gpu().caps.workgroup as usize;
        self.draft.common().map(move |launch| launch.variant(size, workgroup))
    }

    /// Has the device compile in the background what drafting needs in passes of this size.
    ///
    /// # Errors
    /// `Internal` for a shader that cannot be composed.
    pub fn compile_drafting(&self, kernels: &Kernels, size: PassSize) -> Result<()> {
        self.drafting(kernels, size).try_for_each(|variant| kernels.is_ready(variant).map(drop))
    }

    /// Waits for it, which holds up nothing that was submitted.
    ///
    /// # Errors
    /// What the device says of it; `Internal` for a shader that cannot be composed.
    pub async fn drafting_compiled(&self, kernels: &Kernels, size: PassSize) -> Result<()> {
        for variant in self.drafting(kernels, size) {
            kernels.compiled(variant).await?;
        }
        Ok(())
    }

    /// The launches of one pass of this size, in order.
    pub fn launches(&self, purpose: Purpose<'_>, size: PassSize) -> Vec<&Launch> {
        if purpose == Purpose::Heads {
            return self.draft.heads().behind(size.rows).iter().collect();
        }
        let mut launches: Vec<&Launch> = self.body.iter().collect();
        if purpose != Purpose::Prefill {
            launches.extend(&self.tail);
            launches.extend(&self.head);
        }
        if let Purpose::Decode { sampling, draft, drafters, rule, rows, logprobs } = purpose {
            launches.extend(sampling.processes().then_some(&self.process));
            launches.extend(sampling.filters().then_some(&self.threshold));
            launches.push(&self.sample);
            launches.extend(self.draft.before_walk(draft, rule, rows));
            if logprobs && rule == AcceptRule::Rejection {
                // That rule has put other numbers in the place of logits, and penalties must not count what the walk emits.
                launches.extend(&self.head);
                launches.extend(sampling.processes().then_some(&self.process));
            }
            launches.push(self.draft.walk());
            launches.extend(logprobs.then_some(&self.logprobs).into_iter().flatten());
            launches.extend(self.draft.behind_walk(draft, drafters, rows));
        }
        launches.retain(|launch| launch.applies(size));
        launches
    }
}

/// Threads of embed.wgsl a row.
pub fn embed_items(config: &ModelConfig) -> usize {
    config.hidden_size.div_ceil(STEP_VALUES)
}

/// Makes launches for one model.
pub struct Builder<'a> {
    /// The device.
    pub gpu: &'a Gpu,
    /// Pipelines and layouts.
    pub kernels: &'a Kernels,
    /// The model.
    pub config: &'a ModelConfig,
    /// Its matrices and vectors.
    pub weights: &'a GpuWeights,
    /// Buffers of a fixed size.
    pub buffers: &'a Buffers,
    /// Buffers that grow.
    pub cache: &'a Cache,
    /// Its draft heads.
    pub heads: Option<&'a GpuHeads>,
}

impl Builder<'_> {
    /// One launch; `buffers` in the order of the kernel's bindings.
    ///
    /// # Errors
    /// `Internal` for a shader that cannot be composed.
    pub fn launch(
        &self,
        kernel: Kernel,
        format: Option<PackedFormat>,
        buffers: &[&wgpu::Buffer],
        grid: Grid,
    ) -> Result<Launch> {
        let resources: Vec<_> = buffers.iter().map(|buffer| buffer.as_entire_buffer_binding()).collect();
        let group = self.kernels.bind(kernel, format, &resources)?;
        Ok(Launch { kernel, format, group, grid, rows: None, mapped: false })
    }

    /// One launch over `rows` rows, whatever the pass has; `resources` in the order of the kernel's bindings.
    ///
    /// # Errors
    /// `Internal` for a shader that cannot be composed.
    pub fn launch_rows(
        &self,
        (kernel, format): (Kernel, Option<PackedFormat>),
        resources: &[wgpu::BufferBinding<'_>],
        grid: Grid,
        rows: usize,
    ) -> Result<Launch> {
        let mapped = self.heads.is_some_and(|heads| heads.shape().token_map.is_some());
        let group = self.kernels.bind(kernel, format, resources)?;
        Ok(Launch { kernel, format, group, grid, rows: Some(rows), mapped })
    }

    /// One launch for each part of a matrix. Bindings: the shape, `before`, the part's words, `after`.
    fn matmul(
        &self,
        kernel: Kernel,
        matrix: &GpuMatrix,
        output_stride: usize,
        before: &[&wgpu::Buffer],
        after: &[&wgpu::Buffer],
    ) -> Result<Vec<Launch>> {
        matrix
            .parts
            .iter()
            .map(|part| {
                let shape = matrix.shape(part, output_stride, self.config.rms_norm_eps);
                let uniform = self.gpu.uniform(kernel.name(), &shape);
                let grid = match kernel {
                    Kernel::Embed => Grid::Items(embed_items(self.config)),
                    _ => Grid::Quads(shape.quads as usize),
                };
                let buffers = [&[&uniform][..], before, &[&part.buffer], after].concat();
                self.launch(kernel, Some(matrix.format()), &buffers, grid)
            })
            .collect()
    }

    fn embed(&self) -> Result<Vec<Launch>> {
        let stride = row_stride(self.config.hidden_size);
        let embedding = self.weights.matrix(Matrix::Embedding)?;
        self.matmul(Kernel::Embed, embedding, stride, &[&self.buffers.state], &[&self.buffers.residual])
    }

    /// The launches of one layer: those that write its keys and values, and the rest.
    fn layer(&self, layer: usize) -> Result<(Vec<Launch>, Vec<Launch>)> {
        let (config, weights, b, cache) = (self.config, self.weights, self.buffers, self.cache);
        let hidden = row_stride(config.hidden_size);
        let qkv_rows = config.q_size() + 2 * config.kv_size();
        let (attention_vectors, bias_offset) =
            weights.gain_and_bias(Vector::AttentionNorm(layer), Some((Vector::QkvBias(layer), qkv_rows)))?;
        let attention = self.gpu.uniform("attention", &self.attention_shape(bias_offset));
        let keys_values = &cache.layers[layer];
        let kv_heads = config.num_key_value_heads;

        let qkv = self.matmul(
            Kernel::Qkv,
            weights.matrix(Matrix::Qkv(layer))?,
            0,
            &[&attention, &b.state],
            &[&attention_vectors, &b.residual, &cache.rotations, &b.queries, keys_values],
        )?;
        let chunks = |role| {
            self.launch(
                Kernel::AttentionChunks,
                None,
                &[&attention, &b.state, &b.queries, keys_values, &cache.parts, &cache.chunks],
                Grid::Chunks { kv_heads, heads_per_kv: config.num_attention_heads / kv_heads, role },
            )
        };
        let mut rest = match self.gpu.caps.shares_chunks(config.head_dim) {
            true => vec![chunks(ChunkRole::Committed)?, chunks(ChunkRole::Rest)?],
            false => vec![chunks(ChunkRole::All)?],
        };
        rest.push(self.launch(
            Kernel::AttentionJoin,
            None,
            &[&attention, &b.state, &cache.parts, &cache.chunks, &b.mixed],
            self.join_grid(),
        )?);
        let project = |matrix, inputs| {
            self.matmul(Kernel::Project, weights.matrix(matrix)?, hidden, &[&b.state], &[inputs, &b.residual])
        };
        rest.extend(project(Matrix::AttentionOut(layer), &b.mixed)?);
        rest.push(self.model_norm(Vector::FfnNorm(layer))?);
        rest.extend(self.matmul(
            Kernel::GateUp,
            weights.matrix(Matrix::GateUp(layer))?,
            row_stride(config.intermediate_size),
            &[&b.state],
            &[&b.normed, &b.activations],
        )?);
        rest.extend(project(Matrix::Down(layer), &b.activations)?);
        Ok((qkv, rest))
    }

    /// Threads of attention_join.wgsl.
    pub fn join_grid(&self) -> Grid {
        Grid::Items(self.config.num_attention_heads * (self.config.head_dim / QUAD).div_ceil(QUAD))
    }

    fn lm_head(&self) -> Result<Vec<Launch>> {
        let b = self.buffers;
        let vocabulary = self.config.vocab_size.next_multiple_of(QUAD);
        let mut launches = vec![self.model_norm(Vector::FinalNorm)?];
        launches.extend(self.matmul(
            Kernel::LmHead,
            self.weights.lm_head()?,
            vocabulary,
            &[&b.state],
            &[&b.normed, &b.logits],
        )?);
        Ok(launches)
    }

    fn model_norm(&self, gain: Vector) -> Result<Launch> {
        let (vectors, _) = self.weights.gain_and_bias(gain, None)?;
        self.norm(&vectors, self.buffers.normed.as_entire_buffer_binding())
    }

    /// The norm of all rows of the residual stream as it stands by then.
    ///
    /// # Errors
    /// `Internal`.
    pub fn norm(&self, gain: &wgpu::Buffer, to: wgpu::BufferBinding<'_>) -> Result<Launch> {
        let hidden = self.config.hidden_size;
        let shape = self.gpu.uniform(
            "norm",
            &NormShape {
                quads: (hidden / QUAD) as u32,
                stride: (row_stride(hidden) / QUAD) as u32,
                epsilon: self.config.rms_norm_eps,
                padding: 0,
            },
        );
        let b = self.buffers;
        let from = [&shape, &b.state, gain, &b.residual].map(|b| b.as_entire_buffer_binding());
        let group = self.kernels.bind(Kernel::Norm, None, &[&from[..], &[to]].concat())?;
        Ok(Launch { kernel: Kernel::Norm, format: None, group, grid: Grid::Rows, rows: None, mapped: false })
    }

    /// What attention must know; the bias of its queries begins at this float of the vectors bound to it.
    pub fn attention_shape(&self, bias_offset: usize) -> AttentionShape {
        let config = self.config;
        AttentionShape {
            query_quads: (config.q_size() / QUAD) as u32,
            kv_quads: (config.kv_size() / QUAD) as u32,
            head_quads: (config.head_dim / QUAD) as u32,
            kv_heads: config.num_key_value_heads as u32,
            heads_per_kv: (config.num_attention_heads / config.num_key_value_heads) as u32,
            bias_offset: (bias_offset / QUAD) as u32,
            chunk_stride: self.cache.chunk_stride() as u32,
            query_stride: (row_stride(config.q_size()) / QUAD) as u32,
            scale: 1.0 / (config.head_dim as f32).sqrt(),
            padding: [0; 3],
        }
    }
}
