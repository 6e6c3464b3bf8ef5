//! What drafting keeps on the device, and the launches behind the choice of tokens: learn, accept, commit, draft.

use super::device::Gpu;
use super::heads::HeadLaunches;
use super::kernels::Kernel;
use super::layout::{CommitShape, DraftingShape, HeadSlots, QUAD};
use super::plan::{Builder, Grid, Launch};
use super::rules::RuleLaunches;
use crate::backend::{GenerationSetup, MAX_ROWS};
use crate::error::Result;
use crate::model::ModelConfig;
use crate::speculate::accept::AcceptRule;
use crate::speculate::recycling::SUCCESSORS;
use crate::speculate::shape::Shape;
use crate::speculate::{Calibration, DraftPlan, Source, Sources};

/// Layers that one launch of commit.wgsl serves: eight storage buffers less the state.
const COMMIT_LAYERS: usize = 7;
/// Bytes of `Successor` in shaders/lib/successors.wgsl.
const SUCCESSOR_BYTES: usize = 8;
/// Where `Drafting` says who drafts.
const SOURCES_OFFSET: u64 = std::mem::offset_of!(DraftingShape, sources) as u64;
/// Bytes of one listed node of a fixed tree.
const LISTED_BYTES: usize = 8;

/// Buffers that only drafting uses.
#[derive(Debug)]
pub struct DraftBuffers {
    /// `Drafting` of shaders/lib/drafting.wgsl.
    pub shape: wgpu::Buffer,
    /// `[position]`, every token so far.
    pub text: wgpu::Buffer,
    /// `[vocabulary, SUCCESSORS]`, what recycling has learnt; kept from one generation to the next.
    pub successors: wgpu::Buffer,
    /// `[slot, width]`, what heads propose.
    pub head_candidates: wgpu::Buffer,
    /// `[slot, draft vocabulary]`, what they draw it by.
    pub head_logits: wgpu::Buffer,
    /// `[vocabulary]`, the draft id of every token.
    pub draft_ids: wgpu::Buffer,
    /// The slots that heads fill.
    pub head_slots: HeadSlots,
    /// `[node]`, parent and rank, of a fixed tree.
    pub listed: wgpu::Buffer,
    /// Stand in for layers that the last launch of commit.wgsl does not have.
    padding: Vec<wgpu::Buffer>,
}

impl DraftBuffers {
    /// Buffers for a model whose text may reach `context_limit` positions. Allocates; call it under [`Gpu::scoped`].
    pub fn new(gpu: &Gpu, config: &ModelConfig, context_limit: usize) -> Self {
        let padding = config.num_hidden_layers.next_multiple_of(COMMIT_LAYERS) - config.num_hidden_layers;
        Self {
            shape: gpu.uniform("drafting", &<DraftingShape as bytemuck::Zeroable>::zeroed()),
            text: gpu.storage("text", (context_limit + 1) as u64 * 4),
            successors: gpu.storage("successors", (config.vocab_size * SUCCESSORS * SUCCESSOR_BYTES) as u64),
            head_candidates: gpu.storage("no head candidates", 16),
            head_logits: gpu.storage("head logits", 16),
            draft_ids: gpu.storage("draft ids", 16),
            head_slots: HeadSlots::default(),
            listed: gpu.storage("listed nodes", (MAX_ROWS * LISTED_BYTES) as u64),
            padding: (0..padding).map(|_| gpu.storage("no layer", 16)).collect(),
        }
    }

    /// Writes what a generation needs before its first step.
    pub fn begin(&self, gpu: &Gpu, start: usize, root: u32, setup: &GenerationSetup, calibration: &Calibration) {
        let text: Vec<u32> = setup.prompt.iter().take(start).chain([&root]).copied().collect();
        gpu.queue.write_buffer(&self.text, 0, bytemuck::cast_slice(&text));
        self.write_shape(gpu, setup, setup.draft.sources, calibration);
        if let Shape::Fixed(tree) = &setup.draft.shape {
            let words: Vec<[u32; 2]> = [[0; 2]]
                .into_iter()
                .chain(tree.nodes().iter().map(|node| [node.parent as u32, node.rank as u32]))
                .collect();
            gpu.queue.write_buffer(&self.listed, 0, bytemuck::cast_slice(&words));
        }
    }

