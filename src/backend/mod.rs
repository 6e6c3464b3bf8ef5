//! The seam between the engine and the machine: whole passes, not operations.
//!
//! A *step* verifies a tree of draft tokens in one pass and decides on the device how it ends; plain decoding is the tree of one
//! node. Nothing comes back but a small [`StepRecord`], and several steps can be in flight before the first is read, so a
//! backend decides alone when a text ends: the engine cannot stop a step it has not heard of yet.
//!
//! Two implementations: [`cpu`], short and readable, the reference of every kernel; and [`gpu`], on wgpu.

pub mod cpu;
pub mod gpu;
pub mod kv_slots;
pub mod self_check;

use crate::error::Result;
use crate::model::ModelConfig;
use crate::model::heads::DraftHeads;
use crate::sampling::{Logprobs, SamplingParams};
use crate::speculate::accept::AcceptRule;
use crate::speculate::costs::PassCosts;
use crate::speculate::grow::DraftedNode;
use crate::speculate::tree::Tree;
use crate::speculate::{Calibration, DraftPlan, Source, Sources};

pub use crate::speculate::tree::MAX_ROWS;
pub use kv_slots::KvSlots;

/// End tokens a generation can have at most.
pub const MAX_END_TOKENS: usize = 32;

/// Why a generation ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FinishReason {
    /// An end token or a stop string.
    Stop,
    /// As many tokens as were asked for.
    Length,
    /// The model's context is full.
    Context,
    /// The caller stopped it.
    Aborted,
}

impl FinishReason {
    /// The string JavaScript and the command line see.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Stop => "stop",
            Self::Length => "length",
            Self::Context => "context",
            Self::Aborted => "aborted",
        }
    }
}

/// What a device must know before the first step of a generation.
#[derive(Debug, Clone, PartialEq)]
pub struct GenerationSetup {
    /// How tokens are chosen.
    pub sampling: SamplingParams,
    /// Tokens that end the text; at most [`MAX_END_TOKENS`].
    pub end_tokens: Vec<u32>,
    /// Emit no more tokens than this; at least 1.
    pub max_tokens: u32,
    /// Every token before the first emitted one, the root included: what penalties count as the prompt.
    pub prompt: Vec<u32>,
    /// Ids from here on are padding of the head and are never chosen.
    pub valid_tokens: u32,
    /// How the trees are drafted that passes verify.
    pub draft: DraftPlan,
    /// Whether records have the log-probabilities of their tokens, and of how many of the most probable ones at every place; at most
    /// [`MAX_TOP_LOGPROBS`](crate::sampling::MAX_TOP_LOGPROBS).
    pub logprobs: Option<usize>,
    /// Whether records have the trees that are drafted.
    pub trees: bool,
}

impl GenerationSetup {
    /// The rule that decides. Where nothing is drafted, or nothing is left to chance that a rule would weigh, it is the exact one.
    pub fn rule(&self) -> AcceptRule {
        if self.draft.nodes() == 1 { AcceptRule::Exact } else { self.draft.accept.at(self.sampling.temperature) }
    }
}

/// A token that a step emitted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Emitted {
    /// The token.
    pub token: u32,
    /// Who drafted the node that was visited for it; [`Source::Model`] for the last token of a step, which no row was needed for.
    pub source: Source,
    /// That node; 0 for the model's own.
    pub node: usize,
    /// Drafters that had a proposal in the pass for this place.
    pub offered: Sources,
}

/// What one step did.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct StepRecord {
    /// Tokens emitted, in order; empty for a step that ran after the end.
    pub tokens: Vec<Emitted>,
    /// The log-probabilities of each of them, where they were asked for.
    pub logprobs: Vec<Logprobs>,
    /// Why the text ended with this step, if it did.
    pub finish: Option<FinishReason>,
    /// Committed positions after the step.
    pub context_length: usize,
    /// Nodes the pass verified, the root included.
    pub rows: usize,
    /// The tree drafted for the next step, where trees were asked for.
    pub tree: Vec<DraftedNode>,
    /// The drafted node beyond them that would have been visited next.
    pub missed: Option<usize>,
    /// Nodes drafted for the next step, the root included.
    pub drafted: usize,
    /// Length of the n-gram match behind them; 0 without one.
    pub match_length: usize,
}

