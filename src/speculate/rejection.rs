//! Speculative sampling with rejection: drafted tokens pass at random, so that what is written has the distribution of plain decoding.
//!
//! The children of a row are tried in order. A child that was *drawn* from a distribution q passes with probability min(1, p / q), else p
//! becomes what it has more than q, `norm(max(0, p - q))` (Leviathan et al. 2023; Chen et al. 2023: rule L1 of one child; L2 of
//! children drawn independently: SpecInfer, Miao et al. 2024). Where children are drawn without replacement, q then loses what
//! cannot be drawn any more (L3: Sequoia, Chen et al. 2024). A child that was not drawn, such as the next token of an n-gram,
//! passes with probability p, else p loses it (L4). Where no child passes, the token is drawn from what is left of p.
//!
//! Children of several drafters may stand side by side. It holds as long as q is exactly what a child was drawn from, whether a child is
//! tried depends on those before it but not on the child itself, and drafting and verification have noise of their own:
//! [`noise::ACCEPTANCE`] and [`noise::RESIDUAL`] serve nothing else.

use crate::sampling::noise;

/// Totals are divided by no less than this: what is left after a rejection that had no probability is rounding.
const LEAST_TOTAL: f32 = 1e-30;

/// A child of a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Child {
    /// The token.
    pub token: u32,
    /// Whether it was drawn from the row's [`Proposal`].
    pub drawn: bool,
}

/// How a drafter draws the children of one node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Drawing {
    /// Each from all of q; the same token may come again.
    Independent,
    /// Each from q without the tokens that are children already.
    WithoutReplacement,
    /// Each from q without the chunks of the tokens that are children already, id i being in chunk `i / 4 % n` of n: what
    /// ranking the best of every chunk amounts to ([`heads`](super::heads)).
    Chunks(usize),
}

/// What a drafter draws the children of one node from.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Proposal<'a> {
    /// `[draft id]`, its probability, to any scale.
    pub weights: &'a [f32],
    /// The token of every draft id, ascending; absent where they are the same.
    pub token_map: Option<&'a [u32]>,
    /// How they are drawn.
    pub drawing: Drawing,
}

/// The proposals of draft heads.
#[derive(Debug, Clone, PartialEq)]
pub struct Draws {
    /// `[slot][draft id]`, as [`Proposal::weights`].
    pub weights: Vec<Vec<f32>>,
    /// As [`Proposal::token_map`].
    pub token_map: Option<Vec<u32>>,
    /// How children are drawn.
    pub drawing: Drawing,
}

impl Draws {
    /// What the children of a node in `slot` are drawn from.
    pub fn proposal(&self, slot: usize) -> Option<Proposal<'_>> {
        let weights = self.weights.get(slot)?;
        Some(Proposal { weights, token_map: self.token_map.as_deref(), drawing: self.drawing })
    }
}

impl Proposal<'_> {
    fn token(&self, id: usize) -> usize {
        self.token_map.map_or(id, |map| map[id] as usize)
    }

    fn id(&self, token: u32) -> Option<usize> {
        match self.token_map {
            Some(map) => map.binary_search(&token).ok(),
            None => Some(token as usize).filter(|&id| id < self.weights.len()),
        }
    }

    fn excludes(&self, child: usize, id: usize) -> bool {
        match self.drawing {
            Drawing::Independent => false,
            Drawing::WithoutReplacement => id == child,
            Drawing::Chunks(chunks) => id / 4 % chunks == child / 4 % chunks,
        }
    }
}

/// What is left of p and q while children are rejected.
struct Remainder<'a> {
    /// `[token]`, to any scale.
    p: Vec<f32>,
    proposal: Option<Proposal<'a>>,
    /// `[draft id]`, to any scale.
    q: Vec<f32>,
}

impl Remainder<'_> {
    /// The probability that a child of this token was drawn with; `None` where it was not drawn from what is left of q.
    fn q_of(&self, child: Child) -> Option<f32> {
        let id = self.proposal.filter(|_| child.drawn)?.id(child.token)?;
        Some(self.q[id] / self.q.iter().sum::<f32>()).filter(|_| self.q[id] > 0.0)
    }

    fn passes(&self, child: Child, uniform: f32) -> bool {
        let p = self.p.get(child.token as usize).unwrap_or(&0.0) / self.p_total();
        uniform * self.q_of(child).unwrap_or(1.0) < p
    }

    fn p_total(&self) -> f32 {
        self.p.iter().sum::<f32>().max(LEAST_TOTAL)
    }

    fn reject(&mut self, child: Child) {
        let was_drawn = self.q_of(child).is_some();
        if was_drawn && let Some(proposal) = &self.proposal {
            let (p_total, q_total) = (self.p_total(), self.q.iter().sum::<f32>());
            for p in &mut self.p {
                *p /= p_total;
            }
            for (id, q) in self.q.iter().enumerate() {
                if let Some(p) = self.p.get_mut(proposal.token(id)) {
                    *p = (*p - q / q_total).max(0.0);
                }
            }
        } else if let Some(p) = self.p.get_mut(child.token as usize) {
            *p = 0.0;
        }
        if let Some(proposal) = &self.proposal
            && let Some(rejected) = proposal.id(child.token)
        {
            for (id, q) in self.q.iter_mut().enumerate() {
                if proposal.excludes(rejected, id) {
                    *q = 0.0;
                }
            }
        }
    }
}

