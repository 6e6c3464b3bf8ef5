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
    first_tokens: usize,
    later_tokens: usize,
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
            first_tokens: 0,
            later_tokens: 0,
        }
    }

    /// A record came, and `tokens` of it are part of the text.
    pub(super) fn record(&mut self, now_ms: f64, depth: usize, tokens: usize) {
        self.passes += 1;
        self.steps_in_flight = self.steps_in_flight.max(depth);
        if self.first_ms.is_none() {
            self.first_ms = Some(now_ms);
            self.first_tokens = tokens;
        } else {
            self.later_tokens += tokens;
        }
        self.last_ms = now_ms;
    }

    pub(super) fn finish(&mut self, counters: PassCounters) {
        self.submits = counters.submits;
        self.dispatches_per_pass = counters.dispatches_per_pass;
    }

    /// From the call to the first record: encoding, prefill, the first pass, and its way back.
    pub fn prefill_ms(&self) -> f64 {
        self.first_ms.unwrap_or(self.last_ms) - self.started_ms
    }

    /// From the first record to the last.
    pub fn decode_ms(&self) -> f64 {
        self.last_ms - self.first_ms.unwrap_or(self.last_ms)
    }

    /// Tokens per second of [`decode_ms`](Self::decode_ms), in which the tokens of the first record have no part; 0 where there was
    /// only one record.
    pub fn tokens_per_second(&self) -> f64 {
        let decode_ms = self.decode_ms();
        if decode_ms > 0.0 { self.later_tokens as f64 / decode_ms * 1000.0 } else { 0.0 }
    }

    /// Tokens of the text per pass; 0 before the first.
    pub fn tokens_per_pass(&self) -> f64 {
        (self.first_tokens + self.later_tokens) as f64 / f64::from(self.passes.max(1))
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
    /// Tokens of the text, by where they came from, in the order of [`Source::ALL`].
    pub tokens: [u32; Source::ALL.len()],
}

impl DraftStats {
    /// Rows of the passes in order, runs of equal ones as (rows, how many passes).
    pub fn rows_per_step(&self) -> Vec<(u8, u32)> {
        let mut runs: Vec<(u8, u32)> = Vec::new();
        for &rows in &self.rows {
            match runs.last_mut() {
                Some((last, count)) if *last == rows => *count += 1,
                _ => runs.push((rows, 1)),
            }
        }
        runs
    }

    /// Adds those of another generation.
    pub fn add(&mut self, other: &Self) {
        self.rows.extend(&other.rows);
        for (sums, depths) in self.acceptance.iter_mut().zip(&other.acceptance) {
            if sums.len() < depths.len() {
                sums.resize(depths.len(), Acceptance::default());
            }
            for (sum, seen) in sums.iter_mut().zip(depths) {
                sum.offered += seen.offered;
                sum.accepted += seen.accepted;
            }
        }
        for (sum, tokens) in self.tokens.iter_mut().zip(other.tokens) {
            *sum += tokens;
        }
    }

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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::Emitted;
    use crate::speculate::Sources;

    #[test]
    fn the_rate_leaves_out_what_the_first_record_brought() {
        let mut stats = GenerationStats::new(3, 0, Guarantee::SameText, 100.0);
        assert_eq!((stats.tokens_per_second(), stats.tokens_per_pass()), (0.0, 0.0));
        stats.record(600.0, 2, 5);
        assert_eq!((stats.tokens_per_second(), stats.tokens_per_pass()), (0.0, 5.0));
        stats.record(700.0, 2, 1);
        stats.record(800.0, 2, 3);
        assert_eq!((stats.prefill_ms(), stats.decode_ms()), (500.0, 200.0));
        assert_eq!((stats.tokens_per_second(), stats.tokens_per_pass()), (20.0, 3.0));
    }

    #[test]
    fn acceptance_is_counted_by_drafter_and_depth() {
        let both = Sources::NONE.with(Source::NGram).with(Source::Recycling);
        let emitted = |source, offered| Emitted { token: 0, source, node: 0, offered };
        let record = StepRecord {
            tokens: vec![emitted(Source::NGram, both), emitted(Source::Model, Sources::NONE.with(Source::NGram))],
            rows: 4,
            ..StepRecord::default()
        };
        let mut stats = DraftStats::default();
        stats.record(&record);
        stats.record(&StepRecord { rows: 1, ..StepRecord::default() });
        stats.record(&StepRecord { rows: 1, ..StepRecord::default() });
        let seen = |offered, accepted| Acceptance { offered, accepted };
        assert_eq!(stats.acceptance, [vec![], vec![seen(1, 1), seen(1, 0)], vec![seen(1, 0)]]);
        assert_eq!(stats.rows_per_step(), [(4, 1), (1, 2)]);
    }
}
