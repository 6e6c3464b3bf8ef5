//! How the logits of a draft head become ranked candidates: the oracle of the kernels that do it.
//!
//! A candidate's score is its logit divided by the temperature, plus, when sampling, the Gumbel noise that the verifier will add
//! for the same token at the same position, so that drafter and verifier draw alike (shared randomness: Daliri et al. 2024).
//! The highest scores are found as `sample` finds one: the best of every chunk of draft ids, then the best of those. Neighbours
//! in a vocabulary are often alike in frequency, so a chunk takes every n-th group of four ids, and small vocabularies are cut
//! finer; two good candidates seldom share a chunk, and the lesser of two that do is not drafted.

use crate::model::heads::{DraftHeads, HeadForm};
use crate::sampling::{SamplingParams, noise};

/// Candidates kept of a row of logits: as many as Medusa's published trees name. `TOP_K` in shaders/lib/heads.wgsl.
pub const TOP_K: usize = 10;
/// Nodes of a depth that recurrent heads go on from: the most probable of those that they proposed. Few, since the output matrix
/// is read once for all of them, but each is a row of it. `BEAM` in shaders/lib/heads.wgsl.
pub const BEAM: usize = 4;
/// Draft ids of a chunk, where the vocabulary is large.
const CHUNK_IDS: usize = 128;
/// Chunks that a small vocabulary is cut into, as far as it has groups of four ids.
const MIN_CHUNKS: usize = 64;
/// Consecutive draft ids that stay in one chunk: a vector of the kernels.
const QUAD: usize = 4;

/// Slots of candidates that heads fill, the root's first.
///
/// Heads that see all nodes of a depth alike have a slot for each depth. A correction depends on the node's own token, so behind the
/// root's slot come, for every further depth, those of the candidates kept of the depth above. Recurrent heads have, for every
/// further depth, the slots of the nodes that they go on from.
pub const fn slots(heads: &DraftHeads) -> usize {
    match heads.form {
        HeadForm::Parallel if heads.rank == 0 => heads.depths,
        HeadForm::Parallel => first_slot(heads.depths, TOP_K),
        HeadForm::Recurrent => first_slot(heads.depths, BEAM),
    }
}

/// The first slot of a depth, where every depth but the root's has `width` slots.
pub const fn first_slot(depth: usize, width: usize) -> usize {
    if depth == 0 { 0 } else { 1 + (depth - 1) * width }
}

/// Rows of a pass behind which recurrent heads draft fewer levels: no more than such a tree can be deep.
pub const SHORT_ROWS: usize = 4;

/// Of `depths` levels, those that heads draft in a step whose pass has so many rows. A tree of n nodes has none deeper than n - 1,
/// and the next pass seldom has room for more rows than this one. Recurrent heads read the output matrix at every level, parallel
/// ones once for all.
pub const fn levels(form: HeadForm, depths: usize, rows: usize) -> usize {
    match form {
        HeadForm::Recurrent if rows <= SHORT_ROWS && depths >= SHORT_ROWS => SHORT_ROWS - 1,
        _ => depths,
    }
}

/// Of the [`slots`] of heads, those that they fill in a step whose pass has so many rows.
pub const fn slots_behind(heads: &DraftHeads, rows: usize) -> usize {
    match heads.form {
        HeadForm::Parallel => slots(heads),
        HeadForm::Recurrent => first_slot(levels(heads.form, heads.depths, rows), BEAM),
    }
}

/// Chunks of a draft vocabulary; the group of four ids number q is in chunk q modulo this.
pub const fn chunks(draft_vocab: usize) -> usize {
    let (quads, large) = (draft_vocab.div_ceil(QUAD), draft_vocab.div_ceil(CHUNK_IDS));
    let fine = if quads < MIN_CHUNKS { quads } else { MIN_CHUNKS };
    if large > fine { large } else { fine }
}

/// A token that a node may have as child.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Candidate {
    /// The row of the output matrix it comes from.
    pub draft: usize,
    /// The token.
    pub token: u32,
    /// Its logit over the temperature, plus noise.
    pub score: f32,
}

/// The best candidates of one row of draft logits.
#[derive(Debug, Clone, PartialEq)]
pub struct Ranking {
    /// Highest score first, the lower token first where two are equal; at most [`TOP_K`].
    pub candidates: Vec<Candidate>,
    /// What the others weigh together: the sum of `exp(score - reference)`.
    rest: f32,
    /// The highest score before corrections.
    reference: f32,
}

