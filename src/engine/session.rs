//! One generation as plain data.

use super::drafting::DraftTrack;
use super::stats::GenerationStats;
use super::stop::StopStrings;
use crate::backend::{FinishReason, GenerationSetup};
use crate::sampling::Logprobs;
use crate::speculate::grow::DraftedNode;
use crate::speculate::{DraftPlan, Source};
use crate::tokenizer::StreamDecoder;

/// A piece of the text, as it comes.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Chunk {
    /// Text that is final. Never half a character.
    pub text: String,
    /// The tokens behind it. An end token is among them, but has no text.
    pub tokens: Vec<u32>,
    /// Who drafted each of them.
    pub sources: Vec<Source>,
    /// What each of them added to the text: together they are `text`.
    pub pieces: Vec<String>,
    /// The log-probabilities of each of them, where they were asked for.
    pub logprobs: Vec<Logprobs>,
    /// The tree that the pass behind them had, where trees were asked for; the root first.
    pub tree: Vec<ShownNode>,
}

/// A node of a draft tree, and what became of it.
#[derive(Debug, Clone, PartialEq)]
pub struct ShownNode {
    /// What was drafted.
    pub drafted: DraftedNode,
    /// Its token as text; the replacement character for a part of one.
    pub text: String,
    /// Whether the pass had a row for it.
    pub verified: bool,
    /// Whether its token stands in the text; true of the root.
    pub accepted: bool,
}

/// A generation that was started. It borrows nothing; the engine moves it on.
#[derive(Debug, Clone)]
pub struct Session {
    pub(super) setup: GenerationSetup,
    /// Whether the prompt is in the cache and steps decide tokens.
    pub(super) deciding: bool,
    pub(super) tokens: Vec<u32>,
    pub(super) logprobs: Vec<Logprobs>,
    pub(super) text: String,
    /// The last token: decided, but not in the cache yet.
    pub(super) root: u32,
    pub(super) decoder: StreamDecoder,
    pub(super) stop: StopStrings,
    pub(super) finish: Option<FinishReason>,
    pub(super) track: DraftTrack,
    /// What the next step verifies, where trees were asked for.
    pub(super) tree: Vec<DraftedNode>,
    pub(super) fixed_depth: Option<usize>,
    pub(super) stats: GenerationStats,
}

impl Session {
    /// Ids of the prompt.
    pub fn prompt(&self) -> &[u32] {
        &self.setup.prompt
    }

    /// Ids written so far.
    pub fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    /// Whether chunks have the trees of their passes.
    pub fn shows_trees(&self) -> bool {
        self.setup.trees
    }

    /// The log-probabilities of each of them; `None` where they were not asked for.
    pub fn logprobs(&self) -> Option<&[Logprobs]> {
        self.setup.logprobs.map(|_| self.logprobs.as_slice())
    }

    /// Text written so far, without what a stop string or an incomplete character still holds back.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Why it ended; `None` while it runs.
    pub fn finish(&self) -> Option<FinishReason> {
        self.finish
    }

    /// How it drafts and verifies.
    pub fn draft(&self) -> &DraftPlan {
        &self.setup.draft
    }

    /// Times and counts.
    pub fn stats(&self) -> &GenerationStats {
        &self.stats
    }
}
