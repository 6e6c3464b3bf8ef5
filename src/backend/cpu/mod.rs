//! The reference backend: one forward pass from top to bottom, in float32, one row after the other.
//!
//! It defines what every kernel computes and how every step decides; the GPU backend is checked against it. Steps run when they
//! are submitted, so a record is there at once. It is also the native path of a machine without a GPU.

pub mod generation;
pub mod heads;
pub mod ops;

use std::collections::{HashMap, VecDeque};

use self::generation::Generation;
use self::heads::{CpuHeads, DraftScene};
use self::ops::MatrixF32;
use crate::backend::{Backend, GenerationSetup, PassCounters, StepRecord};
use crate::error::{Error, ErrorCode, Result};
use crate::model::ModelConfig;
use crate::model::heads::DraftHeads;
use crate::model::packing::PackedLayout;
use crate::model::weights::{Matrix, Vector, WeightSink};
use crate::speculate::accept::AcceptRule;
use crate::speculate::costs::PassCosts;
use crate::speculate::grow::HeadCandidates;
use crate::speculate::heads::levels;
use crate::speculate::recycling::Successors;
use crate::speculate::tree::Tree;
use crate::speculate::{Calibration, Source, Sources};

/// Weights as they stream in: packed as for the GPU, so that the packing is part of what is checked.
#[derive(Debug, Default)]
pub struct CpuWeights {
    packed: HashMap<Matrix, (PackedLayout, Vec<u32>)>,
    vectors: HashMap<Vector, Vec<f32>>,
}

impl WeightSink for CpuWeights {
    fn begin(&mut self, matrix: Matrix, layout: PackedLayout) -> Result<()> {
        self.packed.insert(matrix, (layout, Vec::with_capacity((layout.bytes() / 4) as usize)));
        Ok(())
    }

    fn write(&mut self, matrix: Matrix, offset: u64, bytes: &[u8]) -> Result<()> {
        match self.packed.get_mut(&matrix) {
            Some((_, words)) if words.len() as u64 * 4 == offset => {
                words.extend(bytes.chunks_exact(4).map(bytemuck::pod_read_unaligned::<u32>));
                Ok(())
            }
            _ => Err(Error::new(ErrorCode::Internal, format!("{matrix:?} did not arrive in order"))),
        }
    }

    fn vector(&mut self, vector: Vector, values: &[f32]) -> Result<()> {
        self.vectors.insert(vector, values.to_vec());
        Ok(())
    }

    async fn drain(&mut self) -> Result<()> {
        Ok(())
    }
}

#[derive(Debug)]
struct Layer {
    attention_norm: Vec<f32>,
    qkv: MatrixF32,
    qkv_bias: Vec<f32>,
    attention_out: MatrixF32,
    ffn_norm: Vec<f32>,
    gate_up: MatrixF32,
    down: MatrixF32,
}

/// Keys and values of one position in one layer.
#[derive(Debug, Clone)]
struct KvRow {
    keys: Vec<f32>,
    values: Vec<f32>,
}

/// The residual of one row behind each layer, `[layers][hidden]`.
type LayerRows = Vec<Vec<f32>>;

#[derive(Debug)]
struct Running {
    generation: Generation,
    records: VecDeque<StepRecord>,
    counters: PassCounters,
}

/// A model in plain float32.
#[derive(Debug)]
pub struct CpuBackend {
    config: ModelConfig,
    context_limit: usize,
    embedding: MatrixF32,
    lm_head: Option<MatrixF32>,
    final_norm: Vec<f32>,
    layers: Vec<Layer>,
    frequencies: Vec<f32>,
    /// `[layer][position]`.
    cache: Vec<Vec<KvRow>>,
    /// Kept from one generation to the next.
    successors: Successors,
    heads: Option<CpuHeads>,
    running: Option<Running>,
}

impl CpuBackend {
    /// A model of these weights; `context` caps the context length.
    ///
    /// # Errors
    /// `MissingTensor`.
    pub fn new(config: ModelConfig, mut weights: CpuWeights, context: Option<usize>) -> Result<Self> {
        let embedding = take_matrix(&mut weights, Matrix::Embedding)?;
        let lm_head = match weights.packed.contains_key(&Matrix::LmHead) {
            true => Some(take_matrix(&mut weights, Matrix::LmHead)?),
            false => None,
        };
        let final_norm = take_vector(&mut weights, Vector::FinalNorm)?;
        let layers = (0..config.num_hidden_layers)
            .map(|i| {
                Ok(Layer {
                    attention_norm: take_vector(&mut weights, Vector::AttentionNorm(i))?,
                    qkv: take_matrix(&mut weights, Matrix::Qkv(i))?,
                    qkv_bias: weights.vectors.remove(&Vector::QkvBias(i)).unwrap_or_default(),
                    attention_out: take_matrix(&mut weights, Matrix::AttentionOut(i))?,
                    ffn_norm: take_vector(&mut weights, Vector::FfnNorm(i))?,
                    gate_up: take_matrix(&mut weights, Matrix::GateUp(i))?,
                    down: take_matrix(&mut weights, Matrix::Down(i))?,
                })
            })
            .collect::<Result<Vec<_>>>()?;
        Ok(Self {
            context_limit: config.max_position_embeddings.min(context.unwrap_or(usize::MAX)),
            frequencies: config.inverse_frequencies(),
            cache: vec![Vec::new(); config.num_hidden_layers],
            successors: Successors::new(config.vocab_size),
            embedding,
            lm_head,
            final_norm,
            layers,
            config,
            heads: None,
            running: None,
        })
    }

