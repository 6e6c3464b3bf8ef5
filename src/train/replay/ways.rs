//! The ways of drafting that are compared: sets of drafters, shapes of trees, numbers of nodes, rules of acceptance.

use crate::engine::{Drafters, GenerateOptions, drafting};
use crate::error::{Error, ErrorCode, Result};
use crate::model::DraftHeads;
use crate::speculate::DraftPlan;
use crate::speculate::accept::AcceptRule;
use crate::speculate::costs::{PassCosts, SIZES};
use crate::speculate::shape::{RankTree, Shape};

/// A way of drafting, with the words that name it.
#[derive(Debug, Clone, PartialEq)]
pub struct Way {
    /// The drafters, as options name them.
    pub draft: String,
    /// The shape of trees, as options name it.
    pub tree: String,
    /// What it comes to.
    pub plan: DraftPlan,
}

/// A shape of trees, as an option names it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TreeChoice {
    /// Grown, of every number of nodes.
    Grown,
    /// The measured tree of every number of nodes, by rank paths of which the first n - 1 make the best tree of n nodes.
    Calibrated(Vec<Vec<usize>>),
    /// One tree, and its name.
    Fixed(String, RankTree),
}

impl TreeChoice {
    fn name(&self) -> &str {
        match self {
            Self::Grown => "grown",
            Self::Calibrated(_) => "calibrated",
            Self::Fixed(name, _) => name,
        }
    }

    /// The shapes that it stands for, and the nodes of each.
    fn shapes(&self, nodes: &[usize]) -> Result<Vec<(Shape, usize)>> {
        match self {
            Self::Grown => Ok(nodes.iter().map(|&nodes| (Shape::Grown, nodes)).collect()),
            Self::Fixed(_, tree) => Ok(vec![(Shape::Fixed(tree.clone()), tree.len())]),
            Self::Calibrated(paths) => {
                let most = paths.len() + 1;
                if most == 1 {
                    let message =
                        "tree: these draft heads have no measured trees; calibrate them, or choose another shape";
                    return Err(Error::new(ErrorCode::InvalidOption, message));
                }
                let sizes = nodes.iter().filter(|&&nodes| (2..=most).contains(&nodes));
                sizes.map(|&nodes| Ok((Shape::Fixed(RankTree::from_paths(&paths[..nodes - 1])?), nodes))).collect()
            }
        }
    }
}

/// Every set of drafters with every tree under every rule, the rules of one tree side by side.
///
/// # Errors
/// `InvalidOption` as the engine gives it: for names that there are not, drafters that have nothing to work with, too many nodes, and
/// trees that nobody can fill.
pub fn ways(
    drafts: &[String],
    trees: &[TreeChoice],
    nodes: &[usize],
    rules: &[AcceptRule],
    heads: Option<&DraftHeads>,
) -> Result<Vec<Way>> {
    let mut found = Vec::new();
    for draft in drafts {
        for tree in trees {
            for (shape, nodes) in tree.shapes(nodes)? {
                for &accept in rules {
                    let options = GenerateOptions {
                        draft: Drafters::parse(draft)?,
                        tree: shape.clone(),
                        max_nodes: Some(nodes),
                        accept,
                        ..Default::default()
                    };
                    let plan = drafting::plan(&options, heads, &PassCosts::fixed([1.0; SIZES.len()]))?;
                    found.push(Way { draft: draft.clone(), tree: tree.name().to_owned(), plan });
                }
            }
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(trees: &[TreeChoice], nodes: &[usize], rules: &[AcceptRule]) -> Vec<(String, usize)> {
        let drafts = ["ngram".to_owned(), "ngram,recycling".to_owned()];
        let ways = ways(&drafts, trees, nodes, rules, None).unwrap();
        ways.into_iter().map(|way| (format!("{} {}", way.draft, way.tree), way.plan.nodes())).collect()
    }

    #[test]
    fn every_set_meets_every_tree() {
        let paths = vec![vec![0], vec![0, 0], vec![1]];
        let dense = TreeChoice::Fixed("dense:2,1".to_owned(), RankTree::parse("dense:2,1").unwrap());
        let trees = [TreeChoice::Grown, dense, TreeChoice::Calibrated(paths)];
        let found = found(&trees, &[2, 4, 8], &[AcceptRule::Exact]);
        let sizes: Vec<usize> = found.iter().map(|(_, nodes)| *nodes).collect();
        assert_eq!(sizes, [2, 4, 8, 5, 2, 4, 2, 4, 8, 5, 2, 4]);
        assert_eq!((&found[3].0[..], &found[11].0[..]), ("ngram dense:2,1", "ngram,recycling calibrated"));
    }

    #[test]
    fn rules_of_one_tree_stand_side_by_side() {
        let rules = [AcceptRule::Exact, AcceptRule::TOP_K];
        assert_eq!(
            found(&[TreeChoice::Grown], &[2, 4], &rules).iter().map(|way| way.1).collect::<Vec<_>>()[..4],
            [2, 2, 4, 4]
        );
    }

    #[test]
    fn what_cannot_be_drafted_is_refused() {
        let check = |draft: &str, trees: &[TreeChoice], nodes: usize| {
            let error = ways(&[draft.to_owned()], trees, &[nodes], &[AcceptRule::Exact], None).unwrap_err();
            assert_eq!(error.code(), ErrorCode::InvalidOption);
        };
        check("medusa", &[TreeChoice::Grown], 8);
        check("oracle", &[TreeChoice::Grown], 8);
        check("ngram", &[TreeChoice::Grown], 65);
        check("ngram", &[TreeChoice::Calibrated(Vec::new())], 8);
    }
}
