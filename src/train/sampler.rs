//! The choice of a token from a long row of logits: that of [`sampling`](crate::sampling), made fast for one processor.
//!
//! The oracle sorts a row and draws noise for all of it. Here only tokens that can be in play are sorted, and only those that can win
//! are given noise. Sums are taken in another order, so a token exactly at the edge of top-p may fall on the other side.

use pulp::{Arch, NullaryFnOnce};

use super::target::{exp, vectorised};
use crate::sampling::SamplingParams;
use crate::sampling::noise::gumbel;

const LANES: usize = 16;

/// No noise is larger: the least uniform that it is made of is 2^-33.
const MOST_NOISE: f32 = 22.9;

/// The token that follows a row of logits, at `position` in the text. Temperature, top-k, top-p and seed count.
pub fn choose(logits: &[f32], position: u32, params: &SamplingParams) -> u32 {
    let arch = Arch::new();
    let highest = arch.dispatch(Highest { logits });
    if params.temperature == 0.0 {
        return logits.iter().position(|&logit| logit == highest).unwrap_or(0) as u32;
    }
    let inverse_temperature = 1.0 / params.temperature;
    let mut race = Race { best: f32::MIN, winner: 0, position, seed: params.seed };
    if !params.filters() {
        let scaled = (0..).zip(logits).map(|(token, logit)| (logit * inverse_temperature, token));
        let near = (highest * inverse_temperature) - 4.0;
        scaled.clone().filter(|&(score, _)| score >= near).for_each(|(score, token)| race.enter(score, token));
        scaled.filter(|&(score, _)| score < near).for_each(|(score, token)| race.enter(score, token));
        return race.winner;
    }
    for (score, token) in in_play(logits, highest, inverse_temperature, params) {
        race.enter(score, token);
    }
    race.winner
}

/// The highest of logits plus noise.
struct Race {
    best: f32,
    winner: u32,
    position: u32,
    seed: u64,
}

impl Race {
    fn enter(&mut self, score: f32, token: u32) {
        if score + MOST_NOISE < self.best {
            return;
        }
        let score = score + gumbel(self.seed, self.position, token);
        if score > self.best || score == self.best && token < self.winner {
            (self.best, self.winner) = (score, token);
        }
    }
}

/// Scaled logits and tokens that top-k and top-p leave, best first.
fn in_play(logits: &[f32], highest: f32, scale: f32, params: &SamplingParams) -> Vec<(f32, u32)> {
    let arch = Arch::new();
    let top = highest * scale;
    let k = if params.top_k == 0 { usize::MAX } else { params.top_k as usize };
    // Without top-k the mass that counts is that of the whole row.
    let total = (k == usize::MAX).then(|| arch.dispatch(Mass { logits, top, scale }));
    let mut margin = 8.0;
    loop {
        let scaled = logits.iter().map(|logit| logit * scale).zip(0..);
        let mut near: Vec<(f32, u32)> = scaled.filter(|&(score, _)| score >= top - margin).collect();
        near.sort_unstable_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
        let all = near.len() == logits.len();
        if let Some(&(kth, _)) = near.get(k - 1).or(near.last().filter(|_| all)) {
            near.truncate(near.partition_point(|&(score, _)| score >= kth));
        } else if k != usize::MAX {
            margin *= 2.0;
            continue;
        }
        if params.top_p >= 1.0 {
            return near;
        }
        let total = total.unwrap_or_else(|| near.iter().map(|&(score, _)| (score - top).exp()).sum());
        let mut reached = 0.0;
        let edge = near.iter().position(|&(score, _)| {
            reached += (score - top).exp();
            reached >= params.top_p * total
        });
        match edge {
            Some(edge) => {
                let edge = near[edge].0;
                near.truncate(near.partition_point(|&(score, _)| score >= edge));
                return near;
            }
            None if all || k != usize::MAX => return near,
            None => margin *= 2.0,
        }
    }
}

