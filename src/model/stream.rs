//! Rows on their way from files to a [`WeightSink`]: read in bounded pieces, packed, handed over, forgotten.
//!
//! Which tensors become which matrix is decided elsewhere ([`weights`](super::weights), [`heads`](super::heads)); here a [`Job`]
//! is one matrix or vector with the rows it takes from one or more tensors. Memory is bounded by two buffers of a few megabytes,
//! whatever the size of a tensor. Jobs run in the order in which they lie in the files, so that a source which downloads
//! forward seldom has to go back.

use super::checkpoint::{TensorEntry, read_vector};
use super::pack_rows::pack_row;
use super::packing::{GROUP_ROWS, PackedFormat, PackedLayout};
use super::source::{ByteSource, read_exact};
use super::weights::{Matrix, Vector, WeightSink};
use crate::error::{Error, Result};

/// Stored bytes of one batch of row groups; a single group may be larger.
const BATCH_BYTES: usize = 2 << 20;
/// Listed rows with at most this many others between them are read in one piece: a request costs more than their bytes.
const MAX_GAP_ROWS: usize = 7;

/// Tensors that become one packed matrix or one vector.
pub(super) enum Job<'c> {
    Matrix(Matrix, MatrixPlan<'c>),
    Vector(Vector, Vec<Part<'c>>),
}

impl Job<'_> {
    fn parts(&self) -> &[Part<'_>] {
        match self {
            Self::Matrix(_, plan) => &plan.parts,
            Self::Vector(_, parts) => parts,
        }
    }

    /// Where the first of the tensors lies.
    fn position(&self) -> (usize, u64) {
        self.parts().iter().map(|part| (part.tensor.file, part.tensor.offset)).min().unwrap_or_default()
    }

    /// Stored bytes of the rows it takes.
    pub fn bytes(&self) -> u64 {
        self.parts().iter().map(|part| part.rows() as u64 * part.row_bytes() as u64).sum()
    }
}

/// Which rows of a tensor are taken, and in which order.
#[derive(Debug, Clone, Copy)]
pub(super) enum Rows<'c> {
    /// As they are stored.
    All,
    /// The first so many.
    First(usize),
    /// Those of heads of this width, brought from halves to pairs.
    Halves(usize),
    /// These.
    Listed(&'c [u32]),
}

/// Rows of one tensor of several that become one.
pub(super) struct Part<'c> {
    pub tensor: &'c TensorEntry,
    pub order: Rows<'c>,
}

impl<'c> Part<'c> {
    /// A whole tensor.
    pub fn whole(tensor: &'c TensorEntry) -> Self {
        Self { tensor, order: Rows::All }
    }

    /// The row in the file of this row of the packed order.
    fn stored_row(&self, row: usize) -> usize {
        match self.order {
            Rows::All | Rows::First(_) => row,
            Rows::Halves(head_dim) => {
                let (head, i) = (row / head_dim, row % head_dim);
                head * head_dim + i / 2 + i % 2 * (head_dim / 2)
            }
            Rows::Listed(rows) => rows[row] as usize,
        }
    }

    fn stored_rows(&self) -> usize {
        self.tensor.shape.first().copied().unwrap_or(0)
    }

    fn rows(&self) -> usize {
        match self.order {
            Rows::All | Rows::Halves(_) => self.stored_rows(),
            Rows::First(rows) => rows,
            Rows::Listed(rows) => rows.len(),
        }
    }

    fn row_bytes(&self) -> usize {
        (self.tensor.bytes / self.stored_rows().max(1) as u64) as usize
    }

    /// Rows that may have to be read for each row that is taken.
    fn spread(&self) -> usize {
        if matches!(self.order, Rows::Listed(_)) { 1 + MAX_GAP_ROWS } else { 1 }
    }
}

pub(super) struct MatrixPlan<'c> {
    pub layout: PackedLayout,
    parts: Vec<Part<'c>>,
    /// Rows of the parts alternate, instead of following one another.
    alternating: bool,
}

impl<'c> MatrixPlan<'c> {
    /// The rows of `parts`, which have one width.
    ///
    /// # Errors
    /// `UnsupportedModel` when a part is of a type that cannot be run.
    pub fn new(parts: Vec<Part<'c>>, alternating: bool) -> Result<Self> {
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

/// Reads what `jobs` name and hands it to `sink`. `progress` is called with the stored bytes done since the last call.
///
/// # Errors
/// Whatever the source or the sink reports; `BadModelFile` for blocks whose scales are no numbers.
pub(super) async fn run_jobs(
    mut jobs: Vec<Job<'_>>,
    source: &impl ByteSource,
    sink: &mut impl WeightSink,
    progress: &mut dyn FnMut(u64),
) -> Result<()> {
    jobs.sort_by_key(Job::position);
    let mut stream = Stream { source, sink, buffers: Buffers::default(), progress };
    for job in &mut jobs {
        match job {
            Job::Matrix(matrix, plan) => {
                plan.layout.format = stream.sink.format(plan.layout.format);
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
    progress: &'s mut dyn FnMut(u64),
}

impl<S: ByteSource, K: WeightSink> Stream<'_, S, K> {
    async fn matrix(&mut self, matrix: Matrix, plan: &MatrixPlan<'_>) -> Result<()> {
        let layout = plan.layout;
        self.sink.begin(matrix, layout)?;
        let widest_row = plan.parts.iter().map(|part| part.row_bytes() * part.spread()).max().unwrap_or(0);
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
            let taken = self.buffers.wanted.iter().map(|&(part, ..)| plan.parts[part].row_bytes() as u64);
            (self.progress)(taken.sum());
        }
        Ok(())
    }

    /// Reads rows `first_row..first_row + rows` of the matrix, each run of rows that are near each other in a file at once.
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
        let near = |a: &(usize, usize, usize), b: &(usize, usize, usize)| a.0 == b.0 && b.1 - a.1 <= 1 + MAX_GAP_ROWS;
        for run in wanted.chunk_by(near) {
            let (part, first, _) = run[0];
            let last = run[run.len() - 1].1;
            let part = &plan.parts[part];
            let row_bytes = part.row_bytes();
            let begin = stored.len();
            for &(_, stored_row, row) in run {
                starts[row] = begin + (stored_row - first) * row_bytes;
            }
            stored.resize(begin + (last + 1 - first) * row_bytes, 0);
            let offset = part.tensor.offset + first as u64 * row_bytes as u64;
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
        let mut bytes = 0;
        for part in parts {
            let stored = read_vector(self.source, part.tensor).await?;
            values.extend((0..part.rows()).map(|row| stored[part.stored_row(row)]));
            bytes += part.tensor.bytes;
        }
        self.sink.vector(vector, &values)?;
        (self.progress)(bytes);
        Ok(())
    }
}
