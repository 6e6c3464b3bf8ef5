//! The Rust side of every structure that a shader declares: same order, same sizes.

use bytemuck::{Pod, Zeroable};

use crate::backend::{Emitted, FinishReason, GenerationSetup, MAX_END_TOKENS, MAX_ROWS, StepRecord};
use crate::model::heads::{DepthCalibration, MAX_DEPTHS};
use crate::sampling::{CHUNK_TOKENS, Logprobs, TokenLogprob};
use crate::speculate::accept::{AcceptRule, MAX_EMITTED};
use crate::speculate::grow::DraftedNode;
use crate::speculate::heads::TOP_K;
use crate::speculate::shape::Shape;
use crate::speculate::tree::Tree;
use crate::speculate::{Calibration, DraftPlan, Source, Sources};

/// Floats in a `vec4f`, the unit of most kernels.
pub const QUAD: usize = 4;
/// Quads of outputs one thread computes; `QUADS` in shaders/lib/packed.wgsl.
pub const TILE_QUADS: usize = 4;
/// Positions of one chunk; `CHUNK` in shaders/lib/attention_shape.wgsl.
pub const CHUNK: usize = 16;
/// Quads of logits one thread reduces; `CHUNK_QUADS` in shaders/lib/sampling.wgsl.
pub const CHUNK_QUADS: usize = CHUNK_TOKENS / QUAD;
/// Records the ring holds; `RECORD_SLOTS` in shaders/lib/record.wgsl. More steps than this are never in flight.
pub const RECORD_SLOTS: usize = 64;
/// Bytes of one record.
pub const RECORD_BYTES: u64 = size_of::<RawRecord>() as u64;
/// Rows of activations start at multiples of this many floats, so that whole blocks of weights can be walked.
const ROW_ALIGNMENT: usize = 32;

/// Floats from one row of activations to the next.
pub const fn row_stride(columns: usize) -> usize {
    columns.next_multiple_of(ROW_ALIGNMENT)
}

/// The head of `State` in shaders/lib/state.wgsl.
#[repr(C)]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
pub struct StateHead {
    pub context_length: u32,
    pub rows: u32,
    pub finish: u32,
    pub emitted: u32,
    pub max_tokens: u32,
    pub context_limit: u32,
    pub step: u32,
    pub row_limit: u32,
    pub visited_rows: u32,
    pub commit_start: u32,
    pub last_row: u32,
    pub end_token_count: u32,
    pub end_tokens: [u32; MAX_END_TOKENS],
}

/// Byte offset of `State.finish`.
pub const FINISH_OFFSET: u64 = 8;
/// Byte offset of `State.row_limit`.
pub const ROW_LIMIT_OFFSET: u64 = 28;
/// Byte offset of `State.tokens`.
pub const TOKENS_OFFSET: u64 = size_of::<StateHead>() as u64;
/// Bytes of one number for every row.
const ROWS_BYTES: u64 = (MAX_ROWS * 4) as u64;
/// Byte offset of `State.parents`; depths and paths follow.
pub const PARENTS_OFFSET: u64 = TOKENS_OFFSET + ROWS_BYTES;
/// Byte offset of `State.sources`; visited rows and slots follow.
const SOURCES_OFFSET: u64 = PARENTS_OFFSET + 2 * ROWS_BYTES + ROWS_BYTES * MAX_ROWS as u64;
/// Byte offset of `State.log_probabilities`, the last of it.
const LOG_PROBABILITIES_OFFSET: u64 = SOURCES_OFFSET + 3 * ROWS_BYTES;
/// Bytes of the whole `State`.
pub const STATE_BYTES: u64 = LOG_PROBABILITIES_OFFSET + ROWS_BYTES;
/// What shows a drafted tree, as offset and bytes in `State`: tokens and parents, sources, log-probabilities.
pub const TREE_PARTS: [(u64, u64); 3] =
    [(TOKENS_OFFSET, 2 * ROWS_BYTES), (SOURCES_OFFSET, ROWS_BYTES), (LOG_PROBABILITIES_OFFSET, ROWS_BYTES)];
/// Bytes of all of them.
pub const TREE_BYTES: u64 = 4 * ROWS_BYTES;

