//! How the rankings of draft heads become slots of candidates, whoever computes the rows behind them.
//!
//! [`slots`] says which slots there are. Rows are ranked by [`Scoring`](super::heads::Scoring); here is decided which node reads
//! which slot, and which nodes recurrent heads go on from.

use super::grow::{HeadCandidate, HeadCandidates};
use super::heads::{BEAM, Ranking, TOP_K, first_slot, slots};
use crate::error::Result;
use crate::model::heads::DraftHeads;

/// The slots of parallel heads, below `root`: `rankings[depth]` is that depth's, and `correct` makes of a ranking at a depth the one
/// below a token.
///
/// # Errors
/// Those of `correct`.
pub fn parallel(
    heads: &DraftHeads,
    root: u32,
    rankings: &[Ranking],
    correct: impl Fn(usize, &Ranking, u32) -> Result<Ranking>,
) -> Result<HeadCandidates> {
    if heads.rank == 0 {
        return Ok(HeadCandidates { slots: rankings.iter().map(list).collect(), by_depth: true, draws: None });
    }
    let mut slots = vec![Vec::new(); slots(heads)];
    for (depth, ranking) in rankings.iter().enumerate() {
        let above: Vec<u32> = match depth.checked_sub(1) {
            Some(above) => rankings[above].candidates.iter().map(|candidate| candidate.token).collect(),
            None => vec![root],
        };
        let next = (depth + 1 < rankings.len()).then_some(first_slot(depth + 1, TOP_K));
        for (slot, token) in (first_slot(depth, TOP_K)..).zip(above) {
            let corrected = correct(depth, ranking, token)?;
            slots[slot] = list(&corrected);
            for (listed, candidate) in slots[slot].iter_mut().zip(&corrected.candidates) {
                let place = ranking.candidates.iter().position(|kept| kept.draft == candidate.draft);
                listed.next = next.zip(place).map(|(next, place)| next + place);
            }
        }
    }
    Ok(HeadCandidates { slots, by_depth: false, draws: None })
}

/// A node that recurrent heads go on from.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Expanded {
    /// Its token.
    pub token: u32,
    /// Which node of the level above it follows; 0 for the root.
    pub parent: usize,
    /// Logarithm of the probability of the path.
    score: f32,
}

/// The slots of recurrent heads, filled level by level.
#[derive(Debug, Clone)]
pub struct Levels {
    depths: usize,
    depth: usize,
    nodes: Vec<Expanded>,
    slots: Vec<Vec<HeadCandidate>>,
}

impl Levels {
    /// Begins below `root`.
    pub fn new(heads: &DraftHeads, root: u32) -> Self {
        Self {
            depths: heads.depths,
            depth: 0,
            nodes: vec![Expanded { token: root, parent: 0, score: 0.0 }],
            slots: vec![Vec::new(); slots(heads)],
        }
    }

    /// The same with no more than so many levels.
    #[must_use]
    pub fn limited(self, levels: usize) -> Self {
        Self { depths: levels.min(self.depths), ..self }
    }

    /// The nodes whose children are to be ranked next; none behind the last level.
    pub fn nodes(&self) -> &[Expanded] {
        &self.nodes
    }

    /// Takes the ranking below every node, with its correction, and goes on to the next level.
    pub fn fill(&mut self, rankings: &[Ranking]) {
        let first = first_slot(self.depth, BEAM);
        let mut open: Vec<(f32, usize, usize)> = Vec::new();
        for (parent, (node, ranking)) in self.nodes.iter().zip(rankings).enumerate() {
            let listed = list(ranking);
            let scores = listed.iter().map(|candidate| node.score + candidate.log_probability);
            open.extend(scores.enumerate().map(|(rank, score)| (score, parent, rank)));
            self.slots[first + parent] = listed;
        }
        self.depth += 1;
        self.nodes.clear();
        if self.depth == self.depths {
            return;
        }
        // Stable: of equal ones the first stays first.
        open.sort_by(|a, b| b.0.total_cmp(&a.0));
        for (next, &(score, parent, rank)) in (first_slot(self.depth, BEAM)..).zip(open.iter().take(BEAM)) {
            let candidate = &mut self.slots[first + parent][rank];
            candidate.next = Some(next);
            self.nodes.push(Expanded { token: candidate.token, parent, score });
        }
    }

    /// What came of it.
    pub fn candidates(self) -> HeadCandidates {
        HeadCandidates { slots: self.slots, by_depth: false, draws: None }
    }
}

/// The candidates of a ranking, without children of their own.
fn list(ranking: &Ranking) -> Vec<HeadCandidate> {
    let candidates = ranking.candidates.iter().zip(ranking.log_probabilities());
    let listed =
        candidates.map(|(kept, log_probability)| HeadCandidate { token: kept.token, log_probability, next: None });
    listed.collect()
}
