//! Which drafted tokens pass: the rules, and the walk through a verified tree.
//!
//! Every row of a pass has chosen the token that follows it. The walk begins at the root, emits what the row it stands on has chosen, and goes
//! on to the child that holds this token, if there is one. Under the exact rule, what is emitted is what plain decoding would
//! have emitted, since noise depends on position and token alone (rule L5: shared Gumbel noise; Daliri et al. 2024). Every
//! other rule only changes what rows choose: towards children that it lets pass ([`lenient`](super::lenient)), or to a child or
//! another token at random ([`rejection`](super::rejection)).

use super::Sources;
use super::grow::Drafted;
use crate::error::{Error, ErrorCode, Result};

/// Tokens that one step emits at most; `RECORD_TOKENS` in shaders/accept.wgsl.
pub const MAX_EMITTED: usize = 48;

/// Which drafted tokens pass.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub enum AcceptRule {
    /// Those that the model chooses itself: the text is that of plain decoding, greedy or sampled.
    #[default]
    Exact,
    /// Also those whose probability is above `min(epsilon, alpha * exp(-entropy))` of the row before them: typical acceptance of
    /// Medusa (Cai et al. 2024). **Lossy**; at temperature 0 it is [`Exact`](Self::Exact).
    Typical {
        /// The probability that always suffices.
        epsilon: f32,
        /// The share of `exp(-entropy)` that suffices where the model is unsure.
        alpha: f32,
    },
    /// Also those among the k best of the row before them whose logit lies within a tolerance of the best: SpecDec (Xia et al.
    /// 2023). **Lossy**, except for k = 1 at temperature 0.
    TopK {
        /// How many of the best.
        k: u32,
        /// How far below the best, in processed logits.
        tolerance: f32,
    },
    /// Those that pass speculative sampling with rejection (Leviathan et al. 2023; Chen et al. 2023). The text has the distribution
    /// of plain decoding, but a seed gives another one for other drafts; at temperature 0 it is [`Exact`](Self::Exact).
    Rejection,
}

/// What a rule promises about the text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Guarantee {
    /// It is the text of plain decoding, token for token.
    SameText,
    /// It is as likely as plain decoding would have written it.
    SameDistribution,
    /// It may be another one than the model would have written.
    Lossy,
}

impl Guarantee {
    /// The string JavaScript and the command line see.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::SameText => "exact",
            Self::SameDistribution => "distribution",
            Self::Lossy => "lossy",
        }
    }
}

impl AcceptRule {
    /// Medusa's published threshold of typical acceptance.
    pub const EPSILON: f32 = 0.09;
    /// And its factor, the square root of the threshold.
    pub const ALPHA: f32 = 0.3;
    /// Ranks that top-k acceptance lets pass unless told.
    pub const K: u32 = 3;
    /// How far below the best a token may lie unless told: a factor of e in probability.
    pub const TOLERANCE: f32 = 1.0;
    /// Typical acceptance unless told otherwise.
    pub const TYPICAL: Self = Self::Typical { epsilon: Self::EPSILON, alpha: Self::ALPHA };
    /// Top-k acceptance unless told otherwise.
    pub const TOP_K: Self = Self::TopK { k: Self::K, tolerance: Self::TOLERANCE };

    /// Reads `exact`, `rejection`, `typical` or `topk`, the latter two with or without their values: `typical:0.09,0.3`, `topk:3,1`.
    ///
    /// # Errors
    /// `InvalidOption` for anything else, and as [`validate`](Self::validate).
    pub fn parse(text: &str) -> Result<Self> {
        let wrong = || {
            Error::new(
                ErrorCode::InvalidOption,
                format!(
                    "accept must be exact, rejection, typical or topk, the latter two with values if need be \
                     (typical:0.09,0.3 or topk:3,1), found {text:?}"
                ),
            )
        };
        let (name, values) = match text.split_once(':') {
            Some((name, values)) => (name, Some(values.split_once(',').ok_or_else(wrong)?)),
            None => (text, None),
        };
        let float = |value: &str| value.trim().parse::<f32>().map_err(|_| wrong());
        let rule = match (name.trim(), values) {
            ("exact", None) => Self::Exact,
            ("rejection", None) => Self::Rejection,
            ("typical", None) => Self::TYPICAL,
            ("topk", None) => Self::TOP_K,
            ("typical", Some((epsilon, alpha))) => Self::Typical { epsilon: float(epsilon)?, alpha: float(alpha)? },
            ("topk", Some((k, tolerance))) => {
                Self::TopK { k: k.trim().parse().map_err(|_| wrong())?, tolerance: float(tolerance)? }
            }
            _ => return Err(wrong()),
        };
        rule.validate()?;
        Ok(rule)
    }

