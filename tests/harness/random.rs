//! Random numbers with a seed: the same weights, prompts and trees in every run (SplitMix64; Steele, Lea, Flood 2014).

use draftree::speculate::tree::Tree;

/// A generator.
#[derive(Debug, Clone)]
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub fn word(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let x = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ (x >> 31)
    }

    /// Below `end`.
    pub fn below(&mut self, end: usize) -> usize {
        (self.word() % end as u64) as usize
    }

    /// From -1 to 1.
    pub fn unit(&mut self) -> f32 {
        (self.word() >> 40) as f32 / (1 << 23) as f32 - 1.0
    }

    pub fn bytes(&mut self, count: usize) -> Vec<u8> {
        (0..count).map(|_| self.word() as u8).collect()
    }

    pub fn tokens(&mut self, count: usize, vocab_size: usize) -> Vec<u32> {
        (0..count).map(|_| self.below(vocab_size) as u32).collect()
    }

    /// A tree whose nodes hang from any earlier one, a third of them from the last: both deep and wide.
    pub fn tree(&mut self, nodes: usize, vocab_size: usize) -> Tree {
        let parents: Vec<usize> = (0..nodes)
            .map(|node| match self.below(3) {
                0 => node.saturating_sub(1),
                _ => self.below(node.max(1)),
            })
            .collect();
        Tree::new(&self.tokens(nodes, vocab_size), &parents).expect("parents stand before their children")
    }

    /// A root with `nodes - 1` children: rows that see the same context and stand at the same position.
    pub fn star(&mut self, nodes: usize, vocab_size: usize) -> Tree {
        Tree::new(&self.tokens(nodes, vocab_size), &vec![0; nodes]).expect("a star is a tree")
    }

    /// A chain.
    pub fn chain(&mut self, nodes: usize, vocab_size: usize) -> Tree {
        Tree::chain(&self.tokens(nodes, vocab_size)).expect("a chain is a tree")
    }
}