/// The most probable tokens of a row of logits and their probabilities at temperature 1, best first.
pub fn most_probable(logits: &[f32], count: usize) -> Vec<(u32, f32)> {
    let arch = Arch::new();
    let highest = arch.dispatch(Highest { logits });
    let total = arch.dispatch(Mass { logits, top: highest, scale: 1.0 });
    let mut margin = 8.0;
    loop {
        let mut near: Vec<(f32, u32)> =
            logits.iter().copied().zip(0..).filter(|&(logit, _)| logit >= highest - margin).collect();
        if near.len() < count.min(logits.len()) {
            margin *= 2.0;
            continue;
        }
        near.sort_unstable_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
        near.truncate(count);
        return near.into_iter().map(|(logit, token)| (token, (logit - highest).exp() / total)).collect();
    }
}

vectorised! {
    /// The highest of all.
    Highest { logits: &'a [f32] } -> f32 {
        let (chunks, rest) = logits.as_chunks::<LANES>();
        let mut best = [f32::NEG_INFINITY; LANES];
        for chunk in chunks {
            for (best, logit) in best.iter_mut().zip(chunk) {
                *best = if *logit > *best { *logit } else { *best };
            }
        }
        best.iter().chain(rest).copied().fold(f32::NEG_INFINITY, f32::max)
    }
}

vectorised! {
    /// Sum of `exp(logit * scale - top)`.
    Mass { logits: &'a [f32], top: f32, scale: f32 } -> f32 {
        let (chunks, rest) = logits.as_chunks::<LANES>();
        let mut sums = [0.0f32; LANES];
        for chunk in chunks {
            for (sum, logit) in sums.iter_mut().zip(chunk) {
                *sum += exp(logit * scale - top);
            }
        }
        sums.iter().sum::<f32>() + rest.iter().map(|logit| exp(logit * scale - top)).sum::<f32>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sampling;

    fn row(seed: u64) -> Vec<f32> {
        (0..1000).map(|i| 2.0 * gumbel(seed, 1, i) + f32::from(i % 7 == 0)).collect()
    }

    #[test]
    fn the_choice_is_that_of_the_oracle() {
        let params = |temperature, top_k, top_p| SamplingParams { temperature, top_k, top_p, ..Default::default() };
        let kinds = [
            params(0.0, 0, 1.0),
            params(1.0, 0, 1.0),
            params(0.7, 0, 0.95),
            params(1.5, 20, 1.0),
            params(2.0, 50, 0.5),
        ];
        for (kind, params) in kinds.iter().enumerate() {
            let mut chosen = std::collections::BTreeSet::new();
            for seed in 0..300 {
                let params = SamplingParams { seed, ..params.clone() };
                let logits = row(seed);
                let mut processed = logits.clone();
                sampling::process_logits(&mut processed, &[0; 1000], &params);
                let expected = sampling::sample(&processed, 17, &params);
                assert_eq!(choose(&logits, 17, &params), expected, "kind {kind}, seed {seed}");
                chosen.insert(expected);
            }
            assert!(chosen.len() > 50, "the rows differ");
        }
    }

    #[test]
    fn flat_rows_are_looked_at_as_far_as_it_takes() {
        let flat: Vec<f32> = (0..1000).map(|i| -0.05 * i as f32).collect();
        let few = SamplingParams { temperature: 1.0, top_k: 400, top_p: 1.0, ..Default::default() };
        assert_eq!(in_play(&flat, 0.0, 1.0, &few).len(), 400);
        let much = SamplingParams { temperature: 1.0, top_p: 0.9999, ..Default::default() };
        assert!(in_play(&flat, 0.0, 1.0, &much).len() > 160);
        let best = most_probable(&flat, 900);
        assert_eq!((best.len(), best[3].0), (900, 3));
        let expected = (-0.15f32).exp() / flat.iter().map(|x| x.exp()).sum::<f32>();
        assert!((best[3].1 / expected - 1.0).abs() < 1e-5);
        assert_eq!(most_probable(&flat, 2000).len(), 1000);
    }
}
