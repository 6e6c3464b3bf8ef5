//! Times and counts of one generation.

use crate::backend::{PassCounters, StepRecord};
use crate::speculate::Source;
use crate::speculate::accept::Guarantee;

/// What a generation cost.
#[derive(Debug, Clone, PartialEq)]
pub struct GenerationStats {
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// Those of them that the cache still held.
    pub reused_prompt_tokens: usize,
    /// Decode passes whose result was used; those in flight behind the end are not counted.
    pub passes: u32,
    /// Command buffers submitted while decoding, those behind the end included.
    pub submits: u32,
    /// Kernel launches in one decode pass.
    pub dispatches_per_pass: u32,
    /// The most steps that were in flight.
    pub steps_in_flight: usize,
    /// What the rule of acceptance promises about the text.
    pub guarantee: Guarantee,
    /// What drafting came to.
    pub draft: DraftStats,
    started_ms: f64,
    first_ms: Option<f64>,
    last_ms: f64,
}

impl GenerationStats {
    pub(super) fn new(
        prompt_tokens: usize,
        reused_prompt_tokens: usize,
        guarantee: Guarantee,
        started_ms: f64,
    ) -> Self {
        Self {
            prompt_tokens,
            reused_prompt_tokens,
            passes: 0,
            submits: 0,
            dispatches_per_pass: 0,
            steps_in_flight: 0,
            guarantee,
            draft: DraftStats::default(),
            started_ms,
            first_ms: None,
            last_ms: started_ms,
        }
    }

    pub(super) fn record(&mut self, now_ms: f64, depth: usize) {
        self.passes += 1;
        self.steps_in_flight = self.steps_in_flight.max(depth);
        self.first_ms.get_or_insert(now_ms);
        self.last_ms = now_ms;
    }

    pub(super) fn finish(&mut self, counters: PassCounters) {
        self.submits = counters.submits;
        self.dispatches_per_pass = counters.dispatches_per_pass;
    }

    /// From the call to the first token: encoding, prefill, the first pass, and its way back.
    pub fn prefill_ms(&self) -> f64 {
        self.first_ms.unwrap_or(self.last_ms) - self.started_ms
    }

    /// From the first token to the last.
    pub fn decode_ms(&self) -> f64 {
        self.last_ms - self.first_ms.unwrap_or(self.last_ms)
    }
}

/// How a drafter fared at one depth: of the visited nodes of a depth below which it had a child in the pass, how many were left for
/// that child.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Acceptance {
    /// Visited nodes that had such a child.
    pub offered: u32,
    /// Those where it was right.
    pub accepted: u32,
}

/// What drafting came to in one generation.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DraftStats {
    /// Rows of every pass whose record was used, in order.
    pub rows: Vec<u8>,
    /// By drafter, in the order of [`Source::DRAFTERS`], and depth, from 1.
    pub acceptance: [Vec<Acceptance>; Source::DRAFTERS.len()],
}

impl DraftStats {
    pub(super) fn record(&mut self, record: &StepRecord) {
        self.rows.push(record.rows as u8);
        for (depth, emitted) in record.tokens.iter().enumerate() {
            for source in emitted.offered.iter() {
                let by_depth = &mut self.acceptance[source as usize - 1];
                if by_depth.len() <= depth {
                    by_depth.resize(depth + 1, Acceptance::default());
                }
                by_depth[depth].offered += 1;
                by_depth[depth].accepted += u32::from(emitted.source == source);
            }
        }
    }
}
