//! The target in float32 on the CPU, for much text at once: what makes answers, hidden rows, and evaluation by replay.
//!
//! A pass takes any number of sequences, each with some new tokens, and all new tokens are rows of one matrix: nothing is padded, and
//! the weights are read once. Linear layers are candle's matrix products; attention is our own, a task for each sequence and key head.
//! It computes what the reference backend computes, in another order of sums.

mod attention;
mod cache;
mod forest;
mod rows;
mod weights;

use candle_core::{Device, Storage, Tensor};
use rayon::prelude::*;

use self::attention::{Attention, Task};
pub use self::cache::KvCache;
pub use self::forest::Forest;
pub(super) use self::rows::{exp, vectorised};
pub use self::weights::TargetWeights;
use super::from_candle;
use crate::backend::cpu::ops;
use crate::error::Result;
use crate::model::heads::model_identity;
use crate::model::{ByteSource, Checkpoint, Matrix, ModelConfig, TensorType, Vector};
use crate::speculate::tree::Tree;

/// A model that computes rows of many sequences at once.
#[derive(Debug)]
pub struct Target {
    config: ModelConfig,
    identity: String,
    quantisation: TensorType,
    /// `[vocab_size, hidden]`.
    embedding: Tensor,
    /// `[vocab_size, hidden]`; the embedding itself where the two are tied.
    lm_head: Tensor,
    final_norm: Vec<f32>,
    layers: Vec<Layer>,
    frequencies: Vec<f32>,
}

/// Matrices are `[inputs, outputs]`: the product is faster that way than with a transposed view.
#[derive(Debug)]
struct Layer {
    attention_norm: Vec<f32>,
    qkv: Tensor,
    /// Empty where there is none.
    qkv_bias: Vec<f32>,
    attention_out: Tensor,
    ffn_norm: Vec<f32>,
    /// All gate rows, then all up rows.
    gate_up: Tensor,
    down: Tensor,
}

/// New tokens of one sequence.
#[derive(Debug, Clone, Copy)]
pub enum NewTokens<'a> {
    /// A piece of text: committed when the pass has run.
    Text(&'a [u32]),
    /// A tree behind the committed text, whose root stands at the next position. A row sees the text and its own ancestors.
    /// Commit what of it is to stay by [`KvCache::commit`].
    Tree(&'a Tree),
    /// Trees at many places of the committed text. Nothing of them can be committed.
    Forest(&'a Forest),
}

impl NewTokens<'_> {
    fn tokens(&self) -> &[u32] {
        match self {
            Self::Text(tokens) => tokens,
            Self::Tree(tree) => tree.tokens(),
            Self::Forest(forest) => &forest.tokens,
        }
    }

    /// The position of a row, where so many are committed.
    fn position(&self, row: usize, committed: usize) -> usize {
        match self {
            Self::Text(_) => committed + row,
            Self::Tree(tree) => committed + tree.depths()[row],
            Self::Forest(forest) => forest.starts[row] + forest.depths[row],
        }
    }
}

/// A sequence in a pass.
#[derive(Debug)]
pub struct SequenceSlice<'a> {
    /// What it remembers.
    pub cache: &'a mut KvCache,
    /// What is computed.
    pub new: NewTokens<'a>,
}

/// Where a row stands that looks back.
#[derive(Debug, Clone, Copy)]
pub struct Seen<'a> {
    /// The sequence.
    pub cache: &'a KvCache,
    /// The committed position.
    pub position: usize,
}

/// Rows of a pass, in the order of the sequences and of their tokens.
#[derive(Debug, Clone, Default)]
pub struct HiddenRows {
    /// Behind the final norm, `[rows, hidden]`: what the output matrix and draft heads read.
    pub hidden: Vec<f32>,
    /// The residual behind each layer that was asked for, `[rows, hidden]` each.
    pub layers: Vec<Vec<f32>>,
}

impl Target {
    /// Reads a model of any format and type; quantised weights become exactly the floats that the kernels use.
    ///
    /// # Errors
    /// Whatever the source reports; `OutOfMemory`.
    pub fn load(checkpoint: &Checkpoint, source: &impl ByteSource) -> Result<Self> {
        let weights = TargetWeights::load(checkpoint, source)?;
        Self::new(checkpoint, weights).map_err(from_candle)
    }

