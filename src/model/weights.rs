//! The weights: what they become in memory, and the trait of whatever holds them.
//!
//! Parts that are used together become one matrix here (q, k and v; gate and up), and q and k rows are brought to the order in
//! which pairs rotate together. `stream` reads and packs the rows.

use super::architecture::{Role, RotaryOrder};
use super::checkpoint::Checkpoint;
use super::heads::{HeadMatrix, HeadVector};
use super::packing::{PackedFormat, PackedLayout};
use super::source::ByteSource;
use super::stream::{Job, MatrixPlan, Part, Rows, run_jobs};
use crate::error::Result;

/// A matrix of the packed model, with its layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Matrix {
    /// Token embedding, `[vocab_size, hidden_size]`; also the output matrix where the two are tied.
    Embedding,
    /// Rows of q, then of k, then of v, `[q_size + 2 kv_size, hidden_size]`; q and k rows 2i and 2i + 1 of a head rotate
    /// together.
    Qkv(usize),
    /// Output projection of attention, `[hidden_size, q_size]`.
    AttentionOut(usize),
    /// Gate and up rows alternating, `[2 intermediate_size, hidden_size]`.
    GateUp(usize),
    /// Down projection, `[hidden_size, intermediate_size]`.
    Down(usize),
    /// Output matrix, `[vocab_size, hidden_size]`, where it is not the embedding.
    LmHead,
    /// A matrix of the draft heads.
    Heads(HeadMatrix),
}

/// A vector of the model, with its layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Vector {
    /// Norm before attention, `[hidden_size]`.
    AttentionNorm(usize),
    /// Bias of q, k and v in the order of [`Matrix::Qkv`]'s rows, `[q_size + 2 kv_size]`.
    QkvBias(usize),
    /// Norm before the feed-forward layer, `[hidden_size]`.
    FfnNorm(usize),
    /// Norm before the output matrix, `[hidden_size]`.
    FinalNorm,
    /// A vector of the draft heads.
    Heads(HeadVector),
}

/// What takes the weights.
#[allow(async_fn_in_trait, reason = "one thread everywhere: no caller needs a Send future")]
pub trait WeightSink {
    /// The format to pack a matrix in, given the smallest that holds its values exactly: that one, or a wider one.
    fn format(&self, smallest: PackedFormat) -> PackedFormat {
        smallest
    }

    /// Announces a matrix, before its first bytes.
    ///
    /// # Errors
    /// Whatever the sink cannot do; it ends the streaming, as from the methods below.
    fn begin(&mut self, matrix: Matrix, layout: PackedLayout) -> Result<()>;

    /// Takes bytes of the packed matrix from `offset` on. Offsets ascend, and every byte of the layout is written once.
    fn write(&mut self, matrix: Matrix, offset: u64, bytes: &[u8]) -> Result<()>;

    /// Takes a whole vector.
    fn vector(&mut self, vector: Vector, values: &[f32]) -> Result<()>;

    /// Called after each bounded batch: lets the device take what was queued.
    async fn drain(&mut self) -> Result<()>;
}

/// Reads every weight of the model and hands it to `sink`. `progress` is called with stored bytes done and in all.
///
/// # Errors
/// Whatever the source or the sink reports; `BadModelFile` for blocks whose scales are no numbers.
pub async fn stream_weights(
    checkpoint: &Checkpoint,
    source: &impl ByteSource,
    sink: &mut impl WeightSink,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<()> {
    let jobs = plan(checkpoint)?;
    let (mut done, total) = (0, jobs.iter().map(Job::bytes).sum());
    progress(done, total);
    run_jobs(jobs, source, sink, &mut |bytes| {
        done += bytes;
        progress(done, total);
    })
    .await
}

/// The packed matrices of the model, in no particular order.
///
/// # Errors
/// `MissingTensor` and `UnsupportedModel`, which do not happen for a checkpoint that was opened.
pub fn layouts(checkpoint: &Checkpoint) -> Result<Vec<(Matrix, PackedLayout)>> {
    let jobs = plan(checkpoint)?.into_iter();
    let layouts = jobs.filter_map(|job| match job {
        Job::Matrix(matrix, plan) => Some((matrix, plan.layout)),
        Job::Vector(..) => None,
    });
    Ok(layouts.collect())
}

/// Every matrix and vector of the model.
fn plan(checkpoint: &Checkpoint) -> Result<Vec<Job<'_>>> {
    let config = &checkpoint.config;
    let halves_of = (checkpoint.rotary_order == RotaryOrder::Halves).then_some(config.head_dim);
    let part = |role: Role, layer: usize| -> Result<Part<'_>> {
        let rotated = matches!(role, Role::Query | Role::Key | Role::QueryBias | Role::KeyBias);
        let order = halves_of.filter(|_| rotated).map_or(Rows::All, Rows::Halves);
        Ok(Part { tensor: checkpoint.tensor(role, layer)?, order })
    };
    let parts = |roles: &[Role], layer: usize| roles.iter().map(|&role| part(role, layer)).collect::<Result<Vec<_>>>();
    let mut jobs = Vec::new();
    let mut matrix = |matrix: Matrix, roles: &[Role], layer: usize| -> Result<()> {
        let alternating = matches!(matrix, Matrix::GateUp(_));
        jobs.push(Job::Matrix(matrix, MatrixPlan::new(parts(roles, layer)?, alternating)?));
        Ok(())
    };
    matrix(Matrix::Embedding, &[Role::Embedding], 0)?;
    for layer in 0..config.num_hidden_layers {
        matrix(Matrix::Qkv(layer), &[Role::Query, Role::Key, Role::Value], layer)?;
        matrix(Matrix::AttentionOut(layer), &[Role::AttentionOut], layer)?;
        matrix(Matrix::GateUp(layer), &[Role::Gate, Role::Up], layer)?;
        matrix(Matrix::Down(layer), &[Role::Down], layer)?;
    }
    if !config.tie_word_embeddings {
        matrix(Matrix::LmHead, &[Role::LmHead], 0)?;
    }
    for layer in 0..config.num_hidden_layers {
        jobs.push(Job::Vector(Vector::AttentionNorm(layer), parts(&[Role::AttentionNorm], layer)?));
        jobs.push(Job::Vector(Vector::FfnNorm(layer), parts(&[Role::FfnNorm], layer)?));
        if config.attention_bias {
            let biases = [Role::QueryBias, Role::KeyBias, Role::ValueBias];
            jobs.push(Job::Vector(Vector::QkvBias(layer), parts(&biases, layer)?));
        }
    }
    jobs.push(Job::Vector(Vector::FinalNorm, parts(&[Role::FinalNorm], 0)?));
    Ok(jobs)
}
