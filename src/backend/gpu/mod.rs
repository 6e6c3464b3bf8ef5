//! The WebGPU backend.
//!
//! A pass is one command buffer with one compute pass; a decode step adds one small copy. All sizes a launch needs are known
//! when it is encoded, although the accepted length is not: the CPU follows an upper bound of the context, and the kernels
//! read the true length from the state that the previous step left on the device.

mod cache;
pub mod device;
mod drafting;
mod head_entry;
mod heads;
pub mod kernels;
mod layout;
mod logprobs;
mod plan;
pub mod profile;
mod readback;
mod rules;
pub mod shader;
mod weights;

use std::collections::VecDeque;

use self::cache::Cache;
use self::device::{DeviceCaps, Gpu};
use self::heads::GpuHeads;
use self::kernels::Kernels;
use self::layout::{
    FINISH_OFFSET, PARENTS_OFFSET, RECORD_BYTES, RECORD_SLOTS, ROW_LIMIT_OFFSET, RawLogprob, RawRecord, SamplingShape,
    StateHead, TOKENS_OFFSET, TREE_BYTES, TREE_PARTS, topology_words,
};
use self::plan::{Buffers, PassSize, Plan, Purpose};
use self::profile::DeviceClock;
use self::readback::{Readback, StagingPool};
pub use self::weights::GpuWeights;
use crate::backend::self_check::self_check;
use crate::backend::{Backend, GenerationSetup, MAX_ROWS, PassCounters, StepRecord};
use crate::error::{Error, ErrorCode, Result};
use crate::model::ModelConfig;
use crate::model::heads::DraftHeads;
use crate::sampling::SamplingParams;
use crate::speculate::costs::PassCosts;
use crate::speculate::shape::Shape;
use crate::speculate::tree::Tree;
use crate::speculate::{Calibration, Sources};

/// Steps in flight at most: a record must be copied before the ring comes round to it.
pub const MAX_STEPS_IN_FLIGHT: usize = RECORD_SLOTS;

/// A model on a WebGPU device.
#[derive(Debug)]
pub struct GpuBackend {
    gpu: Gpu,
    kernels: Kernels,
    config: ModelConfig,
    context_limit: usize,
    weights: GpuWeights,
    buffers: Buffers,
    cache: Cache,
    heads: Option<GpuHeads>,
    plan: Plan,
    /// Ways back for records alone, and for those with trees or log-probabilities behind them.
    staging: StagingPool,
    staging_more: StagingPool,
    topology: Topology,
    decode: Decode,
}

/// Which tree's shape the state buffer holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Topology {
    /// A chain of any length: every piece of a prompt, and plain decoding.
    Chain,
    /// Something else, or nothing yet.
    Other,
}

/// The generation that is running.
#[derive(Debug, Default)]
struct Decode {
    setup: Option<GenerationSetup>,
    /// Positions committed by the last step whose record was read.
    context_length: usize,
    /// Steps ever submitted: numbers records, so that one of an earlier generation is never taken for a new one.
    steps: u32,
    in_flight: VecDeque<InFlight>,
    /// Rows that the state allows a pass.
    row_limit: usize,
    /// Who drafts, as the device was last told.
    drafters: Sources,
    counters: PassCounters,
}

/// A step that was submitted.
#[derive(Debug)]
struct InFlight {
    step: u32,
    rows: usize,
    readback: Readback,
}

impl Decode {
    /// Positions committed by the time the next submitted step runs, at most.
    fn context_bound(&self) -> usize {
        self.context_length + self.in_flight.iter().map(|step| step.rows).sum::<usize>()
    }
}

