//! Attention of rows to the context that a layer of the target has kept, with gradients of their queries.
//!
//! Keys and values are the target's and stay as they are, so every row of a batch, whatever text it is of, looks back by itself. As an
//! operation of our own it reads them where the states have them, in half precision; the way back computes the weights again.

use std::ops::Range;
use std::sync::Arc;

use candle_core::{CpuStorage, CustomOp1, Device, Layout, Result as CandleResult, Shape, Tensor};
use half::f16;
use half::slice::HalfFloatSliceExt as _;
use pulp::{Arch, NullaryFnOnce};
use rayon::prelude::*;

use super::joint::attention::{add, dot, softmax};
use super::target::vectorised;
use crate::backend::cpu::ops::rotations;
use crate::model::ModelConfig;

/// What the rows of a batch see of the context.
#[derive(Debug, Clone)]
pub struct Context {
    key_heads: usize,
    /// Queries of a key head.
    group: usize,
    dim: usize,
    frequencies: Vec<f32>,
    /// Keys, rotated, then values, `[positions, 2 kv]`.
    kept: Arc<Vec<f16>>,
    /// The positions that each row sees, from the first of its text to its own.
    seen: Vec<Range<usize>>,
}

impl Context {
    /// Rows that see these positions of what a layer of a model has kept.
    pub fn new(config: &ModelConfig, kept: Arc<Vec<f16>>, seen: Vec<Range<usize>>) -> Self {
        Self {
            key_heads: config.num_key_value_heads,
            group: config.num_attention_heads / config.num_key_value_heads,
            dim: config.head_dim,
            frequencies: config.inverse_frequencies(),
            kept,
            seen,
        }
    }

    /// What attention makes of the queries of every row, `[rows, q]`, which are not rotated yet.
    ///
    /// # Errors
    /// When memory is short.
    pub fn attend(&self, queries: &Tensor) -> CandleResult<Tensor> {
        let device = queries.device().clone();
        queries.to_device(&Device::Cpu)?.contiguous()?.apply_op1(self.clone())?.to_device(&device)
    }

    fn q_size(&self) -> usize {
        self.key_heads * self.group * self.dim
    }

    /// What one row sees, with its queries rotated.
    fn row(&self, row: usize, queries: &[f32]) -> Row {
        let Self { key_heads, group, dim, .. } = *self;
        let (kv, seen) = (key_heads * dim, self.seen[row].clone());
        let positions = seen.len();
        let mut kept = vec![0.0; positions * 2 * kv];
        self.kept[seen.start * 2 * kv..seen.end * 2 * kv].convert_to_f32_slice(&mut kept);
        let mut columns = vec![0.0; kept.len()];
        for (position, row) in kept.chunks_exact(2 * kv).enumerate() {
            for (column, &value) in row.iter().enumerate() {
                columns[column * positions + position] = value;
            }
        }
        let rotations = rotations(&self.frequencies, positions - 1);
        let mut queries = queries.to_vec();
        rotate(&mut queries, dim, &rotations, 1.0);
        Row { positions, group, dim, kv, scale: 1.0 / (dim as f32).sqrt(), columns, queries, rotations }
    }

    /// Every row by itself, `[rows, q]`.
    fn rows(&self, queries: &[f32], each: impl Fn(usize, Row) -> Vec<f32> + Sync) -> Vec<f32> {
        let rows = queries.par_chunks_exact(self.q_size()).enumerate();
        let found: Vec<Vec<f32>> = rows.map(|(row, queries)| each(row, self.row(row, queries))).collect();
        found.concat()
    }
}

/// Rotates the pairs of heads, the other way round with a direction of -1.
fn rotate(heads: &mut [f32], dim: usize, rotations: &[f32], direction: f32) {
    for head in heads.chunks_exact_mut(dim) {
        for (pair, rotation) in head.chunks_exact_mut(2).zip(rotations.chunks_exact(2)) {
            let (x, y, sine) = (pair[0], pair[1], direction * rotation[1]);
            pair[0] = x * rotation[0] - y * sine;
            pair[1] = x * sine + y * rotation[0];
        }
    }
}

/// One row and what it sees.
pub(in crate::train) struct Row {
    positions: usize,
    group: usize,
    dim: usize,
    kv: usize,
    scale: f32,
    /// Keys, then values, `[2 kv, positions]`.
    columns: Vec<f32>,
    /// `[q]`, rotated.
    queries: Vec<f32>,
    rotations: Vec<f32>,
}

