//! One text under one way of drafting, step by step as the engine and the reference backend take it.

use crate::backend::cpu::generation::Generation;
use crate::backend::{GenerationSetup, StepRecord};
use crate::engine::DraftStats;
use crate::engine::drafting::{DraftControl, DraftTrack};
use crate::engine::effort::Effort;
use crate::error::{Error, ErrorCode, Result};
use crate::model::ModelConfig;
use crate::model::heads::DraftHeads;
use crate::sampling::Candidate;
use crate::speculate::accept::Walk;
use crate::speculate::costs::{PassCosts, SIZES};
use crate::speculate::grow::HeadCandidates;
use crate::speculate::heads::slots_behind;
use crate::speculate::recycling::Successors;
use crate::speculate::shape::Shape;
use crate::speculate::{DraftPlan, Source};
use crate::tokenizer::Tokenizer;

/// What evaluation must know of the model whose text it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModelFacts {
    /// Rows of its output matrix.
    pub vocab_size: usize,
    /// Ids from here on are never chosen.
    pub valid_tokens: u32,
    /// Positions there can be.
    pub context_limit: usize,
    /// Tokens that end a text.
    pub end_tokens: Vec<u32>,
}

impl ModelFacts {
    /// Those of a model and its tokenizer.
    pub fn of(config: &ModelConfig, tokenizer: &Tokenizer) -> Self {
        Self {
            vocab_size: config.vocab_size,
            valid_tokens: tokenizer.vocab_len().min(config.vocab_size) as u32,
            context_limit: config.max_position_embeddings,
            end_tokens: tokenizer.end_ids().to_vec(),
        }
    }
}

/// What drafting keeps from one text to the next.
#[derive(Debug)]
pub struct Memory {
    control: DraftControl,
    successors: Successors,
    /// What steps cost, where that decides.
    device: Option<PassCosts>,
    heads: Option<DraftHeads>,
}

impl Memory {
    /// Nothing learnt yet but what the heads' own file says. The vocabulary counts only where `plan` recycles. On a device of these costs
    /// the engine chooses who drafts and how many nodes a pass verifies; without them all draft, and passes verify whole trees.
    pub fn new(plan: &DraftPlan, vocab_size: usize, heads: Option<&DraftHeads>, costs: Option<&PassCosts>) -> Self {
        let recycles = plan.sources.contains(Source::Recycling);
        let all_alike = PassCosts::fixed([1.0; SIZES.len()]);
        Self {
            control: DraftControl::new(costs.copied().unwrap_or(all_alike), heads),
            successors: Successors::new(if recycles { vocab_size } else { 0 }),
            device: costs.copied(),
            heads: heads.cloned(),
        }
    }
}

/// What the steps of one text came to.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Steps {
    /// Acceptance by drafter and depth, tokens by source, rows of every pass.
    pub stats: DraftStats,
    /// `[n]`: passes that emitted n tokens.
    pub emitted: Vec<u32>,
    /// What they took, on a device whose costs are given.
    pub ms: f64,
}

impl Steps {
    /// Target passes, the one that decides the first token included.
    pub fn passes(&self) -> u32 {
        self.emitted.iter().sum()
    }

    /// Tokens of the text.
    pub fn tokens(&self) -> u32 {
        self.stats.tokens.iter().sum()
    }

    /// Adds those of another text.
    pub fn add(&mut self, other: &Self) {
        self.stats.add(&other.stats);
        self.ms += other.ms;
        if self.emitted.len() < other.emitted.len() {
            self.emitted.resize(other.emitted.len(), 0);
        }
        for (sum, passes) in self.emitted.iter_mut().zip(&other.emitted) {
            *sum += passes;
        }
    }
}

/// A text on its way.
#[derive(Debug)]
pub struct Lane {
    /// The text and the tree that the next pass verifies.
    pub generation: Generation,
    /// What it came to so far.
    pub steps: Steps,
    memory: Memory,
    track: DraftTrack,
    /// Nodes that the next pass has room for, nodes that it verifies, and who drafts behind it.
    room: usize,
    rows: usize,
    effort: Effort,
}