/// The first `count` nodes of the tree in [`TREE_PARTS`], one part behind the other.
pub fn read_tree(bytes: &[u8], count: usize) -> Vec<DraftedNode> {
    let word = |part: usize, node: usize| {
        let at = part * ROWS_BYTES as usize + 4 * node;
        bytemuck::pod_read_unaligned::<u32>(&bytes[at..at + 4])
    };
    let node = |node: usize| match node {
        // The walk names the root, and leaves the rest of it as it was.
        0 => DraftedNode::root(word(0, 0)),
        _ => DraftedNode {
            token: word(0, node),
            parent: word(1, node) as usize,
            source: Source::ALL.get(word(2, node) as usize).copied().unwrap_or(Source::Model),
            log_probability: f32::from_bits(word(3, node)),
        },
    };
    (0..count).map(node).collect()
}

impl StateHead {
    /// The head before a pass that decides nothing: a piece of the prompt, or an evaluation.
    pub fn for_rows(context_length: usize, rows: usize) -> Self {
        Self { context_length: context_length as u32, rows: rows as u32, row_limit: MAX_ROWS as u32, ..Self::zeroed() }
    }

    /// The head before the first step of a generation.
    pub fn for_generation(start: usize, step: u32, context_limit: usize, setup: &GenerationSetup) -> Self {
        let mut head = Self {
            step,
            row_limit: 1,
            max_tokens: setup.max_tokens,
            context_limit: context_limit as u32,
            end_token_count: setup.end_tokens.len() as u32,
            ..Self::for_rows(start, 1)
        };
        head.end_tokens[..setup.end_tokens.len()].copy_from_slice(&setup.end_tokens);
        head
    }
}

/// `State.parents`, `.depths` and `.paths` of a tree, one after the other.
pub fn topology_words(tree: &Tree) -> Vec<u32> {
    let mut words = vec![0; 2 * MAX_ROWS + MAX_ROWS * MAX_ROWS];
    for node in 0..tree.len() {
        words[node] = tree.parents()[node] as u32;
        words[MAX_ROWS + node] = tree.depths()[node] as u32;
        for (depth, ancestor) in tree.path(node).into_iter().enumerate() {
            words[2 * MAX_ROWS + node * MAX_ROWS + depth] = ancestor as u32;
        }
    }
    words
}

/// `MatmulShape` in shaders/lib/packed.wgsl.
#[repr(C)]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
pub struct MatmulShape {
    pub quads: u32,
    pub first_quad: u32,
    pub blocks: u32,
    pub group_stride: u32,
    pub input_stride: u32,
    pub output_stride: u32,
    pub columns: u32,
    pub epsilon: f32,
    pub output_offset: u32,
}

/// `NormShape` in shaders/norm.wgsl.
#[repr(C)]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
pub struct NormShape {
    pub quads: u32,
    pub stride: u32,
    pub epsilon: f32,
    pub padding: u32,
}

/// `AttentionShape` in shaders/lib/attention_shape.wgsl.
#[repr(C)]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
pub struct AttentionShape {
    pub query_quads: u32,
    pub kv_quads: u32,
    pub head_quads: u32,
    pub kv_heads: u32,
    pub heads_per_kv: u32,
    pub bias_offset: u32,
    pub chunk_stride: u32,
    pub query_stride: u32,
    pub scale: f32,
    pub padding: [u32; 3],
}

/// `Sampling` in shaders/lib/sampling.wgsl.
#[repr(C)]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
pub struct SamplingShape {
    pub vocabulary_quads: u32,
    pub valid_tokens: u32,
    pub chunks: u32,
    pub top_k: u32,
    pub seed_low: u32,
    pub seed_high: u32,
    pub inverse_temperature: f32,
    pub top_p: f32,
    pub min_p: f32,
    pub repetition_penalty: f32,
    pub frequency_penalty: f32,
    pub presence_penalty: f32,
    pub shares_noise: u32,
    pub temperature: f32,
    pub top_logprobs: u32,
    pub padding: u32,
}

