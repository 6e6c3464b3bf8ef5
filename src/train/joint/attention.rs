//! Causal attention of whole texts, with gradients.
//!
//! Texts lie behind one another in one matrix of rows. On the CPU attention is an operation of our own: automatic differentiation would
//! keep half a dozen matrices of positions by positions for every head, and walk each of them a dozen times. Here nothing of that size is
//! kept; the way back computes the weights again.

use candle_core::{CpuStorage, CustomOp3, D, Device, Layout, Result as CandleResult, Shape, Tensor};
use pulp::{Arch, NullaryFnOnce};
use rayon::prelude::*;

use crate::model::ModelConfig;
use crate::model::architecture::RotaryOrder;
use crate::train::target::{exp, vectorised};

/// How the heads of rows are rotated by their positions.
#[derive(Debug)]
pub struct Rotations {
    /// `[rows, 1, head_dim]`, each.
    cosines: Tensor,
    sines: Tensor,
    /// Brings each number's partner to its place, negated where it is the first of the two, `[head_dim, head_dim]`.
    partners: Tensor,
}

impl Rotations {
    /// Of texts of these lengths, each from position 0 on.
    ///
    /// # Errors
    /// When memory is short, as below.
    pub fn new(config: &ModelConfig, order: RotaryOrder, lengths: &[usize], device: &Device) -> CandleResult<Self> {
        let (dim, half) = (config.head_dim, config.head_dim / 2);
        let places = |pair: usize| match order {
            RotaryOrder::Pairs => (2 * pair, 2 * pair + 1),
            RotaryOrder::Halves => (pair, pair + half),
        };
        let mut partners = vec![0.0f32; dim * dim];
        for (first, second) in (0..half).map(places) {
            partners[second * dim + first] = -1.0;
            partners[first * dim + second] = 1.0;
        }
        let frequencies = config.inverse_frequencies();
        let rows: usize = lengths.iter().sum();
        let (mut cosines, mut sines) = (vec![0.0f32; rows * dim], vec![0.0f32; rows * dim]);
        let positions = lengths.iter().flat_map(|&length| 0..length);
        for (position, (cosines, sines)) in
            positions.zip(cosines.chunks_exact_mut(dim).zip(sines.chunks_exact_mut(dim)))
        {
            for (pair, frequency) in frequencies.iter().enumerate() {
                let angle = f64::from(position as f32 * frequency);
                for place in <[usize; 2]>::from(places(pair)) {
                    (cosines[place], sines[place]) = (angle.cos() as f32, angle.sin() as f32);
                }
            }
        }
        Ok(Self {
            cosines: Tensor::from_vec(cosines, (rows, 1, dim), device)?,
            sines: Tensor::from_vec(sines, (rows, 1, dim), device)?,
            partners: Tensor::from_vec(partners, (dim, dim), device)?,
        })
    }

    /// Rotates rows of heads, `[rows, heads * head_dim]`.
    fn apply(&self, rows: &Tensor) -> CandleResult<Tensor> {
        let (count, width) = rows.dims2()?;
        let dim = self.partners.dim(0)?;
        let heads = rows.reshape((count, width / dim, dim))?;
        let partners = rows.reshape((count * width / dim, dim))?.matmul(&self.partners)?.reshape(heads.dims())?;
        let rotated = (heads.broadcast_mul(&self.cosines)? + partners.broadcast_mul(&self.sines)?)?;
        rotated.reshape((count, width))
    }
}

/// What every row makes of the values that it sees, `[rows, q]`, by its queries `[rows, q]` and the keys and values `[rows, kv]` of its
/// own text up to itself. Queries and keys are not rotated yet.
///
/// # Errors
/// When memory is short.
pub fn attend(
    config: &ModelConfig,
    rotations: &Rotations,
    (queries, keys, values): (&Tensor, &Tensor, &Tensor),
    lengths: &[usize],
) -> CandleResult<Tensor> {
    let (queries, keys) = (rotations.apply(queries)?, rotations.apply(keys)?);
    let shape = Heads {
        lengths: lengths.to_vec(),
        key_heads: config.num_key_value_heads,
        group: config.num_attention_heads / config.num_key_value_heads,
        dim: config.head_dim,
    };
    match queries.device() {
        Device::Cpu => queries.apply_op3(&keys, &values.contiguous()?, shape),
        _ => shape.by_tensors(&queries, &keys, values),
    }
}

/// The shape of attention: texts, and heads of each row.
#[derive(Debug, Clone)]
struct Heads {
    lengths: Vec<usize>,
    key_heads: usize,
    /// Queries of a key head.
    group: usize,
    dim: usize,
}

