//! The weights, streamed from the files to whatever holds them: in bounded pieces, repacked on the way.
//!
//! Parts that are used together become one matrix here (q, k and v; gate and up), q and k rows are brought to the order in
//! which pairs rotate together, and every row goes through [`pack_row`]. Memory is bounded by two buffers of a few
//! megabytes, whatever the size of a tensor: a batch of row groups is read, packed, handed over, and forgotten. Matrices
//! come in the order in which they lie in the files, so that a source which downloads forward seldom has to go back.

use super::architecture::{Role, RotaryOrder};
use super::checkpoint::{Checkpoint, TensorEntry, read_vector};
use super::pack_rows::pack_row;
use super::packing::{GROUP_ROWS, PackedFormat, PackedLayout};
use super::source::{ByteSource, read_exact};
use crate::error::{Error, Result};

/// Stored bytes of one batch of row groups; a single group may be larger.
const BATCH_BYTES: usize = 2 << 20;

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
    let mut jobs = plan(checkpoint)?;
    jobs.sort_by_key(Job::position);
    for job in &mut jobs {
        if let Job::Matrix(_, plan) = job {
            plan.layout.format = sink.format(plan.layout.format);
        }
    }
    let mut stream =
        Stream { source, sink, buffers: Buffers::default(), progress, done: 0, total: checkpoint.weight_bytes() };
    (stream.progress)(0, stream.total);
    for job in &jobs {
        match job {
            Job::Matrix(matrix, plan) => {
                let moved = stream.matrix(*matrix, plan).await;
                moved.map_err(|error| error.context(format!("loading {matrix:?}")))?;
            }
            Job::Vector(vector, parts) => {
                let moved = stream.vector(*vector, parts).await;
                moved.map_err(|error| error.context(format!("loading {vector:?}")))?;
            }
        }
    }
    Ok(())
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

/// Tensors that become one matrix or vector of the packed model.
enum Job<'c> {
    Matrix(Matrix, MatrixPlan<'c>),
    Vector(Vector, Vec<Part<'c>>),
}

impl Job<'_> {
    /// Where the first of the tensors lies.
    fn position(&self) -> (usize, u64) {
        let parts = match self {
            Self::Matrix(_, plan) => &plan.parts,
            Self::Vector(_, parts) => parts,
        };
        parts.iter().map(|part| (part.tensor.file, part.tensor.offset)).min().unwrap_or_default()
    }
}

/// One tensor of several that become one.
struct Part<'c> {
    tensor: &'c TensorEntry,
    /// Width of the heads whose rows are to be brought from halves to pairs.
    halves_of: Option<usize>,
}

impl Part<'_> {
    /// The row in the file of this row of the packed order.
    fn stored_row(&self, row: usize) -> usize {
        match self.halves_of {
            None => row,
            Some(head_dim) => {
                let (head, i) = (row / head_dim, row % head_dim);
                head * head_dim + i / 2 + i % 2 * (head_dim / 2)
            }
        }
    }

    fn rows(&self) -> usize {
        self.tensor.shape.first().copied().unwrap_or(0)
    }

    fn row_bytes(&self) -> usize {
        (self.tensor.bytes / self.rows().max(1) as u64) as usize
    }
}

struct MatrixPlan<'c> {
    layout: PackedLayout,
    parts: Vec<Part<'c>>,
    /// Rows of the parts alternate, instead of following one another.
    alternating: bool,
}

impl<'c> MatrixPlan<'c> {
    fn new(parts: Vec<Part<'c>>, alternating: bool) -> Result<Self> {
        let types: Vec<_> = parts.iter().map(|part| part.tensor.tensor_type).collect();
        let rows = parts.iter().map(Part::rows).sum();
        let cols = parts.first().and_then(|part| part.tensor.shape.get(1).copied()).unwrap_or(0);
        let layout = PackedLayout { format: PackedFormat::for_types(&types)?, rows, cols };
        Ok(Self { layout, parts, alternating })
    }

    /// The part and the row in its file of one row of the matrix.
    fn locate(&self, row: usize) -> (usize, usize) {
        if self.alternating {
            let part = row % self.parts.len();
            return (part, self.parts[part].stored_row(row / self.parts.len()));
        }
        let mut row = row;
        for (number, part) in self.parts.iter().enumerate() {
            if row < part.rows() {
                return (number, part.stored_row(row));
            }
            row -= part.rows();
        }
        unreachable!("a row below the sum of the parts' rows is in one of them")
    }
}

/// Every matrix and vector of the model.
fn plan(checkpoint: &Checkpoint) -> Result<Vec<Job<'_>>> {
    let config = &checkpoint.config;
    let halves_of = (checkpoint.rotary_order == RotaryOrder::Halves).then_some(config.head_dim);
    let part = |role: Role, layer: usize| -> Result<Part<'_>> {
        let rotated = matches!(role, Role::Query | Role::Key | Role::QueryBias | Role::KeyBias);
        Ok(Part { tensor: checkpoint.tensor(role, layer)?, halves_of: halves_of.filter(|_| rotated) })
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

