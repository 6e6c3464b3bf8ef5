//! The one builder of draft trees: merges what the drafters propose.
//!
//! Every drafter that knows something of a node has one proposal pending there: its most probable child not yet taken. Growing takes the most
//! probable pending proposal of the whole tree, by the product of probabilities from the root, as a node; a token that its
//! parent already has as a child is not taken twice, but whatever followed from it goes on below the child that is there. So
//! the first n nodes are the best tree of n nodes, for every n. A fixed shape takes the ranks it lists instead.

use super::accept::AcceptRule;
use super::ngram::{self, Match};
use super::recycling::Successors;
use super::rejection::Draws;
use super::shape::Shape;
use super::tree::Tree;
use super::{Calibration, DraftPlan, Source};
use crate::error::Result;
use crate::sampling::SamplingParams;

/// A draw of rank r is taken to have the log-probability r + 1 times this; `DRAW_LOG_PROBABILITY` in shaders/lib/drafting.wgsl. Whether
/// a draw is verified must not depend on what was drawn, so its own probability says nothing here.
const DRAW_LOG_PROBABILITY: f32 = -0.7;

/// What draft heads propose: for every slot, candidates by descending probability.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct HeadCandidates {
    /// `[slot]`, as [`slots`](super::heads::slots) numbers them. Slot 0 belongs to the root; where heads see all nodes of a depth
    /// alike, slot d belongs to depth d, else a node has the slot that the candidate it came from leads to.
    pub slots: Vec<Vec<HeadCandidate>>,
    /// Whether slots are depths.
    pub by_depth: bool,
    /// What candidates were drawn from, under the rule of rejection: by noise of [`drafting_seed`](crate::sampling::noise::drafting_seed),
    /// the first drawn first. Without it they count as given, and must not depend on noise that verification uses.
    pub draws: Option<Draws>,
}

/// A token that a head proposes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct HeadCandidate {
    /// The token.
    pub token: u32,
    /// Logarithm of its probability.
    pub log_probability: f32,
    /// The slot that its own children are in, where slots are not depths.
    pub next: Option<usize>,
}

/// What there is to draft from.
#[derive(Debug, Clone, Copy)]
pub struct Material<'a> {
    /// Every token so far, the root last.
    pub text: &'a [u32],
    /// What recycling has learnt.
    pub successors: &'a Successors,
    /// What heads propose.
    pub heads: &'a HeadCandidates,
    /// How tokens are chosen; decides how children are ranked.
    pub sampling: &'a SamplingParams,
    /// How far each drafter is to be believed.
    pub calibration: &'a Calibration,
    /// Nodes deeper than this could not be visited: the text or the context ends there.
    pub max_depth: usize,
}

/// A drafted tree.
#[derive(Debug, Clone, PartialEq)]
pub struct Drafted {
    /// Root and draft tokens.
    pub tree: Tree,
    /// Who proposed each node; the root's is [`Source::Model`].
    pub sources: Vec<Source>,
    /// The slot of head candidates that each node's children come from.
    pub slots: Vec<Option<usize>>,
    /// Logarithm of the probability that all of a node's path is right, as its drafters estimate it.
    pub log_probabilities: Vec<f32>,
    /// Length of the n-gram match behind the n-gram nodes; 0 without one.
    pub match_length: usize,
}

/// A node of a drafted tree, as it is shown.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct DraftedNode {
    /// Its token.
    pub token: u32,
    /// The node before it; its own for the root.
    pub parent: usize,
    /// Who proposed it; [`Source::Model`] for the root.
    pub source: Source,
    /// Logarithm of the probability that all of its path is right, as its drafters estimate it.
    pub log_probability: f32,
}

impl DraftedNode {
    /// The root, which is certain.
    pub fn root(token: u32) -> Self {
        Self { token, parent: 0, source: Source::Model, log_probability: 0.0 }
    }
}

impl Drafted {
    /// The tree of one node.
    ///
    /// # Errors
    /// None; one node is a tree.
    pub fn root(token: u32) -> Result<Self> {
        Ok(Self {
            tree: Tree::chain(&[token])?,
            sources: vec![Source::Model],
            slots: vec![None],
            log_probabilities: vec![0.0],
            match_length: 0,
        })
    }

    /// Its nodes, the root first.
    pub fn nodes(&self) -> Vec<DraftedNode> {
        let tree = self.tree.tokens().iter().zip(self.tree.parents());
        let drafted = self.sources.iter().zip(&self.log_probabilities);
        let node =
            |((&token, &parent), (&source, &log_probability))| DraftedNode { token, parent, source, log_probability };
        tree.zip(drafted).map(node).collect()
    }
}