/// Which token follows a row that stands before `position` in the text: a child that passes, or one drawn from what they leave.
/// `logits` are the row's processed ones `[valid tokens]`, of which those below `edge` are out of play. Oracle of reject.wgsl.
pub fn decide(
    logits: &[f32],
    edge: f32,
    children: &[Child],
    proposal: Option<Proposal<'_>>,
    seed: u64,
    position: u32,
) -> u32 {
    let highest = logits.iter().copied().fold(f32::MIN, f32::max);
    let weight = |&logit: &f32| if logit >= edge { (logit - highest).exp() } else { 0.0 };
    let q = proposal.map_or_else(Vec::new, |proposal| proposal.weights.to_vec());
    let mut left = Remainder { p: logits.iter().map(weight).collect(), proposal, q };
    for (ordinal, &child) in (0..).zip(children) {
        if left.passes(child, noise::uniform(seed ^ noise::ACCEPTANCE, position, ordinal)) {
            return child.token;
        }
        left.reject(child);
    }
    // Should rounding leave nothing, the last child had all the probability there was.
    let mut best = (f32::MIN, children.last().map_or(0, |child| child.token));
    for (token, &p) in (0..).zip(&left.p) {
        let score = p.ln() + noise::gumbel(seed ^ noise::RESIDUAL, position, token);
        if p > 0.0 && score > best.0 {
            best = (score, token);
        }
    }
    best.1
}

#[cfg(test)]
mod tests {
    use super::*;

    const P: [f32; 4] = [0.4, 0.3, 0.2, 0.1];
    const Q: [f32; 4] = [0.1, 0.6, 0.1, 0.2];

    fn left(drawing: Drawing) -> Remainder<'static> {
        let proposal = Proposal { weights: &Q, token_map: None, drawing };
        Remainder { p: P.to_vec(), proposal: Some(proposal), q: Q.to_vec() }
    }

    fn assert_near(found: &[f32], expected: &[f32]) {
        let total: f32 = found.iter().sum();
        let is_near = found.iter().zip(expected).all(|(a, b)| (a / total - b).abs() < 1e-6);
        assert!(is_near && found.len() == expected.len(), "{found:?} to scale, expected {expected:?}");
    }

    const fn drawn(token: u32) -> Child {
        Child { token, drawn: true }
    }

    const fn given(token: u32) -> Child {
        Child { token, drawn: false }
    }

    #[test]
    fn a_drawn_child_passes_with_p_over_q() {
        let left = left(Drawing::WithoutReplacement);
        for (token, passes_below) in [(0, 4.0), (1, 0.5), (2, 2.0), (3, 0.5)] {
            for uniform in [0.0, 0.1, 0.49, 0.51, 0.999] {
                assert_eq!(left.passes(drawn(token), uniform), uniform < passes_below, "{token} at {uniform}");
            }
        }
        assert!(left.passes(given(1), 0.29) && !left.passes(given(1), 0.31), "what was not drawn passes with p");
    }

    #[test]
    fn a_rejected_draw_leaves_what_p_has_more_than_q() {
        // max(0, p - q) = .3, 0, .1, 0
        let mut independent = left(Drawing::Independent);
        independent.reject(drawn(1));
        assert_near(&independent.p, &[0.75, 0.0, 0.25, 0.0]);
        assert_near(&independent.q, &Q);
        let mut without = left(Drawing::WithoutReplacement);
        without.reject(drawn(1));
        assert_near(&without.p, &[0.75, 0.0, 0.25, 0.0]);
        assert_near(&without.q, &[0.25, 0.0, 0.25, 0.5]);
        // max(0, .75 - .25), 0, max(0, .25 - .25), 0
        without.reject(drawn(3));
        assert_near(&without.p, &[1.0, 0.0, 0.0, 0.0]);
        assert_near(&without.q, &[0.5, 0.0, 0.5, 0.0]);
    }

    #[test]
    fn a_rejected_child_that_was_not_drawn_leaves_the_rest() {
        let mut left = left(Drawing::WithoutReplacement);
        left.reject(given(1));
        assert_near(&left.p, &[4.0 / 7.0, 0.0, 2.0 / 7.0, 1.0 / 7.0]);
        assert_near(&left.q, &[0.25, 0.0, 0.25, 0.5]);
        assert_eq!(left.q_of(drawn(1)), None, "it cannot have been drawn from what is left");
        assert_eq!(left.q_of(drawn(3)), Some(0.5));
    }

    #[test]
    fn a_draw_takes_its_chunk_with_it_and_a_draft_vocabulary_its_tokens() {
        let weights = [1.0; 12];
        let map: Vec<u32> = (0..12).map(|id| 2 * id).collect();
        let proposal = Proposal { weights: &weights, token_map: Some(&map), drawing: Drawing::Chunks(2) };
        let mut left = Remainder { p: vec![1.0; 24], proposal: Some(proposal), q: weights.to_vec() };
        assert_eq!(left.q_of(drawn(3)), None, "odd tokens are not in the draft vocabulary");
        left.reject(drawn(2 * 9));
        assert_eq!(left.q, [0.0, 0.0, 0.0, 0.0, 1.0, 1.0, 1.0, 1.0, 0.0, 0.0, 0.0, 0.0], "ids 0 to 3 and 8 to 11");
        let odd: Vec<f32> = (0..24).map(|token| if token % 2 == 1 { 1.0 / 12.0 } else { 0.0 }).collect();
        assert_near(&left.p, &odd);
    }

    #[test]
    fn certainty_is_not_left_to_rounding() {
        let logits = [0.0, -200.0, -200.0];
        for seed in 0..200 {
            assert_eq!(decide(&logits, f32::MIN, &[], None, seed, 3), 0);
            assert_eq!(decide(&logits, f32::MIN, &[given(0)], None, seed, 3), 0);
            assert_eq!(decide(&logits, f32::MIN, &[given(2), given(1), given(0)], None, seed, 3), 0);
            assert_eq!(decide(&[1.0, 2.0], 1.5, &[given(0), given(7)], None, seed, 3), 1, "filtered out, or no token");
        }
    }
}
