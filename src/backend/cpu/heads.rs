//! Draft heads in plain float32: what their kernels compute, in reading order.

use std::collections::HashMap;

use super::ops::{self, MatrixF32};
use super::{CpuBackend, CpuWeights, KvRow, LayerRows};
use crate::error::{Error, ErrorCode, Result};
use crate::model::heads::{DraftHeads, HeadForm, HeadMatrix, HeadOutput, HeadVector};
use crate::model::{Matrix, ModelConfig, Vector};
use crate::sampling::SamplingParams;
use crate::speculate::grow::HeadCandidates;
use crate::speculate::head_slots::{self, Levels};
use crate::speculate::heads::{Ranking, Scoring};
use crate::speculate::tree::Tree;

/// The heads of one model.
#[derive(Debug)]
pub struct CpuHeads {
    shape: DraftHeads,
    matrices: HashMap<HeadMatrix, MatrixF32>,
    biases: HashMap<HeadVector, Vec<f32>>,
}

/// The matrices of the target that heads use.
#[derive(Debug, Clone, Copy)]
pub struct Target<'a> {
    /// `[vocab_size, hidden]`.
    pub embedding: &'a MatrixF32,
    /// `[vocab_size, hidden]`.
    pub lm_head: &'a MatrixF32,
}

impl CpuBackend {
    /// The matrices that draft heads use.
    pub fn target(&self) -> Target<'_> {
        Target { embedding: &self.embedding, lm_head: self.lm_head.as_ref().unwrap_or(&self.embedding) }
    }

    /// Hidden rows `[nodes][hidden]`, normed, of every node of a tree whose root stands at position `start`.
    pub fn hidden(&self, start: usize, tree: &Tree) -> Vec<Vec<f32>> {
        self.forward(start, tree).0.iter().map(|behind| self.final_row(behind)).collect()
    }

    /// The rows `[nodes][hidden]` that heads draft from at every node of such a tree.
    ///
    /// # Errors
    /// `MissingTensor`, which does not happen for heads of this model.
    pub fn head_rows(&self, heads: &CpuHeads, start: usize, tree: &Tree) -> Result<Vec<Vec<f32>>> {
        let (rows, scratch) = self.forward(start, tree);
        let row = |(node, behind): (usize, &LayerRows)| {
            self.head_row(heads, behind, |layer| {
                let path = tree.path(node).into_iter().map(|node| &scratch[layer][node]);
                self.cache[layer][..start].iter().chain(path).collect()
            })
        };
        rows.iter().enumerate().map(row).collect()
    }

    /// The row that heads draft from where this is the residual behind each layer. `seen` gives what a layer has kept up to the row, the
    /// row's own keys and values last.
    pub(super) fn head_row<'k>(
        &self,
        heads: &CpuHeads,
        behind: &LayerRows,
        seen: impl FnOnce(usize) -> Vec<&'k KvRow>,
    ) -> Result<Vec<f32>> {
        let ones = vec![1.0; self.config.hidden_size];
        let tap = |layer: usize| ops::rms_norm(&behind[layer], &ones, self.config.rms_norm_eps);
        let taps: Vec<f32> = heads.shape.taps.layers().flat_map(tap).collect();
        let fused = heads.fuse(&self.final_row(behind), &taps)?;
        let Some(layer) = heads.shape.context_layer else { return Ok(fused) };
        let seen = seen(layer);
        let keys: Vec<&[f32]> = seen.iter().map(|row| row.keys.as_slice()).collect();
        let values: Vec<&[f32]> = seen.iter().map(|row| row.values.as_slice()).collect();
        heads.look_back(&self.config, fused, &keys, &values)
    }
}