/// What scores depend on besides logits.
#[derive(Debug, Clone, Copy)]
pub struct Scoring<'a> {
    /// Temperature and seed.
    pub sampling: &'a SamplingParams,
    /// The place in the text of the token that is guessed: the context length plus the child's depth.
    pub position: u32,
    /// The token of every draft id, ascending; absent where they are the same.
    pub token_map: Option<&'a [u32]>,
    /// Ids from here on are never drafted.
    pub valid_tokens: u32,
    /// Whether candidates are ranked with the verifier's noise. Under the rule of rejection they must not know it.
    pub shares_noise: bool,
}

impl Scoring<'_> {
    fn token(&self, draft: usize) -> u32 {
        self.token_map.map_or(draft as u32, |map| map[draft])
    }

    fn inverse_temperature(&self) -> f32 {
        if self.sampling.temperature > 0.0 { 1.0 / self.sampling.temperature } else { 1.0 }
    }

    fn score(&self, logit: f32, token: u32) -> f32 {
        let noise = match self.sampling.temperature > 0.0 && self.shares_noise {
            true => noise::gumbel(self.sampling.seed, self.position, token),
            false => 0.0,
        };
        logit * self.inverse_temperature() + noise
    }

    /// The best candidates of one row of logits `[draft_vocab]`.
    pub fn rank(&self, logits: &[f32]) -> Ranking {
        let count = chunks(logits.len());
        let mut best: Vec<Candidate> = Vec::new();
        let mut others: Vec<f32> = Vec::new(); // of every chunk, the weight of its other ids relative to its best
        for chunk in 0..count {
            let quads = (chunk..logits.len().div_ceil(QUAD)).step_by(count);
            let ids = quads.flat_map(|quad| quad * QUAD..logits.len().min((quad + 1) * QUAD));
            let (mut top, mut sum) = (None::<Candidate>, 0.0);
            for draft in ids {
                let token = self.token(draft);
                let score = self.score(logits[draft], token);
                if token >= self.valid_tokens || !score.is_finite() {
                    continue;
                }
                match &mut top {
                    Some(top) if score <= top.score => sum += (score - top.score).exp(),
                    Some(top) => {
                        sum = (sum + 1.0) * (top.score - score).exp();
                        *top = Candidate { draft, token, score };
                    }
                    None => top = Some(Candidate { draft, token, score }),
                }
            }
            if let Some(top) = top {
                best.push(top);
                others.push(sum);
            }
        }
        let reference = best.iter().map(|candidate| candidate.score).fold(f32::MIN, f32::max);
        let mut rest: f32 = best.iter().zip(&others).map(|(top, others)| others * (top.score - reference).exp()).sum();
        best.sort_by(by_score);
        rest += best.iter().skip(TOP_K).map(|candidate| (candidate.score - reference).exp()).sum::<f32>();
        best.truncate(TOP_K);
        Ranking { candidates: best, rest, reference }
    }

    /// The same candidates with a correction added to each one's logit, in their order, ranked anew.
    pub fn correct(&self, ranking: &Ranking, corrections: &[f32]) -> Ranking {
        let mut corrected = ranking.clone();
        for (candidate, correction) in corrected.candidates.iter_mut().zip(corrections) {
            candidate.score += correction * self.inverse_temperature();
        }
        corrected.candidates.sort_by(by_score);
        corrected
    }
}

impl Ranking {
    /// The logarithm of the estimated probability of each candidate: softmax of the scores of all draft ids, of which those not kept
    /// have none of their corrections.
    pub fn log_probabilities(&self) -> Vec<f32> {
        let scores = self.candidates.iter().map(|candidate| candidate.score);
        let top = scores.clone().fold(self.reference, f32::max);
        let kept: f32 = scores.clone().map(|score| (score - top).exp()).sum();
        let total = self.rest * (self.reference - top).exp() + kept;
        scores.map(|score| score - top - total.ln()).collect()
    }
}