impl Lane {
    /// Begins behind the prompt of `setup`.
    ///
    /// # Errors
    /// `EmptyPrompt`.
    pub fn begin(setup: &GenerationSetup, facts: &ModelFacts, memory: Memory) -> Result<Self> {
        let [head @ .., root] = setup.prompt.as_slice() else {
            return Err(Error::new(ErrorCode::EmptyPrompt, "a prompt to be replayed has at least one token"));
        };
        let mut generation = Generation::begin(setup, (head.len(), *root), facts.vocab_size, facts.context_limit)?;
        generation.calibration = *memory.control.calibration();
        let track = DraftTrack::default();
        let mut lane =
            Self { generation, steps: Steps::default(), memory, track, room: 1, rows: 1, effort: Effort::Plain };
        lane.submit();
        Ok(lane)
    }

    /// Decides about the next step as the engine does that has seen all records so far.
    fn submit(&mut self) {
        let plan = &self.generation.setup.draft;
        let control = &mut self.memory.control;
        let most = if plan.nodes() > 1 { Effort::most(plan.sources) } else { Effort::Plain };
        (self.room, self.effort) = match (self.memory.device, &plan.shape) {
            (Some(_), _) => (control.rows(&self.track, plan), control.effort(plan)),
            // Nothing has been drafted for the first pass.
            (None, Shape::Grown) if self.steps.passes() == 0 => (1, most),
            (None, _) => (plan.nodes(), most),
        };
        self.rows = self.room.min(self.generation.drafted.tree.len());
        self.track.submit(self.rows, self.effort, self.steps.ms);
    }

    /// Nodes of the tree that the next pass verifies.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Whether heads draft behind it.
    pub fn heads_draft(&self) -> bool {
        self.effort == Effort::Heads && !self.ended()
    }

    /// Whether the text has ended.
    pub fn ended(&self) -> bool {
        self.generation.finish.is_some()
    }

    /// What it learnt.
    pub fn into_memory(self) -> (Steps, Memory) {
        (self.steps, self.memory)
    }

    /// Has recycling learn from the row of a node of the tree.
    pub fn teach(&mut self, node: usize, bests: &[Candidate]) {
        self.generation.teach(&mut self.memory.successors, node, bests);
    }

    /// Walks the tree by what its [`rows`](Self::rows) chose. [`finish_step`](Self::finish_step) completes the step.
    ///
    /// # Errors
    /// None; one node is a tree.
    pub fn walk(&mut self, chosen: &[u32]) -> Result<(Walk, StepRecord)> {
        self.generation.advance(self.rows, chosen)
    }

    /// Drafts the next tree from what heads propose, as far as they draft in such a step, and learns from the step.
    ///
    /// # Errors
    /// None in practice: what is grown is a tree.
    pub fn finish_step(&mut self, mut record: StepRecord, mut heads: HeadCandidates) -> Result<()> {
        if let Some(shape) = &self.memory.heads {
            heads.slots.truncate(slots_behind(shape, self.room));
        }
        let sources = self.effort.of(self.generation.setup.draft.sources);
        if !sources.is_empty() && self.generation.setup.draft.nodes() > 1 && !self.ended() {
            self.generation.draft(sources, &self.memory.successors, heads, &mut record)?;
        }
        if let Some(costs) = &self.memory.device {
            let size = SIZES.iter().position(|&size| record.rows <= size).unwrap_or(SIZES.len() - 1);
            self.steps.ms += costs.step_ms(size) + if self.effort == Effort::Heads { costs.heads_ms() } else { 0.0 };
        }
        if let Some(time) = self.track.record(self.steps.ms)
            && self.memory.device.is_some()
        {
            self.memory.control.follow(time, record.tokens.len(), true);
        }
        let plan = &self.generation.setup.draft;
        let Self { memory, track, steps, .. } = self;
        if let Some(calibration) = memory.control.observe(track, plan, &record, &mut steps.stats) {
            self.generation.calibration = calibration;
        }
        let emitted = record.tokens.len();
        for token in &record.tokens {
            self.steps.stats.tokens[token.source as usize] += 1;
        }
        if self.steps.emitted.len() <= emitted {
            self.steps.emitted.resize(emitted + 1, 0);
        }
        self.steps.emitted[emitted] += 1;
        self.submit();
        Ok(())
    }
}