impl CpuHeads {
    /// Heads whose matrices were [streamed](crate::model::heads::stream_heads) to `weights`.
    ///
    /// # Errors
    /// `MissingTensor`.
    pub fn new(shape: DraftHeads, weights: CpuWeights) -> Result<Self> {
        let mut heads = Self { shape, matrices: HashMap::new(), biases: HashMap::new() };
        for (matrix, (layout, words)) in &weights.packed {
            if let Matrix::Heads(matrix) = *matrix {
                let values = layout.unpack(words);
                heads.matrices.insert(matrix, MatrixF32 { rows: layout.rows, columns: layout.cols, values });
            }
        }
        for (vector, values) in weights.vectors {
            if let Vector::Heads(vector) = vector {
                heads.biases.insert(vector, values);
            }
        }
        for matrix in heads.needed() {
            heads.matrix(matrix)?;
        }
        Ok(heads)
    }

    fn needed(&self) -> Vec<HeadMatrix> {
        let DraftHeads { form, depths, layers, output, rank, .. } = self.shape;
        let mut needed = Vec::new();
        for head in 0..depths {
            match form {
                HeadForm::Parallel => needed.extend((1..layers).map(|layer| HeadMatrix::Block { head, layer })),
                HeadForm::Recurrent => needed.push(HeadMatrix::Block { head: self.shape.block_of(head), layer: 0 }),
            }
            if output != HeadOutput::Target {
                needed.push(HeadMatrix::Output(self.shape.output_of(head)));
            }
        }
        if form == HeadForm::Parallel {
            needed.push(HeadMatrix::Trunk);
        }
        if rank > 0 {
            needed.push(HeadMatrix::Correction);
        }
        if !self.shape.taps.is_empty() {
            needed.push(HeadMatrix::Fusion);
        }
        if self.shape.context_layer.is_some() {
            needed.extend([HeadMatrix::ContextQuery, HeadMatrix::Context]);
        }
        needed
    }

    /// A matrix of the heads.
    ///
    /// # Errors
    /// `MissingTensor` where these heads have no such matrix.
    pub fn matrix(&self, matrix: HeadMatrix) -> Result<&MatrixF32> {
        let missing = || Error::new(ErrorCode::MissingTensor, format!("{matrix:?} was not among the draft heads"));
        self.matrices.get(&matrix).ok_or_else(missing)
    }

    /// A vector of the heads; `None` where they have no such one.
    pub fn bias(&self, bias: HeadVector) -> Option<&[f32]> {
        self.biases.get(&bias).map(Vec::as_slice)
    }

    /// What they are.
    pub fn shape(&self) -> &DraftHeads {
        &self.shape
    }

    /// The row that heads draft from: the hidden row, into which what other layers say was fused where these heads read them. `taps` is
    /// the output of those, one behind the other, normed without a gain, `[taps, hidden]`.
    ///
    /// # Errors
    /// `MissingTensor`, which does not happen after [`new`](Self::new), as below.
    pub fn fuse(&self, hidden: &[f32], taps: &[f32]) -> Result<Vec<f32>> {
        if self.shape.taps.is_empty() {
            return Ok(hidden.to_vec());
        }
        let product = ops::matmul(self.matrix(HeadMatrix::Fusion)?, &[hidden, taps].concat());
        Ok(residual_block(hidden, &product, self.bias(HeadVector::FusionBias)))
    }

    /// The same row after it has looked at the context: attention over the keys and values of a layer of the target, whose sizes `config`
    /// has, from the first position to the row's own, each `[kv]`. It stands where the last of them does.
    ///
    /// # Errors
    /// `MissingTensor` where these heads do not look back.
    pub fn look_back(
        &self,
        config: &ModelConfig,
        row: Vec<f32>,
        keys: &[&[f32]],
        values: &[&[f32]],
    ) -> Result<Vec<f32>> {
        let normed = ops::rms_norm(&row, &vec![1.0; row.len()], config.rms_norm_eps);
        let mut queries = ops::matmul(self.matrix(HeadMatrix::ContextQuery)?, &normed);
        let rotations = ops::rotations(&config.inverse_frequencies(), keys.len() - 1);
        ops::rotate(&mut queries, config.head_dim, &rotations);
        let mixed = ops::attention(config, &queries, keys, values);
        let product = ops::matmul(self.matrix(HeadMatrix::Context)?, &[&row[..], &mixed].concat());
        Ok(residual_block(&row, &product, self.bias(HeadVector::ContextBias)))
    }