/// Counters of the work a backend was asked to do since the generation began.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PassCounters {
    /// Decode passes of the target model that were submitted.
    pub passes: u32,
    /// Command buffers submitted by those passes.
    pub submits: u32,
    /// Kernel launches in one decode pass.
    pub dispatches_per_pass: u32,
}

/// A machine that runs whole passes of one model.
///
/// Positions are handed out by [`KvSlots`] alone; a backend stores and moves rows but never decides where a token stands.
#[allow(async_fn_in_trait, reason = "one thread everywhere: no caller needs a Send future")]
pub trait Backend {
    /// The model it runs.
    fn config(&self) -> &ModelConfig;

    /// What passes usually cost on such a machine, relative to each other.
    fn usual_costs(&self) -> PassCosts;

    /// Positions there can be: the model's context, or less where memory is short.
    fn context_limit(&self) -> usize;

    /// Numbers of rows, besides one, whose passes are worth measuring before anything is written, the most telling first.
    fn sizes_to_measure(&self) -> &'static [usize] {
        &[4, 8, 2, 16]
    }

    /// The draft heads that it can draft with.
    fn heads(&self) -> Option<&DraftHeads>;

    /// Computes and keeps the keys and values of `tokens` at positions `start..`, all committed.
    ///
    /// # Errors
    /// `OutOfMemory` when the cache cannot grow, `DeviceLost`.
    async fn prefill(&mut self, start: usize, tokens: &[u32]) -> Result<()>;

    /// Starts a generation whose first step has `root` at position `start`; forgets the records of an earlier one.
    fn begin(&mut self, start: usize, root: u32, setup: &GenerationSetup) -> Result<()>;

    /// Queues one decode step that verifies at most `rows` nodes of the tree that the step before it drafts; `drafters`, some of those
    /// that the generation began with, draft the next one, which without any is its root. Never waits for an earlier one. The text
    /// depends on neither.
    ///
    /// # Errors
    /// `OutOfMemory` when the cache cannot grow, `DeviceLost`.
    async fn submit_step(&mut self, rows: usize, drafters: Sources) -> Result<()>;

    /// How far drafters are to be believed, from the next submitted step on.
    fn calibrate(&mut self, calibration: &Calibration);

    /// The record of the oldest step not yet read; waits for it.
    ///
    /// # Errors
    /// `DeviceLost`.
    async fn next_record(&mut self) -> Result<StepRecord>;

    /// Ends the generation: steps submitted from now on do nothing.
    fn halt(&mut self);

    /// Logits `[nodes, vocab_size]` of every node of a tree whose root stands at position `start`; commits nothing.
    ///
    /// # Errors
    /// `OutOfMemory`, `DeviceLost`.
    async fn evaluate(&mut self, start: usize, tree: &Tree) -> Result<Vec<f32>>;

    /// Runs `passes` verification passes of `rows` rows at context length `context` and waits for them; nothing is read back.
    /// Time it from outside.
    ///
    /// # Errors
    /// `InvalidOption` for more rows than a pass can have, `OutOfMemory`, `DeviceLost`.
    async fn run_passes(&mut self, rows: usize, context: usize, passes: usize) -> Result<()>;

    /// Runs a verification pass for each of `rows`, one behind the other, and returns their milliseconds by the device's own clock;
    /// `None` where it has none.
    ///
    /// # Errors
    /// As [`run_passes`](Self::run_passes).
    async fn time_passes(&mut self, rows: &[usize], context: usize) -> Result<Option<Vec<f64>>>;

    /// Milliseconds that the draft heads take for one draft, by the device's own clock; `None` where there are no heads or no clock.
    ///
    /// # Errors
    /// `OutOfMemory`, `DeviceLost`.
    async fn time_heads(&mut self) -> Result<Option<f64>>;

    /// Waits until everything submitted has run.
    async fn settle(&mut self) -> Result<()>;

    /// Work since [`begin`](Self::begin).
    fn counters(&self) -> PassCounters;
}