/// Where a node stands in each drafter's own terms.
#[derive(Debug, Clone, Copy, Default)]
struct Place {
    /// Index in the n-gram continuation of what follows this node.
    continuation: Option<usize>,
    /// Slot of head candidates.
    slot: Option<usize>,
}

/// A drafter's best child of a node that is not taken yet.
#[derive(Debug, Clone, Copy)]
struct Pending {
    token: u32,
    /// Logarithm of the probability of the whole path.
    score: f32,
    rank: usize,
    place: Place,
}

struct Grower<'a> {
    plan: &'a DraftPlan,
    material: Material<'a>,
    found: Option<Match>,
    tokens: Vec<u32>,
    parents: Vec<usize>,
    depths: Vec<usize>,
    sources: Vec<Source>,
    scores: Vec<f32>,
    places: Vec<Place>,
    /// `[node][drafter]`.
    pending: Vec<[Option<Pending>; 3]>,
}

/// Drafts the next tree. Oracle of draft.wgsl.
///
/// # Errors
/// None in practice: what is grown is a tree.
pub fn grow(plan: &DraftPlan, material: Material<'_>) -> Result<Drafted> {
    let Some(&root) = material.text.last() else { return Drafted::root(0) };
    let found = plan.sources.contains(Source::NGram).then(|| ngram::longest_match(material.text)).flatten();
    let mut grower = Grower {
        plan,
        material,
        found,
        tokens: Vec::new(),
        parents: Vec::new(),
        depths: Vec::new(),
        sources: Vec::new(),
        scores: Vec::new(),
        places: Vec::new(),
        pending: Vec::new(),
    };
    let place = Place { continuation: found.map(|_| 0), slot: Some(0) };
    grower.add(0, Pending { token: root, score: 0.0, rank: 0, place }, Source::Model);
    match &plan.shape {
        Shape::Grown => {
            while grower.tokens.len() < plan.nodes() {
                let Some((node, drafter)) = grower.best(0..grower.tokens.len()) else { break };
                grower.take(node, drafter, true);
            }
        }
        Shape::Fixed(shape) => {
            // Where each listed node came to stand, and how many children of each have been ranked.
            let mut at = vec![Some(0)];
            let mut ranked = vec![0; shape.len()];
            for listed in shape.nodes() {
                let parent = at[listed.parent];
                at.push(parent.and_then(|node| grower.take_rank(node, listed.rank, &mut ranked[listed.parent])));
            }
        }
    }
    let match_length = found.map_or(0, |found| found.length);
    let slots = grower.places.iter().map(|place| place.slot).collect();
    Ok(Drafted {
        tree: Tree::new(&grower.tokens, &grower.parents)?,
        sources: grower.sources,
        slots,
        log_probabilities: grower.scores,
        match_length,
    })
}

