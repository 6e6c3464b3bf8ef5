//! Draft heads over many rows at once: the reference's candidates, but every matrix is multiplied with all rows together.

use std::collections::HashMap;

use candle_core::{Device, Tensor};
use rayon::prelude::*;

use crate::backend::cpu::heads::{CpuHeads, DraftScene};
use crate::backend::cpu::ops::MatrixF32;
use crate::error::Result;
use crate::model::heads::{DraftHeads, HeadForm, HeadMatrix, HeadOutput, HeadVector};
use crate::speculate::grow::HeadCandidates;
use crate::speculate::head_slots::{self, Levels};
use crate::speculate::heads::Ranking;
use crate::train::from_candle;
use crate::train::target::{Seen, Target, values};

/// Rows that are drafted from together: as many as make a product fast while their logits stay small.
const ROWS: usize = 128;

/// A row to draft from.
#[derive(Debug, Clone, Copy)]
pub struct HeadRow<'a> {
    /// The row of the last visited node that heads draft from ([`rows`](BatchedHeads::rows)), `[hidden]`.
    pub hidden: &'a [f32],
    /// The token that it decided.
    pub root: u32,
    /// Where the draft stands.
    pub scene: DraftScene<'a>,
}

/// Heads of one model, ready for many rows.
#[derive(Debug)]
pub struct BatchedHeads<'a> {
    heads: &'a CpuHeads,
    target: &'a Target,
    fusion: Option<Tensor>,
    /// Of the context: queries, and the block.
    context: Option<[Tensor; 2]>,
    trunk: Option<Tensor>,
    blocks: HashMap<HeadMatrix, Tensor>,
    /// By [`output_of`](crate::model::DraftHeads::output_of).
    outputs: Vec<Tensor>,
}

/// A matrix as a tensor, `[columns, rows]`: the product with rows is faster that way.
fn by_inputs(matrix: &MatrixF32) -> Result<Tensor> {
    let rows = Tensor::from_slice(&matrix.values, (matrix.rows, matrix.columns), &Device::Cpu);
    rows.and_then(|rows| rows.t()?.contiguous()).map_err(from_candle)
}

/// Rows, `[rows, inputs]`, times a matrix `[inputs, outputs]`.
fn product(rows: Vec<f32>, matrix: &Tensor) -> Result<Vec<f32>> {
    let multiply =
        || Tensor::from_vec(rows, ((), matrix.dim(0)?), &Device::Cpu)?.matmul(matrix)?.flatten_all()?.to_vec1();
    multiply().map_err(from_candle)
}

impl<'a> BatchedHeads<'a> {
    /// Takes the matrices of heads and of the model they draft for.
    ///
    /// # Errors
    /// `MissingTensor`.
    pub fn new(heads: &'a CpuHeads, target: &'a Target) -> Result<Self> {
        let shape = heads.shape();
        let mut blocks = HashMap::new();
        for head in 0..shape.depths {
            let layers = if shape.form == HeadForm::Parallel { 1..shape.layers } else { 0..1 };
            let head = if shape.form == HeadForm::Parallel { head } else { shape.block_of(head) };
            for layer in layers {
                let block = HeadMatrix::Block { head, layer };
                if let std::collections::hash_map::Entry::Vacant(entry) = blocks.entry(block) {
                    entry.insert(by_inputs(heads.matrix(block)?)?);
                }
            }
        }
        let outputs = match shape.output {
            HeadOutput::Target => vec![target.lm_head().t().map_err(from_candle)?],
            HeadOutput::Shared => vec![by_inputs(heads.matrix(HeadMatrix::Output(0))?)?],
            HeadOutput::Own => {
                let own = (0..shape.depths).map(|head| by_inputs(heads.matrix(HeadMatrix::Output(head))?));
                own.collect::<Result<_>>()?
            }
        };
        let trunk = match shape.form {
            HeadForm::Parallel => Some(by_inputs(heads.matrix(HeadMatrix::Trunk)?)?),
            HeadForm::Recurrent => None,
        };
        let fusion = match shape.taps.is_empty() {
            true => None,
            false => Some(by_inputs(heads.matrix(HeadMatrix::Fusion)?)?),
        };
        let context = match shape.context_layer {
            Some(_) => {
                let parts = [HeadMatrix::ContextQuery, HeadMatrix::Context].map(|part| by_inputs(heads.matrix(part)?));
                let [queries, block] = parts;
                Some([queries?, block?])
            }
            None => None,
        };
        Ok(Self { heads, target, fusion, context, trunk, blocks, outputs })
    }

