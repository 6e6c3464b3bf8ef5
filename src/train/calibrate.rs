//! How trained heads draft best: which rank paths the target's own text takes, and how far their probabilities are to be believed.
//!
//! Heads draft at places of answers that they have not learnt from, exactly as at run time (`CpuHeads`), and the text that follows is
//! looked up among their candidates.

use std::collections::BTreeMap;

use rayon::prelude::*;

use super::matrices::TargetMatrices;
use super::states::States;
use super::trees::{MAX_NODES, PathCounts};
use crate::backend::cpu::heads::{CpuHeads, DraftScene};
use crate::error::{Error, ErrorCode, Result};
use crate::model::heads::DepthCalibration;
use crate::sampling::SamplingParams;
use crate::speculate::grow::{HeadCandidate, HeadCandidates, Material, grow};
use crate::speculate::recycling::Successors;
use crate::speculate::shape::Shape;
use crate::speculate::{Calibration, DraftPlan, Source, Sources};

/// Classes of log-probability that are told apart, and the width of one.
const CLASSES: usize = 240;
const CLASS_WIDTH: f64 = 0.05;
/// Log-probabilities are taken to be at most this, so that a certain candidate that is wrong costs something finite.
const MOST: f64 = -1e-3;

/// What was found out about heads.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Findings {
    /// Which rank paths were right.
    pub paths: PathCounts,
    /// How far the probabilities of each depth are to be believed.
    pub calibration: Vec<DepthCalibration>,
    /// Tokens that a pass brings with a tree of 1, 2, … nodes that is grown by the probabilities as they are.
    pub grown: Vec<f64>,
    /// The same by calibrated probabilities.
    pub grown_calibrated: Vec<f64>,
}

/// What heads proposed at one place.
struct Draft<'a> {
    root: u32,
    candidates: HeadCandidates,
    /// The text behind the root, as far as heads can draft.
    text: &'a [u32],
}

/// Has heads draft at these rows of the states. `ends` has for every row where its answer ends.
///
/// # Errors
/// `ShapeMismatch` when the states are of a model of another width, `InvalidOption` when they lack a layer that the heads read.
pub fn measure(
    heads: &CpuHeads,
    target: &TargetMatrices,
    (states, ends): (&States, &[u32]),
    rows: &[u32],
) -> Result<Findings> {
    let shape = heads.shape();
    if states.header.hidden_size != shape.hidden_size {
        let (found, expected) = (states.header.hidden_size, shape.hidden_size);
        return Err(Error::new(
            ErrorCode::ShapeMismatch,
            format!("states of hidden size {found}, expected {expected}, that of the heads; they are of another model"),
        ));
    }
    let (all, width, taps) = (states.all(), states.header.width(), states.header.places(&shape.taps)?);
    states.header.check(&shape.taps, shape.context_layer)?;
    let sampling = SamplingParams::default();
    let valid_tokens = target.embedding().rows as u32;
    let scene = DraftScene { sampling: &sampling, context_length: 0, valid_tokens, shares_noise: true };
    let draft = |&row: &u32| {
        let row = row as usize;
        let part = |&place: &usize| all.hidden[row * width + place..][..shape.hidden_size].iter().map(|it| it.to_f32());
        let (hidden, taps): (Vec<f32>, Vec<f32>) = (part(&0).collect(), taps.iter().flat_map(part).collect());
        let root = all.tokens[row];
        let mut first = heads.fuse(&hidden, &taps)?;
        if let Some(context) = states.header.context.filter(|_| shape.context_layer.is_some()) {
            let seen = states.seen(row);
            let kept = &states.context()[seen.start * context.width..seen.end * context.width];
            let kept: Vec<f32> = kept.iter().map(|value| value.to_f32()).collect();
            let pairs = kept.chunks_exact(context.width).map(|position| position.split_at(context.width / 2));
            let (keys, values): (Vec<&[f32]>, Vec<&[f32]>) = pairs.unzip();
            first = heads.look_back(target.config(), first, &keys, &values)?;
        }
        let candidates = heads.draft(target.target(), &first, scene).candidates(root)?;
        let text = &all.tokens[row + 1..(row + 1 + shape.depths).min(ends[row] as usize)];
        Ok(Draft { root, candidates, text })
    };
    let drafts = rows.par_iter().map(draft).collect::<Result<Vec<_>>>()?;

    let mut paths = PathCounts::default();
    let mut seen = vec![Histogram::default(); shape.depths];
    for draft in &drafts {
        paths.add(&draft.follow(|depth, candidate, right| seen[depth].add(candidate.log_probability, right)));
    }
    let calibration: Vec<DepthCalibration> = seen.iter().map(Histogram::fit).collect();
    Ok(Findings {
        paths,
        grown: grown(&drafts, |_, log_probability| log_probability)?,
        grown_calibrated: grown(&drafts, |depth, log_probability| calibration[depth].apply(log_probability))?,
        calibration,
    })
}