impl GpuBackend {
    /// A model whose weights are on the device. `context` caps the context length; the model's own is the default.
    ///
    /// # Errors
    /// `UnsupportedModel`, `MissingTensor`, `OutOfMemory`.
    pub async fn new(
        config: ModelConfig,
        weights: GpuWeights,
        kernels: Kernels,
        context: Option<usize>,
    ) -> Result<Self> {
        let gpu = kernels.gpu().clone();
        weights::check_sizes(&config)?;
        gpu.check()?;
        let context_limit = Cache::context_limit(&gpu, &config).min(context.unwrap_or(usize::MAX));
        if context_limit == 0 {
            return Err(Error::new(
                ErrorCode::UnsupportedModel,
                "the context length must be at least 1 and its cache must fit one binding of this device",
            ));
        }
        let buffers = Buffers::new(&gpu, &config, context_limit).await?;
        let cache = Cache::new(&gpu, &config, context_limit).await?;
        let plan = gpu
            .scoped("preparing the model's kernels", || {
                Plan::new(&gpu, &kernels, &config, &weights, &buffers, &cache, None)
            })
            .await??;
        let staging = StagingPool::new(gpu.clone(), RECORD_BYTES);
        let staging_more = StagingPool::new(gpu.clone(), RECORD_BYTES + TREE_BYTES + logprobs::MAX_BYTES);
        Ok(Self {
            gpu,
            kernels,
            config,
            context_limit,
            weights,
            buffers,
            cache,
            heads: None,
            plan,
            staging,
            staging_more,
            topology: Topology::Other,
            decode: Decode::default(),
        })
    }

    /// The device it runs on.
    pub fn gpu(&self) -> &Gpu {
        &self.gpu
    }

    /// What the device can do.
    pub fn caps(&self) -> &DeviceCaps {
        &self.gpu.caps
    }

    /// Compares this device with the reference on the model's weight formats.
    ///
    /// # Errors
    /// `DeviceMiscomputes`, `DeviceLost`, `OutOfMemory`.
    pub async fn self_check(&self) -> Result<()> {
        self_check(&self.gpu, &self.kernels, &self.weights, &self.config).await
    }

    /// Has the device compile in the background what drafting needs, so that the first draft does not wait for it: that of greedy text, then
    /// that of sampled.
    ///
    /// # Errors
    /// `Internal`.
    pub fn prepare_drafting(&self) -> Result<()> {
        let sizes = [false, true].map(|noisy| PassSize { noisy, ..PassSize::fitted(1, 1) });
        sizes.into_iter().try_for_each(|size| self.plan.compile_drafting(&self.kernels, size))
    }

    /// Gives the device and all its memory back at once, without waiting for a garbage collector. Calls fail from now on.
    pub fn release(&self) {
        self.gpu.device.destroy();
    }

    /// Bytes of the packed weights, those of draft heads among them.
    pub fn weight_bytes(&self) -> u64 {
        self.weights.bytes() + self.heads.as_ref().map_or(0, GpuHeads::weight_bytes)
    }

    /// Writes the tokens of a pass and, unless it is there already, the shape of its tree.
    fn write_tree(&mut self, tree: &Tree) {
        let queue = &self.gpu.queue;
        queue.write_buffer(&self.buffers.state, TOKENS_OFFSET, bytemuck::cast_slice(tree.tokens()));
        let is_chain = (1..tree.len()).all(|node| tree.parents()[node] == node - 1);
        if is_chain && self.topology == Topology::Chain {
            return;
        }
        let words = if is_chain { full_chain() } else { topology_words(tree) };
        queue.write_buffer(&self.buffers.state, PARENTS_OFFSET, bytemuck::cast_slice(&words));
        self.topology = if is_chain { Topology::Chain } else { Topology::Other };
    }

    fn write_head(&self, head: &StateHead) {
        self.gpu.queue.write_buffer(&self.buffers.state, 0, bytemuck::bytes_of(head));
    }

    /// Makes a tree at position `start` the next pass's, with room for its rows.
    async fn load_tree(&mut self, start: usize, tree: &Tree) -> Result<()> {
        let rows = tree.len();
        self.reserve(start + rows).await?;
        if rows > self.cache.max_rows {
            return Err(Error::new(
                ErrorCode::InvalidOption,
                format!("at this context length a pass has at most {} rows, found {rows}", self.cache.max_rows),
            ));
        }
        self.write_head(&StateHead::for_rows(start, rows));
        self.write_tree(tree);
        Ok(())
    }

    async fn reserve(&mut self, slots: usize) -> Result<()> {
        if self.cache.reserve(&self.gpu, &self.config, slots, self.context_limit).await? {
            self.plan = self.new_plan()?;
        }
        Ok(())
    }

