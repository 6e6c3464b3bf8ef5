//! When drafting rests. What drafts a tree takes its share of a step, a tenth where passes take a millisecond or two. So steps that draft
//! are compared with plain ones by the tokens they bring in a millisecond: the better kind is kept to, and the other tried now and then.

/// Steps that draft before the first comparison.
const FIRST: u32 = 64;
/// Steps of a trial of the kind that is thought the worse.
const TRIAL: u32 = 24;
/// Steps between two trials, and where drafting is better by [`CLEARLY`].
const BETWEEN: [u32; 2] = [192, 512];
const CLEARLY: f64 = 1.15;
/// Steps that make one observation.
const OBSERVED: u32 = 16;
/// Weight of the newest observation.
const LEARNING: f64 = 0.5;

/// Compares drafting with plain decoding. What is indexed by kind has plain steps first.
#[derive(Debug, Clone)]
pub struct Pause {
    drafts: bool,
    left: u32,
    /// Tokens per millisecond.
    rates: [Option<f64>; 2],
    observed: [Observed; 2],
}

#[derive(Debug, Clone, Copy, Default)]
struct Observed {
    steps: u32,
    tokens: usize,
    ms: f64,
}

impl Default for Pause {
    fn default() -> Self {
        Self { drafts: true, left: FIRST, rates: [None; 2], observed: [Observed::default(); 2] }
    }
}

impl Pause {
    /// A step is submitted. Returns whether the next tree should be drafted behind it.
    pub fn submit(&mut self) -> bool {
        if self.left == 0 {
            (self.drafts, self.left) = self.next_kind();
        }
        self.left -= 1;
        self.drafts
    }

    fn next_kind(&self) -> (bool, u32) {
        let [plain, drafting] = self.rates.map(|rate| rate.unwrap_or(0.0));
        let pays = drafting >= plain;
        if self.drafts == pays {
            return (!pays, TRIAL);
        }
        (pays, BETWEEN[usize::from(pays && drafting > CLEARLY * plain)])
    }

    /// A step of one kind brought so many tokens and took so long.
    pub fn observe(&mut self, drafts: bool, tokens: usize, ms: f64) {
        let kind = usize::from(drafts);
        let observed = &mut self.observed[kind];
        observed.steps += 1;
        observed.tokens += tokens;
        observed.ms += ms;
        if observed.steps == OBSERVED {
            let Observed { tokens, ms, .. } = std::mem::take(observed);
            let rate = tokens as f64 / ms.max(1e-3);
            self.rates[kind] = Some(self.rates[kind].map_or(rate, |known| known + LEARNING * (rate - known)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The share of steps that draft, where drafting has so many times the speed of plain decoding.
    fn share(steps: usize, speed: f64) -> f64 {
        let mut pause = Pause::default();
        let mut drafting = 0;
        for _ in 0..steps {
            let drafts = pause.submit();
            pause.observe(drafts, 1, if drafts { 1.0 / speed } else { 1.0 });
            drafting += usize::from(drafts);
        }
        drafting as f64 / steps as f64
    }

    #[test]
    fn the_better_kind_is_kept_to() {
        assert!(share(5000, 0.9) < 0.15, "{}", share(5000, 0.9));
        assert!(share(5000, 1.1) > 0.85, "{}", share(5000, 1.1));
        assert!(share(5000, 1.5) > 0.95, "{}", share(5000, 1.5));
    }

    #[test]
    fn a_text_that_changes_is_noticed() {
        let mut pause = Pause::default();
        let kinds = (0..3000).map(|step| {
            let drafts = pause.submit();
            let speed = if step < 1000 { 0.8 } else { 1.5 };
            pause.observe(drafts, 1, if drafts { 1.0 / speed } else { 1.0 });
            drafts
        });
        let kinds: Vec<bool> = kinds.collect();
        let share = |steps: &[bool]| steps.iter().filter(|&&drafts| drafts).count() as f64 / steps.len() as f64;
        assert!(share(&kinds[500..1000]) < 0.2 && share(&kinds[2000..]) > 0.9);
    }
}