impl Grower<'_> {
    /// The most probable pending proposal of these nodes; the first of equals.
    fn best(&self, nodes: std::ops::Range<usize>) -> Option<(usize, usize)> {
        let mut best = None;
        let mut highest = f32::MIN;
        for node in nodes {
            for (drafter, pending) in self.pending[node].iter().enumerate() {
                if let Some(pending) = pending
                    && pending.score > highest
                {
                    highest = pending.score;
                    best = Some((node, drafter));
                }
            }
        }
        best
    }

    /// Takes a pending proposal: as a new node if `keep` and its parent has no such child, and returns that node.
    fn take(&mut self, node: usize, drafter: usize, keep: bool) -> Taken {
        let Some(pending) = self.pending[node][drafter] else { return Taken::Known };
        self.pending[node][drafter] = self.propose(node, drafter, pending.rank + 1);
        let twin = (node + 1..self.tokens.len())
            .find(|&child| self.parents[child] == node && self.tokens[child] == pending.token);
        match twin {
            Some(child) => {
                let place = &mut self.places[child];
                let gained = (place.continuation.is_none() && pending.place.continuation.is_some())
                    || (place.slot.is_none() && pending.place.slot.is_some());
                if gained {
                    place.continuation = place.continuation.or(pending.place.continuation);
                    place.slot = place.slot.or(pending.place.slot);
                    self.pending[child][drafter] = self.propose(child, drafter, 0);
                }
                Taken::Known
            }
            None if keep => Taken::Added(self.add(node, pending, Source::DRAFTERS[drafter])),
            None => Taken::PassedOver,
        }
    }

    /// The child of `node` that has rank `rank` among all its proposals; `ranked` of them have been passed already.
    fn take_rank(&mut self, node: usize, rank: usize, ranked: &mut usize) -> Option<usize> {
        loop {
            let (_, drafter) = self.best(node..node + 1)?;
            match self.take(node, drafter, *ranked == rank) {
                Taken::Added(child) => {
                    *ranked += 1;
                    return Some(child);
                }
                Taken::PassedOver => *ranked += 1,
                Taken::Known => {}
            }
        }
    }

    fn add(&mut self, parent: usize, pending: Pending, source: Source) -> usize {
        let node = self.tokens.len();
        let depth = if node == 0 { 0 } else { self.depths[parent] + 1 };
        self.tokens.push(pending.token);
        self.parents.push(parent);
        self.depths.push(depth);
        self.sources.push(source);
        self.scores.push(pending.score);
        let slot = if self.material.heads.by_depth { Some(depth) } else { pending.place.slot };
        self.places.push(Place { slot, ..pending.place });
        self.pending.push([None; 3]);
        for drafter in 0..3 {
            self.pending[node][drafter] = self.propose(node, drafter, 0);
        }
        node
    }

    /// What a drafter proposes as its child number `rank` of a node.
    fn propose(&self, node: usize, drafter: usize, rank: usize) -> Option<Pending> {
        let material = &self.material;
        let source = Source::DRAFTERS[drafter];
        if !self.plan.sources.contains(source) || self.depths[node] >= material.max_depth {
            return None;
        }
        let place = self.places[node];
        let (token, log_probability, place) = match source {
            Source::Heads => {
                let candidate = material.heads.slots.get(place.slot?)?.get(rank)?;
                let place = Place { slot: candidate.next, continuation: None };
                let log_probability = match material.heads.draws {
                    Some(_) => (rank + 1) as f32 * DRAW_LOG_PROBABILITY,
                    None => material.calibration.heads[self.depths[node]].apply(candidate.log_probability),
                };
                (candidate.token, log_probability, place)
            }
            Source::NGram => {
                let found = self.found.filter(|_| rank == 0)?;
                let index = place.continuation?;
                let accepted = material.calibration.ngram[ngram::class(found.length + index)];
                let place = Place { continuation: Some(index + 1), slot: None };
                (found.token(material.text, index), accepted.ln(), place)
            }
            Source::Recycling | Source::Model => {
                let position = material.text.len() + self.depths[node];
                // Verification by rejection does not draw as the exact rule does, and drafting must know nothing of its noise.
                let noisy = material.sampling.temperature > 0.0 && self.plan.accept != AcceptRule::Rejection;
                let seed = noisy.then_some(material.sampling.seed);
                let ranked = material.successors.ranked(self.tokens[node], position as u32, seed);
                let &(token, share) = ranked.get(rank)?;
                (token, material.calibration.recycling.ln() + share, Place::default())
            }
        };
        Some(Pending { token, score: self.scores[node] + log_probability, rank, place })
    }
}

/// What became of a proposal.
enum Taken {
    /// It is a node now.
    Added(usize),
    /// Its parent has this child already.
    Known,
    /// It was new, but not wanted.
    PassedOver,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::heads::DepthCalibration;
    use crate::sampling::Candidate;
    use crate::speculate::Sources;
    use crate::speculate::shape::RankTree;

    const GREEDY: SamplingParams = SamplingParams {
        temperature: 0.0,
        top_k: 0,
        top_p: 1.0,
        min_p: 0.0,
        repetition_penalty: 1.0,
        frequency_penalty: 0.0,
        presence_penalty: 0.0,
        logit_bias: Vec::new(),
        seed: 0,
    };

    fn plan(sources: &[Source], shape: Shape, max_nodes: usize) -> DraftPlan {
        let sources = sources.iter().fold(Sources::NONE, |set, &source| set.with(source));
        DraftPlan { sources, shape, max_nodes, ..Default::default() }
    }

    /// Heads that propose `tokens[d]` below every node of depth d, with these probabilities.
    fn heads(levels: &[&[(u32, f32)]]) -> HeadCandidates {
        let candidate =
            |&(token, probability): &(u32, f32)| HeadCandidate { token, log_probability: probability.ln(), next: None };
        HeadCandidates {
            slots: levels.iter().map(|level| level.iter().map(candidate).collect()).collect(),
            by_depth: true,
            draws: None,
        }
    }

    fn drafted(plan: &DraftPlan, text: &[u32], heads: &HeadCandidates, successors: &Successors) -> Drafted {
        let calibration = Calibration::default();
        let material =
            Material { text, successors, heads, sampling: &GREEDY, calibration: &calibration, max_depth: 63 };
        grow(plan, material).unwrap()
    }

