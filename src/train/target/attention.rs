//! Attention of the new rows of one sequence over one head of its cache.
//!
//! Inner loops go over [`LANES`] numbers that lie side by side, so that the compiler makes vector instructions of them; `pulp` chooses
//! at run time those that the processor has.

use pulp::{Arch, NullaryFnOnce};

use super::NewTokens;
use super::cache::{HeadCache, LANES, key_index, value_width};
use super::rows::exp;
use crate::model::ModelConfig;

/// Query heads that are computed together at most.
const MOST_QUERIES: usize = 4;

/// What the attention of a layer is like.
pub(super) struct Attention<'a> {
    head_dim: usize,
    /// Query heads, and those of a key head.
    q_heads: usize,
    group: usize,
    kv_heads: usize,
    bias: &'a [f32],
    scale: f32,
    arch: Arch,
}

/// The work of one key head for one sequence.
pub(super) struct Task<'a> {
    pub head: usize,
    /// Committed positions.
    pub committed: usize,
    pub new: NewTokens<'a>,
    /// `[rows, q + 2 kv]`.
    pub qkv: &'a [f32],
    /// `[rows, head_dim]`: cosines and sines.
    pub rotations: &'a [f32],
    pub cache: &'a mut HeadCache,
    /// `[rows, group * head_dim]`.
    pub out: &'a mut [f32],
}

impl<'a> Attention<'a> {
    pub fn new(config: &ModelConfig, bias: &'a [f32]) -> Self {
        let (q_heads, kv_heads) = (config.num_attention_heads, config.num_key_value_heads);
        Self {
            head_dim: config.head_dim,
            q_heads,
            group: q_heads / kv_heads,
            kv_heads,
            bias,
            scale: 1.0 / (config.head_dim as f32).sqrt(),
            arch: Arch::new(),
        }
    }

    /// Puts the keys and values of the rows into the cache, then lets every row look back.
    pub fn run(&self, task: Task<'_>) {
        let Self { head_dim, group, .. } = *self;
        let row_width = (self.q_heads + 2 * self.kv_heads) * head_dim;
        let rows = task.qkv.chunks_exact(row_width).zip(task.rotations.chunks_exact(head_dim));
        let mut part = vec![0.0; head_dim];
        for (slot, (qkv, rotations)) in (task.committed..).zip(rows.clone()) {
            self.load(qkv, self.q_heads + task.head, &mut part);
            rotate(&mut part, rotations);
            for (d, &value) in part.iter().enumerate() {
                task.cache.keys[key_index(head_dim, slot, d)] = value;
            }
            self.load(qkv, self.q_heads + self.kv_heads + task.head, &mut part);
            task.cache.values[slot * value_width(head_dim)..][..head_dim].copy_from_slice(&part);
        }
        let mut queries = vec![0.0; group * head_dim];
        let mut scratch = Scratch::default();
        for (row, ((qkv, rotations), out)) in rows.zip(task.out.chunks_exact_mut(group * head_dim)).enumerate() {
            for (i, query) in queries.chunks_exact_mut(head_dim).enumerate() {
                self.load(qkv, task.head * group + i, query);
            }
            let seen = Seen { committed: task.committed, row, new: task.new };
            self.look_back(&mut queries, rotations, (seen, &*task.cache), &mut scratch, out);
        }
    }