    /// Lets draft heads of this model draft.
    pub fn set_heads(&mut self, heads: CpuHeads) {
        self.heads = Some(heads);
    }

    /// One row through all layers. `scratch[layer][node]` holds the rows of the tree before it; the row's own is appended.
    /// `path` are the nodes from the root to this one.
    fn forward_row(&self, start: usize, token: u32, path: &[usize], scratch: &mut [Vec<KvRow>]) -> LayerRows {
        let config = &self.config;
        let epsilon = config.rms_norm_eps;
        let rotations = ops::rotations(&self.frequencies, start + path.len() - 1);
        let mut residual = ops::embed(&self.embedding, token);
        let mut behind = Vec::with_capacity(self.layers.len());
        for (index, layer) in self.layers.iter().enumerate() {
            let normed = ops::rms_norm(&residual, &layer.attention_norm, epsilon);
            let (queries, keys, values) = ops::qkv(config, &layer.qkv, &layer.qkv_bias, &normed, &rotations);
            scratch[index].push(KvRow { keys, values });
            let committed = self.cache[index][..start].iter();
            let seen: Vec<&KvRow> = committed.chain(path.iter().map(|&node| &scratch[index][node])).collect();
            let keys: Vec<&[f32]> = seen.iter().map(|row| row.keys.as_slice()).collect();
            let values: Vec<&[f32]> = seen.iter().map(|row| row.values.as_slice()).collect();
            let mixed = ops::attention(config, &queries, &keys, &values);
            ops::project(&mut residual, &layer.attention_out, &mixed);
            let normed = ops::rms_norm(&residual, &layer.ffn_norm, epsilon);
            ops::project(&mut residual, &layer.down, &ops::gate_up(&layer.gate_up, &normed));
            behind.push(residual.clone());
        }
        behind
    }

    /// All rows of a tree; returns them behind each layer, and the keys and values they made.
    fn forward(&self, start: usize, tree: &Tree) -> (Vec<LayerRows>, Vec<Vec<KvRow>>) {
        let mut scratch = vec![Vec::new(); self.layers.len()];
        let rows = (0..tree.len())
            .map(|node| self.forward_row(start, tree.tokens()[node], &tree.path(node), &mut scratch))
            .collect();
        (rows, scratch)
    }

    /// What the output matrix reads of a row.
    fn final_row(&self, behind: &LayerRows) -> Vec<f32> {
        let residual = behind.last().map_or(&[][..], Vec::as_slice);
        ops::rms_norm(residual, &self.final_norm, self.config.rms_norm_eps)
    }

    fn logits(&self, behind: &LayerRows) -> Vec<f32> {
        ops::lm_head(self.lm_head.as_ref().unwrap_or(&self.embedding), &self.final_row(behind))
    }

    /// Keeps the rows of visited nodes, in order, from position `start` on. Oracle of commit.wgsl.
    fn commit(&mut self, start: usize, visited: &[usize], rows: &[Vec<KvRow>]) {
        for (cache, rows) in self.cache.iter_mut().zip(rows) {
            cache.truncate(start);
            cache.extend(visited.iter().map(|&node| rows[node].clone()));
        }
    }

    /// One step of a generation that has not finished.
    fn step(&mut self, running: &mut Running, rows: usize, drafters: Sources) -> Result<()> {
        let generation = &mut running.generation;
        let start = self.cache[0].len();
        let tree = generation.drafted.tree.first(rows);
        let (outputs, kv_rows) = self.forward(start, &tree);
        let verified = generation.verify(outputs.iter().map(|behind| self.logits(behind)).collect());
        if generation.recycles() {
            for (node, bests) in verified.bests.iter().enumerate() {
                generation.teach(&mut self.successors, node, bests);
            }
        }
        let (walk, mut record) = generation.advance(tree.len(), &verified.chosen)?;
        self.commit(start, &walk.path, &kv_rows);
        record.logprobs = generation.logprobs(&walk, &verified.processed);
        if !drafters.is_empty() && generation.setup.draft.nodes() > 1 && generation.finish.is_none() {
            let last = walk.path.last().copied().unwrap_or_default();
            let heads = self.head_candidates(generation, (drafters, rows), &outputs[last])?;
            generation.draft(drafters, &self.successors, heads, &mut record)?;
        }
        running.records.push_back(record);
        Ok(())
    }