impl SamplingShape {
    /// The parameters of a generation over a vocabulary of `vocab_size` logits.
    pub fn new(setup: &GenerationSetup, vocab_size: usize) -> Self {
        let params = &setup.sampling;
        let quads = vocab_size.div_ceil(QUAD);
        let filters = params.filters();
        Self {
            vocabulary_quads: quads as u32,
            valid_tokens: setup.valid_tokens,
            chunks: quads.div_ceil(CHUNK_QUADS) as u32,
            top_k: if filters { params.top_k } else { 0 },
            seed_low: params.seed as u32,
            seed_high: (params.seed >> 32) as u32,
            inverse_temperature: if params.temperature > 0.0 { 1.0 / params.temperature } else { 0.0 },
            top_p: if filters { params.top_p } else { 1.0 },
            min_p: if filters { params.min_p } else { 0.0 },
            repetition_penalty: params.repetition_penalty,
            frequency_penalty: params.frequency_penalty,
            presence_penalty: params.presence_penalty,
            shares_noise: u32::from(setup.rule() != AcceptRule::Rejection),
            temperature: params.divisor(),
            top_logprobs: setup.logprobs.unwrap_or(0) as u32,
            padding: 0,
        }
    }
}

/// `CommitShape` in shaders/commit.wgsl.
#[repr(C)]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
pub struct CommitShape {
    pub slot_quads: u32,
    pub padding: [u32; 3],
}

/// `Drafting` in shaders/lib/drafting.wgsl.
#[repr(C)]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
pub struct DraftingShape {
    pub sources: u32,
    pub max_nodes: u32,
    pub listed_nodes: u32,
    pub head_slots: u32,
    pub head_width: u32,
    pub head_slots_are_depths: u32,
    pub recycling_log_probability: f32,
    pub rejects: u32,
    pub drawing: u32,
    pub draft_vocabulary: u32,
    pub draw_chunks: u32,
    pub padding: u32,
    pub ngram_log_probabilities: [f32; 8],
    pub head_calibration: [[f32; 2]; MAX_DEPTHS],
}

impl DraftingShape {
    /// How a generation drafts, for now with these drafters and slots of head candidates.
    pub fn new(
        plan: &DraftPlan,
        drafters: Sources,
        rule: AcceptRule,
        calibration: &Calibration,
        heads: HeadSlots,
    ) -> Self {
        let mut shape = Self {
            rejects: u32::from(rule == AcceptRule::Rejection),
            sources: drafters.bits(),
            max_nodes: plan.nodes() as u32,
            listed_nodes: match &plan.shape {
                Shape::Grown => 0,
                Shape::Fixed(tree) => tree.len() as u32,
            },
            head_slots: heads.count as u32,
            head_width: TOP_K as u32,
            head_slots_are_depths: heads.are_depths.into(),
            recycling_log_probability: calibration.recycling.ln(),
            head_calibration: calibration.heads.map(|DepthCalibration { slope, offset }| [slope, offset]),
            ..Self::zeroed()
        };
        for (to, probability) in shape.ngram_log_probabilities.iter_mut().zip(&calibration.ngram) {
            *to = probability.ln();
        }
        shape
    }
}

/// `Rule` in shaders/judge.wgsl.
#[repr(C)]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
pub struct RuleShape {
    pub epsilon: f32,
    pub alpha: f32,
    pub k: u32,
    pub tolerance: f32,
}

impl RuleShape {
    /// What a rule asks for; of what it does not look at, no more than every token has.
    pub fn new(rule: AcceptRule) -> Self {
        let any = Self { epsilon: -1.0, alpha: 0.0, k: u32::MAX, tolerance: f32::MAX };
        match rule {
            AcceptRule::Exact | AcceptRule::Rejection => any,
            AcceptRule::Typical { epsilon, alpha } => Self { epsilon, alpha, ..any },
            AcceptRule::TopK { k, tolerance } => Self { k, tolerance, ..any },
        }
    }
}

/// The slots of head candidates that there are; none without heads.
#[derive(Debug, Clone, Copy, Default)]
pub struct HeadSlots {
    pub count: usize,
    /// Whether slot d belongs to every node of depth d.
    pub are_depths: bool,
}