impl Heads {
    fn scale(&self) -> f32 {
        1.0 / (self.dim as f32).sqrt()
    }

    /// The same by candle's operations.
    fn by_tensors(&self, queries: &Tensor, keys: &Tensor, values: &Tensor) -> CandleResult<Tensor> {
        let Self { key_heads, group, dim, .. } = *self;
        let mut mixed = Vec::with_capacity(self.lengths.len());
        let mut first = 0;
        for &length in &self.lengths {
            let part = |rows: &Tensor, heads: usize| {
                rows.narrow(0, first, length)?.reshape((length, heads, dim))?.transpose(0, 1)?.contiguous()
            };
            // `[key_heads, group * length, dim]`
            let queries = part(queries, key_heads * group)?.reshape((key_heads, group * length, dim))?;
            let (keys, values) = (part(keys, key_heads)?, part(values, key_heads)?);
            let scores = (queries.matmul(&keys.t()?)? * f64::from(self.scale()))?;
            let hidden =
                (0..length).flat_map(|row| (0..length).map(move |seen| if seen > row { f32::MIN } else { 0.0 }));
            let hidden = Tensor::from_vec(hidden.collect::<Vec<_>>(), (length, length), queries.device())?;
            let scores = scores.reshape((key_heads, group, length, length))?.broadcast_add(&hidden)?;
            let weights = candle_nn::ops::softmax(&scores, D::Minus1)?.reshape((key_heads, group * length, length))?;
            let rows = weights.matmul(&values)?.reshape((key_heads * group, length, dim))?.transpose(0, 1)?;
            mixed.push(rows.reshape((length, key_heads * group * dim))?);
            first += length;
        }
        Tensor::cat(&mixed, 0)
    }

    /// Every key head of every text, with the first row of its text.
    fn tasks(&self) -> Vec<(usize, usize, usize)> {
        let firsts = self.lengths.iter().scan(0, |end, &length| {
            *end += length;
            Some((*end - length, length))
        });
        firsts.flat_map(|(first, length)| (0..self.key_heads).map(move |head| (first, length, head))).collect()
    }

    /// The part of one key head of one text, out of `[rows, width]` with `part` numbers for each key head.
    fn take(&self, all: &[f32], (first, length, head): (usize, usize, usize), part: usize) -> Vec<f32> {
        let width = self.key_heads * part;
        let rows = all[first * width..(first + length) * width].chunks_exact(width);
        rows.flat_map(|row| &row[head * part..(head + 1) * part]).copied().collect()
    }

    /// Puts such parts together again.
    fn join(&self, tasks: &[(usize, usize, usize)], parts: impl Iterator<Item = Vec<f32>>, part: usize) -> Vec<f32> {
        let width = self.key_heads * part;
        let mut all = vec![0.0; self.lengths.iter().sum::<usize>() * width];
        for (&(first, _, head), found) in tasks.iter().zip(parts) {
            for (row, found) in found.chunks_exact(part).enumerate() {
                all[(first + row) * width + head * part..][..part].copy_from_slice(found);
            }
        }
        all
    }

    fn head(&self, task: (usize, usize, usize), queries: &[f32], keys: &[f32], values: &[f32]) -> Head {
        Head {
            rows: task.1,
            group: self.group,
            dim: self.dim,
            scale: self.scale(),
            queries: self.take(queries, task, self.group * self.dim),
            keys: transposed(&self.take(keys, task, self.dim), self.dim),
            values: transposed(&self.take(values, task, self.dim), self.dim),
        }
    }
}

/// `[rows, columns]` as `[columns, rows]`.
fn transposed(matrix: &[f32], columns: usize) -> Vec<f32> {
    let column = |column: usize| matrix.iter().skip(column).step_by(columns).copied();
    (0..columns).flat_map(column).collect()
}

/// One key head of one text.
pub(in crate::train) struct Head {
    rows: usize,
    group: usize,
    dim: usize,
    scale: f32,
    /// `[rows, group, dim]`
    queries: Vec<f32>,
    /// `[dim, rows]`, as are values.
    keys: Vec<f32>,
    values: Vec<f32>,
}

impl Head {
    /// The weights of what a row sees by one query, in `weights[..=row]`.
    #[inline(always)]
    fn weigh(&self, row: usize, query: &[f32], weights: &mut [f32]) {
        let weights = &mut weights[..=row];
        weights.fill(0.0);
        for (d, &number) in query.iter().enumerate() {
            add(weights, &self.keys[d * self.rows..][..=row], number * self.scale);
        }
        softmax(weights);
    }
}

