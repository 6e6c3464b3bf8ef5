//! What a pass costs by the number of nodes it verifies.
//!
//! Known at first only relative to one row, as such machines usually behave; then measured as far as that takes a fraction of a second; then
//! followed while generating, since a machine gets busy, a context grows, and a measurement may have been disturbed. A step takes longer
//! than its pass: it is encoded, submitted and read back, and the next tree is drafted; where passes are short that is half of it.

/// Sizes of passes, the edges of the register tiles.
pub const SIZES: [usize; 7] = [1, 2, 4, 8, 16, 32, 64];

/// Share of a step's time that is believed, for all sizes together and for its own against the others.
const FOLLOWING: f64 = 0.1;
/// Share of what steps took besides their passes that is believed.
const FOLLOWING_STEPS: f64 = 0.5;
/// And that is no more than so many passes of one row.
const MAX_STEP_PASSES: f64 = 4.0;
/// What a step takes besides its pass, as long as nothing is known of it.
const USUAL_STEP_MS: f64 = 1.0;
/// A single step changes nothing by more than this factor, however long it took.
const OUTLIER: f64 = 2.0;

/// Milliseconds of a pass at each of [`SIZES`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PassCosts {
    /// In the order of [`SIZES`].
    ms: [f64; SIZES.len()],
    /// What a step takes besides, whatever its size.
    step_ms: f64,
    /// What draft heads take for one draft.
    heads_ms: f64,
    fixed: bool,
}

impl PassCosts {
    /// Costs to start from; only their ratios matter.
    pub const fn new(ms: [f64; SIZES.len()]) -> Self {
        Self { ms, step_ms: 0.0, heads_ms: 0.0, fixed: false }
    }

    /// Costs that stay as they are, so that sizes are chosen alike in every run.
    pub const fn fixed(ms: [f64; SIZES.len()]) -> Self {
        Self { ms, step_ms: 0.0, heads_ms: 0.0, fixed: true }
    }

    /// Whether they stay as they are.
    pub const fn is_fixed(&self) -> bool {
        self.fixed
    }

    /// In the order of [`SIZES`].
    pub const fn ms(&self) -> &[f64; SIZES.len()] {
        &self.ms
    }

    /// Milliseconds of a step of `SIZES[size]` rows.
    pub fn step_ms(&self, size: usize) -> f64 {
        self.ms[size] + self.step_ms
    }

    /// Milliseconds that draft heads take for one draft.
    pub const fn heads_ms(&self) -> f64 {
        self.heads_ms
    }

    /// The same with draft heads that take so long.
    #[must_use]
    pub fn with_heads(self, heads_ms: f64) -> Self {
        Self { heads_ms, ..self }
    }

    /// Takes measurements `(rows, ms)`, ascending; sizes between and beyond are corrected as their neighbours are. A step is thought to take
    /// as long again besides as a pass of one row, where that is short, until steps tell.
    #[must_use]
    pub fn measured(&self, measured: &[(usize, f64)]) -> Self {
        let known: Vec<(usize, f64)> = measured
            .iter()
            .filter(|&&(_, ms)| ms.is_finite() && ms > 0.0)
            .filter_map(|&(rows, ms)| index_of(rows).map(|index| (index, (ms / self.ms[index]).ln())))
            .collect();
        let mut costs = *self;
        for (index, ms) in costs.ms.iter_mut().enumerate() {
            *ms *= interpolate(&known, index).exp();
        }
        if !known.is_empty() {
            costs.step_ms = costs.ms[0].min(USUAL_STEP_MS);
        }
        costs
    }

    /// Steps took `ms` each besides their passes.
    pub fn follow_steps(&mut self, ms: f64) {
        if ms.is_finite() && !self.fixed {
            self.step_ms += FOLLOWING_STEPS * (ms.clamp(0.0, MAX_STEP_PASSES * self.ms[0]) - self.step_ms);
        }
    }

