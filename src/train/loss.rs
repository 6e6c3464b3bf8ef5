//! What a head is taught at one place: its loss, and the gradient of its logits.
//!
//! The label is the token that the text has; the teacher is the target's distribution there, of which the most probable tokens are
//! known. Their probabilities are taken as they are for tokens of the draft vocabulary; what lies behind them counts as one more
//! class, to which all draft ids belong that are not named. Tokens outside of the draft vocabulary teach nothing.
//!
//! With p the head's probabilities, every gradient with respect to logit j is `scale * p_j`, but for the few tokens that are named: those have
//! something added. So one pass over the logits is enough, whatever the loss.

use std::fmt;
use std::str::FromStr;

use super::vocabulary::NOT_DRAFTED;
use crate::error::{Error, ErrorCode};

/// The probability of what is not named is taken to be at least this.
const LEAST_REST: f32 = 1e-6;

/// A sum of losses with these weights.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Loss {
    /// Cross-entropy of the label.
    pub ce: f32,
    /// Kullback-Leibler divergence from the teacher.
    pub kl: f32,
    /// Total variation from the teacher: the share of drafts that speculative sampling would reject.
    pub tv: f32,
}

impl Loss {
    /// Whether the teacher counts.
    pub fn needs_teacher(&self) -> bool {
        self.kl > 0.0 || self.tv > 0.0
    }
}

impl FromStr for Loss {
    type Err = Error;

    /// Reads `ce`, `kl`, `tv`, or a sum of them with factors: `kl+0.1ce`.
    fn from_str(text: &str) -> Result<Self, Error> {
        let wrong = || {
            Error::new(
                ErrorCode::InvalidOption,
                format!("the loss {text:?}, expected a sum of ce, kl and tv with factors above 0, as in kl+0.1ce"),
            )
        };
        let mut loss = Self::default();
        for term in text.split('+') {
            let term = term.trim();
            let (factor, name) = term.split_at_checked(term.len().wrapping_sub(2)).ok_or_else(wrong)?;
            let factor = factor.trim_end_matches(['*', ' ']);
            let factor: f32 = if factor.is_empty() { 1.0 } else { factor.parse().map_err(|_| wrong())? };
            if !(factor > 0.0 && factor.is_finite()) {
                return Err(wrong());
            }
            match name {
                "ce" => loss.ce += factor,
                "kl" => loss.kl += factor,
                "tv" => loss.tv += factor,
                _ => return Err(wrong()),
            }
        }
        Ok(loss)
    }
}

impl fmt::Display for Loss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let terms = [(self.kl, "kl"), (self.tv, "tv"), (self.ce, "ce")].into_iter().filter(|&(factor, _)| factor > 0.0);
        let term =
            |(factor, name): (f32, &str)| if factor == 1.0 { name.to_owned() } else { format!("{factor}{name}") };
        f.write_str(&terms.map(term).collect::<Vec<_>>().join("+"))
    }
}

/// What is to be predicted at some places. A *pair* is a row and a depth.
#[derive(Debug, Clone, Default)]
pub struct Targets {
    /// Named tokens of a pair.
    pub named: usize,
    /// Draft ids of the teacher's most probable tokens, [`NOT_DRAFTED`] for one that is none, `[pairs, named]`.
    pub drafts: Vec<u32>,
    /// Their probabilities, `[pairs, named]`.
    pub probabilities: Vec<f32>,
    /// Draft id of the token that the text has, or [`NOT_DRAFTED`], `[pairs]`.
    pub labels: Vec<u32>,
    /// What the pair counts, `[pairs]`.
    pub weights: Vec<f32>,
}

impl Targets {
    /// Number of pairs.
    pub fn len(&self) -> usize {
        self.labels.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.labels.is_empty()
    }

    /// Some of them, from `first` on.
    pub fn slice(&self, first: usize, count: usize) -> Self {
        let named = first * self.named..(first + count) * self.named;
        Self {
            named: self.named,
            drafts: self.drafts[named.clone()].to_vec(),
            probabilities: self.probabilities[named].to_vec(),
            labels: self.labels[first..first + count].to_vec(),
            weights: self.weights[first..first + count].to_vec(),
        }
    }

    /// One pair.
    pub fn pair(&self, pair: usize) -> PairTarget<'_> {
        let named = pair * self.named..(pair + 1) * self.named;
        PairTarget {
            drafts: &self.drafts[named.clone()],
            probabilities: &self.probabilities[named],
            label: self.labels[pair],
        }
    }
}

/// What is to be predicted at one place.
#[derive(Debug, Clone, Copy)]
pub struct PairTarget<'a> {
    /// As in [`Targets`].
    pub drafts: &'a [u32],
    /// As in [`Targets`].
    pub probabilities: &'a [f32],
    /// As in [`Targets`].
    pub label: u32,
}

/// Loss and gradient of one place. The gradient with respect to logit j is `scale * p_j`, and for named tokens something more.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct PairGradient {
    /// The loss.
    pub loss: f32,
    /// Factor of the probabilities.
    pub scale: f32,
    /// Draft ids, and what is added to the gradient of each; an id may stand twice.
    pub added: Vec<(u32, f32)>,
}