    fn new(checkpoint: &Checkpoint, mut weights: TargetWeights) -> candle_core::Result<Self> {
        let config = checkpoint.config.clone();
        let embedding = weights.matrix(Matrix::Embedding)?;
        let lm_head = match config.tie_word_embeddings {
            true => embedding.clone(),
            false => weights.matrix(Matrix::LmHead)?,
        };
        let layers = (0..config.num_hidden_layers)
            .map(|layer| {
                Ok(Layer {
                    attention_norm: weights.vector(Vector::AttentionNorm(layer)),
                    qkv: weights.by_inputs(Matrix::Qkv(layer))?,
                    qkv_bias: weights.vector(Vector::QkvBias(layer)),
                    attention_out: weights.by_inputs(Matrix::AttentionOut(layer))?,
                    ffn_norm: weights.vector(Vector::FfnNorm(layer)),
                    gate_up: weights.by_inputs(Matrix::GateUp(layer))?,
                    down: weights.by_inputs(Matrix::Down(layer))?,
                })
            })
            .collect::<candle_core::Result<_>>()?;
        Ok(Self {
            identity: model_identity(checkpoint),
            quantisation: quantisation(checkpoint),
            frequencies: config.inverse_frequencies(),
            final_norm: weights.vector(Vector::FinalNorm),
            embedding,
            lm_head,
            layers,
            config,
        })
    }

    /// What the model is.
    pub fn config(&self) -> &ModelConfig {
        &self.config
    }

    /// Its hash, as draft heads name it.
    pub fn identity(&self) -> &str {
        &self.identity
    }

    /// The type that most of its weights are stored in.
    pub fn quantisation(&self) -> TensorType {
        self.quantisation
    }

    /// Token embedding, `[vocab_size, hidden]`.
    pub fn embedding(&self) -> &Tensor {
        &self.embedding
    }

    /// Output matrix, `[vocab_size, hidden]`.
    pub fn lm_head(&self) -> &Tensor {
        &self.lm_head
    }

    /// The memory of a sequence that has not begun.
    pub fn new_cache(&self) -> KvCache {
        KvCache::new(&self.config)
    }

