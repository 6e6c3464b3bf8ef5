//! The rules that let more tokens pass than the model chooses itself: typical and top-k acceptance. Lossy, and asked for by name only.
//!
//! A drafted token is judged by the row before it. What the row chose itself always passes, so a step is never shorter than under
//! the exact rule. Of the paths that pass from the root on, the longest is taken, of equally long ones the one with the
//! largest sum of log-probabilities (`evaluate_posterior` in Medusa's `utils.py`); behind its last node comes what that row chose.

use super::accept::AcceptRule;
use super::grow::Drafted;

/// What the row before a drafted token says of it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Judgement {
    /// Logarithm of its probability at the temperature, among the tokens that the filters leave in play.
    pub log_probability: f32,
    /// Whether the rule lets it pass.
    pub passes: bool,
}

impl Judgement {
    /// Of a token that is not in play.
    const OUT: Self = Self { log_probability: f32::MIN, passes: false };
}

/// Judges a token by the processed logits `[valid tokens]` of the row before it, of which those below `edge` are out of play.
/// Oracle of judge.wgsl.
pub fn judge(rule: AcceptRule, logits: &[f32], edge: f32, token: u32) -> Judgement {
    let Some(&own) = logits.get(token as usize).filter(|&&logit| logit >= edge) else { return Judgement::OUT };
    let highest = logits.iter().copied().fold(f32::MIN, f32::max);
    let (mut total, mut weighted) = (0.0, 0.0);
    for gap in logits.iter().filter(|&&logit| logit >= edge).map(|logit| logit - highest) {
        total += gap.exp();
        weighted += gap.exp() * gap;
    }
    let log_probability = own - highest - total.ln();
    let passes = match rule {
        AcceptRule::Exact | AcceptRule::Rejection => false,
        AcceptRule::Typical { epsilon, alpha } => {
            let entropy = total.ln() - weighted / total;
            log_probability.exp() > epsilon.min(alpha * (-entropy).exp())
        }
        AcceptRule::TopK { k, tolerance } => {
            let before = |(other, &logit): (u32, &f32)| logit > own || (logit == own && other < token);
            let rank = (0..).zip(logits).filter(|&other| before(other)).count();
            rank < k as usize && highest - own <= tolerance
        }
    };
    Judgement { log_probability, passes }
}