/// Scores become their softmax.
#[inline(always)]
pub(in crate::train) fn softmax(scores: &mut [f32]) {
    let mut highest = f32::MIN;
    for &score in scores.iter() {
        highest = if score > highest { score } else { highest };
    }
    for score in scores.iter_mut() {
        *score = exp(*score - highest);
    }
    let inverse = 1.0 / sum(scores);
    for score in scores.iter_mut() {
        *score *= inverse;
    }
}

/// `to += factor * from`.
#[inline(always)]
pub(in crate::train) fn add(to: &mut [f32], from: &[f32], factor: f32) {
    for (to, from) in to.iter_mut().zip(from) {
        *to += factor * from;
    }
}

const LANES: usize = 16;

/// Sum of products.
#[inline(always)]
pub(in crate::train) fn dot(a: &[f32], b: &[f32]) -> f32 {
    let ((a, a_rest), (b, b_rest)) = (a.as_chunks::<LANES>(), b.as_chunks::<LANES>());
    let mut sums = [0.0f32; LANES];
    for (a, b) in a.iter().zip(b) {
        for ((sum, a), b) in sums.iter_mut().zip(a).zip(b) {
            *sum += a * b;
        }
    }
    sums.iter().sum::<f32>() + a_rest.iter().zip(b_rest).map(|(a, b)| a * b).sum::<f32>()
}

#[inline(always)]
fn sum(numbers: &[f32]) -> f32 {
    let (chunks, rest) = numbers.as_chunks::<LANES>();
    let mut sums = [0.0f32; LANES];
    for chunk in chunks {
        for (sum, number) in sums.iter_mut().zip(chunk) {
            *sum += number;
        }
    }
    sums.iter().sum::<f32>() + rest.iter().sum::<f32>()
}

vectorised! {
    /// What queries make of the values, `[rows, group, dim]`.
    Forward { head: &'a Head } -> Vec<f32> {
        let Head { rows, dim, queries, values, .. } = head;
        let mut weights = vec![0.0; *rows];
        let mut out = vec![0.0; queries.len()];
        for (place, (query, out)) in queries.chunks_exact(*dim).zip(out.chunks_exact_mut(*dim)).enumerate() {
            let row = place / head.group;
            head.weigh(row, query, &mut weights);
            for (d, out) in out.iter_mut().enumerate() {
                *out = dot(&weights[..=row], &values[d * rows..][..=row]);
            }
        }
        out
    }
}

/// Gradients of queries, keys and values, in the shapes of [`Head`].
pub(in crate::train) struct Gradients {
    queries: Vec<f32>,
    keys: Vec<f32>,
    values: Vec<f32>,
}

vectorised! {
    /// The way back from the gradient of what [`Forward`] gives.
    Backward { head: &'a Head, of_out: &'a [f32] } -> Gradients {
        let Head { rows, dim, .. } = *head;
        let (mut weights, mut of_weights) = (vec![0.0; rows], vec![0.0; rows]);
        let zeros = |like: &[f32]| vec![0.0; like.len()];
        let mut found =
            Gradients { queries: zeros(&head.queries), keys: zeros(&head.keys), values: zeros(&head.values) };
        let places = head.queries.chunks_exact(dim).zip(of_out.chunks_exact(dim)).zip(found.queries.chunks_exact_mut(dim));
        for (place, ((query, of_out), of_query)) in places.enumerate() {
            let row = place / head.group;
            head.weigh(row, query, &mut weights);
            let (weights, of_weights) = (&weights[..=row], &mut of_weights[..=row]);
            of_weights.fill(0.0);
            for (d, &gradient) in of_out.iter().enumerate() {
                add(of_weights, &head.values[d * rows..][..=row], gradient);
                add(&mut found.values[d * rows..][..=row], weights, gradient);
            }
            // From weights to the scores that they are the softmax of.
            let mean = dot(weights, of_weights);
            for (gradient, weight) in of_weights.iter_mut().zip(weights) {
                *gradient = weight * (*gradient - mean) * head.scale;
            }
            for (d, (of_query, &number)) in of_query.iter_mut().zip(query).enumerate() {
                *of_query = dot(of_weights, &head.keys[d * rows..][..=row]);
                add(&mut found.keys[d * rows..][..=row], of_weights, number);
            }
        }
        found
    }
}

/// The values of a contiguous piece of memory.
fn slice<'s>(storage: &'s CpuStorage, layout: &Layout) -> CandleResult<&'s [f32]> {
    match (storage, layout.contiguous_offsets()) {
        (CpuStorage::F32(values), Some((start, end))) => Ok(&values[start..end]),
        _ => candle_core::bail!("rows are float32 and contiguous"),
    }
}

