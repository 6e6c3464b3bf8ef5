//! How many nodes the next pass should verify.
//!
//! A step of n rows costs T(n) milliseconds, measured on this device, and emits E(n) tokens, estimated while generating; the controller
//! takes the n with the most tokens per millisecond, and 1 when nothing pays. Since trees are grown best first, the first n
//! nodes of any drafted tree are the tree of n nodes, so every record teaches about all sizes: had the pass been smaller, or
//! (by the node that was drafted but not in the pass) larger. Only tokens and speed depend on what it decides, never the text.
//!
//! E(n) = 1 + f(n) (1 + g(n)): f is the probability that the first emitted token is among the children of the root within n nodes,
//! and g the further accepted tokens once it is. f is seen in every pass, a plain one included; g only where the pass was
//! large enough, so it begins hopeful and slowly forgets, which has larger trees tried again now and then. Both are kept per
//! *situation*: the length of the n-gram match, as far as it is known when a step is submitted.

use super::costs::{PassCosts, SIZES};
use super::ngram;

/// Situations by the n-gram match: none, and one for each class of match lengths.
const MATCHES: usize = ngram::CLASSES + 1;
/// Situations that are told apart: each of these without draft heads and with them.
const SITUATIONS: usize = 2 * MATCHES;
/// Weight of the newest observation of f, and of g.
const LEARNING: [f64; 2] = [0.06, 0.15];
/// How far g moves towards hope with every step that does not see it.
const FORGETTING: f64 = 0.002;
/// A larger pass must promise this much more than a plain one.
const MARGIN: f64 = 1.03;
/// The prior of f, by the n-gram match.
const FIRST_PRIOR: [f64; MATCHES] = [0.25, 0.25, 0.25, 0.4, 0.6, 0.75, 0.85];
/// And no less than this with draft heads.
const HEADS_PRIOR: f64 = 0.4;

/// What one step showed.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Observation<'a> {
    /// The situation it was submitted in.
    pub situation: usize,
    /// Nodes visited behind the root, in order.
    pub path: &'a [usize],
    /// The drafted node that would have been visited next, had the pass had its row.
    pub missed: Option<usize>,
    /// Whether the text ended here, so that the walk says nothing of what would have followed.
    pub ended: bool,
}

/// Chooses sizes.
#[derive(Debug, Clone)]
pub struct Controller {
    costs: PassCosts,
    /// What to begin with of g, and to drift to where it is not seen, `[situation][size]`.
    hopes: [[f64; SIZES.len()]; SITUATIONS],
    /// `[situation][size]`.
    first: [[f64; SIZES.len()]; SITUATIONS],
    /// `[situation][size]`.
    further: [[f64; SIZES.len()]; SITUATIONS],
}

/// The situation where a draft has an n-gram match of this length, and perhaps nodes of draft heads.
pub const fn situation(match_length: usize, heads: bool) -> usize {
    let matched = if match_length == 0 { 0 } else { 1 + ngram::class(match_length) };
    if heads { MATCHES + matched } else { matched }
}

impl Controller {
    /// A controller that knows the costs and hopes for the best. `head_tokens` are the tokens a pass that trees of draft heads of 1, 2, …
    /// nodes bring by measurement, if that is known.
    pub fn new(costs: PassCosts, head_tokens: &[f64]) -> Self {
        let hopes_first: [f64; SITUATIONS] = std::array::from_fn(|situation| {
            let prior = FIRST_PRIOR[situation % MATCHES];
            let heads = head_tokens.get(1).map_or(HEADS_PRIOR, |tokens| tokens - 1.0);
            if situation < MATCHES { prior } else { prior.max(heads) }
        });
        let hopes = std::array::from_fn(|situation| {
            let first = hopes_first[situation];
            std::array::from_fn(|size| match measured(head_tokens, SIZES[size]) {
                Some(tokens) if situation == MATCHES => ((tokens - 1.0) / first.max(1e-3) - 1.0).max(0.0),
                _ => hope(situation, size, first),
            })
        });
        let first = hopes_first.map(|first| [first; SIZES.len()]);
        Self { costs, hopes, first, further: hopes }
    }

    /// The costs it goes by.
    pub fn costs(&self) -> &PassCosts {
        &self.costs
    }

    /// Expected tokens of a pass of `SIZES[size]` rows.
    pub fn expected_tokens(&self, situation: usize, size: usize) -> f64 {
        1.0 + self.first[situation][size] * (1.0 + self.further[situation][size])
    }

    /// Rows for the next pass, at most `limit`, and the tokens per millisecond to expect of such steps, of which each takes `draft_ms` more
    /// than its pass.
    pub fn best(&self, situation: usize, limit: usize, draft_ms: f64) -> (usize, f64) {
        let plain = 1.0 / (self.costs.step_ms(0) + draft_ms);
        let mut best = (1, plain);
        for size in 1..SIZES.len() {
            if SIZES[size - 1] >= limit {
                break;
            }
            let rate = self.expected_tokens(situation, size) / (self.costs.step_ms(size) + draft_ms);
            if rate > best.1.max(plain * MARGIN) {
                best = (SIZES[size].min(limit), rate);
            }
        }
        best
    }

    /// The costs, to be followed.
    pub fn costs_mut(&mut self) -> &mut PassCosts {
        &mut self.costs
    }