/// What the first `rows` rows choose once judgements count: towards the best path, else what each has `chosen` itself. Nothing
/// follows a token that `ends` the text. Oracle of choose_path.wgsl.
pub fn choose_paths(
    drafted: &Drafted,
    rows: usize,
    judgements: &[Judgement],
    chosen: &[u32],
    ends: impl Fn(u32) -> bool,
) -> Vec<u32> {
    let (parents, tokens) = (drafted.tree.parents(), drafted.tree.tokens());
    // Of the best path below every node: its nodes, and their summed log-probabilities.
    let mut best = vec![(0, 0.0); rows];
    let mut result = chosen[..rows].to_vec();
    // Children stand behind their parents, so a node's own best is known when it is compared with its siblings.
    for node in (1..rows).rev() {
        let (parent, token) = (parents[node], tokens[node]);
        if !judgements[node].passes && token != chosen[parent] {
            continue;
        }
        let (below, sum) = if ends(token) { (0, 0.0) } else { best[node] };
        let found = (below + 1, sum + judgements[node].log_probability);
        // Of equals the first node counts, which comes last.
        if found.0 > best[parent].0 || (found.0 == best[parent].0 && found.1 >= best[parent].1) {
            best[parent] = found;
            result[parent] = token;
        }
    }
    result
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::speculate::Source;
    use crate::speculate::tree::Tree;

    fn logs(probabilities: &[f32]) -> Vec<f32> {
        probabilities.iter().map(|p| p.ln() + 3.0).collect()
    }

    #[test]
    fn typical_tokens_pass() {
        // Entropy ln 2 · 1.75: exp(-H) = 2^-1.75 = .297.
        let logits = logs(&[0.5, 0.25, 0.125, 0.125]);
        let passes = |epsilon, alpha| {
            let judged = |token| judge(AcceptRule::Typical { epsilon, alpha }, &logits, f32::MIN, token).passes;
            (0..4).filter(|&token| judged(token)).collect::<Vec<_>>()
        };
        assert_eq!(passes(0.09, 0.3), [0, 1, 2, 3], "min(.09, .089)");
        assert_eq!(passes(0.2, 1.0), [0, 1]);
        assert_eq!(passes(0.6, 1.0), [0], "min(.6, .297)");
        assert_eq!(passes(1.0, 0.4), [0, 1, 2, 3], "min(1, .119)");
        assert_eq!(passes(1.0, 0.43), [0, 1], "min(1, .128)");
        assert_eq!(passes(0.0, 0.3), [0, 1, 2, 3]);
    }

    #[test]
    fn the_best_tokens_pass_within_the_tolerance() {
        let logits = [1.0, 3.0, 2.5, 3.0, -1.0];
        let passes = |k, tolerance| {
            let judged = |token| judge(AcceptRule::TopK { k, tolerance }, &logits, f32::MIN, token).passes;
            (0..5).filter(|&token| judged(token)).collect::<Vec<_>>()
        };
        assert_eq!(passes(1, 100.0), [1], "the lowest id wins a tie");
        assert_eq!(passes(2, 0.0), [1, 3]);
        assert_eq!(passes(3, 0.4), [1, 3]);
        assert_eq!(passes(3, 0.5), [1, 2, 3]);
        assert_eq!(passes(9, 100.0), [0, 1, 2, 3, 4]);
    }

    #[test]
    fn what_the_filters_leave_out_has_no_probability() {
        let logits = logs(&[0.6, 0.2, 0.1, 0.1]);
        let rule = AcceptRule::TopK { k: 4, tolerance: 100.0 };
        let edge = logits[1];
        let judged: Vec<Judgement> = (0..5).map(|token| judge(rule, &logits, edge, token)).collect();
        assert!((judged[1].log_probability.exp() - 0.25).abs() < 1e-6, "{judged:?}");
        assert!(judged[0].passes && judged[1].passes);
        assert_eq!(judged[2..], [Judgement::OUT; 3], "two are filtered out, one is no token");
    }

    /// The choices of a root with children 1, 2 and 3; 4 and 5 follow 2, 6 follows 3, and 7 follows 6.
    fn choices(passing: &[usize], log_probabilities: [f32; 8], chosen: [u32; 8], end: u32) -> Vec<u32> {
        let tree = Tree::new(&[9, 1, 2, 3, 4, 5, 6, 7], &[0, 0, 0, 0, 2, 2, 3, 6]).unwrap();
        let drafted = Drafted {
            tree,
            sources: vec![Source::NGram; 8],
            slots: vec![None; 8],
            log_probabilities: vec![0.0; 8],
            match_length: 0,
        };
        let judgements: Vec<Judgement> = (0..8)
            .map(|node| Judgement { log_probability: log_probabilities[node], passes: passing.contains(&node) })
            .collect();
        choose_paths(&drafted, 8, &judgements, &chosen, |token| token == end)
    }

    #[test]
    fn the_longest_path_wins_and_then_the_most_probable() {
        let own = [50, 51, 52, 53, 54, 55, 56, 57];
        let equal = [0.0, -1.0, -1.0, -1.0, -1.0, -1.0, -1.0, -1.0];
        assert_eq!(choices(&[], equal, own, 99), own, "where nothing passes rows choose for themselves");
        assert_eq!(choices(&[1, 2, 3, 4, 6, 7], equal, own, 99)[..7], [3, 51, 4, 6, 54, 55, 7]);
        assert_eq!(choices(&[1, 2, 3, 4, 7], equal, own, 99)[0], 2, "7 hangs from a node that does not pass");
        assert_eq!(choices(&[1, 2, 3], equal, own, 99)[0], 1, "the first of equals");
        let uneven = [0.0, -3.0, -2.0, -1.0, -9.0, -3.0, -5.0, -1.0];
        assert_eq!(choices(&[1, 2, 3], uneven, own, 99)[0], 3);
        assert_eq!(choices(&[2, 3, 4, 5, 6], uneven, own, 99)[..3], [2, 51, 5], "-5 against -6");
    }

    #[test]
    fn what_a_row_chose_itself_passes_always() {
        let equal = [-1.0; 8];
        assert_eq!(choices(&[7], equal, [3, 0, 0, 6, 0, 0, 0, 0], 99)[..7], [3, 0, 0, 6, 0, 0, 7]);
        assert_eq!(choices(&[2, 4], equal, [1, 0, 0, 0, 0, 0, 0, 0], 99)[..3], [2, 0, 4], "a longer path is preferred");
    }

    #[test]
    fn a_path_goes_no_further_than_the_token_that_ends_the_text() {
        let all = [1, 2, 3, 4, 5, 6, 7];
        let uneven = [0.0, -9.0, -2.0, -1.0, -1.0, -2.0, -1.0, -1.0];
        assert_eq!(choices(&all, uneven, [0; 8], 3)[0], 2, "3 ends the text: its path has one node");
        assert_eq!(choices(&all, uneven, [0; 8], 6)[0], 3, "two nodes each, and 3 is likelier");
    }
}
