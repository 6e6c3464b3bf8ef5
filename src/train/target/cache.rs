//! What a sequence remembers: keys and values of its positions, in the order in which attention reads them.

use crate::model::ModelConfig;

/// Positions of a block of keys, and numbers that are computed side by side.
pub(super) const LANES: usize = 16;

/// Keys and values of one head of one layer.
#[derive(Debug, Clone, Default)]
pub(super) struct HeadCache {
    /// Blocks of [`LANES`] positions, the position fastest: `[blocks, head_dim, LANES]`.
    pub keys: Vec<f32>,
    /// `[positions, width]`, where the width is the head's, rounded up to whole [`LANES`].
    pub values: Vec<f32>,
}

/// Keys and values of one sequence. Positions behind the committed ones hold the rows of the last tree.
#[derive(Debug, Clone)]
pub struct KvCache {
    head_dim: usize,
    kv_heads: usize,
    /// Committed positions.
    len: usize,
    /// Positions there is room for: whole blocks.
    capacity: usize,
    /// `[layers, kv_heads]`.
    heads: Vec<HeadCache>,
}

/// Width of a row of values.
pub(super) fn value_width(head_dim: usize) -> usize {
    head_dim.next_multiple_of(LANES)
}

/// Where number `d` of the key at `slot` is.
pub(super) fn key_index(head_dim: usize, slot: usize, d: usize) -> usize {
    (slot / LANES * head_dim + d) * LANES + slot % LANES
}

impl KvCache {
    pub(super) fn new(config: &ModelConfig) -> Self {
        let heads = config.num_hidden_layers * config.num_key_value_heads;
        Self {
            head_dim: config.head_dim,
            kv_heads: config.num_key_value_heads,
            len: 0,
            capacity: 0,
            heads: vec![HeadCache::default(); heads],
        }
    }

    /// Committed positions.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether nothing is committed.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Forgets every position from `length` on; the memory stays.
    pub fn truncate(&mut self, length: usize) {
        self.len = self.len.min(length);
    }

    /// Makes room for so many positions in all.
    pub fn reserve(&mut self, positions: usize) {
        if positions <= self.capacity {
            return;
        }
        self.capacity = positions.next_multiple_of(LANES);
        for head in &mut self.heads {
            // Blocks and rows follow one another, so what is there stays in place.
            head.keys.resize(self.capacity * self.head_dim, 0.0);
            head.values.resize(self.capacity * value_width(self.head_dim), 0.0);
        }
    }

    /// Makes room for so many more positions, and for as many again as there are where that is not foreseen.
    pub(super) fn make_room(&mut self, more: usize) {
        if self.len + more > self.capacity {
            self.reserve((self.len + more).max(2 * self.capacity));
        }
    }

    pub(super) fn heads_mut(&mut self, layer: usize) -> &mut [HeadCache] {
        &mut self.heads[layer * self.kv_heads..(layer + 1) * self.kv_heads]
    }

    pub(super) fn heads(&self, layer: usize) -> &[HeadCache] {
        &self.heads[layer * self.kv_heads..(layer + 1) * self.kv_heads]
    }

    /// Keys, as attention reads them, and values of a layer at all committed positions, `[positions, keys then values]`.
    pub fn rows(&self, layer: usize) -> Vec<f32> {
        let mut rows = Vec::with_capacity(self.len * 2 * self.kv_heads * self.head_dim);
        for slot in 0..self.len {
            for head in self.heads(layer) {
                rows.extend((0..self.head_dim).map(|d| head.keys[key_index(self.head_dim, slot, d)]));
            }
            for head in self.heads(layer) {
                rows.extend_from_slice(&head.values[slot * value_width(self.head_dim)..][..self.head_dim]);
            }
        }
        rows
    }

    /// Commits the next so many positions as they are.
    pub(super) fn keep(&mut self, count: usize) {
        self.len += count;
    }

    /// Commits nodes of the tree of the last pass, in this order; they ascend, as paths do.
    ///
    /// # Panics
    /// When they do not ascend.
    pub fn commit(&mut self, nodes: &[usize]) {
        assert!(nodes.is_sorted_by(|a, b| a < b), "nodes of a path ascend");
        let width = value_width(self.head_dim);
        for (place, &node) in nodes.iter().enumerate().filter(|&(place, &node)| place != node) {
            let (from, to) = (self.len + node, self.len + place);
            for head in &mut self.heads {
                for d in 0..self.head_dim {
                    head.keys[key_index(self.head_dim, to, d)] = head.keys[key_index(self.head_dim, from, d)];
                }
                head.values.copy_within(from * width..(from + 1) * width, to * width);
            }
        }
        self.len += nodes.len();
    }
}