    /// Checks every range.
    ///
    /// # Errors
    /// `InvalidOption` that names the value, its range and what was given.
    pub fn validate(self) -> Result<()> {
        let check = |name: &str, value: f32, lowest: f32, highest: f32| {
            if (lowest..=highest).contains(&value) {
                return Ok(());
            }
            let message = format!("accept: {name} must be from {lowest} to {highest}, found {value}");
            Err(Error::new(ErrorCode::InvalidOption, message))
        };
        match self {
            Self::Exact | Self::Rejection => Ok(()),
            Self::Typical { epsilon, alpha } => {
                check("epsilon of typical", epsilon, 0.0, 1.0)?;
                check("alpha of typical", alpha, 0.0, 1.0)
            }
            Self::TopK { k, tolerance } => {
                check("k of topK", k as f32, 1.0, 1e6)?;
                check("tolerance of topK", tolerance, 0.0, 1e6)
            }
        }
    }

    /// The rule that it amounts to at a temperature.
    #[must_use]
    pub fn at(self, temperature: f32) -> Self {
        match self {
            Self::Typical { .. } | Self::Rejection if temperature == 0.0 => Self::Exact,
            rule => rule,
        }
    }

    /// What it promises at a temperature.
    pub fn guarantee(self, temperature: f32) -> Guarantee {
        match self.at(temperature) {
            Self::Exact => Guarantee::SameText,
            Self::TopK { k: 1, .. } if temperature == 0.0 => Guarantee::SameText,
            Self::Rejection => Guarantee::SameDistribution,
            Self::Typical { .. } | Self::TopK { .. } => Guarantee::Lossy,
        }
    }
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
        let slots = vec![None; tokens.len()];
        Drafted {
            tree: Tree::new(tokens, parents).unwrap(),
            sources,
            slots,
            log_probabilities: vec![0.0; tokens.len()],
            match_length: 0,
        }
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

    #[test]
    fn rules_are_read_with_and_without_values() {
        let typical = |epsilon, alpha| AcceptRule::Typical { epsilon, alpha };
        for (text, rule) in [
            ("exact", AcceptRule::Exact),
            ("rejection", AcceptRule::Rejection),
            ("typical", typical(0.09, 0.3)),
            ("typical:0.2, 1", typical(0.2, 1.0)),
            ("topk", AcceptRule::TOP_K),
            ("topk:1,0", AcceptRule::TopK { k: 1, tolerance: 0.0 }),
        ] {
            assert_eq!(AcceptRule::parse(text).unwrap(), rule, "{text}");
        }
        for (text, named) in [
            ("", "accept must be"),
            ("greedy", "accept must be"),
            ("rejection:1", "accept must be"),
            ("exact:1,2", "accept must be"),
            ("typical:0.1", "accept must be"),
            ("typical:a,b", "accept must be"),
            ("topk:1.5,2", "accept must be"),
            ("typical:1.5,0.3", "epsilon"),
            ("typical:0.1,-1", "alpha"),
            ("typical:NaN,0.3", "epsilon"),
            ("topk:0,1", "k of topK"),
            ("topk:3,-1", "tolerance"),
        ] {
            let error = AcceptRule::parse(text).unwrap_err();
            assert_eq!(error.code(), ErrorCode::InvalidOption);
            assert!(error.to_string().contains(named), "{text}: {error}");
        }
    }

    #[test]
    fn a_rule_promises_no_more_than_it_keeps() {
        let greedy_top = AcceptRule::TopK { k: 1, tolerance: 5.0 };
        for (rule, greedy, sampled) in [
            (AcceptRule::Exact, Guarantee::SameText, Guarantee::SameText),
            (AcceptRule::Rejection, Guarantee::SameText, Guarantee::SameDistribution),
            (AcceptRule::TYPICAL, Guarantee::SameText, Guarantee::Lossy),
            (AcceptRule::TOP_K, Guarantee::Lossy, Guarantee::Lossy),
            (greedy_top, Guarantee::SameText, Guarantee::Lossy),
        ] {
            assert_eq!((rule.guarantee(0.0), rule.guarantee(0.7)), (greedy, sampled), "{rule:?}");
        }
    }
}
