//! The kernels as plain functions on slices: what a pass computes, in reading order. Each is the oracle of the shader of its name.
//!
//! Rows are independent, so every function takes one row. Written to be read and compared, not to be fast.

use crate::model::ModelConfig;

/// A matrix `[rows, columns]` of outputs by inputs, in float32.
#[derive(Debug, Clone)]
pub struct MatrixF32 {
    /// Outputs.
    pub rows: usize,
    /// Inputs.
    pub columns: usize,
    /// Row after row.
    pub values: Vec<f32>,
}

impl MatrixF32 {
    /// Row `row`, `[columns]`.
    pub fn row(&self, row: usize) -> &[f32] {
        &self.values[row * self.columns..(row + 1) * self.columns]
    }
}

/// `weights . x`, `[rows]`. Eight partial sums, so that the compiler can use vector instructions.
pub fn matmul(weights: &MatrixF32, x: &[f32]) -> Vec<f32> {
    (0..weights.rows).map(|row| dot(weights.row(row), x)).collect()
}

/// Sum of products.
pub fn dot(a: &[f32], b: &[f32]) -> f32 {
    let mut sums = [0.0f32; 8];
    let (a_chunks, b_chunks) = (a.chunks_exact(8), b.chunks_exact(8));
    let rest: f32 = a_chunks.remainder().iter().zip(b_chunks.remainder()).map(|(x, y)| x * y).sum();
    for (x, y) in a_chunks.zip(b_chunks) {
        for i in 0..8 {
            sums[i] += x[i] * y[i];
        }
    }
    sums.iter().sum::<f32>() + rest
}

/// `x / rms(x) * gain` (Zhang & Sennrich 2019).
pub fn rms_norm(x: &[f32], gain: &[f32], epsilon: f32) -> Vec<f32> {
    let mean_square = x.iter().map(|v| v * v).sum::<f32>() / x.len() as f32;
    let factor = 1.0 / (mean_square + epsilon).sqrt();
    x.iter().zip(gain).map(|(v, g)| v * factor * g).collect()
}

/// Row `token` of the embedding.
pub fn embed(embedding: &MatrixF32, token: u32) -> Vec<f32> {
    embedding.row(token as usize).to_vec()
}

/// Queries `[q]`, keys `[kv]` and values `[kv]` of one row at a position whose rotations are `[head_dim / 2, 2]` cosines and sines.
pub fn qkv(
    config: &ModelConfig,
    weights: &MatrixF32,
    bias: &[f32],
    normed: &[f32],
    rotations: &[f32],
) -> (Vec<f32>, Vec<f32>, Vec<f32>) {
    let mut all = matmul(weights, normed);
    for (value, bias) in all.iter_mut().zip(bias) {
        *value += bias;
    }
    let values = all.split_off(config.q_size() + config.kv_size());
    rotate(&mut all, config.head_dim, rotations);
    let keys = all.split_off(config.q_size());
    (all, keys, values)
}

/// Rotates the pairs of heads of this width.
pub fn rotate(heads: &mut [f32], head_dim: usize, rotations: &[f32]) {
    for head in heads.chunks_exact_mut(head_dim) {
        for (pair, rotation) in head.chunks_exact_mut(2).zip(rotations.chunks_exact(2)) {
            let (x, y) = (pair[0], pair[1]);
            pair[0] = x * rotation[0] - y * rotation[1];
            pair[1] = x * rotation[1] + y * rotation[0];
        }
    }
}

/// Cosines and sines of a position, `[frequencies, 2]`.
pub fn rotations(frequencies: &[f32], position: usize) -> Vec<f32> {
    let angles = frequencies.iter().map(|frequency| f64::from(position as f32 * frequency));
    angles.flat_map(|angle| [angle.cos() as f32, angle.sin() as f32]).collect()
}

/// Softmax attention of one row's queries over the keys and values of the positions it sees, first to last.
pub fn attention(config: &ModelConfig, queries: &[f32], keys: &[&[f32]], values: &[&[f32]]) -> Vec<f32> {
    let dim = config.head_dim;
    let per_kv = config.num_attention_heads / config.num_key_value_heads;
    let scale = 1.0 / (dim as f32).sqrt();
    let mut mixed = vec![0.0; queries.len()];
    for (head, out) in mixed.chunks_exact_mut(dim).enumerate() {
        let query = &queries[head * dim..(head + 1) * dim];
        let kv = head / per_kv * dim..(head / per_kv + 1) * dim;
        let scores: Vec<f32> = keys.iter().map(|key| dot(query, &key[kv.clone()]) * scale).collect();
        let highest = scores.iter().copied().fold(f32::MIN, f32::max);
        let weights: Vec<f32> = scores.iter().map(|score| (score - highest).exp()).collect();
        let total: f32 = weights.iter().sum();
        for (weight, value) in weights.iter().zip(values) {
            for (o, v) in out.iter_mut().zip(&value[kv.clone()]) {
                *o += weight / total * v;
            }
        }
    }
    mixed
}

/// `residual += weights . x`.
pub fn project(residual: &mut [f32], weights: &MatrixF32, x: &[f32]) {
    for (r, y) in residual.iter_mut().zip(matmul(weights, x)) {
        *r += y;
    }
}

/// `silu(gate) * up`, where gate and up rows alternate (SwiGLU, Shazeer 2020), `[ffn]`.
pub fn gate_up(weights: &MatrixF32, normed: &[f32]) -> Vec<f32> {
    matmul(weights, normed).chunks_exact(2).map(|pair| pair[0] / (1.0 + (-pair[0]).exp()) * pair[1]).collect()
}

/// Logits `[vocab]` of a normed row.
pub fn lm_head(weights: &MatrixF32, normed: &[f32]) -> Vec<f32> {
    matmul(weights, normed)
}