    fn new_plan(&self) -> Result<Plan> {
        let heads = self.heads.as_ref();
        Plan::new(&self.gpu, &self.kernels, &self.config, &self.weights, &self.buffers, &self.cache, heads)
    }

    fn encode(&self, purpose: Purpose<'_>, size: PassSize) -> Result<wgpu::CommandEncoder> {
        self.encode_timed(purpose, size, None)
    }

    fn encode_timed(
        &self,
        purpose: Purpose<'_>,
        size: PassSize,
        timestamp_writes: Option<wgpu::ComputePassTimestampWrites<'_>>,
    ) -> Result<wgpu::CommandEncoder> {
        let mut encoder = self.gpu.device.create_command_encoder(&Default::default());
        let mut pass = encoder.begin_compute_pass(&wgpu::ComputePassDescriptor { label: None, timestamp_writes });
        for launch in self.plan.launches(purpose, size) {
            launch.encode(&self.kernels, &mut pass, size, self.gpu.caps.workgroup as usize)?;
        }
        drop(pass);
        Ok(encoder)
    }

    fn write_sampling(&self, setup: &GenerationSetup) {
        let queue = &self.gpu.queue;
        let vocab_size = self.config.vocab_size;
        let shape = SamplingShape::new(setup, vocab_size);
        queue.write_buffer(&self.buffers.sampling, 0, bytemuck::bytes_of(&shape));
        if !setup.sampling.processes() {
            return;
        }
        let mut history = vec![0u32; vocab_size];
        for &token in &setup.prompt {
            if let Some(seen) = history.get_mut(token as usize) {
                *seen = 1;
            }
        }
        queue.write_buffer(&self.buffers.history, 0, bytemuck::cast_slice(&history));
        queue.write_buffer(&self.buffers.bias, 0, bytemuck::cast_slice(&dense_bias(&setup.sampling, vocab_size)));
    }
}

fn full_chain() -> Vec<u32> {
    let chain = Tree::chain(&[0; MAX_ROWS]).map(|tree| topology_words(&tree));
    chain.unwrap_or_else(|_| unreachable!("a chain of MAX_ROWS nodes is a tree"))
}

fn dense_bias(params: &SamplingParams, vocab_size: usize) -> Vec<f32> {
    let mut bias = vec![0.0; vocab_size];
    for &(token, value) in &params.logit_bias {
        if let Some(slot) = bias.get_mut(token as usize) {
            *slot += value;
        }
    }
    bias
}

impl Backend for GpuBackend {
    fn config(&self) -> &ModelConfig {
        &self.config
    }

    fn usual_costs(&self) -> PassCosts {
        // Processors that emulate a device pay for arithmetic; devices pay for reading the weights until rows are many (figures for
        // small batches on integrated and discrete devices lie between).
        PassCosts::new(match self.gpu.caps.software {
            true => [1.0, 1.3, 1.8, 2.8, 5.5, 11.0, 22.0],
            false => [1.0, 1.1, 1.4, 2.3, 4.0, 7.5, 15.0],
        })
    }