fn by_score(a: &Candidate, b: &Candidate) -> std::cmp::Ordering {
    b.score.total_cmp(&a.score).then(a.token.cmp(&b.token))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn greedy(sampling: &SamplingParams) -> Scoring<'_> {
        Scoring { sampling, position: 7, token_map: None, valid_tokens: u32::MAX, shares_noise: true }
    }

    #[test]
    fn chunks_hold_128_ids_and_small_vocabularies_are_cut_finer() {
        assert_eq!([1, 4, 5, 200, 512, 8192, 8193, 49152].map(chunks), [1, 1, 2, 50, 64, 64, 65, 384]);
    }

    #[test]
    fn recurrent_heads_draft_as_deep_as_a_tree_of_the_rows_can_be() {
        assert_eq!([1, 4, 5, 64].map(|rows| levels(HeadForm::Recurrent, 5, rows)), [3, 3, 5, 5]);
        assert_eq!([2, 3, 4].map(|depths| levels(HeadForm::Recurrent, depths, 1)), [2, 3, 3]);
        assert_eq!(levels(HeadForm::Parallel, 5, 1), 5);
    }

    #[test]
    fn candidates_are_ranked_and_their_probabilities_are_the_softmax() {
        let sampling = SamplingParams::default();
        let logits: Vec<f32> = (0..512).map(|id| ((id * 37) % 512) as f32 * 0.02).collect();
        let ranking = greedy(&sampling).rank(&logits);
        let total: f32 = logits.iter().map(|logit| logit.exp()).sum();
        assert_eq!(ranking.candidates.len(), TOP_K);
        for (candidate, found) in ranking.candidates.iter().zip(ranking.log_probabilities()) {
            let expected = logits[candidate.draft] - total.ln();
            assert!((found - expected).abs() < 1e-4, "{candidate:?}: {found}, expected {expected}");
        }
        assert!(ranking.candidates.windows(2).all(|pair| pair[0].score >= pair[1].score));
        let best = (0..512).max_by(|&a, &b| logits[a].total_cmp(&logits[b])).unwrap();
        assert_eq!(ranking.candidates[0].draft, best);
    }

    #[test]
    fn the_lower_token_wins_a_tie_and_padding_is_never_drafted() {
        let sampling = SamplingParams::default();
        let ranking = greedy(&sampling).rank(&[0.0; 300]);
        assert_eq!(ranking.candidates[0].token, 0);
        let kept: f32 = ranking.log_probabilities().iter().map(|log| log.exp()).sum();
        assert!((kept - TOP_K as f32 / 300.0).abs() < 1e-5);
        let map: Vec<u32> = (0..300).map(|id| 3 * id).collect();
        let scoring = Scoring { token_map: Some(&map), valid_tokens: 10, ..greedy(&sampling) };
        let tokens: Vec<u32> = scoring.rank(&[0.0; 300]).candidates.iter().map(|candidate| candidate.token).collect();
        assert_eq!(tokens, [0], "ids 0, 3, 6 and 9 stand in one group of four");
        assert!(Scoring { valid_tokens: 0, ..scoring }.rank(&[0.0; 300]).candidates.is_empty());
        assert!(greedy(&sampling).rank(&[f32::NAN; 5]).candidates.is_empty());
    }

    #[test]
    fn noise_is_the_verifiers() {
        let sampling = SamplingParams { temperature: 0.8, seed: 11, ..Default::default() };
        let logits: Vec<f32> = (0..512).map(|id| (id as f32 * 0.7).sin()).collect();
        for position in 0..50 {
            let scoring = Scoring { position, ..greedy(&sampling) };
            let mut processed = logits.clone();
            crate::sampling::process_logits(&mut processed, &[], &sampling);
            assert_eq!(
                scoring.rank(&logits).candidates[0].token,
                crate::sampling::sample(&processed, position, &sampling)
            );
        }
    }

    #[test]
    fn corrections_change_the_order_and_the_probabilities() {
        let sampling = SamplingParams { temperature: 0.5, ..Default::default() };
        let scoring = greedy(&sampling);
        let ranking = scoring.rank(&(0..256).map(|id| id as f32 * 0.01).collect::<Vec<_>>());
        let mut corrections = [0.0; TOP_K];
        corrections[TOP_K - 1] = 200.0;
        let corrected = scoring.correct(&ranking, &corrections);
        assert_eq!(corrected.candidates[0].draft, ranking.candidates[TOP_K - 1].draft);
        assert!(corrected.log_probabilities()[0].abs() < 1e-6);
        assert_eq!(scoring.correct(&ranking, &[0.0; TOP_K]), ranking);
    }
}