    /// A step of `rows` rows took `ms`.
    pub fn follow(&mut self, rows: usize, ms: f64) {
        let Some(index) = index_of(rows).filter(|_| ms.is_finite() && ms > 0.0 && !self.fixed) else { return };
        let change = (ms / self.ms[index]).clamp(1.0 / OUTLIER, OUTLIER).powf(FOLLOWING);
        for ms in &mut self.ms {
            *ms *= change;
        }
        self.heads_ms *= change;
        // One row is what the others are measured by.
        if index > 0 {
            self.ms[index] *= change;
        }
    }
}

/// The smallest size that has room for `rows`.
fn index_of(rows: usize) -> Option<usize> {
    SIZES.iter().position(|&size| rows <= size)
}

/// On the line through the two points around `at`; the nearest point's value beyond them.
fn interpolate(points: &[(usize, f64)], at: usize) -> f64 {
    let before = points.iter().rev().find(|&&(x, _)| x <= at);
    let after = points.iter().find(|&&(x, _)| x >= at);
    match (before, after) {
        (Some(&(a, low)), Some(&(b, high))) if a < b => low + (high - low) * (at - a) as f64 / (b - a) as f64,
        (Some(&(_, value)), _) | (None, Some(&(_, value))) => value,
        (None, None) => 0.0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const USUAL: PassCosts = PassCosts::new([1.0, 1.5, 2.0, 3.0, 6.0, 12.0, 24.0]);

    #[test]
    fn what_was_not_measured_goes_with_its_neighbours() {
        let ms = *USUAL.measured(&[(1, 100.0)]).ms();
        assert!(ms.iter().zip(USUAL.ms()).all(|(found, usual)| (found / usual - 100.0).abs() < 1e-9), "{ms:?}");
        let ms = *USUAL.measured(&[(1, 10.0), (4, 80.0)]).ms();
        let expected = [10.0, 30.0, 80.0, 120.0, 240.0, 480.0, 960.0];
        assert!(ms.iter().zip(expected).all(|(found, expected)| (found - expected).abs() < 1e-9), "{ms:?}");
        assert_eq!(USUAL.measured(&[(1, f64::NAN), (2, 0.0)]), USUAL);
    }

    #[test]
    fn what_steps_take_besides_makes_rows_cheaper() {
        let mut costs = USUAL;
        for _ in 0..20 {
            costs.follow_steps(1.0);
        }
        assert!((costs.step_ms(2) / costs.step_ms(0) - 1.5).abs() < 1e-3, "{costs:?}");
        costs.follow_steps(f64::INFINITY);
        costs.follow_steps(-5.0);
        assert!((costs.step_ms(0) - 1.5).abs() < 1e-3, "{costs:?}");
    }

    #[test]
    fn a_machine_that_gets_busy_is_slower_at_every_size() {
        let mut costs = USUAL.measured(&[(1, 100.0)]);
        for _ in 0..100 {
            costs.follow(1, 200.0);
        }
        assert!((costs.ms()[0] - 200.0).abs() < 1.0 && (costs.ms()[3] - 600.0).abs() < 3.0, "{costs:?}");
    }

    #[test]
    fn a_size_that_costs_more_than_thought_is_found_out() {
        let mut costs = USUAL.measured(&[(1, 100.0)]);
        for _ in 0..100 {
            costs.follow(1, 100.0);
            costs.follow(4, 300.0);
        }
        assert!((costs.ms()[2] / costs.ms()[0] - 3.0).abs() < 0.1, "{costs:?}");
        let before = costs;
        costs.follow(1, 1e9);
        assert!(costs.ms()[0] < 1.1 * before.ms()[0], "one outlier says little");
        costs.follow(4, f64::NAN);
        let mut fixed = PassCosts::fixed([1.0; 7]);
        fixed.follow(1, 50.0);
        assert_eq!(fixed, PassCosts::fixed([1.0; 7]));
    }
}