    /// What they are.
    pub fn shape(&self) -> &DraftHeads {
        self.heads.shape()
    }

    /// The heads themselves.
    pub fn reference(&self) -> &CpuHeads {
        self.heads
    }

    /// Layers of the model whose output is wanted to fuse.
    pub fn layers(&self) -> Vec<usize> {
        self.shape().taps.layers().collect()
    }

    /// The rows `[rows, hidden]` that heads draft from, of hidden rows, of the residual behind each of [`layers`](Self::layers),
    /// `[rows, hidden]` each, and of the committed position where each row stands.
    ///
    /// # Errors
    /// `Internal`.
    pub fn rows(&self, hidden: &[f32], layers: &[Vec<f32>], seen: &[Seen<'_>]) -> Result<Vec<f32>> {
        let fused = self.fuse(hidden, layers)?;
        match (&self.context, self.shape().context_layer) {
            (Some(context), Some(layer)) => self.look_back(context, layer, &fused, seen),
            _ => Ok(fused),
        }
    }

    fn look_back(
        &self,
        [queries, block]: &[Tensor; 2],
        layer: usize,
        rows: &[f32],
        seen: &[Seen<'_>],
    ) -> Result<Vec<f32>> {
        let (size, q_size) = (self.shape().hidden_size, self.target.config().q_size());
        let mixed = self.target.look_back(layer, product(self.target.plain_norm(rows), queries)?, seen);
        let pairs = rows.chunks_exact(size).zip(mixed.chunks_exact(q_size));
        let inputs = pairs.flat_map(|(row, mixed)| row.iter().chain(mixed)).copied().collect();
        Ok(residual(rows, product(inputs, block)?, self.heads.bias(HeadVector::ContextBias)))
    }

    fn fuse(&self, hidden: &[f32], layers: &[Vec<f32>]) -> Result<Vec<f32>> {
        let Some(fusion) = &self.fusion else { return Ok(hidden.to_vec()) };
        let taps: Vec<Vec<f32>> = layers.iter().map(|rows| self.target.plain_norm(rows)).collect();
        let taps = &taps;
        let size = self.shape().hidden_size;
        let parts = |row: usize| {
            let taps = taps.iter().map(move |tap| &tap[row * size..][..size]);
            std::iter::once(&hidden[row * size..][..size]).chain(taps).flatten().copied()
        };
        let inputs = (0..hidden.len() / size).flat_map(parts).collect();
        Ok(residual(hidden, product(inputs, fusion)?, self.heads.bias(HeadVector::FusionBias)))
    }

    /// What the heads propose from each row.
    ///
    /// # Errors
    /// `MissingTensor`, which does not happen after [`new`](Self::new).
    pub fn candidates(&self, rows: &[HeadRow<'_>]) -> Result<Vec<HeadCandidates>> {
        let mut found = Vec::with_capacity(rows.len());
        for rows in rows.chunks(ROWS) {
            found.extend(match &self.trunk {
                Some(trunk) => self.parallel(trunk, rows)?,
                None => self.recurrent(rows)?,
            });
        }
        Ok(found)
    }

    fn parallel(&self, trunk: &Tensor, rows: &[HeadRow<'_>]) -> Result<Vec<HeadCandidates>> {
        let shape = self.heads.shape();
        let size = shape.hidden_size;
        let hidden: Vec<f32> = rows.iter().flat_map(|row| row.hidden).copied().collect();
        let trunk = product(hidden.clone(), trunk)?;
        let mut rankings: Vec<Vec<Ranking>> = vec![Vec::new(); rows.len()];
        for head in 0..shape.depths {
            let place = head * size..(head + 1) * size;
            let own = trunk.chunks_exact(shape.depths * size).flat_map(|row| &row[place.clone()]);
            let bias = self.heads.bias(HeadVector::TrunkBias).map(|bias| &bias[place.clone()]);
            let mut states = residual(&hidden, own.copied().collect(), bias);
            for layer in 1..shape.layers {
                let product = product(states.clone(), &self.blocks[&HeadMatrix::Block { head, layer }])?;
                states = residual(&states, product, self.heads.bias(HeadVector::BlockBias { head, layer }));
            }
            let scenes: Vec<&DraftScene<'_>> = rows.iter().map(|row| &row.scene).collect();
            for (rankings, ranking) in rankings.iter_mut().zip(self.rank(head, &states, &scenes)?) {
                rankings.push(ranking);
            }
        }
        let assemble = |(row, rankings): (&HeadRow<'_>, &Vec<Ranking>)| {
            let correct = |depth: usize, ranking: &Ranking, token| {
                self.heads.correct(&row.scene.scoring(shape, depth), ranking, token)
            };
            head_slots::parallel(shape, row.root, rankings, correct)
        };
        rows.par_iter().zip(&rankings).map(assemble).collect()
    }

    fn recurrent(&self, rows: &[HeadRow<'_>]) -> Result<Vec<HeadCandidates>> {
        let shape = self.heads.shape();
        let size = shape.hidden_size;
        let mut levels: Vec<Levels> = rows.iter().map(|row| Levels::new(shape, row.root)).collect();
        let mut states: Vec<f32> = rows.iter().flat_map(|row| row.hidden).copied().collect();
        // The first state of each row's level above.
        let mut firsts: Vec<usize> = (0..rows.len()).collect();
        for depth in 0..shape.depths {
            let (mut above, mut inputs, mut scenes, mut tokens) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
            let gather = |embedding: &[f32]| {
                for ((row, level), first) in rows.iter().zip(&levels).zip(&mut firsts) {
                    let begin = tokens.len();
                    for node in level.nodes() {
                        let state = &states[(*first + node.parent) * size..][..size];
                        above.extend_from_slice(state);
                        inputs.extend_from_slice(state);
                        inputs.extend_from_slice(&embedding[node.token as usize * size..][..size]);
                        scenes.push(&row.scene);
                        tokens.push(node.token);
                    }
                    *first = begin;
                }
            };
            values(self.target.embedding(), gather).map_err(from_candle)?;
            let block = shape.block_of(depth);
            let product = product(inputs, &self.blocks[&HeadMatrix::Block { head: block, layer: 0 }])?;
            states = residual(&above, product, self.heads.bias(HeadVector::BlockBias { head: block, layer: 0 }));
            let rankings = self.rank(depth, &states, &scenes)?;
            let correct = |((ranking, scene), &token): ((Ranking, &&DraftScene<'_>), &u32)| {
                self.heads.correct(&scene.scoring(shape, depth), &ranking, token)
            };
            let rankings: Vec<Ranking> =
                rankings.into_par_iter().zip(&scenes).zip(&tokens).map(correct).collect::<Result<_>>()?;
            for (level, &first) in levels.iter_mut().zip(&firsts) {
                let count = level.nodes().len();
                level.fill(&rankings[first..first + count]);
            }
        }
        Ok(levels.into_iter().map(Levels::candidates).collect())
    }

    /// The candidates of last rows `[rows, hidden]` of one head.
    fn rank(&self, head: usize, states: &[f32], scenes: &[&DraftScene<'_>]) -> Result<Vec<Ranking>> {
        let shape = self.heads.shape();
        let output = &self.outputs[shape.output_of(head)];
        let rank =
            |(row, scene): (&[f32], &&DraftScene<'_>)| scene.scoring(shape, head).rank(&row[..shape.draft_vocab]);
        let logits = product(states.to_vec(), output)?;
        Ok(logits.par_chunks(logits.len() / scenes.len()).zip(scenes).map(rank).collect())
    }
}

/// `x + silu(product + bias)` of rows `[rows, hidden]`.
fn residual(x: &[f32], mut product: Vec<f32>, bias: Option<&[f32]>) -> Vec<f32> {
    if let Some(bias) = bias {
        for (value, bias) in product.iter_mut().zip(bias.iter().cycle()) {
            *value += bias;
        }
    }
    for (value, x) in product.iter_mut().zip(x) {
        *value = x + *value / (1.0 + (-*value).exp());
    }
    product
}
