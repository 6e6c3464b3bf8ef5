//! How good heads are on answers that they have not learnt from.

use std::fmt;

use candle_core::{Device, Result as CandleResult};
use serde::{Deserialize, Serialize};

use super::batch::{Batch, Source};
use super::step::logits;
use crate::speculate::heads::TOP_K;
use crate::train::loss::Loss;
use crate::train::shapes::TrainHeads;
use crate::train::softmax;
use crate::train::trees::{MAX_RANK, PathCounts};

/// Rows that are looked at together.
const ROWS: usize = 512;

/// Accuracy on held-out answers. A token outside of the draft vocabulary counts as not predicted, and so does one that is not among the
/// candidates that drafting corrects.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Accuracy {
    /// The mean loss of every depth.
    pub loss: Vec<f64>,
    /// For every depth, how often the token was among the best 1, 2, … 10.
    pub top: Vec<Vec<f64>>,
    /// Tokens of a pass that verifies a chain.
    pub chain: f64,
    /// Tokens of a pass that verifies the best sparse tree of 8 nodes.
    pub tree_8: f64,
    /// The same of 32 nodes.
    pub tree_32: f64,
}

impl Accuracy {
    /// Measures heads at these rows of the states.
    ///
    /// # Errors
    /// When memory is short.
    pub fn measure(
        heads: &TrainHeads,
        from: Source<'_>,
        rows: &[u32],
        loss: Loss,
        device: &Device,
    ) -> CandleResult<Self> {
        let mut meter = Meter::new(heads.shape.depths);
        for rows in rows.chunks(ROWS) {
            meter.add(heads, &Batch::new(from, rows, None, 1.0, device)?, loss)?;
        }
        Ok(meter.accuracy())
    }
}

/// Counts how well heads predict, batch after batch.
pub struct Meter {
    sums: Sums,
    paths: PathCounts,
    /// Right tokens of chains.
    chain: usize,
}

impl Meter {
    /// Of heads of this many depths, before it has seen anything.
    pub fn new(depths: usize) -> Self {
        let sums = Sums { losses: vec![0.0; depths], counts: vec![0; depths], hits: vec![[0; MAX_RANK]; depths] };
        Self { sums, paths: PathCounts::default(), chain: 0 }
    }

    /// Looks at a batch that has every pair with a token.
    ///
    /// # Errors
    /// When memory is short.
    pub fn add(&mut self, heads: &TrainHeads, batch: &Batch, loss: Loss) -> CandleResult<()> {
        let rows = batch.hidden.dim(0)?;
        // The ranks at which the tokens of each row stand, up to the first that no tree could have.
        let mut ranked: Vec<Vec<usize>> = vec![Vec::new(); rows];
        logits(heads, batch, |first, logits, uncorrected| {
            let targets = batch.targets.slice(first, logits.dim(0)?);
            let ranks = match uncorrected {
                Some(uncorrected) => softmax::ranks_of_best(&uncorrected, &logits, &targets.labels, TOP_K)?,
                None => softmax::ranks(&logits, &targets.labels)?,
            };
            let (_, losses) = softmax::gradient(logits, &targets, loss)?;
            for ((rank, loss), &pair) in ranks.iter().zip(losses).zip(&batch.pairs[first..]) {
                let (depth, row) = (pair as usize / rows, pair as usize % rows);
                let rank = rank.map(|rank| rank as usize).filter(|&rank| rank < MAX_RANK);
                self.sums.add(depth, rank, loss);
                if let Some(rank) = rank.filter(|_| ranked[row].len() == depth) {
                    ranked[row].push(rank);
                }
            }
            Ok(())
        })?;
        for path in ranked {
            self.paths.add(&path);
            self.chain += path.iter().take_while(|&&rank| rank == 0).count();
        }
        Ok(())
    }

    /// What was counted.
    pub fn accuracy(&self) -> Accuracy {
        Accuracy {
            chain: 1.0 + self.chain as f64 / self.paths.places().max(1) as f64,
            tree_8: self.paths.expected_of_best(8),
            tree_32: self.paths.expected_of_best(32),
            ..self.sums.means()
        }
    }
}

/// What is counted at each depth.
struct Sums {
    losses: Vec<f64>,
    counts: Vec<usize>,
    /// Tokens that stood at each rank.
    hits: Vec<[usize; MAX_RANK]>,
}

impl Sums {
    fn add(&mut self, depth: usize, rank: Option<usize>, loss: f32) {
        self.losses[depth] += f64::from(loss);
        self.counts[depth] += 1;
        if let Some(rank) = rank {
            self.hits[depth][rank] += 1;
        }
    }

    fn means(&self) -> Accuracy {
        let mean = |sum: f64, depth: usize| sum / self.counts[depth].max(1) as f64;
        let loss = self.losses.iter().enumerate().map(|(depth, &sum)| mean(sum, depth)).collect();
        let top = self.hits.iter().enumerate().map(|(depth, hits)| {
            let running = hits.iter().scan(0, |sum, hits| {
                *sum += hits;
                Some(*sum)
            });
            running.map(|sum| mean(sum as f64, depth)).collect()
        });
        Accuracy { loss, top: top.collect(), ..Accuracy::default() }
    }
}

impl fmt::Display for Accuracy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "depth   loss")?;
        (1..=MAX_RANK).try_for_each(|rank| write!(f, "  {:>5}", format!("top{rank}")))?;
        for (depth, (loss, top)) in self.loss.iter().zip(&self.top).enumerate() {
            write!(f, "\n{:>5}  {loss:>5.3}", depth + 1)?;
            top.iter().try_for_each(|share| write!(f, "  {share:>5.3}"))?;
        }
        let (chain, tree_8, tree_32) = (self.chain, self.tree_8, self.tree_32);
        write!(f, "\ntokens a pass: {chain:.3} by a chain, {tree_8:.3} by a tree of 8 nodes, {tree_32:.3} of 32")
    }
}