    /// What the queries of one key head, `[group * head_dim]`, which are not rotated yet, make of what they see.
    fn look_back(
        &self,
        queries: &mut [f32],
        rotations: &[f32],
        (seen, cache): (Seen<'_>, &HeadCache),
        scratch: &mut Scratch,
        out: &mut [f32],
    ) {
        let head_dim = self.head_dim;
        for query in queries.chunks_exact_mut(head_dim) {
            rotate(query, rotations);
            query.iter_mut().for_each(|value| *value *= self.scale);
        }
        let parts = queries.chunks(MOST_QUERIES * head_dim).zip(out.chunks_mut(MOST_QUERIES * head_dim));
        for (queries, out) in parts {
            let look = Look { head_dim, queries, seen, cache, scratch, out };
            match queries.len() / head_dim {
                1 => self.arch.dispatch(LookBack::<1>(look)),
                2 => self.arch.dispatch(LookBack::<2>(look)),
                3 => self.arch.dispatch(LookBack::<3>(look)),
                _ => self.arch.dispatch(LookBack::<MOST_QUERIES>(look)),
            }
        }
    }

    /// Lets queries that stand at a committed position, `[q]` and not rotated yet, look back at a layer, from that position on. They
    /// become what they make of it.
    pub fn look_from(&self, queries: &mut [f32], position: usize, rotations: &[f32], cache: &[HeadCache]) {
        let (mut scratch, mut out) = (Scratch::default(), vec![0.0; self.group * self.head_dim]);
        let seen = Seen { committed: position, row: 0, new: NewTokens::Text(&[]) };
        for (queries, cache) in queries.chunks_exact_mut(out.len()).zip(cache) {
            self.look_back(queries, rotations, (seen, cache), &mut scratch, &mut out);
            queries.copy_from_slice(&out);
        }
    }

    /// One head's part of a row of q, k and v, with its bias.
    fn load(&self, qkv: &[f32], head: usize, part: &mut [f32]) {
        let place = head * self.head_dim..(head + 1) * self.head_dim;
        part.copy_from_slice(&qkv[place.clone()]);
        if let Some(bias) = self.bias.get(place) {
            part.iter_mut().zip(bias).for_each(|(value, bias)| *value += bias);
        }
    }
}

fn rotate(part: &mut [f32], rotations: &[f32]) {
    for (pair, rotation) in part.chunks_exact_mut(2).zip(rotations.chunks_exact(2)) {
        let (x, y) = (pair[0], pair[1]);
        pair[0] = x * rotation[0] - y * rotation[1];
        pair[1] = x * rotation[1] + y * rotation[0];
    }
}

/// Which slots a row sees.
#[derive(Clone, Copy)]
struct Seen<'a> {
    committed: usize,
    row: usize,
    new: NewTokens<'a>,
}

impl Seen<'_> {
    /// One more than the last slot.
    fn end(&self) -> usize {
        self.committed + self.row + 1
    }

    /// Gives slots of trees that are not on the row's path no weight, nor the text behind where a tree of a forest stands.
    fn mask(&self, scores: &mut [f32]) {
        let parent = |row: usize| match self.new {
            NewTokens::Text(_) => None,
            NewTokens::Tree(tree) => (row > 0).then(|| tree.parents()[row]),
            NewTokens::Forest(forest) => forest.parents[row],
        };
        match self.new {
            NewTokens::Text(_) => return,
            NewTokens::Tree(_) => {}
            NewTokens::Forest(forest) => scores[forest.starts[self.row]..self.committed].fill(f32::NEG_INFINITY),
        }
        let mut above = parent(self.row);
        for node in (0..self.row).rev() {
            if above == Some(node) {
                above = parent(node);
            } else {
                scores[self.committed + node] = f32::NEG_INFINITY;
            }
        }
    }
}

/// Memory that is used again for every row.
#[derive(Default)]
struct Scratch {
    /// Scores, then weights, of each query, `[queries, whole blocks]`.
    scores: Vec<f32>,
    /// Sums of weighted values, `[queries, width]`.
    sums: Vec<f32>,
}

/// Some queries of one row.
struct Look<'a> {
    head_dim: usize,
    queries: &'a [f32],
    seen: Seen<'a>,
    cache: &'a HeadCache,
    scratch: &'a mut Scratch,
    out: &'a mut [f32],
}

/// The work on `Q` queries. No closure, since it has to be compiled as part of the function that may use the processor's instructions.
struct LookBack<'a, const Q: usize>(Look<'a>);

