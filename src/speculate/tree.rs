//! The tokens of one pass and who follows whom.
//!
//! Node 0 is the root: decided, but not yet in the cache. A parent stands before its children, so rows are computed in any
//! order and a path ascends. Paths are a table (`[node, depth]` = ancestor), not a bit mask: no word size limits a tree, and
//! attention finds the row at a position with one look-up.

use crate::error::{Error, ErrorCode, Result};

/// Rows in one pass at most: the largest tree, and the largest chunk of a prompt.
pub const MAX_ROWS: usize = 64;

/// Draft tokens as a tree, checked when it is made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tree {
    tokens: Vec<u32>,
    parents: Vec<usize>,
    depths: Vec<usize>,
}

impl Tree {
    /// A tree of `tokens.len()` nodes; `parents[i]` is the index of node i's parent, and the root's is ignored.
    ///
    /// # Errors
    /// `InvalidOption` when it is empty or too large, or when a parent does not stand before its child.
    pub fn new(tokens: &[u32], parents: &[usize]) -> Result<Self> {
        let invalid = |message: String| Err(Error::new(ErrorCode::InvalidOption, format!("draft tree: {message}")));
        if tokens.is_empty() || tokens.len() > MAX_ROWS || tokens.len() != parents.len() {
            return invalid(format!(
                "expected 1 to {MAX_ROWS} nodes with one parent each, found {} nodes and {} parents",
                tokens.len(),
                parents.len()
            ));
        }
        let mut depths = vec![0; tokens.len()];
        for node in 1..tokens.len() {
            if parents[node] >= node {
                return invalid(format!(
                    "node {node} has parent {}; a parent must stand before its child",
                    parents[node]
                ));
            }
            depths[node] = depths[parents[node]] + 1;
        }
        let mut parents = parents.to_vec();
        parents[0] = 0;
        Ok(Self { tokens: tokens.to_vec(), parents, depths })
    }

    /// A chain: every token follows the one before it.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub fn chain(tokens: &[u32]) -> Result<Self> {
        let parents: Vec<usize> = (0..tokens.len()).map(|i| i.saturating_sub(1)).collect();
        Self::new(tokens, &parents)
    }

    /// The tree of the first `count` nodes, at least the root.
    #[must_use]
    pub fn first(&self, count: usize) -> Self {
        let count = count.clamp(1, self.len());
        Self {
            tokens: self.tokens[..count].to_vec(),
            parents: self.parents[..count].to_vec(),
            depths: self.depths[..count].to_vec(),
        }
    }

    /// Number of nodes, at least 1.
    #[allow(clippy::len_without_is_empty, reason = "a tree has a root")]
    pub fn len(&self) -> usize {
        self.tokens.len()
    }

    /// Token of every node.
    pub fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    /// Parent of every node; the root is its own.
    pub fn parents(&self) -> &[usize] {
        &self.parents
    }

    /// Depth of every node; its position is the context length plus this.
    pub fn depths(&self) -> &[usize] {
        &self.depths
    }

    /// The nodes from the root to `node`, both included: element d is the ancestor at depth d.
    pub fn path(&self, node: usize) -> Vec<usize> {
        let mut path = vec![node];
        let mut at = node;
        while at != 0 {
            at = self.parents[at];
            path.push(at);
        }
        path.reverse();
        path
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_and_depths_follow_the_parents() {
        let tree = Tree::new(&[7, 1, 2, 3], &[0, 0, 0, 2]).unwrap();
        assert_eq!(tree.depths(), [0, 1, 1, 2]);
        assert_eq!(tree.path(3), [0, 2, 3]);
        assert_eq!(tree.path(0), [0]);
    }

    #[test]
    fn a_parent_after_its_child_is_refused() {
        let error = Tree::new(&[7, 1, 2], &[0, 2, 0]).unwrap_err();
        assert_eq!(error.code(), ErrorCode::InvalidOption);
        assert!(Tree::new(&[], &[]).is_err());
        assert!(Tree::new(&[0; 65], &[0; 65]).is_err());
    }
}