/// Buffers that are used again for every batch.
#[derive(Default)]
struct Buffers {
    /// Stored rows of the batch, in the order in which they were read.
    stored: Vec<u8>,
    /// Where each row of the batch begins in `stored`.
    starts: Vec<usize>,
    /// The rows of the batch by place in the file: part, row in the file, row in the batch.
    wanted: Vec<(usize, usize, usize)>,
    /// The packed groups.
    packed: Vec<u32>,
}

struct Stream<'s, S, K> {
    source: &'s S,
    sink: &'s mut K,
    buffers: Buffers,
    progress: &'s mut dyn FnMut(u64, u64),
    done: u64,
    total: u64,
}

impl<S: ByteSource, K: WeightSink> Stream<'_, S, K> {
    async fn matrix(&mut self, matrix: Matrix, plan: &MatrixPlan<'_>) -> Result<()> {
        let layout = plan.layout;
        self.sink.begin(matrix, layout)?;
        let widest_row = plan.parts.iter().map(Part::row_bytes).max().unwrap_or(0);
        let batch_groups = (BATCH_BYTES / (widest_row * GROUP_ROWS).max(1)).max(1);
        for first_group in (0..layout.groups()).step_by(batch_groups) {
            let groups = batch_groups.min(layout.groups() - first_group);
            let first_row = first_group * GROUP_ROWS;
            let rows = (groups * GROUP_ROWS).min(layout.rows - first_row);
            self.read_rows(plan, first_row, rows).await?;
            self.pack_rows(plan, first_row, rows, groups)?;
            let offset = first_group as u64 * layout.group_words() as u64 * 4;
            self.sink.write(matrix, offset, bytemuck::cast_slice(&self.buffers.packed))?;
            self.sink.drain().await?;
            self.done += self.buffers.stored.len() as u64;
            (self.progress)(self.done, self.total);
        }
        Ok(())
    }

    /// Reads rows `first_row..first_row + rows` of the matrix, each run of rows that are neighbours in a file at once.
    async fn read_rows(&mut self, plan: &MatrixPlan<'_>, first_row: usize, rows: usize) -> Result<()> {
        let Buffers { stored, starts, wanted, .. } = &mut self.buffers;
        wanted.clear();
        wanted.extend((0..rows).map(|row| {
            let (part, stored_row) = plan.locate(first_row + row);
            (part, stored_row, row)
        }));
        wanted.sort_unstable();
        stored.clear();
        starts.clear();
        starts.resize(rows, 0);
        let follows = |a: &(usize, usize, usize), b: &(usize, usize, usize)| a.0 == b.0 && a.1 + 1 == b.1;
        for run in wanted.chunk_by(follows) {
            let (part, stored_row, _) = run[0];
            let part = &plan.parts[part];
            let row_bytes = part.row_bytes();
            let begin = stored.len();
            for (i, &(_, _, row)) in run.iter().enumerate() {
                starts[row] = begin + i * row_bytes;
            }
            stored.resize(begin + run.len() * row_bytes, 0);
            let offset = part.tensor.offset + stored_row as u64 * row_bytes as u64;
            read_exact(self.source, part.tensor.file, offset, &mut stored[begin..]).await?;
        }
        Ok(())
    }

    fn pack_rows(&mut self, plan: &MatrixPlan<'_>, first_row: usize, rows: usize, groups: usize) -> Result<()> {
        let layout = plan.layout;
        let Buffers { stored, starts, packed, .. } = &mut self.buffers;
        packed.clear();
        packed.resize(groups * layout.group_words(), 0);
        for (group, words) in packed.chunks_exact_mut(layout.group_words()).enumerate() {
            for row in group * GROUP_ROWS..rows.min((group + 1) * GROUP_ROWS) {
                let (part, stored_row) = plan.locate(first_row + row);
                let part = &plan.parts[part];
                let bytes = &stored[starts[row]..starts[row] + part.row_bytes()];
                let packed = pack_row(&layout, part.tensor.tensor_type, bytes, row % GROUP_ROWS, words);
                packed.map_err(|error: Error| error.context(format!("row {stored_row}")))?;
            }
        }
        Ok(())
    }

    async fn vector(&mut self, vector: Vector, parts: &[Part<'_>]) -> Result<()> {
        let mut values = Vec::new();
        for part in parts {
            let stored = read_vector(self.source, part.tensor).await?;
            values.extend((0..part.rows()).map(|row| stored[part.stored_row(row)]));
            self.done += part.tensor.bytes;
        }
        self.sink.vector(vector, &values)?;
        (self.progress)(self.done, self.total);
        Ok(())
    }
}
