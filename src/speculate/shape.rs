//! The shape of a draft tree: grown best first, or fixed as a list of rank paths.
//!
//! A rank path says which child to take at each level: `[0, 2]` is the third-best child of the best child of the root. Medusa's sparse
//! trees (Cai et al. 2024, `medusa_choices.py`) are such lists and load as they are; its dense tree is the Cartesian product
//! of counts per level.

use super::tree::MAX_ROWS;
use crate::error::{Error, ErrorCode, Result};

/// Ranks lie below this.
const MAX_RANK: usize = 64;

/// How a tree is shaped.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Shape {
    /// Best first: the most probable node of all is added until the tree has as many as asked for (EAGLE-2, OPT-Tree).
    #[default]
    Grown,
    /// The same ranks in every step.
    Fixed(RankTree),
}

impl Shape {
    /// Reads `auto` for a grown tree, or a fixed one as [`RankTree::parse`] does.
    ///
    /// # Errors
    /// As [`RankTree::parse`].
    pub fn parse(text: &str) -> Result<Self> {
        if text.trim() == "auto" { Ok(Self::Grown) } else { RankTree::parse(text).map(Self::Fixed) }
    }
}

/// A node of a fixed tree.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RankNode {
    /// Index of its parent; 0 is the root.
    pub parent: usize,
    /// Which child of its parent it is, the most probable being 0.
    pub rank: usize,
}

/// A fixed tree. Node 0 is the root; parents stand before their children, and siblings ascend by rank.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RankTree {
    /// Nodes 1 and up.
    nodes: Vec<RankNode>,
    depth: usize,
}

impl RankTree {
    /// The tree of these rank paths, in any order.
    ///
    /// # Errors
    /// `InvalidOption` for no or too many paths, an empty or repeated one, one whose parent is missing, or a rank out of range.
    pub fn from_paths(paths: &[Vec<usize>]) -> Result<Self> {
        let mut sorted: Vec<&Vec<usize>> = paths.iter().collect();
        sorted.sort_by(|a, b| a.len().cmp(&b.len()).then_with(|| a.cmp(b)));
        if sorted.is_empty() || sorted.len() >= MAX_ROWS {
            return invalid(format!("expected 1 to {} nodes besides the root, found {}", MAX_ROWS - 1, sorted.len()));
        }
        let mut nodes = Vec::with_capacity(sorted.len());
        for (i, path) in sorted.iter().enumerate() {
            let Some((&rank, above)) = path.split_last() else {
                return invalid("a rank path is empty; the root is always there and is not listed".to_owned());
            };
            if rank >= MAX_RANK {
                return invalid(format!("ranks lie below {MAX_RANK}, found {rank} in {path:?}"));
            }
            if i > 0 && sorted[i - 1] == *path {
                return invalid(format!("{path:?} is listed twice"));
            }
            let parent = match above {
                [] => 0,
                _ => match sorted[..i].iter().position(|earlier| earlier.as_slice() == above) {
                    Some(earlier) => earlier + 1,
                    None => return invalid(format!("{path:?} is listed, but its parent {above:?} is not")),
                },
            };
            nodes.push(RankNode { parent, rank });
        }
        Ok(Self { nodes, depth: sorted.last().map_or(0, |path| path.len()) })
    }

    /// The dense tree: every node at depth d has `counts[d]` children.
    ///
    /// # Errors
    /// As [`from_paths`](Self::from_paths).
    pub fn dense(counts: &[usize]) -> Result<Self> {
        let mut paths: Vec<Vec<usize>> = Vec::new();
        let mut level: Vec<Vec<usize>> = vec![Vec::new()];
        for &count in counts {
            if count == 0 || level.len().saturating_mul(count) >= MAX_ROWS {
                return invalid(format!("a dense tree of {counts:?} has an empty level or more than {MAX_ROWS} nodes"));
            }
            level = level.iter().flat_map(|path| (0..count).map(|rank| [path.as_slice(), &[rank]].concat())).collect();
            paths.extend(level.iter().cloned());
        }
        Self::from_paths(&paths)
    }

    /// Whether no sibling is left out: with every rank, every better one is listed.
    pub fn lists_every_rank(&self) -> bool {
        // Siblings stand side by side and ascend.
        let before = [None].into_iter().chain(self.nodes.iter().map(Some));
        self.nodes.iter().zip(before).all(|(node, before)| {
            node.rank == before.filter(|before| before.parent == node.parent).map_or(0, |before| before.rank + 1)
        })
    }