impl CustomOp3 for Heads {
    fn name(&self) -> &'static str {
        "attention"
    }

    fn cpu_fwd(
        &self,
        queries: &CpuStorage,
        of_queries: &Layout,
        keys: &CpuStorage,
        of_keys: &Layout,
        values: &CpuStorage,
        of_values: &Layout,
    ) -> CandleResult<(CpuStorage, Shape)> {
        let (queries, keys, values) = (slice(queries, of_queries)?, slice(keys, of_keys)?, slice(values, of_values)?);
        let (arch, tasks) = (Arch::new(), self.tasks());
        let mixed = tasks.par_iter().map(|&task| {
            let head = self.head(task, queries, keys, values);
            arch.dispatch(Forward { head: &head })
        });
        let mixed: Vec<Vec<f32>> = mixed.collect();
        let mixed = self.join(&tasks, mixed.into_iter(), self.group * self.dim);
        Ok((CpuStorage::F32(mixed), of_queries.shape().clone()))
    }

    fn bwd(
        &self,
        queries: &Tensor,
        keys: &Tensor,
        values: &Tensor,
        _: &Tensor,
        gradient: &Tensor,
    ) -> CandleResult<(Option<Tensor>, Option<Tensor>, Option<Tensor>)> {
        let flat = |tensor: &Tensor| tensor.flatten_all()?.to_vec1::<f32>();
        let (arch, tasks) = (Arch::new(), self.tasks());
        let (numbers, gradient) = ((flat(queries)?, flat(keys)?, flat(values)?), flat(gradient)?);
        let found = tasks.par_iter().map(|&task| {
            let head = self.head(task, &numbers.0, &numbers.1, &numbers.2);
            let of_out = self.take(&gradient, task, self.group * self.dim);
            arch.dispatch(Backward { head: &head, of_out: &of_out })
        });
        let found: Vec<Gradients> = found.collect();
        let tensor = |parts: &mut dyn Iterator<Item = Vec<f32>>, part: usize, like: &Tensor| {
            Tensor::from_vec(self.join(&tasks, parts, part), like.shape(), like.device()).map(Some)
        };
        // A matrix of `dim` rows turned is one of `dim` columns.
        let by_row = |matrix: &Vec<f32>| transposed(matrix, matrix.len() / self.dim);
        Ok((
            tensor(&mut found.iter().map(|found| found.queries.clone()), self.group * self.dim, queries)?,
            tensor(&mut found.iter().map(|found| by_row(&found.keys)), self.dim, keys)?,
            tensor(&mut found.iter().map(|found| by_row(&found.values)), self.dim, values)?,
        ))
    }
}

#[cfg(test)]
mod tests {
    use candle_core::Var;

    use super::*;
    use crate::train::random::Random;

    fn random(seed: u64, shape: (usize, usize)) -> Var {
        let mut random = Random::new(seed, 0);
        let values = (0..shape.0 * shape.1).map(|_| 4.0 * random.fraction() - 2.0).collect::<Vec<_>>();
        Var::from_tensor(&Tensor::from_vec(values, shape, &Device::Cpu).unwrap()).unwrap()
    }

    fn difference(a: &Tensor, b: &Tensor) -> f32 {
        (a - b).unwrap().abs().unwrap().max_all().unwrap().to_scalar().unwrap()
    }

    #[test]
    fn both_ways_agree_and_so_do_their_gradients() {
        let shape = Heads { lengths: vec![1, 37, 5], key_heads: 2, group: 3, dim: 8 };
        let (queries, keys, values) = (random(1, (43, 48)), random(2, (43, 16)), random(3, (43, 16)));
        let of_out = random(4, (43, 48)).as_detached_tensor();
        let found = queries.apply_op3(&keys, &values, shape.clone()).unwrap();
        let expected = shape.by_tensors(&queries, &keys, &values).unwrap();
        assert!(difference(&found, &expected) < 1e-5);
        let gradients = |out: &Tensor| (out * &of_out).unwrap().sum_all().unwrap().backward().unwrap();
        let (found, expected) = (gradients(&found), gradients(&expected));
        for var in [&queries, &keys, &values] {
            let (found, expected) = (found.get(var).unwrap(), expected.get(var).unwrap());
            assert!(difference(found, expected) < 1e-4, "{}", difference(found, expected));
            assert!(difference(expected, &expected.zeros_like().unwrap()) > 0.1);
        }
    }
}