impl Loss {
    /// Loss and gradient, from the head's probability of a draft id.
    pub fn gradient(&self, target: PairTarget<'_>, p: impl Fn(u32) -> f32) -> PairGradient {
        let mut gradient = PairGradient::default();
        if self.ce > 0.0 && target.label != NOT_DRAFTED {
            gradient.loss -= self.ce * p(target.label).max(f32::MIN_POSITIVE).ln();
            gradient.scale += self.ce;
            gradient.added.push((target.label, -self.ce));
        }
        if self.needs_teacher() {
            self.teach(target, p, &mut gradient);
        }
        gradient
    }

    fn teach(&self, target: PairTarget<'_>, p: impl Fn(u32) -> f32, gradient: &mut PairGradient) {
        let known: f32 = target.probabilities.iter().sum();
        let named =
            target.drafts.iter().zip(target.probabilities).filter(|&(&draft, &q)| draft != NOT_DRAFTED && q > 0.0);
        let named: Vec<(u32, f32, f32)> = named.map(|(&draft, &q)| (draft, q, p(draft))).collect();
        let q_rest = (1.0 - known).max(0.0);
        let p_rest = (1.0 - named.iter().map(|&(_, _, p)| p).sum::<f32>()).max(LEAST_REST);
        let q_all = q_rest + named.iter().map(|&(_, q, _)| q).sum::<f32>();
        let classes = || named.iter().map(|&(_, q, p)| (q, p)).chain([(q_rest, p_rest)]);
        if self.kl > 0.0 {
            let term = |(q, p): (f32, f32)| if q > 0.0 { q * (q / p.max(f32::MIN_POSITIVE)).ln() } else { 0.0 };
            gradient.loss += self.kl * classes().map(term).sum::<f32>();
            gradient.scale += self.kl * (q_all - q_rest / p_rest);
            gradient.added.extend(named.iter().map(|&(draft, q, p)| (draft, self.kl * (p * q_rest / p_rest - q))));
        }
        if self.tv > 0.0 {
            // The derivative with respect to a class's probability: -1 where more of it would be accepted.
            let slope = |q: f32, p: f32| if p < q { -1.0 } else { 0.0 };
            let mean: f32 = classes().map(|(q, p)| slope(q, p) * p).sum();
            gradient.loss += self.tv * classes().map(|(q, p)| (q - p).max(0.0)).sum::<f32>();
            gradient.scale += self.tv * (slope(q_rest, p_rest) - mean);
            let of_rest = slope(q_rest, p_rest);
            gradient.added.extend(named.iter().map(|&(draft, q, p)| (draft, self.tv * p * (slope(q, p) - of_rest))));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn losses_are_read_and_printed() {
        assert_eq!("kl+0.1ce".parse::<Loss>().unwrap(), Loss { ce: 0.1, kl: 1.0, tv: 0.0 });
        assert_eq!("0.9*tv + 0.1 ce".parse::<Loss>().unwrap(), Loss { ce: 0.1, kl: 0.0, tv: 0.9 });
        for text in ["ce", "kl+0.1ce", "tv", "0.5kl+2tv+3ce"] {
            assert_eq!(text.parse::<Loss>().unwrap().to_string(), text);
        }
        for text in ["", "c", "mse", "-1ce", "0kl", "ce+", "xce", "é"] {
            assert_eq!(text.parse::<Loss>().unwrap_err().code(), ErrorCode::InvalidOption, "{text}");
        }
    }

    fn softmax(logits: &[f64]) -> Vec<f32> {
        let total: f64 = logits.iter().map(|logit| logit.exp()).sum();
        logits.iter().map(|logit| (logit.exp() / total) as f32).collect()
    }

    #[test]
    fn gradients_are_those_of_the_loss() {
        let logits = [0.3, -0.2, 1.1, 0.0, 0.7, -1.5];
        let drafts = [4, NOT_DRAFTED, 1];
        let target = |label| PairTarget { drafts: &drafts, probabilities: &[0.5, 0.2, 0.1], label };
        for text in ["ce", "kl", "tv", "0.5kl+2tv+0.1ce"] {
            let loss: Loss = text.parse().unwrap();
            for label in [4, 2, NOT_DRAFTED] {
                let value = |logits: &[f64]| {
                    let p = softmax(logits);
                    f64::from(loss.gradient(target(label), |draft| p[draft as usize]).loss)
                };
                let p = softmax(&logits);
                let found = loss.gradient(target(label), |draft| p[draft as usize]);
                let mut total = 0.0;
                for j in 0..logits.len() {
                    let mut moved = logits;
                    moved[j] += 5e-3;
                    let above = value(&moved);
                    moved[j] -= 1e-2;
                    let expected = (above - value(&moved)) / 1e-2;
                    let added = found.added.iter().filter(|(draft, _)| *draft as usize == j).map(|(_, added)| added);
                    let gradient = found.scale * p[j] + added.sum::<f32>();
                    assert!(
                        (f64::from(gradient) - expected).abs() < 1e-4,
                        "{text}, {label}, {j}: {gradient}, {expected}"
                    );
                    total += gradient;
                }
                assert!(total.abs() < 1e-5, "{text}: a shift of all logits changes nothing");
            }
        }
    }

    #[test]
    fn what_cannot_be_drafted_teaches_nothing() {
        let target = PairTarget { drafts: &[NOT_DRAFTED], probabilities: &[1.0], label: NOT_DRAFTED };
        let loss: Loss = "kl+tv+ce".parse().unwrap();
        let gradient = loss.gradient(target, |_| 0.5);
        assert_eq!((gradient.loss, gradient.scale, gradient.added.len()), (0.0, 0.0, 0));
    }
}