    /// Reads `dense:4,3,2`, or a list of rank paths such as `[[0], [0, 0], [1]]` (Python tuples are fine too).
    ///
    /// # Errors
    /// `InvalidOption` for anything else, and as [`from_paths`](Self::from_paths).
    pub fn parse(text: &str) -> Result<Self> {
        let wrong = || {
            invalid(format!(
                "expected `auto`, `dense:` and counts (dense:4,3,2), or a list of rank paths ([[0], [0, 0], [1]]), found {:?}",
                text.chars().take(40).collect::<String>()
            ))
        };
        let text = text.trim();
        if let Some(counts) = text.strip_prefix("dense:") {
            let counts: std::result::Result<Vec<usize>, _> =
                counts.split(',').map(|count| count.trim().parse()).collect();
            return counts.map_or_else(|_| wrong(), |counts| Self::dense(&counts));
        }
        // A tuple of one has a comma behind it, which JSON does not know.
        let json: String = text.replace('(', "[").replace(')', "]").split_whitespace().collect();
        match serde_json::from_str::<Vec<Vec<usize>>>(&json.replace(",]", "]")) {
            Ok(paths) => Self::from_paths(&paths),
            Err(_) => wrong(),
        }
    }

    /// Number of nodes, the root included.
    #[allow(clippy::len_without_is_empty, reason = "a tree has a root")]
    pub fn len(&self) -> usize {
        self.nodes.len() + 1
    }

    /// Depth of the deepest node.
    pub fn depth(&self) -> usize {
        self.depth
    }

    /// Nodes 1 and up.
    pub fn nodes(&self) -> &[RankNode] {
        &self.nodes
    }
}

fn invalid<T>(message: String) -> Result<T> {
    Err(Error::new(ErrorCode::InvalidOption, format!("tree: {message}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `mc_sim_7b_63` of Medusa, as digits.
    const MEDUSA_63: &str = "0 00 1 01 2 000 10 02 3 03 4 04 20 05 001 5 06 6 07 010 11 7 08 002 30 09 8 9 100 020 12 003 40 21 004 \
        005 0000 011 006 030 50 13 007 008 009 60 040 14 70 012 200 31 22 80 050 15 101 021 90 060 0001 16 070";

    #[test]
    fn a_tree_that_leaves_a_sibling_out_says_so() {
        let lists = |paths: &[Vec<usize>]| RankTree::from_paths(paths).unwrap().lists_every_rank();
        assert!(lists(&[vec![0], vec![1], vec![0, 0], vec![1, 0], vec![1, 1]]));
        assert!(!lists(&[vec![1]]));
        assert!(!lists(&[vec![0], vec![0, 0], vec![0, 2]]));
        assert!(!lists(&[vec![0], vec![1], vec![0, 0], vec![1, 1]]));
        assert!(RankTree::dense(&[3, 2]).unwrap().lists_every_rank());
    }

    #[test]
    fn a_published_tree_loads_as_it_is() {
        let paths: Vec<Vec<usize>> =
            MEDUSA_63.split(' ').map(|path| path.bytes().map(|digit| usize::from(digit - b'0')).collect()).collect();
        let tree = RankTree::from_paths(&paths).unwrap();
        assert_eq!((tree.len(), tree.depth()), (64, 4));
        let text = format!("{paths:?}");
        assert_eq!(RankTree::parse(&text).unwrap(), tree);
        let tuples = text.replace("[[", "[(").replace("]]", ",)]").replace("], [", ",), (");
        assert_eq!(RankTree::parse(&tuples).unwrap(), tree, "{tuples}");
        for (i, node) in tree.nodes().iter().enumerate() {
            assert!(node.parent <= i, "parents stand before their children");
        }
    }

    #[test]
    fn a_dense_tree_is_the_product_of_its_counts() {
        let tree = RankTree::parse("dense:4,3,2").unwrap();
        assert_eq!((tree.len(), tree.depth()), (1 + 4 + 12 + 24, 3));
        assert_eq!(RankTree::dense(&[1; 63]).unwrap().len(), 64);
    }

    #[test]
    fn a_tree_that_is_none_is_refused_with_the_reason() {
        let check = |text: &str, reason: &str| {
            let error = RankTree::parse(text).unwrap_err();
            assert_eq!(error.code(), ErrorCode::InvalidOption);
            assert!(error.to_string().contains(reason), "{text}: {error}");
        };
        check("[[0], [1, 0]]", "its parent [1] is not");
        check("[[0], [0]]", "listed twice");
        check("[]", "found 0");
        check("[[]]", "empty");
        check("[[64]]", "below 64");
        check("dense:8,8", "more than 64");
        check("dense:0", "empty level");
        check("dense:", "expected");
        check("wide", "expected");
        check("[[-1]]", "expected");
        assert!(RankTree::dense(&[1; 64]).is_err());
        assert!(RankTree::dense(&[usize::MAX, 2]).is_err());
    }
}
