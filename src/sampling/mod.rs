//! How a token is chosen from a row of logits: parameters, and the oracles of the sampling kernels.
//!
//! Order of work: repetition, frequency and presence penalty, bias, temperature; then top-k, top-p, min-p as one threshold; then the
//! highest of logit plus Gumbel noise (greedy: no noise), chunk by chunk. The maximum of log p + Gumbel is a sample of p (Gumbel 1954), and
//! the noise is a pure function of (seed, position, token), so a draw does not depend on how the row was reached.

mod logprobs;
pub mod noise;
mod params;

pub use logprobs::{Logprobs, MAX_TOP_LOGPROBS, TokenLogprob, logprobs};
pub use params::{MIN_TEMPERATURE, SamplingParams};

/// What penalties know of the tokens before a row: `times emitted * 2 + (1 if in the prompt)` per token.
pub type History = Vec<u32>;

/// Penalties, bias and temperature, in place on one row `[vocab]`. Oracle of process_logits.wgsl.
pub fn process_logits(logits: &mut [f32], history: &[u32], params: &SamplingParams) {
    let inverse_temperature = 1.0 / params.divisor();
    for (logit, &seen) in logits.iter_mut().zip(history) {
        if seen > 0 {
            *logit = if *logit > 0.0 { *logit / params.repetition_penalty } else { *logit * params.repetition_penalty };
        }
        let emitted = (seen >> 1) as f32;
        *logit -= emitted * params.frequency_penalty + if emitted > 0.0 { params.presence_penalty } else { 0.0 };
    }
    for &(token, bias) in &params.logit_bias {
        if let Some(logit) = logits.get_mut(token as usize) {
            *logit += bias;
        }
    }
    for logit in logits {
        *logit *= inverse_temperature;
    }
}

/// The lowest processed logit that top-k, top-p and min-p leave in play; ties at an edge stay in. Oracle of threshold.wgsl.
pub fn threshold(logits: &[f32], params: &SamplingParams) -> f32 {
    let mut sorted = logits.to_vec();
    sorted.sort_by(|a, b| b.total_cmp(a));
    let Some(&highest) = sorted.first() else { return f32::MIN };
    let mut edge = f32::MIN;
    if params.top_k > 0
        && let Some(&kth) = sorted.get(params.top_k as usize - 1)
    {
        edge = edge.max(kth);
    }
    if params.top_p < 1.0 {
        let kept: Vec<f32> = sorted.iter().copied().take_while(|&logit| logit >= edge).collect();
        let total: f32 = kept.iter().map(|logit| (logit - highest).exp()).sum();
        let mut mass = 0.0;
        for logit in kept {
            mass += (logit - highest).exp();
            if mass >= params.top_p * total {
                edge = edge.max(logit);
                break;
            }
        }
    }
    if params.min_p > 0.0 {
        edge = edge.max(highest + params.min_p.ln());
    }
    edge
}

/// [`threshold`] where a filter is on, else below every logit.
pub fn edge(logits: &[f32], params: &SamplingParams) -> f32 {
    if params.filters() { threshold(logits, params) } else { f32::MIN }
}

/// Tokens of a row that one thread of sample.wgsl reduces to their best.
pub const CHUNK_TOKENS: usize = 128;

/// The best token of a part of a row; `score` is `f32::MIN` where nothing is in play.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Candidate {
    /// Processed logit plus noise.
    pub score: f32,
    /// The token.
    pub token: u32,
}

/// The best token of every chunk of [`CHUNK_TOKENS`] of a processed row whose choice stands at `position` in the text; the
/// lowest id wins a tie. Oracle of sample.wgsl.
pub fn chunk_bests(logits: &[f32], position: u32, params: &SamplingParams) -> Vec<Candidate> {
    let edge = edge(logits, params);
    let best_of = |(chunk, logits): (usize, &[f32])| {
        let first = (chunk * CHUNK_TOKENS) as u32;
        let mut best = Candidate { score: f32::MIN, token: first };
        for (token, &logit) in (first..).zip(logits) {
            if logit < edge {
                continue;
            }
            let noise = if params.temperature > 0.0 { noise::gumbel(params.seed, position, token) } else { 0.0 };
            if logit + noise > best.score {
                best = Candidate { score: logit + noise, token };
            }
        }
        best
    };
    logits.chunks(CHUNK_TOKENS).enumerate().map(best_of).collect()
}

/// The best of all chunks; the first of equals. What accept.wgsl takes of a row.
pub fn best_of(chunks: &[Candidate]) -> u32 {
    let mut best = Candidate { score: f32::MIN, token: 0 };
    for candidate in chunks {
        if candidate.score > best.score {
            best = *candidate;
        }
    }
    best.token
}

/// The token of one processed row whose place in the text is `position`.
pub fn sample(logits: &[f32], position: u32, params: &SamplingParams) -> u32 {
    best_of(&chunk_bests(logits, position, params))
}