    #[test]
    fn the_most_probable_path_of_all_is_added_next() {
        let heads = heads(&[&[(1, 0.6), (2, 0.3)], &[(3, 0.5), (4, 0.4)]]);
        let grown = |nodes| {
            let plan = plan(&[Source::Heads], Shape::Grown, nodes);
            drafted(&plan, &[9], &heads, &Successors::new(10)).tree
        };
        // .6, then .3 (1·3), .3 (2), .24 (1·4), .15 (2·3), .12 (2·4).
        let whole = grown(64);
        assert_eq!(whole.tokens(), [9, 1, 2, 3, 4, 3, 4]);
        assert_eq!(whole.parents(), [0, 0, 0, 1, 1, 2, 2]);
        for nodes in 1..=7 {
            let tree = grown(nodes);
            assert_eq!(tree.tokens(), &whole.tokens()[..nodes], "the first {nodes} nodes of any larger tree");
        }
    }

    #[test]
    fn probabilities_of_heads_count_as_much_as_they_are_worth() {
        let heads = heads(&[&[(1, 0.6), (2, 0.3)], &[(3, 0.5), (4, 0.4)]]);
        let mut calibration = Calibration::default();
        // Below the root what they say is true; one deeper, a half is worth a tenth.
        calibration.heads[1] = DepthCalibration { slope: 1.0, offset: 0.2_f32.ln() };
        let successors = Successors::new(10);
        let material = Material {
            text: &[9],
            successors: &successors,
            heads: &heads,
            sampling: &GREEDY,
            calibration: &calibration,
            max_depth: 63,
        };
        let tree = grow(&plan(&[Source::Heads], Shape::Grown, 4), material).unwrap().tree;
        assert_eq!(tree.tokens(), [9, 1, 2, 3], "2 (.3) comes before what follows 1 (.06)");
    }

    #[test]
    fn two_drafters_that_agree_make_one_branch() {
        // The text goes on with 1 5 6; heads propose 1 as well, and 7 below it.
        let text = [8, 9, 1, 5, 6, 8, 9];
        let heads = heads(&[&[(1, 0.9)], &[(7, 0.2)]]);
        let plan = plan(&[Source::Heads, Source::NGram], Shape::Grown, 5);
        let found = drafted(&plan, &text, &heads, &Successors::new(10));
        // .9, then .36 (5: the match has three tokens by then), .22 (6: it has four), .18 (7).
        assert_eq!(found.tree.tokens(), [9, 1, 5, 6, 7], "1 once, with both continuations");
        assert_eq!(found.tree.parents(), [0, 0, 1, 2, 1]);
        assert_eq!(found.match_length, 2);
        assert_eq!(found.sources[1..], [Source::Heads, Source::NGram, Source::NGram, Source::Heads]);
    }

    #[test]
    fn recycling_chains_successors() {
        let mut successors = Successors::new(10);
        let row = |tokens: &[u32]| -> Vec<Candidate> {
            tokens.iter().enumerate().map(|(i, &token)| Candidate { score: -(i as f32), token }).collect()
        };
        successors.learn(9, &row(&[1, 2]), 0, &GREEDY);
        successors.learn(1, &row(&[3]), 0, &GREEDY);
        let plan = plan(&[Source::Recycling], Shape::Grown, 64);
        let found = drafted(&plan, &[9], &HeadCandidates::default(), &successors);
        assert_eq!(found.tree.tokens(), [9, 1, 3, 2]);
        assert_eq!(found.tree.parents(), [0, 0, 1, 0]);
    }

    #[test]
    fn a_fixed_tree_takes_the_ranks_it_lists() {
        let heads = heads(&[&[(1, 0.5), (2, 0.3), (3, 0.1)], &[(4, 0.5), (5, 0.3)]]);
        let shape = RankTree::from_paths(&[vec![0], vec![2], vec![2, 1], vec![7]]).unwrap();
        let plan = plan(&[Source::Heads], Shape::Fixed(shape), 0);
        let found = drafted(&plan, &[9], &heads, &Successors::new(10));
        assert_eq!(found.tree.tokens(), [9, 1, 3, 5], "rank 7 does not exist");
        assert_eq!(found.tree.parents(), [0, 0, 0, 2]);
    }

    #[test]
    fn no_node_is_deeper_than_the_text_can_get() {
        let calibration = Calibration::default();
        let plan = plan(&[Source::NGram], Shape::Grown, 64);
        for max_depth in 0..4 {
            let material = Material {
                text: &[4, 4, 4],
                successors: &Successors::new(5),
                heads: &HeadCandidates::default(),
                sampling: &GREEDY,
                calibration: &calibration,
                max_depth,
            };
            assert_eq!(grow(&plan, material).unwrap().tree.len(), max_depth + 1);
        }
    }
}
