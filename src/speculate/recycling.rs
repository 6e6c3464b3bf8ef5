//! Token recycling (Luo et al. 2024, "Turning Trash into Treasure"): the best successors of every token, as the last verified row of
//! that token ranked them. Nothing is trained, and every row of a pass teaches, accepted or not.
//!
//! The table is `[vocabulary][8]`. The published method keeps the eight best of the whole row; here they are the best of the eight best chunks
//! of 128 tokens, which choosing a token has computed anyway. Scores are kept without noise, so that a successor is ranked
//! with the noise of the position it is drafted for.

use crate::sampling::{Candidate, SamplingParams, noise};

/// Successors kept of a token; `SUCCESSORS` in shaders/lib/recycling.wgsl.
pub const SUCCESSORS: usize = 8;

/// A token that followed another, or was likely to.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Successor {
    /// The token.
    pub token: u32,
    /// Its processed logit, without noise.
    pub score: f32,
}

/// The successors of every token, best first.
#[derive(Debug, Clone, Default)]
pub struct Successors {
    table: Vec<Vec<Successor>>,
}

impl Successors {
    /// Nothing learnt yet of a vocabulary.
    pub fn new(vocab_size: usize) -> Self {
        Self { table: vec![Vec::new(); vocab_size] }
    }

    /// Learns from a verified row of `token` that chose the token of `position`. Oracle of recycle.wgsl.
    pub fn learn(&mut self, token: u32, chunks: &[Candidate], position: u32, sampling: &SamplingParams) {
        let mut best: Vec<&Candidate> = chunks.iter().filter(|candidate| candidate.score > f32::MIN).collect();
        // Stable: of equal scores the lower token stays first.
        best.sort_by(|a, b| b.score.total_cmp(&a.score));
        let seed = (sampling.temperature > 0.0).then_some(sampling.seed);
        let successors = best.iter().take(SUCCESSORS).map(|candidate| Successor {
            token: candidate.token,
            score: candidate.score - noise_of(seed, position, candidate.token),
        });
        self.table[token as usize] = successors.collect();
    }

    /// The successors of `token` as they would be chosen at `position` with the noise of a seed, or without any, best first, with
    /// the logarithm of each one's share of the probability of all.
    pub fn ranked(&self, token: u32, position: u32, seed: Option<u64>) -> Vec<(u32, f32)> {
        let scored = self.table.get(token as usize).into_iter().flatten();
        let mut ranked: Vec<(u32, f32)> =
            scored.map(|s| (s.token, s.score + noise_of(seed, position, s.token))).collect();
        ranked.sort_by(|a, b| b.1.total_cmp(&a.1));
        let Some(&(_, highest)) = ranked.first() else { return ranked };
        let total: f32 = ranked.iter().map(|&(_, score)| (score - highest).exp()).sum();
        for (_, score) in &mut ranked {
            *score -= highest + total.ln();
        }
        ranked
    }
}

fn noise_of(seed: Option<u64>, position: u32, token: u32) -> f32 {
    seed.map_or(0.0, |seed| noise::gumbel(seed, position, token))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(best: &[(f32, u32)]) -> Vec<Candidate> {
        best.iter().map(|&(score, token)| Candidate { score, token }).collect()
    }

    #[test]
    fn the_last_row_of_a_token_decides_its_successors() {
        let greedy = SamplingParams::default();
        let mut successors = Successors::new(10);
        successors.learn(3, &row(&[(1.0, 1), (4.0, 2), (f32::MIN, 7), (4.0, 5)]), 9, &greedy);
        let ranked = successors.ranked(3, 20, None);
        assert_eq!(
            ranked.iter().map(|r| r.0).collect::<Vec<_>>(),
            [2, 5, 1],
            "the lower token first where scores are equal"
        );
        let total: f32 = ranked.iter().map(|r| r.1.exp()).sum();
        assert!((total - 1.0).abs() < 1e-6, "{total}");
        successors.learn(3, &row(&[(0.0, 8)]), 10, &greedy);
        assert_eq!(successors.ranked(3, 20, None), [(8, 0.0)]);
        assert!(successors.ranked(4, 20, None).is_empty());
    }

    #[test]
    fn successors_are_ranked_with_the_noise_of_their_own_position() {
        let sampled = SamplingParams { temperature: 1.0, seed: 5, ..Default::default() };
        let mut successors = Successors::new(10);
        let perturbed = row(&[(noise::gumbel(5, 9, 1), 1), (noise::gumbel(5, 9, 2), 2), (noise::gumbel(5, 9, 6), 6)]);
        successors.learn(0, &perturbed, 9, &sampled);
        for position in 10..30 {
            let best = [1, 2, 6]
                .into_iter()
                .max_by(|&a, &b| noise::gumbel(5, position, a).total_cmp(&noise::gumbel(5, position, b)));
            assert_eq!(Some(successors.ranked(0, position, Some(5))[0].0), best, "all three are equally likely");
        }
    }
}