/// `HeadShape` in shaders/lib/heads.wgsl.
#[repr(C)]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
pub struct HeadShape {
    pub hidden_quads: u32,
    pub normed_stride: u32,
    pub input_stride: u32,
    pub row_stride: u32,
    pub vocabulary: u32,
    pub drafts: u32,
    pub logit_stride: u32,
    pub chunks: u32,
    pub is_recurrent: u32,
    pub depths: u32,
    pub depth: u32,
    pub first_slot: u32,
    pub parents: u32,
    pub first_parent: u32,
    pub rows: u32,
    pub nodes: u32,
    pub taps: u32,
}

/// `HeadCandidate` in shaders/lib/heads.wgsl.
#[repr(C)]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
pub struct RawHeadCandidate {
    pub token: u32,
    pub log_probability: f32,
    pub next_slot: u32,
}

/// Bytes of `ChunkBest` in shaders/lib/heads.wgsl.
pub const CHUNK_BEST_BYTES: u64 = 12;
/// Bytes of `Kept` in shaders/lib/heads.wgsl.
pub const KEPT_BYTES: u64 = (1 + 3 * TOP_K as u64) * 4;

/// `Record` in shaders/lib/record.wgsl.
#[repr(C)]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
pub struct RawRecord {
    pub step: u32,
    pub count: u32,
    pub finish: u32,
    pub context_length: u32,
    pub rows: u32,
    pub missed: u32,
    pub drafted: u32,
    pub match_length: u32,
    pub tokens: [u32; MAX_EMITTED],
    pub offers: [u32; MAX_EMITTED / 8],
    pub padding: [u32; 2],
}

impl RawRecord {
    /// The record of step number `step`. A step that ran after the end wrote none, so another step's is found in its slot.
    pub fn read(bytes: &[u8], step: u32) -> Option<StepRecord> {
        let raw: Self = bytemuck::pod_read_unaligned(bytes);
        // A fresh ring is all zero, which would pass for step 0.
        if raw.step != step || raw.count == 0 {
            return None;
        }
        let finish = match raw.finish {
            1 => Some(FinishReason::Stop),
            2 => Some(FinishReason::Length),
            3 => Some(FinishReason::Context),
            _ => None,
        };
        let tokens = raw.tokens.iter().take(raw.count as usize).enumerate().map(|(level, &word)| Emitted {
            token: word & 0x7f_ffff,
            source: Source::ALL.get((word >> 23 & 7) as usize).copied().unwrap_or(Source::Model),
            node: (word >> 26) as usize,
            offered: Sources::from_bits(raw.offers[level / 8] >> (4 * (level % 8)) & 7),
        });
        Some(StepRecord {
            tokens: tokens.collect(),
            logprobs: Vec::new(),
            finish,
            context_length: raw.context_length as usize,
            rows: raw.rows as usize,
            tree: Vec::new(),
            missed: (raw.missed > 0).then_some(raw.missed as usize),
            drafted: raw.drafted as usize,
            match_length: raw.match_length as usize,
        })
    }
}

/// `Logprob` in shaders/logprobs.wgsl.
#[repr(C)]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
pub struct RawLogprob {
    pub token: u32,
    pub logprob: f32,
}

/// Bytes of one [`RawLogprob`].
pub const LOGPROB_BYTES: u64 = size_of::<RawLogprob>() as u64;

impl RawLogprob {
    /// The log-probabilities of `count` emitted tokens and of the `top` most probable ones beside each, `[count, 1 + top]`.
    pub fn read(bytes: &[u8], count: usize, top: usize) -> Vec<Logprobs> {
        let read = |bytes: &[u8]| {
            let Self { token, logprob } = bytemuck::pod_read_unaligned(bytes);
            (token != u32::MAX).then_some(TokenLogprob { token, logprob })
        };
        let place = |place: &[u8]| {
            let mut found = place.chunks_exact(LOGPROB_BYTES as usize).map_while(read);
            let TokenLogprob { token, logprob } = found.next()?;
            Some(Logprobs { token, logprob, top: found.collect() })
        };
        bytes.chunks_exact((1 + top) * LOGPROB_BYTES as usize).take(count).filter_map(place).collect()
    }
}