    /// Computes the new tokens of all sequences. `layers` are those whose output is wanted besides the final hidden rows.
    ///
    /// # Errors
    /// `Internal`.
    ///
    /// # Panics
    /// When a token is none of the model's, or a layer is not there.
    pub fn forward(&self, batch: &mut [SequenceSlice<'_>], layers: &[usize]) -> Result<HiddenRows> {
        self.pass(batch, layers).map_err(from_candle)
    }

    /// Rows `[rows, hidden]` normed without a gain, as heads read the output of layers.
    pub fn plain_norm(&self, rows: &[f32]) -> Vec<f32> {
        rows::norm(rows, &vec![1.0; self.config.hidden_size], self.config.rms_norm_eps)
    }

    /// What queries of heads `[rows, q]`, which are not rotated yet, make of the keys and values that a layer has kept. Each row stands at
    /// a committed position of a sequence, and sees it and those before.
    pub fn look_back(&self, layer: usize, mut queries: Vec<f32>, seen: &[Seen<'_>]) -> Vec<f32> {
        let attention = Attention::new(&self.config, &[]);
        queries.par_chunks_exact_mut(self.config.q_size()).zip(seen).for_each(|(queries, seen)| {
            let rotations = ops::rotations(&self.frequencies, seen.position);
            attention.look_from(queries, seen.position, &rotations, seen.cache.heads(layer));
        });
        queries
    }

    /// Logits `[rows, vocab_size]` of final hidden rows `[rows, hidden]`.
    ///
    /// # Errors
    /// `Internal`.
    pub fn logits(&self, hidden: &[f32]) -> Result<Tensor> {
        let logits = self.lm_head.t().and_then(|lm_head| self.product(hidden.to_vec(), &lm_head));
        logits.map_err(from_candle)
    }

    fn pass(&self, batch: &mut [SequenceSlice<'_>], wanted: &[usize]) -> candle_core::Result<HiddenRows> {
        assert!(wanted.iter().all(|&layer| layer < self.layers.len()), "the layers that are wanted are there");
        let epsilon = self.config.rms_norm_eps;
        for slice in batch.iter_mut() {
            slice.cache.make_room(slice.new.tokens().len());
        }
        let rotations = self.rotations(batch);
        let mut residual = self.embed(batch)?;
        let mut found = HiddenRows { hidden: Vec::new(), layers: vec![Vec::new(); wanted.len()] };
        for (index, layer) in self.layers.iter().enumerate() {
            let normed = rows::norm(&residual, &layer.attention_norm, epsilon);
            let qkv = self.product(normed, &layer.qkv)?;
            let mixed = values(&qkv, |qkv| self.attend(index, batch, qkv, &rotations))?;
            values(&self.product(mixed, &layer.attention_out)?, |out| rows::add(&mut residual, out))?;
            let normed = rows::norm(&residual, &layer.ffn_norm, epsilon);
            let gate_up = self.product(normed, &layer.gate_up)?;
            let activated = values(&gate_up, |gate_up| rows::swiglu(gate_up, self.config.intermediate_size))?;
            values(&self.product(activated, &layer.down)?, |out| rows::add(&mut residual, out))?;
            for (kept, &wanted) in found.layers.iter_mut().zip(wanted) {
                if wanted == index {
                    kept.clone_from(&residual);
                }
            }
        }
        for slice in batch.iter_mut() {
            if let NewTokens::Text(tokens) = slice.new {
                slice.cache.keep(tokens.len());
            }
        }
        found.hidden = rows::norm(&residual, &self.final_norm, epsilon);
        Ok(found)
    }

    fn product(&self, rows: Vec<f32>, matrix: &Tensor) -> candle_core::Result<Tensor> {
        let inputs = matrix.dim(0)?;
        Tensor::from_vec(rows, ((), inputs), &Device::Cpu)?.matmul(matrix)
    }

    fn embed(&self, batch: &[SequenceSlice<'_>]) -> candle_core::Result<Vec<f32>> {
        let hidden = self.config.hidden_size;
        values(&self.embedding, |embedding| {
            let tokens = batch.iter().flat_map(|slice| slice.new.tokens());
            tokens.flat_map(|&token| &embedding[token as usize * hidden..][..hidden]).copied().collect()
        })
    }

    /// Cosines and sines of every row, `[rows, head_dim / 2, 2]`.
    fn rotations(&self, batch: &[SequenceSlice<'_>]) -> Vec<f32> {
        let mut rotations = Vec::new();
        for slice in batch {
            for row in 0..slice.new.tokens().len() {
                let position = slice.new.position(row, slice.cache.len());
                rotations.extend(ops::rotations(&self.frequencies, position));
            }
        }
        rotations
    }

    /// Attention of all rows, `[rows, q]`; puts their keys and values into the caches.
    fn attend(&self, layer: usize, batch: &mut [SequenceSlice<'_>], qkv: &[f32], rotations: &[f32]) -> Vec<f32> {
        let config = &self.config;
        let attention = Attention::new(config, &self.layers[layer].qkv_bias);
        let (q, head_dim) = (config.q_size(), config.head_dim);
        let group = q / config.num_key_value_heads;
        let row_width = q + 2 * config.kv_size();
        // A sequence's rows come head by head.
        let mut mixed = vec![0.0; qkv.len() / row_width * q];
        let (mut rest, mut tasks, mut first) = (&mut mixed[..], Vec::new(), 0);
        for slice in batch.iter_mut() {
            let rows = slice.new.tokens().len();
            let (committed, new) = (slice.cache.len(), slice.new);
            for (head, cache) in slice.cache.heads_mut(layer).iter_mut().enumerate() {
                let (out, behind) = rest.split_at_mut(rows * group);
                rest = behind;
                let qkv = &qkv[first * row_width..(first + rows) * row_width];
                let rotations = &rotations[first * head_dim..(first + rows) * head_dim];
                tasks.push(Task { head, committed, new, qkv, rotations, cache, out });
            }
            first += rows;
        }
        tasks.into_par_iter().for_each(|task| attention.run(task));
        let mut first = 0;
        for slice in batch.iter() {
            let rows = slice.new.tokens().len();
            if rows > 1 {
                let place = first * q..(first + rows) * q;
                let by_head = mixed[place.clone()].to_vec();
                for (i, part) in mixed[place].chunks_exact_mut(group).enumerate() {
                    let (row, head) = (i / config.num_key_value_heads, i % config.num_key_value_heads);
                    part.copy_from_slice(&by_head[(head * rows + row) * group..][..group]);
                }
            }
            first += rows;
        }
        mixed
    }
}

/// Reads the values of a contiguous tensor where they are.
///
/// # Errors
/// When it is not contiguous, or not in this machine's memory.
pub(crate) fn values<R>(tensor: &Tensor, read: impl FnOnce(&[f32]) -> R) -> candle_core::Result<R> {
    let (storage, layout) = tensor.storage_and_layout();
    let (Storage::Cpu(storage), Some((start, end))) = (&*storage, layout.contiguous_offsets()) else {
        candle_core::bail!("a contiguous tensor of the CPU was expected")
    };
    Ok(read(&storage.as_slice::<f32>()?[start..end]))
}

/// The type that most weights of the layers are stored in.
fn quantisation(checkpoint: &Checkpoint) -> TensorType {
    let mut counts = std::collections::BTreeMap::new();
    for (_, tensor) in checkpoint.tensors.iter().filter(|(name, _)| name.contains("layers.")) {
        *counts.entry(tensor.tensor_type).or_insert(0) += tensor.values();
    }
    counts.into_iter().max_by_key(|&(_, count)| count).map_or(TensorType::F32, |(most, _)| most)
}

#[cfg(test)]
mod tests;
