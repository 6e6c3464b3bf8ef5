//! Which drafted tokens pass: the walk through a verified tree.
//!
//! Every row of a pass has chosen the token that follows it. The walk begins at the root, emits what the row it stands on has chosen, and goes
//! on to the child that holds this token, if there is one. Greedy or sampled, what is emitted is what plain decoding would
//! have emitted, since noise depends on position and token alone (rule L5: shared Gumbel noise; Daliri et al. 2024).

use super::Sources;
use super::grow::Drafted;

/// Tokens that one step emits at most; `RECORD_TOKENS` in shaders/accept.wgsl.
pub const MAX_EMITTED: usize = 48;

/// Which drafted tokens pass.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub enum AcceptRule {
    /// Those that the model chooses itself: the text is that of plain decoding.
    #[default]
    Exact,
}

/// A walk from the root to the last row that counts.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Walk {
    /// Rows visited, the root first: their keys and values become part of the context.
    pub path: Vec<usize>,
    /// What each of them chose, in order.
    pub tokens: Vec<u32>,
    /// Drafters that had a child of each of them in the pass.
    pub offered: Vec<Sources>,
    /// The drafted node that would have been visited next, had the pass had its row.
    pub missed: Option<usize>,
}

/// Walks the first `rows` nodes of a tree. `chosen[row]` is the token that row chose; `ends` is told every emitted token in order
/// and says whether the text ends with it. Oracle of accept.wgsl.
pub fn walk(drafted: &Drafted, rows: usize, chosen: &[u32], mut ends: impl FnMut(u32) -> bool) -> Walk {
    let tree = &drafted.tree;
    let mut walk = Walk::default();
    let mut at = 0;
    loop {
        let token = chosen[at];
        walk.path.push(at);
        walk.tokens.push(token);
        if ends(token) || walk.tokens.len() == MAX_EMITTED {
            walk.offered.push(Sources::NONE);
            return walk;
        }
        let offers = (at + 1..rows).filter(|&node| tree.parents()[node] == at);
        walk.offered.push(offers.fold(Sources::NONE, |offers, node| offers.with(drafted.sources[node])));
        match (at + 1..tree.len()).find(|&node| tree.parents()[node] == at && tree.tokens()[node] == token) {
            Some(child) if child < rows => at = child,
            missed => {
                walk.missed = missed;
                return walk;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::speculate::Source;
    use crate::speculate::tree::Tree;

    fn drafted(tokens: &[u32], parents: &[usize]) -> Drafted {
        let sources = vec![Source::NGram; tokens.len()];
        Drafted { tree: Tree::new(tokens, parents).unwrap(), sources, match_length: 0 }
    }

    #[test]
    fn the_walk_follows_what_the_rows_chose() {
        let tree = drafted(&[9, 1, 2, 3, 4], &[0, 0, 0, 2, 3]);
        let go = |rows, chosen: &[u32]| walk(&tree, rows, chosen, |_| false);
        let found = go(5, &[2, 7, 3, 4, 8]);
        assert_eq!((found.path, found.tokens, found.missed), (vec![0, 2, 3, 4], vec![2, 3, 4, 8], None));
        let found = go(5, &[1, 7, 3, 4, 8]);
        assert_eq!((found.path, found.tokens), (vec![0, 1], vec![1, 7]));
        let found = go(5, &[5, 7, 3, 4, 8]);
        assert_eq!((found.path, found.tokens), (vec![0], vec![5]));
        let found = go(3, &[2, 7, 3]);
        assert_eq!((found.path, found.tokens, found.missed), (vec![0, 2], vec![2, 3], Some(3)));
    }

    #[test]
    fn nothing_is_emitted_behind_the_token_that_ends_the_text() {
        let tree = drafted(&[9, 1, 2, 3], &[0, 0, 1, 2]);
        for last in 0..4 {
            let mut left = last;
            let found = walk(&tree, 4, &[1, 2, 3, 4], |_| {
                left -= 1;
                left < 0
            });
            assert_eq!(found.tokens.len(), usize::try_from(last).unwrap() + 1);
        }
    }

    #[test]
    fn a_step_emits_no_more_than_its_record_holds() {
        let tokens: Vec<u32> = (0..64).collect();
        let parents: Vec<usize> = (0..64usize).map(|node| node.saturating_sub(1)).collect();
        let chosen: Vec<u32> = (1..65).collect();
        assert_eq!(walk(&drafted(&tokens, &parents), 64, &chosen, |_| false).tokens.len(), MAX_EMITTED);
    }
}