    /// Writes how drafts are made.
    pub fn write_shape(&self, gpu: &Gpu, setup: &GenerationSetup, drafters: Sources, calibration: &Calibration) {
        let shape = DraftingShape::new(&setup.draft, drafters, setup.rule(), calibration, self.head_slots);
        gpu.queue.write_buffer(&self.shape, 0, bytemuck::bytes_of(&shape));
    }

    /// Writes who drafts.
    pub fn write_drafters(&self, gpu: &Gpu, drafters: Sources) {
        gpu.queue.write_buffer(&self.shape, SOURCES_OFFSET, bytemuck::bytes_of(&drafters.bits()));
    }
}

/// The launches of drafting.
#[derive(Debug)]
pub struct DraftLaunches {
    recycle: Launch,
    rules: RuleLaunches,
    accept: Launch,
    commit: Vec<Launch>,
    heads: HeadLaunches,
    draft: Launch,
}

impl DraftLaunches {
    /// Bind groups over these buffers.
    ///
    /// # Errors
    /// `Internal`.
    pub fn new(builder: &Builder<'_>) -> Result<Self> {
        let (b, d) = (builder.buffers, &builder.buffers.draft);
        let slot_quads = 2 * builder.config.kv_size() / QUAD;
        let shape = builder.gpu.uniform("commit", &CommitShape { slot_quads: slot_quads as u32, padding: [0; 3] });
        let commit = builder.cache.layers.chunks(COMMIT_LAYERS).map(|layers| {
            let padding = d.padding.iter().take(COMMIT_LAYERS - layers.len());
            let bound: Vec<&wgpu::Buffer> = [&shape, &b.state].into_iter().chain(layers).chain(padding).collect();
            builder.launch(Kernel::Commit, None, &bound, Grid::Columns { columns: slot_quads, layers: layers.len() })
        });
        Ok(Self {
            recycle: builder.launch(
                Kernel::Recycle,
                None,
                &[&b.sampling, &b.state, &b.candidates, &d.successors],
                Grid::RowThreads,
            )?,
            rules: RuleLaunches::new(builder)?,
            accept: builder.launch(
                Kernel::Accept,
                None,
                &[&b.sampling, &b.candidates, &b.state, &b.history, &d.text, &b.records],
                Grid::One,
            )?,
            commit: commit.collect::<Result<_>>()?,
            heads: builder.heads.map_or_else(|| Ok(HeadLaunches::default()), |heads| heads.launches(builder))?,
            draft: builder.launch(
                Kernel::Draft,
                None,
                &[&b.sampling, &d.shape, &b.state, &d.text, &d.successors, &d.head_candidates, &d.listed, &b.records],
                Grid::One,
            )?,
        })
    }

    /// The launches of draft heads.
    pub fn heads(&self) -> &HeadLaunches {
        &self.heads
    }

    /// What only drafting launches, whoever drafts.
    pub fn common(&self) -> impl Iterator<Item = &Launch> {
        std::iter::once(&self.recycle).chain(&self.commit).chain([&self.draft])
    }

    /// What a step of `rows` rows launches between the choice of tokens and the walk, in order.
    /// Recycling also learns where nothing is drafted.
    pub fn before_walk(&self, plan: &DraftPlan, rule: AcceptRule, rows: usize) -> impl Iterator<Item = &Launch> {
        let learns = plan.nodes() > 1 && plan.sources.contains(Source::Recycling);
        learns.then_some(&self.recycle).into_iter().chain(self.rules.launches(rule, rows))
    }

    /// The walk.
    pub fn walk(&self) -> &Launch {
        &self.accept
    }

    /// What a step of `rows` rows launches behind it, in order.
    pub fn behind_walk(&self, plan: &DraftPlan, drafters: Sources, rows: usize) -> impl Iterator<Item = &Launch> {
        let drafting = plan.nodes() > 1;
        let commits = if rows > 1 { &self.commit[..] } else { &[] };
        let heads = if drafting && drafters.contains(Source::Heads) { self.heads.behind(rows) } else { &[] };
        commits.iter().chain(heads).chain((drafting && !drafters.is_empty()).then_some(&self.draft))
    }
}