    fn sizes_to_measure(&self) -> &'static [usize] {
        // A browser's software adapter compiles the kernels of the other sizes for seconds.
        if self.gpu.caps.software && self.gpu.caps.browser { &[4] } else { &[4, 8, 2, 16] }
    }

    fn context_limit(&self) -> usize {
        self.context_limit
    }

    fn heads(&self) -> Option<&DraftHeads> {
        self.heads.as_ref().map(GpuHeads::shape)
    }

    async fn prefill(&mut self, start: usize, tokens: &[u32]) -> Result<()> {
        self.reserve(start + tokens.len() + 1).await?;
        let mut at = start;
        let max_rows = self.cache.max_rows;
        for piece in tokens.chunks(max_rows) {
            self.write_head(&StateHead::for_rows(at, piece.len()));
            self.write_tree(&Tree::chain(piece)?);
            let size = PassSize::prefill(piece.len(), at + piece.len());
            let encoder = self.encode(Purpose::Prefill, size)?;
            self.gpu.queue.submit([encoder.finish()]);
            at += piece.len();
        }
        self.gpu.check()
    }

    fn begin(&mut self, start: usize, root: u32, setup: &GenerationSetup) -> Result<()> {
        self.gpu.check()?;
        self.write_sampling(setup);
        self.write_head(&StateHead::for_generation(start, self.decode.steps, self.context_limit, setup));
        self.write_tree(&Tree::chain(&[root])?);
        if setup.draft.nodes() > 1 {
            self.buffers.draft.begin(&self.gpu, start, root, setup, &Calibration::default());
            self.buffers.rules.begin(&self.gpu, setup.rule());
            self.topology = Topology::Other;
        }
        self.decode = Decode {
            setup: Some(setup.clone()),
            context_length: start,
            steps: self.decode.steps,
            row_limit: 1,
            drafters: setup.draft.sources,
            ..Default::default()
        };
        Ok(())
    }

    async fn submit_step(&mut self, rows: usize, drafters: Sources) -> Result<()> {
        assert!(self.decode.in_flight.len() < MAX_STEPS_IN_FLIGHT, "the record ring has room for every step in flight");
        // Past the context's end the device has finished; such a step writes nothing and needs no room.
        let bound = self.decode.context_bound().min(self.context_limit);
        self.reserve(bound + rows).await?;
        let rows = rows.clamp(1, self.cache.max_rows);
        let Some(setup) = &self.decode.setup else {
            return Err(Error::new(ErrorCode::Internal, "a step was submitted before a generation began"));
        };
        if rows != self.decode.row_limit {
            self.gpu.queue.write_buffer(&self.buffers.state, ROW_LIMIT_OFFSET, bytemuck::bytes_of(&(rows as u32)));
        }
        if drafters != self.decode.drafters {
            self.buffers.draft.write_drafters(&self.gpu, drafters);
        }
        let purpose = Purpose::Decode {
            sampling: &setup.sampling,
            draft: &setup.draft,
            drafters,
            rule: setup.rule(),
            rows,
            logprobs: setup.logprobs.is_some(),
        };
        let size = PassSize {
            noisy: setup.sampling.temperature > 0.0,
            listed: matches!(setup.draft.shape, Shape::Fixed(_)),
            ..PassSize::fitted(rows, bound + rows)
        };
        if setup.draft.nodes() > 1 {
            self.plan.drafting_compiled(&self.kernels, size).await?;
        }
        let mut encoder = self.encode(purpose, size)?;
        let dispatches = self.plan.launches(purpose, size).len() as u32;
        let step = self.decode.steps;
        let slot = u64::from(step) % RECORD_SLOTS as u64;
        let record = (&self.buffers.records, slot * RECORD_BYTES, RECORD_BYTES);
        let mut parts = vec![record];
        if setup.trees {
            parts.extend(TREE_PARTS.map(|(offset, bytes)| (&self.buffers.state, offset, bytes)));
        }
        if let Some(top) = setup.logprobs {
            parts.push((&self.buffers.logprobs.results, 0, logprobs::bytes(rows, top)));
        }
        let staging = if parts.len() == 1 { &self.staging } else { &self.staging_more };
        let copy = staging.copy_parts(&mut encoder, &parts);
        self.gpu.queue.submit([encoder.finish()]);
        self.decode.in_flight.push_back(InFlight { step, rows, readback: copy.read() });
        self.decode.steps += 1;
        self.decode.row_limit = rows;
        self.decode.drafters = drafters;
        let counters = &mut self.decode.counters;
        counters.passes += 1;
        counters.submits += 1;
        counters.dispatches_per_pass = counters.dispatches_per_pass.max(dispatches);
        self.gpu.check()
    }

    fn calibrate(&mut self, calibration: &Calibration) {
        if let Some(setup) = &self.decode.setup {
            self.buffers.draft.write_shape(&self.gpu, setup, self.decode.drafters, calibration);
        }
    }

    async fn next_record(&mut self) -> Result<StepRecord> {
        let Some(InFlight { step, readback, .. }) = self.decode.in_flight.pop_front() else {
            return Err(Error::new(ErrorCode::Internal, "a record was asked for, but no step is in flight"));
        };
        let (trees, top) = self.decode.setup.as_ref().map_or((false, None), |setup| (setup.trees, setup.logprobs));
        let read = |bytes: &[u8]| {
            let (record, mut more) = bytes.split_at(RECORD_BYTES as usize);
            let mut record = RawRecord::read(record, step).unwrap_or_default();
            if trees {
                record.tree = layout::read_tree(more, record.drafted);
                more = &more[TREE_BYTES as usize..];
            }
            if let Some(top) = top {
                record.logprobs = RawLogprob::read(more, record.tokens.len(), top);
            }
            record
        };
        let record = readback.wait(read).await?;
        self.gpu.check()?;
        self.decode.context_length = self.decode.context_length.max(record.context_length);
        Ok(record)
    }

    fn halt(&mut self) {
        self.gpu.queue.write_buffer(&self.buffers.state, FINISH_OFFSET, bytemuck::bytes_of(&1u32));
        self.decode.setup = None;
        self.decode.in_flight.clear();
    }

    async fn evaluate(&mut self, start: usize, tree: &Tree) -> Result<Vec<f32>> {
        let rows = tree.len();
        self.load_tree(start, tree).await?;
        let depth = tree.depths().iter().max().copied().unwrap_or(0);
        let mut encoder = self.encode(Purpose::Evaluate, PassSize::fitted(rows, start + depth + 1))?;
        let vocab_size = self.config.vocab_size;
        let stride = vocab_size.next_multiple_of(layout::QUAD);
        let pool = StagingPool::new(self.gpu.clone(), (rows * stride * 4) as u64);
        let copy = pool.copy(&mut encoder, &self.buffers.logits, 0);
        self.gpu.queue.submit([encoder.finish()]);
        copy.read()
            .wait(|bytes| {
                let rows = bytes.chunks_exact(stride * 4).map(|row| &row[..vocab_size * 4]);
                rows.flat_map(|row| row.chunks_exact(4).map(bytemuck::pod_read_unaligned::<f32>)).collect()
            })
            .await
    }

    async fn run_passes(&mut self, rows: usize, context: usize, passes: usize) -> Result<()> {
        self.prepare_pass(rows, context).await?;
        for _ in 0..passes {
            let encoder = self.encode(Purpose::Evaluate, PassSize::fitted(rows, context + rows))?;
            self.gpu.queue.submit([encoder.finish()]);
        }
        readback::settle(&self.gpu).await
    }

    async fn time_passes(&mut self, rows: &[usize], context: usize) -> Result<Option<Vec<f64>>> {
        let Some(clock) = DeviceClock::new(&self.gpu, rows.len()) else { return Ok(None) };
        for (i, &rows) in rows.iter().enumerate() {
            self.prepare_pass(rows, context).await?;
            let size = PassSize::fitted(rows, context + rows);
            let encoder = self.encode_timed(Purpose::Evaluate, size, Some(clock.writes(i)))?;
            self.gpu.queue.submit([encoder.finish()]);
        }
        let times = clock.read().await?;
        // From the end of the one before: where the device waits for commands, that is part of what a pass costs.
        let before = times.iter().map(|&(_, ended)| ended);
        let starts = times.iter().map(|&(began, _)| began).take(1).chain(before);
        Ok(Some(starts.zip(&times).map(|(start, &(_, ended))| (ended - start).max(0.0)).collect()))
    }

    async fn time_heads(&mut self) -> Result<Option<f64>> {
        const ROUNDS: usize = 3;
        let Some(clock) = self.heads.is_some().then(|| DeviceClock::new(&self.gpu, ROUNDS)).flatten() else {
            return Ok(None);
        };
        for round in 0..ROUNDS {
            self.prepare_pass(1, 1).await?;
            let encoder = self.encode_timed(Purpose::Heads, PassSize::fitted(1, 1), Some(clock.writes(round)))?;
            self.gpu.queue.submit([encoder.finish()]);
        }
        let times = clock.read().await?;
        // The first round may wait for the device, and others be disturbed.
        Ok(times.iter().map(|(began, ended)| ended - began).reduce(f64::min))
    }

    async fn settle(&mut self) -> Result<()> {
        readback::settle(&self.gpu).await
    }

    fn counters(&self) -> PassCounters {
        self.decode.counters
    }
}
