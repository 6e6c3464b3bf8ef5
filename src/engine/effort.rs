//! How much a step spends on its draft. Heads take a tenth of a pass or a third of it, and where passes last a millisecond or two, whatever
//! drafts takes its share of a step. So kinds of step are compared by the tokens they bring in a millisecond: the best is kept to, and
//! each of the others tried now and then.

use crate::speculate::{Source, Sources};

/// Who drafts in a step, of those that a generation has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Effort {
    /// Nobody.
    Plain,
    /// Those that only look at the text: n-grams and recycling.
    Text,
    /// All, draft heads among them.
    Heads,
}

impl Effort {
    /// The least first.
    pub const ALL: [Self; 3] = [Self::Plain, Self::Text, Self::Heads];

    /// The drafters of this effort, of `sources`.
    pub fn of(self, sources: Sources) -> Sources {
        match self {
            Self::Plain => Sources::NONE,
            Self::Text => sources.without(Source::Heads),
            Self::Heads => sources,
        }
    }

    /// The most that `sources` can take.
    pub fn most(sources: Sources) -> Self {
        match sources {
            _ if sources.contains(Source::Heads) => Self::Heads,
            _ if sources.is_empty() => Self::Plain,
            _ => Self::Text,
        }
    }
}

/// Steps of the first kind before another one is tried.
const FIRST: u32 = 64;
/// Steps of a trial of a kind that is thought the worse.
const TRIAL: u32 = 24;
/// How often the steps between two trials are doubled as long as the same kind stays the best: a machine changes most at the beginning.
const DOUBLINGS: u32 = 3;
/// The best is clearly better than a kind by this, by what was seen of that or else is expected of it. Then a trial costs more than it may bring,
const CLEARLY: f64 = 1.15;
/// and comes only after so many steps.
const RARELY: u32 = 512;
/// Steps that make one observation.
const OBSERVED: usize = 16;
/// What a step counts at most, relative to the median of its observation: more says that something was compiled, or that others ran.
const OUTLIER: f64 = 4.0;
/// The first steps of a kind, which may wait for what is made when it is first used, and tell nothing.
const WARM_UP: u32 = 6;
/// Weight of the newest observation of a kind that is kept to: whether 16 steps bring two tokens each or one and a half is often chance.
const LEARNING: f64 = 0.25;
/// The same of a kind that was not seen for [`RARELY`] steps, since when the text may have changed.
const LEARNING_ANEW: f64 = 0.5;

/// Compares kinds of step.
#[derive(Debug, Clone, Default)]
pub struct Efforts {
    now: Option<Effort>,
    left: u32,
    /// The kind that was tried last.
    tried: usize,
    rates: [Option<Rate>; Effort::ALL.len()],
    observed: [Observed; Effort::ALL.len()],
    /// Steps seen of all kinds, and of each.
    steps: u32,
    seen: [u32; Effort::ALL.len()],
    /// The kind that was the best when it was last looked, and how often it has been since.
    best: Option<Effort>,
    confirmed: u32,
    since_trial: u32,
}

/// How fast steps of a kind are.
#[derive(Debug, Clone, Copy)]
struct Rate {
    tokens_per_ms: f64,
    /// Which step it was last seen in.
    at: u32,
}

impl Rate {
    fn learn(&mut self, seen: Self) {
        let unseen = f64::from(seen.at.saturating_sub(self.at));
        let weight = (unseen / f64::from(RARELY)).clamp(LEARNING, LEARNING_ANEW);
        self.tokens_per_ms += weight * (seen.tokens_per_ms - self.tokens_per_ms);
        self.at = seen.at;
    }
}

#[derive(Debug, Clone, Default)]
struct Observed {
    tokens: usize,
    ms: Vec<f64>,
}

impl Observed {
    /// Tokens per millisecond.
    fn rate(&self) -> f64 {
        // Records may come in bursts, where only the first one took time.
        let mut long: Vec<f64> = self.ms.iter().copied().filter(|&ms| ms > 0.0).collect();
        long.sort_by(f64::total_cmp);
        let most = long.get(long.len() / 2).map_or(0.0, |median| OUTLIER * median);
        let ms: f64 = self.ms.iter().map(|ms| ms.min(most)).sum();
        self.tokens as f64 / ms.max(1e-3)
    }
}

impl Efforts {
    /// A step is submitted. Returns how much its draft may take; each of `choices`, the greatest last, comes with the tokens per
    /// millisecond that are expected of it as long as nothing is known.
    pub fn submit(&mut self, choices: &[(Effort, f64)]) -> Effort {
        let usable = |now: &Effort| choices.iter().any(|(choice, _)| choice == now);
        let now = match self.now.filter(usable) {
            Some(now) if self.left > 0 => now,
            now => self.next(now, choices),
        };
        self.now = Some(now);
        self.left -= 1;
        now
    }