impl Draft<'_> {
    /// The ranks at which the text stands among the candidates, as far as it does. `each` is told of every candidate below the nodes on
    /// the way, with its depth from 0 and whether the text goes on with it.
    fn follow(&self, mut each: impl FnMut(usize, &HeadCandidate, bool)) -> Vec<usize> {
        let (mut path, mut slot) = (Vec::new(), Some(0));
        for (depth, &token) in self.text.iter().enumerate() {
            let listed = slot.and_then(|slot| self.candidates.slots.get(slot)).map_or(&[][..], Vec::as_slice);
            listed.iter().for_each(|candidate| each(depth, candidate, candidate.token == token));
            let Some(rank) = listed.iter().position(|candidate| candidate.token == token) else { break };
            path.push(rank);
            slot = if self.candidates.by_depth { Some(depth + 1) } else { listed[rank].next };
        }
        path
    }

    /// The depth of each slot's candidates, from 0, in the order in which slots lead to one another.
    fn depths(&self) -> Vec<usize> {
        let slots = &self.candidates.slots;
        if self.candidates.by_depth {
            return (0..slots.len()).collect();
        }
        let mut depths = vec![0; slots.len()];
        for slot in 0..slots.len() {
            for next in slots[slot].iter().filter_map(|candidate| candidate.next) {
                depths[next] = depths[slot] + 1;
            }
        }
        depths
    }
}

/// Tokens that a pass brings with trees of 1 to [`MAX_NODES`] nodes, grown by changed probabilities.
fn grown(drafts: &[Draft<'_>], change: impl Fn(usize, f32) -> f32 + Sync) -> Result<Vec<f64>> {
    let plan = DraftPlan {
        sources: Sources::NONE.with(Source::Heads),
        shape: Shape::Grown,
        max_nodes: MAX_NODES,
        ..DraftPlan::default()
    };
    // The first n nodes are the tree of n nodes, so it is enough to know which of the nodes were right.
    let right = |draft: &Draft<'_>| -> Result<Vec<usize>> {
        let mut heads = draft.candidates.clone();
        for (slot, depth) in heads.slots.iter_mut().zip(draft.depths()) {
            slot.iter_mut().for_each(|it| it.log_probability = change(depth, it.log_probability));
        }
        let (sampling, calibration) = (SamplingParams::default(), Calibration::default());
        let (text, successors) = ([draft.root], Successors::new(0));
        let material = Material {
            text: &text,
            successors: &successors,
            heads: &heads,
            sampling: &sampling,
            calibration: &calibration,
            max_depth: draft.text.len(),
        };
        let tree = grow(&plan, material)?.tree;
        let mut node = 0;
        let next = draft.text.iter().map_while(|&token| {
            let child = (node + 1..tree.len()).find(|&it| tree.parents()[it] == node && tree.tokens()[it] == token);
            node = child?;
            child
        });
        Ok(next.collect())
    };
    let mut hits = vec![0u64; MAX_NODES];
    for node in drafts.par_iter().map(right).collect::<Result<Vec<_>>>()?.into_iter().flatten() {
        hits[node] += 1;
    }
    let places = drafts.len().max(1) as f64;
    let running = hits.iter().scan(0, |sum, hits| {
        *sum += hits;
        Some(1.0 + *sum as f64 / places)
    });
    Ok(running.collect())
}

/// Candidates by their log-probability.
#[derive(Debug, Clone)]
struct Histogram {
    /// How many, how many of them were right, and the sum of their log-probabilities.
    classes: Vec<(f64, f64, f64)>,
}