impl<const Q: usize> NullaryFnOnce for LookBack<'_, Q> {
    type Output = ();

    #[inline(always)]
    fn call(self) {
        let Look { head_dim, queries, seen, cache, scratch, out } = self.0;
        let (end, width) = (seen.end(), value_width(head_dim));
        let slots = end.next_multiple_of(LANES);
        let Scratch { scores, sums } = scratch;
        scores.resize(scores.len().max(Q * slots), 0.0);
        sums.clear();
        sums.resize(Q * width, 0.0);
        for (block, keys) in cache.keys.chunks_exact(head_dim * LANES).take(slots / LANES).enumerate() {
            let found = block_scores::<Q>(queries, head_dim, keys);
            for (query, found) in found.iter().enumerate() {
                scores[query * slots + block * LANES..][..LANES].copy_from_slice(found);
            }
        }
        let mut totals = [0.0; Q];
        for (total, scores) in totals.iter_mut().zip(scores.chunks_exact_mut(slots)) {
            seen.mask(scores);
            *total = weigh(scores, end);
        }
        for (block, values) in cache.values.chunks_exact(width * LANES).take(slots / LANES).enumerate() {
            let weights: [[f32; LANES]; Q] = std::array::from_fn(|query| {
                let mut weights = [0.0; LANES];
                weights.copy_from_slice(&scores[query * slots + block * LANES..][..LANES]);
                weights
            });
            add_values::<Q>(&weights, values, width, sums);
        }
        for ((out, sums), total) in out.chunks_exact_mut(head_dim).zip(sums.chunks_exact(width)).zip(totals) {
            let inverse = 1.0 / total;
            out.iter_mut().zip(sums).for_each(|(out, sum)| *out = sum * inverse);
        }
    }
}

/// Products of queries `[Q, head_dim]` with a block of keys.
#[inline(always)]
fn block_scores<const Q: usize>(queries: &[f32], head_dim: usize, keys: &[f32]) -> [[f32; LANES]; Q] {
    let queries: [&[f32]; Q] = std::array::from_fn(|query| &queries[query * head_dim..(query + 1) * head_dim]);
    let mut sums = [[0.0f32; LANES]; Q];
    for (d, keys) in keys.as_chunks::<LANES>().0.iter().enumerate().take(head_dim) {
        for (sums, query) in sums.iter_mut().zip(queries) {
            let factor = query[d];
            for (sum, key) in sums.iter_mut().zip(keys) {
                *sum = key.mul_add(factor, *sum);
            }
        }
    }
    sums
}

/// Turns scores into weights that are yet to be divided by their sum, which it returns; from slot `end` on weights are 0.
#[inline(always)]
fn weigh(scores: &mut [f32], end: usize) -> f32 {
    scores[end..].fill(f32::NEG_INFINITY);
    let blocks = scores.as_chunks_mut::<LANES>().0;
    let mut highest = [f32::NEG_INFINITY; LANES];
    for block in blocks.iter() {
        for (highest, score) in highest.iter_mut().zip(block) {
            *highest = if *score > *highest { *score } else { *highest };
        }
    }
    let highest = highest.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let mut totals = [0.0f32; LANES];
    for block in blocks {
        for (total, score) in totals.iter_mut().zip(block) {
            *score = exp(*score - highest);
            *total += *score;
        }
    }
    totals.iter().sum()
}

/// Adds a block of values `[LANES, width]`, weighted, to `sums` `[Q, width]`.
#[inline(always)]
fn add_values<const Q: usize>(weights: &[[f32; LANES]; Q], values: &[f32], width: usize, sums: &mut [f32]) {
    for piece in (0..width).step_by(LANES) {
        let mut found = [[0.0f32; LANES]; Q];
        for (slot, row) in values.chunks_exact(width).enumerate().take(LANES) {
            let Some((row, _)) = row[piece..].split_first_chunk::<LANES>() else { break };
            for (found, weights) in found.iter_mut().zip(weights) {
                let weight = weights[slot];
                for (sum, value) in found.iter_mut().zip(row) {
                    *sum = value.mul_add(weight, *sum);
                }
            }
        }
        for (query, found) in found.iter().enumerate() {
            let place = &mut sums[query * width + piece..][..LANES];
            place.iter_mut().zip(found).for_each(|(sum, found)| *sum += found);
        }
    }
}
