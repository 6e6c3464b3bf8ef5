//! Log-probabilities of tokens: what the model made of every place, whichever token was chosen there.
//!
//! They are those of the distribution after penalties and bias, at temperature 1 and without filters, so they do not depend on how
//! a token is drawn. The kernels see logits that the temperature has divided; it is multiplied back into differences of logits only.

use super::SamplingParams;

/// Most tokens of a place that can be asked for.
pub const MAX_TOP_LOGPROBS: usize = 20;

/// A token and the logarithm of its probability.
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize)]
pub struct TokenLogprob {
    /// The token.
    pub token: u32,
    /// Natural logarithm.
    pub logprob: f32,
}

/// What the model made of one place.
#[derive(Debug, Clone, PartialEq, serde::Serialize)]
pub struct Logprobs {
    /// The token that stands there.
    pub token: u32,
    /// The natural logarithm of its probability.
    pub logprob: f32,
    /// The most probable ones, the highest first; of equals the lowest id. The token itself is among them only if it belongs there.
    pub top: Vec<TokenLogprob>,
}

/// The log-probabilities of `token` and of the `top` most probable tokens of a processed row `[valid tokens]`. Oracle of
/// logprob_chunks.wgsl and logprobs.wgsl, which add up the row chunk by chunk.
pub fn logprobs(logits: &[f32], token: u32, top: usize, params: &SamplingParams) -> Logprobs {
    let temperature = params.divisor();
    let highest = logits.iter().copied().fold(f32::MIN, f32::max);
    let gap = |logit: f32| (logit - highest) * temperature;
    let total: f32 = logits.iter().map(|&logit| gap(logit).exp()).sum();
    let of = |token: u32| TokenLogprob { token, logprob: gap(logits[token as usize]) - total.ln() };
    let mut ranked: Vec<u32> = (0..logits.len() as u32).collect();
    ranked.sort_by(|&a, &b| logits[b as usize].total_cmp(&logits[a as usize]).then(a.cmp(&b)));
    Logprobs { token, logprob: of(token).logprob, top: ranked.into_iter().take(top).map(of).collect() }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GREEDY: SamplingParams = SamplingParams {
        temperature: 0.0,
        top_k: 0,
        top_p: 1.0,
        min_p: 0.0,
        repetition_penalty: 1.0,
        frequency_penalty: 0.0,
        presence_penalty: 0.0,
        logit_bias: Vec::new(),
        seed: 0,
    };

    #[test]
    fn they_are_logarithms_of_probabilities_the_highest_first() {
        // Probabilities 1/8, 1/2, 1/8, 1/4.
        let logits = [0.125f32.ln(), 0.5f32.ln(), 0.125f32.ln(), 0.25f32.ln()];
        let found = logprobs(&logits, 2, 4, &GREEDY);
        assert!((found.logprob - 0.125f32.ln()).abs() < 1e-6);
        assert_eq!(found.token, 2);
        assert_eq!(
            found.top.iter().map(|top| top.token).collect::<Vec<_>>(),
            [1, 3, 0, 2],
            "the lower of equals first"
        );
        let total: f32 = found.top.iter().map(|top| top.logprob.exp()).sum();
        assert!((total - 1.0).abs() < 1e-6);
        assert!(logprobs(&logits, 2, 0, &GREEDY).top.is_empty());
        assert_eq!(logprobs(&logits, 2, 20, &GREEDY).top.len(), 4);
    }

    #[test]
    fn the_temperature_is_taken_back() {
        let logits = [1.0f32, -2.0, 0.5, 3.0];
        for temperature in [0.25, 2.0] {
            let divided = logits.map(|logit| logit / temperature);
            let found = logprobs(&divided, 0, 3, &SamplingParams { temperature, ..GREEDY });
            assert_eq!(found, logprobs(&logits, 0, 3, &GREEDY));
        }
    }
}