    /// The rows `[depths][hidden]` that parallel heads make of the row they draft from, before the output matrix.
    ///
    /// # Errors
    /// `MissingTensor`.
    pub fn parallel_rows(&self, hidden: &[f32]) -> Result<Vec<Vec<f32>>> {
        let product = ops::matmul(self.matrix(HeadMatrix::Trunk)?, hidden);
        let bias = self.bias(HeadVector::TrunkBias);
        let size = hidden.len();
        (0..self.shape.depths)
            .map(|head| {
                let place = head * size..(head + 1) * size;
                let mut row = residual_block(hidden, &product[place.clone()], bias.map(|bias| &bias[place.clone()]));
                for layer in 1..self.shape.layers {
                    let product = ops::matmul(self.matrix(HeadMatrix::Block { head, layer })?, &row);
                    row = residual_block(&row, &product, self.bias(HeadVector::BlockBias { head, layer }));
                }
                Ok(row)
            })
            .collect()
    }

    /// The recurrent state after `token` at `level`, counted from the root's 0.
    ///
    /// # Errors
    /// `MissingTensor`.
    pub fn next_state(&self, target: Target<'_>, level: usize, state: &[f32], token: u32) -> Result<Vec<f32>> {
        let (head, layer) = (self.shape.block_of(level), 0);
        let input = [state, target.embedding.row(token as usize)].concat();
        let product = ops::matmul(self.matrix(HeadMatrix::Block { head, layer })?, &input);
        Ok(residual_block(state, &product, self.bias(HeadVector::BlockBias { head, layer })))
    }

    /// Logits `[draft_vocab]` of a head's last row.
    ///
    /// # Errors
    /// `MissingTensor`.
    pub fn logits(&self, target: Target<'_>, head: usize, row: &[f32]) -> Result<Vec<f32>> {
        Ok(match self.shape.output {
            HeadOutput::Target => ops::lm_head(target.lm_head, row),
            _ => ops::lm_head(self.matrix(HeadMatrix::Output(self.shape.output_of(head)))?, row),
        })
    }

    /// What the token before adds to the logit of a draft id; 0 where the heads have no correction.
    ///
    /// # Errors
    /// `MissingTensor`.
    pub fn correction(&self, token: u32, draft: usize) -> Result<f32> {
        if self.shape.rank == 0 {
            return Ok(0.0);
        }
        let rows = self.matrix(HeadMatrix::Correction)?;
        let tokens = rows.rows - self.shape.draft_vocab;
        Ok(ops::dot(rows.row(token as usize), rows.row(tokens + draft)))
    }

    /// A ranking as it is below a token.
    ///
    /// # Errors
    /// `MissingTensor`.
    pub fn correct(&self, scoring: &Scoring<'_>, ranking: &Ranking, token: u32) -> Result<Ranking> {
        let corrections = ranking.candidates.iter().map(|candidate| self.correction(token, candidate.draft));
        Ok(scoring.correct(ranking, &corrections.collect::<Result<Vec<_>>>()?))
    }

    /// Drafting from the row of the last visited node ([`CpuBackend::head_rows`]).
    pub fn draft<'a>(&'a self, target: Target<'a>, hidden: &'a [f32], scene: DraftScene<'a>) -> HeadDraft<'a> {
        HeadDraft { heads: self, target, hidden, scene }
    }
}