    /// Learns from a step.
    pub fn observe(&mut self, seen: &Observation<'_>) {
        // The child of the root that was right, whether the pass had its row or not.
        let hit = seen.path.first().copied().or(seen.missed);
        if hit.is_none() && seen.ended {
            return;
        }
        for (size, &nodes) in SIZES.iter().enumerate().skip(1) {
            let first = hit.is_some_and(|node| node < nodes);
            learn(&mut self.first[seen.situation][size], f64::from(u8::from(first)), LEARNING[0]);
            let beyond = self.beyond(seen.situation, size);
            let further = &mut self.further[seen.situation][size];
            // Nodes beyond the pass would have been visited only by way of the one that was missed.
            let known = !seen.ended && seen.missed.is_none_or(|missed| missed >= nodes);
            if first && known {
                let visited = seen.path.iter().filter(|&&node| node < nodes).count();
                learn(further, visited.saturating_sub(1) as f64, LEARNING[1]);
            } else if first && !seen.ended {
                learn(further, beyond, LEARNING[1]);
            } else {
                learn(further, self.hopes[seen.situation][size], FORGETTING);
            }
        }
    }

    /// Further tokens to expect at a size, going by the next smaller one: the better that is filled, the more of the added rows count.
    fn beyond(&self, situation: usize, size: usize) -> f64 {
        let smaller = self.further[situation][size - 1];
        let filled = match SIZES[size - 1].saturating_sub(2) {
            0 => self.first[situation][size],
            room => smaller / room as f64,
        };
        smaller + (SIZES[size] - SIZES[size - 1]) as f64 * filled.min(1.0).powi(2)
    }
}

fn learn(estimate: &mut f64, seen: f64, weight: f64) {
    *estimate += weight * (seen - *estimate);
}

/// Tokens of a tree of `nodes` nodes; those of the largest that was measured where it is larger.
fn measured(tokens: &[f64], nodes: usize) -> Option<f64> {
    tokens.get(nodes - 1).or(tokens.last()).copied()
}

/// Further tokens to hope for: a chain of as many nodes as the pass has room for, each as likely as the first.
fn hope(situation: usize, size: usize, first: f64) -> f64 {
    let p = first.max(0.3);
    let depth = if situation.is_multiple_of(MATCHES) { size } else { SIZES[size].saturating_sub(2) };
    (1..=depth).map(|d| p.powi(d as i32)).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The software adapter of the tests: a row costs nearly as much as the first.
    fn costs() -> PassCosts {
        PassCosts::new([100.0, 127.0, 180.0, 270.0, 450.0, 810.0, 1530.0])
    }

    fn run(
        controller: &mut Controller,
        situation: usize,
        steps: usize,
        mut accepted: impl FnMut(usize) -> usize,
    ) -> f64 {
        let (mut tokens, mut ms) = (0, 0.0);
        for _ in 0..steps {
            let rows = controller.best(situation, 16, 0.0).0;
            let size = SIZES.iter().position(|&size| size == rows).unwrap();
            let right = accepted(15);
            let visited: Vec<usize> = (1..rows.min(right + 1)).collect();
            let missed = (right >= rows).then_some(rows);
            controller.observe(&Observation { situation, path: &visited, missed, ended: false });
            tokens += visited.len() + 1;
            ms += controller.costs().ms()[size];
        }
        tokens as f64 / ms * controller.costs().ms()[0]
    }

    #[test]
    fn what_is_always_right_is_verified_in_long_runs() {
        let mut controller = Controller::new(costs(), &[]);
        assert!(run(&mut controller, 6, 100, |most| most) > 3.0);
        assert!(controller.best(6, 16, 0.0).0 >= 8);
        assert!(controller.best(6, 4, 0.0).0 <= 4, "no more rows than there may be");
    }

    #[test]
    fn what_is_never_right_costs_next_to_nothing() {
        for situation in 0..SITUATIONS {
            let mut controller = Controller::new(costs(), &[]);
            run(&mut controller, situation, 30, |_| 0);
            assert_eq!(controller.best(situation, 64, 0.0).0, 1);
            let speed = run(&mut controller, situation, 1000, |_| 0);
            assert!(speed > 0.995, "situation {situation}: {speed} of plain decoding");
        }
    }

    #[test]
    fn a_text_that_changes_is_followed() {
        let mut controller = Controller::new(costs(), &[]);
        run(&mut controller, 3, 200, |_| 0);
        assert_eq!(controller.best(3, 16, 0.0).0, 1);
        run(&mut controller, 3, 100, |most| most);
        assert!(controller.best(3, 16, 0.0).0 >= 4, "plain passes show that drafts have become right");
    }

    #[test]
    fn heads_that_were_measured_are_taken_at_their_word() {
        let heads = situation(0, true);
        let tokens = [1.0, 1.7, 2.2, 2.6, 2.9];
        let controller = Controller::new(costs(), &tokens);
        for (size, &nodes) in SIZES.iter().enumerate().skip(1) {
            let expected = tokens[(nodes - 1).min(4)];
            assert!((controller.expected_tokens(heads, size) - expected).abs() < 1e-9, "{nodes} nodes");
        }
        assert_eq!(controller.expected_tokens(0, 3), Controller::new(costs(), &[]).expected_tokens(0, 3));
        assert!(controller.best(heads, 16, 10.0).1 > controller.best(0, 1, 0.0).1);
        let useless = Controller::new(costs(), &[1.0, 1.0, 1.0]);
        assert_eq!(useless.best(heads, 16, 10.0).0, 1);
    }

    #[test]
    fn a_text_that_ends_says_nothing_of_its_drafts() {
        let mut controller = Controller::new(costs(), &[]);
        let before = controller.best(5, 16, 0.0).0;
        for _ in 0..100 {
            controller.observe(&Observation { situation: 5, path: &[], missed: None, ended: true });
        }
        assert_eq!(controller.best(5, 16, 0.0).0, before);
    }
}
