//! Draws against the distribution that they are said to have.

use draftree::sampling::{SamplingParams, edge};

/// Pearson's chi-square of some draws.
#[derive(Debug, Clone, Copy)]
pub struct ChiSquare {
    pub statistic: f64,
    pub freedom: f64,
}

impl ChiSquare {
    /// Of how often each token was drawn, against probabilities; tokens with fewer than five expected draws count as one.
    pub fn new(counts: &[u64], probabilities: &[f64]) -> Self {
        let n = counts.iter().sum::<u64>() as f64;
        let (mut statistic, mut cells, mut rare) = (0.0, 0, (0.0, 0.0));
        for (&count, &probability) in counts.iter().zip(probabilities) {
            let count = count as f64;
            if probability == 0.0 && count > 0.0 {
                statistic = f64::INFINITY;
            } else if probability * n < 5.0 {
                rare = (rare.0 + count, rare.1 + probability * n);
            } else {
                statistic += (count - probability * n).powi(2) / (probability * n);
                cells += 1;
            }
        }
        if rare.1 > 5.0 {
            statistic += (rare.0 - rare.1).powi(2) / rare.1;
            cells += 1;
        }
        assert!(cells >= 2, "{cells} cells say nothing");
        Self { statistic, freedom: f64::from(cells - 1) }
    }

    /// The 0.9999 quantile (Wilson & Hilferty 1931). Seeds are fixed, so nothing fails by chance.
    pub fn limit(&self) -> f64 {
        let spread = 2.0 / (9.0 * self.freedom);
        self.freedom * (1.0 - spread + 3.72 * spread.sqrt()).powi(3)
    }

    pub fn is_passed(&self) -> bool {
        self.statistic < self.limit()
    }
}

/// How often each of `kinds` tokens was drawn.
pub fn count(draws: impl IntoIterator<Item = u32>, kinds: usize) -> Vec<u64> {
    let mut counts = vec![0; kinds];
    for token in draws {
        counts[token as usize] += 1;
    }
    counts
}

/// Checks draws against probabilities.
pub fn check_distribution(draws: &[u32], probabilities: &[f64], place: &str) {
    let found = ChiSquare::new(&count(draws.iter().copied(), probabilities.len()), probabilities);
    assert!(found.is_passed(), "{place}: {found:?}, limit {:.1}", found.limit());
}

/// Probabilities of processed logits after the filters.
pub fn probabilities(logits: &[f32], params: &SamplingParams) -> Vec<f64> {
    let edge = edge(logits, params);
    let highest = logits.iter().copied().fold(f32::MIN, f32::max);
    let weight = |logit: f32| if logit >= edge { f64::from(logit - highest).exp() } else { 0.0 };
    let total: f64 = logits.iter().map(|&logit| weight(logit)).sum();
    logits.iter().map(|&logit| weight(logit) / total).collect()
}
