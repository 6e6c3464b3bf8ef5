//! The best sparse trees by what was counted: which rank paths the text took.
//!
//! A rank path says which child is right at each level. A path is as often right as the text goes along it, and what a tree brings is
//! the sum over its nodes. So the best tree of n nodes has the n - 1 most frequent paths: none is more frequent than its parent. This
//! needs joint counts; products of each depth's own frequencies overestimate deep paths, since the easy places of a text are easy for
//! every head.

use std::collections::BTreeMap;

/// Ranks from here on are not counted.
pub const MAX_RANK: usize = 10;
/// Nodes of a tree at most.
pub const MAX_NODES: usize = 32;

/// How often the text took each rank path.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PathCounts {
    counts: BTreeMap<Vec<usize>, u64>,
    places: u64,
}

impl PathCounts {
    /// Counts a place of a text, and the ranks at which its next tokens stood, as far as they were among the candidates.
    pub fn add(&mut self, path: &[usize]) {
        self.places += 1;
        for end in 1..=path.len() {
            *self.counts.entry(path[..end].to_vec()).or_default() += 1;
        }
    }

    /// Places that were counted.
    pub fn places(&self) -> u64 {
        self.places
    }

    /// The rank paths by descending frequency, at most `count`: the first n - 1 are the best tree of n nodes.
    pub fn best(&self, count: usize) -> Vec<Vec<usize>> {
        let mut paths: Vec<(&Vec<usize>, u64)> = self.counts.iter().map(|(path, &count)| (path, count)).collect();
        // Of equally frequent ones the shorter stands first, so that parents stand before their children.
        paths.sort_by(|(a, a_count), (b, b_count)| b_count.cmp(a_count).then(a.len().cmp(&b.len())).then(a.cmp(b)));
        paths.into_iter().take(count).map(|(path, _)| path.clone()).collect()
    }

    /// Tokens that a pass with the tree of these paths brings, the model's own among them.
    pub fn expected(&self, paths: &[Vec<usize>]) -> f64 {
        self.tokens(self.right(paths))
    }

    fn right(&self, paths: &[Vec<usize>]) -> u64 {
        paths.iter().filter_map(|path| self.counts.get(path)).sum()
    }

    /// Tokens of a pass whose tree has so many right nodes in all places together.
    fn tokens(&self, right: u64) -> f64 {
        1.0 + right as f64 / self.places.max(1) as f64
    }

    /// Tokens that a pass with the best tree of so many nodes brings.
    pub fn expected_of_best(&self, nodes: usize) -> f64 {
        self.expected(&self.best(nodes.saturating_sub(1)))
    }

    /// The dense tree of at most so many nodes that brings most: children of every node at each depth.
    pub fn best_dense(&self, nodes: usize) -> (Vec<usize>, f64) {
        let mut best = (Vec::new(), 0);
        self.widen(&mut Vec::new(), &[Vec::new()], (nodes.saturating_sub(1), 0), &mut best);
        (best.0, self.tokens(best.1))
    }

    /// Tries every count for one more level below `level`, with room for so many more nodes and so many right ones above.
    fn widen(
        &self,
        counts: &mut Vec<usize>,
        level: &[Vec<usize>],
        (room, above): (usize, u64),
        best: &mut (Vec<usize>, u64),
    ) {
        for count in 1..=(room / level.len()).min(MAX_RANK) {
            let below: Vec<Vec<usize>> =
                level.iter().flat_map(|path| (0..count).map(|rank| [&path[..], &[rank]].concat())).collect();
            let right = above + self.right(&below);
            if right == above {
                continue;
            }
            counts.push(count);
            if right > best.1 {
                *best = (counts.clone(), right);
            }
            self.widen(counts, &below, (room - below.len(), right), best);
            counts.pop();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(paths: &[(&[usize], usize)]) -> PathCounts {
        let mut counts = PathCounts::default();
        for &(path, times) in paths {
            (0..times).for_each(|_| counts.add(path));
        }
        counts
    }

    #[test]
    fn the_best_tree_is_found_by_joint_counts() {
        // Depth 1 is right with ranks 0 and 1 equally often; what follows rank 1 is always its second candidate.
        let counts = counts(&[(&[0], 4), (&[1, 1, 0], 4), (&[], 2)]);
        let paths = counts.best(MAX_NODES - 1);
        assert_eq!(paths, [vec![0], vec![1], vec![1, 1], vec![1, 1, 0]]);
        let expected: Vec<f64> = (1..=6).map(|nodes| counts.expected_of_best(nodes)).collect();
        assert_eq!(expected, [1.0, 1.4, 1.8, 2.2, 2.6, 2.6]);
        assert_eq!(counts.places(), 10);
        // No dense tree of five nodes has both: the best are two children, or a chain and its siblings.
        assert_eq!(counts.best_dense(5), (vec![2], 1.8));
        assert_eq!(counts.best_dense(7), (vec![2, 2], 2.2));
        assert_eq!(counts.best_dense(1), (vec![], 1.0));
        assert!((counts.best_dense(11).1 - 2.6).abs() < 1e-9);
    }

    #[test]
    fn no_tree_of_as_many_nodes_is_better() {
        let counts = counts(&[(&[0, 0], 9), (&[0, 1], 3), (&[1, 0], 5), (&[2], 4), (&[0], 2), (&[3, 0], 1), (&[], 7)]);
        let all = counts.best(100);
        for nodes in 1..=all.len() {
            let best = counts.expected_of_best(nodes);
            for subset in 0u32..1 << all.len() {
                let paths: Vec<Vec<usize>> =
                    (0..all.len()).filter(|i| subset >> i & 1 == 1).map(|i| all[i].clone()).collect();
                let has = |path: &[usize]| path.is_empty() || paths.iter().any(|other| other == path);
                if paths.len() == nodes - 1 && paths.iter().all(|path| has(&path[..path.len() - 1])) {
                    assert!(counts.expected(&paths) <= best + 1e-9, "{paths:?}");
                }
            }
            assert!(counts.best_dense(nodes).1 <= best + 1e-9);
        }
    }
}