impl Row {
    /// The keys that a query looks at, and the values, `[dim, positions]` each.
    #[inline(always)]
    fn kept(&self, query: usize) -> [&[f32]; 2] {
        let first = query / self.group * self.dim;
        [first, self.kv + first].map(|column| &self.columns[column * self.positions..][..self.dim * self.positions])
    }

    /// The weights of what one query sees.
    #[inline(always)]
    fn weigh(&self, query: &[f32], keys: &[f32], weights: &mut [f32]) {
        weights.fill(0.0);
        for (key, &number) in keys.chunks_exact(self.positions).zip(query) {
            add(weights, key, number * self.scale);
        }
        softmax(weights);
    }
}

vectorised! {
    /// What queries make of the values, `[q]`.
    Forward { row: &'a Row } -> Vec<f32> {
        let mut weights = vec![0.0; row.positions];
        let mut out = vec![0.0; row.queries.len()];
        for (number, (query, out)) in row.queries.chunks_exact(row.dim).zip(out.chunks_exact_mut(row.dim)).enumerate() {
            let [keys, values] = row.kept(number);
            row.weigh(query, keys, &mut weights);
            for (out, value) in out.iter_mut().zip(values.chunks_exact(row.positions)) {
                *out = dot(&weights, value);
            }
        }
        out
    }
}

vectorised! {
    /// The gradient of the rotated queries, from that of what [`Forward`] gives.
    Backward { row: &'a Row, of_out: &'a [f32] } -> Vec<f32> {
        let (mut weights, mut of_weights) = (vec![0.0; row.positions], vec![0.0; row.positions]);
        let mut found = vec![0.0; row.queries.len()];
        let parts = row.queries.chunks_exact(row.dim).zip(of_out.chunks_exact(row.dim));
        for (number, ((query, of_out), of_query)) in parts.zip(found.chunks_exact_mut(row.dim)).enumerate() {
            let [keys, values] = row.kept(number);
            row.weigh(query, keys, &mut weights);
            of_weights.fill(0.0);
            for (value, &gradient) in values.chunks_exact(row.positions).zip(of_out) {
                add(&mut of_weights, value, gradient);
            }
            // From weights to the scores that they are the softmax of.
            let mean = dot(&weights, &of_weights);
            for (gradient, weight) in of_weights.iter_mut().zip(&weights) {
                *gradient = weight * (*gradient - mean) * row.scale;
            }
            for (of_query, key) in of_query.iter_mut().zip(keys.chunks_exact(row.positions)) {
                *of_query = dot(&of_weights, key);
            }
        }
        found
    }
}

impl CustomOp1 for Context {
    fn name(&self) -> &'static str {
        "attention to the context"
    }

    fn cpu_fwd(&self, queries: &CpuStorage, layout: &Layout) -> CandleResult<(CpuStorage, Shape)> {
        let (CpuStorage::F32(values), Some((start, end))) = (queries, layout.contiguous_offsets()) else {
            candle_core::bail!("queries are float32 and contiguous")
        };
        let arch = Arch::new();
        let mixed = self.rows(&values[start..end], |_, row| arch.dispatch(Forward { row: &row }));
        Ok((CpuStorage::F32(mixed), layout.shape().clone()))
    }

    fn bwd(&self, queries: &Tensor, _: &Tensor, gradient: &Tensor) -> CandleResult<Option<Tensor>> {
        let flat = |tensor: &Tensor| tensor.flatten_all()?.to_vec1::<f32>();
        let (values, gradient, arch, size) = (flat(queries)?, flat(gradient)?, Arch::new(), self.q_size());
        let found = self.rows(&values, |number, row| {
            let of_out = &gradient[number * size..(number + 1) * size];
            let mut found = arch.dispatch(Backward { row: &row, of_out });
            rotate(&mut found, self.dim, &row.rotations, -1.0);
            found
        });
        Tensor::from_vec(found, queries.shape(), queries.device()).map(Some)
    }
}

#[cfg(test)]
mod tests {
    use candle_core::{D, Var};

    use super::*;
    use crate::train::random::Random;

    const DIM: usize = 8;

    fn random(seed: u64, count: usize) -> Vec<f32> {
        let mut random = Random::new(seed, 0);
        (0..count).map(|_| f16::from_f32(4.0 * random.fraction() - 2.0).to_f32()).collect()
    }

    fn difference(a: &Tensor, b: &Tensor) -> f32 {
        (a - b).unwrap().abs().unwrap().max_all().unwrap().to_scalar().unwrap()
    }