    /// What draft heads propose below the last token of the text in a step of so many rows. `last` is the last visited row.
    fn head_candidates(
        &self,
        generation: &Generation,
        (drafters, rows): (Sources, usize),
        last: &LayerRows,
    ) -> Result<HeadCandidates> {
        let setup = &generation.setup;
        match (&self.heads, generation.text.last()) {
            (Some(heads), Some(&root)) if drafters.contains(Source::Heads) => {
                let scene = DraftScene {
                    sampling: &setup.sampling,
                    context_length: generation.text.len() - 1,
                    valid_tokens: setup.valid_tokens,
                    shares_noise: setup.rule() != AcceptRule::Rejection,
                };
                let row = self.head_row(heads, last, |layer| self.cache[layer].iter().collect())?;
                let levels = levels(heads.shape().form, heads.shape().depths, rows);
                heads.draft(self.target(), &row, scene).candidates_within(root, levels)
            }
            _ => Ok(HeadCandidates::default()),
        }
    }
}

fn take_matrix(weights: &mut CpuWeights, matrix: Matrix) -> Result<MatrixF32> {
    let (layout, words) = weights
        .packed
        .remove(&matrix)
        .ok_or_else(|| Error::new(ErrorCode::MissingTensor, format!("{matrix:?} was not among the weights")))?;
    Ok(MatrixF32 { rows: layout.rows, columns: layout.cols, values: layout.unpack(&words) })
}

fn take_vector(weights: &mut CpuWeights, vector: Vector) -> Result<Vec<f32>> {
    weights
        .vectors
        .remove(&vector)
        .ok_or_else(|| Error::new(ErrorCode::MissingTensor, format!("{vector:?} was not among the weights")))
}

impl Backend for CpuBackend {
    fn config(&self) -> &ModelConfig {
        &self.config
    }

    fn usual_costs(&self) -> PassCosts {
        PassCosts::new([1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0])
    }

    fn context_limit(&self) -> usize {
        self.context_limit
    }

    fn heads(&self) -> Option<&DraftHeads> {
        self.heads.as_ref().map(CpuHeads::shape)
    }

    async fn prefill(&mut self, start: usize, tokens: &[u32]) -> Result<()> {
        for (i, &token) in tokens.iter().enumerate() {
            let (_, rows) = self.forward(start + i, &Tree::chain(&[token])?);
            self.commit(start + i, &[0], &rows);
        }
        Ok(())
    }

    fn begin(&mut self, start: usize, root: u32, setup: &GenerationSetup) -> Result<()> {
        for layer in &mut self.cache {
            layer.truncate(start);
        }
        self.running = Some(Running {
            generation: Generation::begin(setup, (start, root), self.config.vocab_size, self.context_limit)?,
            records: VecDeque::new(),
            counters: PassCounters::default(),
        });
        Ok(())
    }

    async fn submit_step(&mut self, rows: usize, drafters: Sources) -> Result<()> {
        let mut running = self
            .running
            .take()
            .ok_or_else(|| Error::new(ErrorCode::Internal, "a step was submitted before a generation began"))?;
        running.counters.passes += 1;
        running.counters.submits += 1;
        let result = if running.generation.finish.is_some() {
            running.records.push_back(StepRecord::default());
            Ok(())
        } else {
            self.step(&mut running, rows, drafters)
        };
        self.running = Some(running);
        result
    }

    fn calibrate(&mut self, calibration: &Calibration) {
        if let Some(running) = &mut self.running {
            running.generation.calibration = *calibration;
        }
    }

    async fn next_record(&mut self) -> Result<StepRecord> {
        self.running
            .as_mut()
            .and_then(|running| running.records.pop_front())
            .ok_or_else(|| Error::new(ErrorCode::Internal, "a record was asked for, but no step is in flight"))
    }

    fn halt(&mut self) {
        self.running = None;
    }

    async fn evaluate(&mut self, start: usize, tree: &Tree) -> Result<Vec<f32>> {
        let (rows, _) = self.forward(start, tree);
        Ok(rows.iter().flat_map(|behind| self.logits(behind)).collect())
    }

    async fn run_passes(&mut self, rows: usize, context: usize, passes: usize) -> Result<()> {
        self.prefill(0, &vec![0; context]).await?;
        for _ in 0..passes {
            self.evaluate(context, &Tree::chain(&vec![0; rows])?).await?;
        }
        Ok(())
    }

    async fn time_passes(&mut self, _: &[usize], _: usize) -> Result<Option<Vec<f64>>> {
        Ok(None)
    }

    async fn time_heads(&mut self) -> Result<Option<f64>> {
        Ok(None)
    }

    async fn settle(&mut self) -> Result<()> {
        Ok(())
    }

    fn counters(&self) -> PassCounters {
        self.running.as_ref().map_or_else(PassCounters::default, |running| running.counters)
    }
}