/// `x + silu(product + bias)`, where `product` is a matrix times what the block reads, `[hidden]`.
pub fn residual_block(x: &[f32], product: &[f32], bias: Option<&[f32]>) -> Vec<f32> {
    let silu = |value: f32| value / (1.0 + (-value).exp());
    let biased = |i: usize| product[i] + bias.map_or(0.0, |bias| bias[i]);
    x.iter().enumerate().map(|(i, x)| x + silu(biased(i))).collect()
}

/// Where a draft stands.
#[derive(Debug, Clone, Copy)]
pub struct DraftScene<'a> {
    /// Temperature and seed.
    pub sampling: &'a SamplingParams,
    /// The position of the root.
    pub context_length: usize,
    /// Ids from here on are never drafted.
    pub valid_tokens: u32,
    /// Whether candidates are ranked with the verifier's noise.
    pub shares_noise: bool,
}

impl DraftScene<'_> {
    /// How candidates for the children of a node at this depth are scored.
    pub fn scoring<'a>(&'a self, heads: &'a DraftHeads, depth: usize) -> Scoring<'a> {
        Scoring {
            sampling: self.sampling,
            position: (self.context_length + depth + 1) as u32,
            token_map: heads.token_map.as_deref(),
            valid_tokens: self.valid_tokens,
            shares_noise: self.shares_noise,
        }
    }
}

/// Heads at work on one tree.
#[derive(Debug, Clone, Copy)]
pub struct HeadDraft<'a> {
    heads: &'a CpuHeads,
    target: Target<'a>,
    hidden: &'a [f32],
    scene: DraftScene<'a>,
}

impl HeadDraft<'_> {
    /// What the heads propose below `root`, in the order of [`slots`](crate::speculate::heads::slots).
    ///
    /// # Errors
    /// `MissingTensor`.
    pub fn candidates(&self, root: u32) -> Result<HeadCandidates> {
        self.candidates_within(root, self.heads.shape.depths)
    }

    /// The same where recurrent heads draft no more than so many [levels](crate::speculate::heads::levels).
    ///
    /// # Errors
    /// `MissingTensor`.
    pub fn candidates_within(&self, root: u32, levels: usize) -> Result<HeadCandidates> {
        match self.heads.shape.form {
            HeadForm::Parallel => self.parallel(root),
            HeadForm::Recurrent => self.recurrent(root, levels),
        }
    }

    fn parallel(&self, root: u32) -> Result<HeadCandidates> {
        let rows = self.heads.parallel_rows(self.hidden)?;
        let rankings = rows.iter().enumerate().map(|(depth, row)| self.rank(depth, row));
        let correct = |depth: usize, ranking: &Ranking, token| {
            self.heads.correct(&self.scene.scoring(&self.heads.shape, depth), ranking, token)
        };
        head_slots::parallel(&self.heads.shape, root, &rankings.collect::<Result<Vec<_>>>()?, correct)
    }

    fn recurrent(&self, root: u32, count: usize) -> Result<HeadCandidates> {
        let mut levels = Levels::new(&self.heads.shape, root).limited(count);
        let mut above = vec![self.hidden.to_vec()];
        for depth in 0..count {
            let (mut states, mut rankings) = (Vec::new(), Vec::new());
            for node in levels.nodes() {
                let state = self.heads.next_state(self.target, depth, &above[node.parent], node.token)?;
                let scoring = self.scene.scoring(&self.heads.shape, depth);
                rankings.push(self.heads.correct(&scoring, &self.rank(depth, &state)?, node.token)?);
                states.push(state);
            }
            levels.fill(&rankings);
            above = states;
        }
        Ok(levels.candidates())
    }

    /// The candidates of a head's last row, for the children of a node at this depth, whatever its token.
    fn rank(&self, depth: usize, row: &[f32]) -> Result<Ranking> {
        let mut logits = self.heads.logits(self.target, depth, row)?;
        logits.truncate(self.heads.shape.draft_vocab);
        Ok(self.scene.scoring(&self.heads.shape, depth).rank(&logits))
    }
}