    fn next(&mut self, now: Option<Effort>, choices: &[(Effort, f64)]) -> Effort {
        let known = |&(effort, _): &(Effort, f64)| self.rates[effort as usize].map(|rate| rate.tokens_per_ms);
        let rate = |choice: &(Effort, f64)| known(choice).unwrap_or(choice.1);
        let by_rate = |a: &&(Effort, f64), b: &&(Effort, f64)| rate(a).total_cmp(&rate(b));
        let Some(best) = choices.iter().max_by(by_rate) else { return Effort::Plain };
        let others: Vec<_> = choices.iter().filter(|choice| choice.0 != best.0).collect();
        let near: Vec<_> = others.iter().copied().filter(|other| CLEARLY * rate(other) > rate(best)).collect();
        let untried = near.iter().find(|other| known(other).is_none());
        let due = match near.is_empty() {
            true if self.since_trial < RARELY => Vec::new(),
            true => others,
            false => near.clone(),
        };
        let (effort, steps) = match untried {
            _ if now.is_none() => (best.0, FIRST),
            Some(untried) => (untried.0, TRIAL),
            None if now == Some(best.0) && !due.is_empty() => {
                self.tried += 1;
                (due[self.tried % due.len()].0, TRIAL)
            }
            None => {
                let stays = self.best.replace(best.0) == Some(best.0);
                self.confirmed = if stays { (self.confirmed + 1).min(DOUBLINGS) } else { 0 };
                (best.0, FIRST << self.confirmed)
            }
        };
        self.since_trial = if effort == best.0 { self.since_trial + steps } else { 0 };
        self.left = steps;
        effort
    }

    /// A step of one kind brought so many tokens and took so long.
    pub fn observe(&mut self, effort: Effort, tokens: usize, ms: f64) {
        let kind = effort as usize;
        self.steps = self.steps.saturating_add(1);
        self.seen[kind] = self.seen[kind].saturating_add(1);
        if self.seen[kind] <= WARM_UP {
            return;
        }
        let observed = &mut self.observed[kind];
        observed.tokens += tokens;
        observed.ms.push(ms);
        if observed.ms.len() == OBSERVED {
            let seen = Rate { tokens_per_ms: std::mem::take(observed).rate(), at: self.steps };
            self.rates[kind].get_or_insert(seen).learn(seen);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: [(Effort, f64); 3] = [(Effort::Plain, 1.0), (Effort::Text, 1.01), (Effort::Heads, 1.02)];

    /// The share of steps of each effort, where they have these speeds.
    fn shares(steps: usize, choices: &[(Effort, f64)], speeds: impl Fn(usize) -> [f64; 3]) -> [f64; 3] {
        let mut efforts = Efforts::default();
        let mut counts = [0.0; 3];
        for step in 0..steps {
            let effort = efforts.submit(choices);
            efforts.observe(effort, 1, 1.0 / speeds(step)[effort as usize]);
            counts[effort as usize] += 1.0 / steps as f64;
        }
        counts
    }

    #[test]
    fn the_best_kind_is_kept_to() {
        for best in 0..3 {
            let speeds = |_| std::array::from_fn(|effort| if effort == best { 1.3 } else { 1.0 });
            let shares = shares(5000, &ALL, speeds);
            assert!(shares[best] > 0.9, "{best}: {shares:?}");
        }
    }

    #[test]
    fn a_step_that_waits_for_a_compiler_does_not_decide() {
        let mut efforts = Efforts::default();
        let mut counts = [0; 3];
        for step in 0..2000 {
            let effort = efforts.submit(&ALL);
            let waits = effort == Effort::Heads && step % 10 == 0;
            efforts.observe(effort, 1, if waits { 100.0 } else { [1.0, 1.0, 0.5][effort as usize] });
            counts[effort as usize] += 1;
        }
        assert!(counts[2] > 1500, "{counts:?}");
    }

    #[test]
    fn a_few_steps_that_bring_little_do_not_decide() {
        // Half of the text drafts badly, here and there.
        let bad = |step: usize| (step / 16).wrapping_mul(0x9e37_79b9) & 0x8000 != 0;
        let shares = shares(5000, &ALL, |step| [1.0, 0.9, if bad(step) { 0.8 } else { 1.4 }]);
        assert!(shares[2] > 0.8, "{shares:?}");
    }

    #[test]
    fn what_promises_little_is_hardly_tried() {
        let choices = [(Effort::Text, 1.0), (Effort::Heads, 0.75)];
        let rates = |_| [0.0, 1.0, 0.75];
        assert!(shares(300, &choices, rates)[2] == 0.0, "not in a short text");
        assert!(shares(5000, &choices, rates)[2] < 0.06);
        // But what is better than it promised is found.
        assert!(shares(5000, &choices, |_| [0.0, 1.0, 1.5])[2] > 0.8);
    }

    #[test]
    fn records_that_come_in_bursts_count_as_they_took() {
        let burst = Observed { tokens: 16, ms: [vec![100.0], vec![0.0; 15]].concat() };
        assert!((burst.rate() - 0.16).abs() < 1e-9);
    }

    #[test]
    fn without_a_choice_there_is_no_trial() {
        let shares = shares(1000, &ALL[1..2], |_| [9.0, 1.0, 9.0]);
        assert_eq!((shares[0], shares[2]), (0.0, 0.0));
    }

    #[test]
    fn what_is_expected_decides_the_beginning() {
        let mut efforts = Efforts::default();
        assert_eq!(efforts.submit(&[(Effort::Text, 1.0), (Effort::Heads, 0.9)]), Effort::Text);
        assert_eq!(Efforts::default().submit(&[(Effort::Text, 1.0), (Effort::Heads, 1.1)]), Effort::Heads);
        // A generation that has no drafters for what was kept to takes what it has.
        assert_eq!(efforts.submit(&[(Effort::Plain, 1.0)]), Effort::Plain);
    }

    #[test]
    fn a_text_that_changes_is_noticed() {
        let speeds = |step| if step < 1500 { [1.0, 0.8, 0.7] } else { [1.0, 0.8, 1.5] };
        let (before, after) = (shares(1500, &ALL, speeds), shares(6000, &ALL, speeds));
        assert!(before[0] > 0.75 && after[2] > 0.65, "{before:?}, {after:?}");
    }
}