impl Default for Histogram {
    fn default() -> Self {
        Self { classes: vec![(0.0, 0.0, 0.0); CLASSES] }
    }
}

impl Histogram {
    fn add(&mut self, log_probability: f32, right: bool) {
        let class = ((-f64::from(log_probability) / CLASS_WIDTH) as usize).min(CLASSES - 1);
        let (count, hits, sum) = &mut self.classes[class];
        *count += 1.0;
        *hits += f64::from(u8::from(right));
        *sum += f64::from(log_probability);
    }

    /// The logarithm of the likelihood of what was right under a calibration.
    fn likelihood(&self, slope: f64, offset: f64) -> f64 {
        let seen = self.classes.iter().filter(|(count, ..)| *count > 0.0);
        let term = |&(count, hits, sum): &(f64, f64, f64)| {
            let log_probability = (slope * sum / count + offset).min(MOST);
            hits * log_probability + (count - hits) * (-log_probability.exp_m1()).ln()
        };
        seen.map(term).sum()
    }

    /// The calibration of highest likelihood, found by steps along the axes and diagonals that get smaller; none where nothing was seen.
    fn fit(&self) -> DepthCalibration {
        let (mut slope, mut offset, mut step) = (1.0, 0.0, 0.25);
        let mut best = self.likelihood(slope, offset);
        if self.classes.iter().all(|(_, hits, _)| *hits == 0.0) {
            return DepthCalibration::IDENTITY;
        }
        while step > 1e-4 {
            let ways = (-1..=1).flat_map(|a| (-1..=1).map(move |b| (f64::from(a) * step, f64::from(b) * step)));
            let tried = ways.map(|(a, b)| (slope + a, offset + b)).filter(|&(slope, _)| slope > 0.05);
            let found = tried.map(|(slope, offset)| (self.likelihood(slope, offset), slope, offset));
            match found.max_by(|a, b| a.0.total_cmp(&b.0)) {
                Some(found) if found.0 > best => (best, slope, offset) = found,
                _ => step /= 2.0,
            }
        }
        DepthCalibration { slope: slope as f32, offset: offset as f32 }
    }
}

impl Findings {
    /// What a file of heads says of them: rank paths, the tokens that a pass brings by the best tree of 1, 2, … nodes, and calibrations.
    pub fn words(&self) -> BTreeMap<String, String> {
        let rounded = |value: f64| (value * 1e4).round() / 1e4;
        let tokens: Vec<f64> = (1..=MAX_NODES).map(|nodes| rounded(self.paths.expected_of_best(nodes))).collect();
        let pairs: Vec<[f64; 2]> =
            self.calibration.iter().map(|it| [it.slope, it.offset].map(|value| rounded(f64::from(value)))).collect();
        BTreeMap::from([
            ("trees".to_owned(), serde_json::json!(self.paths.best(MAX_NODES - 1)).to_string()),
            ("tree_tokens".to_owned(), serde_json::json!(tokens).to_string()),
            ("calibration".to_owned(), serde_json::json!(pairs).to_string()),
            ("calibration_places".to_owned(), self.paths.places().to_string()),
        ])
    }
}

impl std::fmt::Display for Findings {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        writeln!(f, "tokens a pass at {} places", self.paths.places())?;
        writeln!(f, "{:>5}  {:>6}  {:>6}  {:>6}  {:>10}  dense", "nodes", "sparse", "dense", "grown", "calibrated")?;
        for nodes in 2..=MAX_NODES {
            let (counts, dense) = self.paths.best_dense(nodes);
            let counts = counts.iter().map(usize::to_string).collect::<Vec<_>>().join(",");
            let sparse = self.paths.expected_of_best(nodes);
            let [grown, calibrated] = [&self.grown, &self.grown_calibrated].map(|by_nodes| by_nodes[nodes - 1]);
            writeln!(f, "{nodes:>5}  {sparse:>6.3}  {dense:>6.3}  {grown:>6.3}  {calibrated:>10.3}  {counts}")?;
        }
        for (depth, it) in self.calibration.iter().enumerate() {
            writeln!(f, "depth {}: log p becomes {:.3} log p {:+.3}", depth + 1, it.slope, it.offset)?;
        }
        Ok(())
    }
}