    /// Two key heads of three queries each, in a text of 40 positions behind one of 7.
    fn context(seen: Vec<Range<usize>>, kept: &[f32]) -> Context {
        Context {
            key_heads: 2,
            group: 3,
            dim: DIM,
            frequencies: (0..DIM / 2).map(|i| 0.1f32.powi(i as i32)).collect(),
            kept: Arc::new(kept.iter().map(|&value| f16::from_f32(value)).collect()),
            seen,
        }
    }

    /// The same by candle's operations, for one row.
    fn by_tensors(context: &Context, row: usize, queries: &Tensor, kept: &Tensor) -> Tensor {
        let seen = context.seen[row].clone();
        let part = |first: usize| {
            let rows = kept.narrow(0, seen.start, seen.len()).unwrap().narrow(1, first, 2 * DIM).unwrap();
            rows.reshape((seen.len(), 2, DIM)).unwrap().transpose(0, 1).unwrap().contiguous().unwrap()
        };
        let (keys, values) = (part(0), part(2 * DIM));
        // A matrix that rotates pairs.
        let mut rotation = vec![0.0; DIM * DIM];
        for (pair, turn) in rotations(&context.frequencies, seen.len() - 1).chunks_exact(2).enumerate() {
            let (x, y) = (2 * pair, 2 * pair + 1);
            rotation[x * DIM + x] = turn[0];
            rotation[y * DIM + x] = -turn[1];
            rotation[x * DIM + y] = turn[1];
            rotation[y * DIM + y] = turn[0];
        }
        let rotation = Tensor::from_vec(rotation, (DIM, DIM), &Device::Cpu).unwrap();
        let queries = queries.narrow(0, row, 1).unwrap().reshape((6, DIM)).unwrap().matmul(&rotation).unwrap();
        let scores = queries.reshape((2, 3, DIM)).unwrap().matmul(&keys.t().unwrap()).unwrap();
        let weights = candle_nn::ops::softmax(&(scores * (1.0 / (DIM as f64).sqrt())).unwrap(), D::Minus1).unwrap();
        weights.matmul(&values).unwrap().reshape((1, 6 * DIM)).unwrap()
    }

    #[test]
    fn attention_and_its_gradient_are_those_of_plain_operations() {
        let kept = random(1, 47 * 4 * DIM);
        let context = context(vec![7..8, 7..47, 0..5, 7..23], &kept);
        let queries = Tensor::from_vec(random(2, 4 * 6 * DIM), (4, 6 * DIM), &Device::Cpu).unwrap();
        let queries = Var::from_tensor(&queries).unwrap();
        let of_out = Tensor::from_vec(random(3, 4 * 6 * DIM), (4, 6 * DIM), &Device::Cpu).unwrap();
        let kept = Tensor::from_vec(kept, (47, 4 * DIM), &Device::Cpu).unwrap();
        let found = context.attend(&queries).unwrap();
        let rows: Vec<Tensor> = (0..4).map(|row| by_tensors(&context, row, &queries, &kept)).collect();
        let expected = Tensor::cat(&rows, 0).unwrap();
        assert!(difference(&found, &expected) < 1e-5);
        let gradient = |out: &Tensor| {
            let gradients = (out * &of_out).unwrap().sum_all().unwrap().backward().unwrap();
            gradients.get(&queries).unwrap().clone()
        };
        let (found, expected) = (gradient(&found), gradient(&expected));
        assert!(difference(&found, &expected) < 1e-5);
        assert!(expected.abs().unwrap().max_all().unwrap().to_scalar::<f32>().unwrap() > 0.1);
    }

    #[test]
    fn a_row_sees_nothing_of_later_positions_and_other_texts() {
        let kept = random(1, 47 * 4 * DIM);
        let queries = Tensor::from_vec(random(2, 6 * DIM), (1, 6 * DIM), &Device::Cpu).unwrap();
        let of = |kept: &[f32]| -> Vec<Vec<f32>> {
            let seen = std::iter::once(7..23).collect();
            context(seen, kept).attend(&queries).unwrap().to_vec2().unwrap()
        };
        let width = 4 * DIM;
        for (changed, same) in [(23, true), (46, true), (6, true), (7, false), (22, false)] {
            let mut other = kept.clone();
            other[changed * width..(changed + 1) * width].fill(1.5);
            assert_eq!(of(&other) == of(&kept), same, "position {changed}");
        }
    }
}
