//! The sampling parameters and their ranges.

use crate::error::{Error, ErrorCode, Result};

/// Logits divided by less than this would leave the range of float32.
pub const MIN_TEMPERATURE: f32 = 1e-6;

/// How tokens are chosen. The default is greedy.
#[derive(Debug, Clone, PartialEq)]
pub struct SamplingParams {
    /// 0 = greedy; else logits are divided by it, and it is at least [`MIN_TEMPERATURE`].
    pub temperature: f32,
    /// Keep the k most likely tokens; 0 = off.
    pub top_k: u32,
    /// Keep the fewest tokens whose probability reaches this; 1 = off (Holtzman et al. 2020).
    pub top_p: f32,
    /// Keep tokens at least this likely relative to the most likely; 0 = off (Nguyen et al. 2024).
    pub min_p: f32,
    /// Divides positive and multiplies negative logits of every token seen, prompt included; 1 = off (Keskar et al. 2019).
    pub repetition_penalty: f32,
    /// Subtracted once for each time a token was emitted.
    pub frequency_penalty: f32,
    /// Subtracted once from every token that was emitted.
    pub presence_penalty: f32,
    /// Added to the logits of single tokens.
    pub logit_bias: Vec<(u32, f32)>,
    /// The same seed gives the same text.
    pub seed: u64,
}

impl Default for SamplingParams {
    fn default() -> Self {
        Self {
            temperature: 0.0,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            repetition_penalty: 1.0,
            frequency_penalty: 0.0,
            presence_penalty: 0.0,
            logit_bias: Vec::new(),
            seed: 0,
        }
    }
}

impl SamplingParams {
    /// What logits are divided by: the temperature, or 1 where the choice is greedy.
    pub fn divisor(&self) -> f32 {
        if self.temperature > 0.0 { self.temperature } else { 1.0 }
    }

    /// Whether top-k, top-p or min-p removes tokens. Greedy choice is the same with and without them.
    pub fn filters(&self) -> bool {
        self.temperature > 0.0 && (self.top_k > 0 || self.top_p < 1.0 || self.min_p > 0.0)
    }

    /// Whether logits change before the choice.
    pub fn processes(&self) -> bool {
        self.temperature > 0.0
            || self.repetition_penalty != 1.0
            || self.frequency_penalty != 0.0
            || self.presence_penalty != 0.0
            || !self.logit_bias.is_empty()
    }

    /// Checks every range.
    ///
    /// # Errors
    /// `InvalidOption` that names the option, its range and what was given.
    pub fn validate(&self, vocab_size: usize) -> Result<()> {
        if self.temperature != 0.0 {
            check("temperature, where it is not 0,", self.temperature, MIN_TEMPERATURE, 100.0)?;
        }
        check("topP", self.top_p, f32::MIN_POSITIVE, 1.0)?;
        check("minP", self.min_p, 0.0, 1.0)?;
        check("repetitionPenalty", self.repetition_penalty, 0.01, 100.0)?;
        check("frequencyPenalty", self.frequency_penalty, -100.0, 100.0)?;
        check("presencePenalty", self.presence_penalty, -100.0, 100.0)?;
        for &(token, bias) in &self.logit_bias {
            check("logitBias", bias, -1e6, 1e6)?;
            if token as usize >= vocab_size {
                return Err(Error::new(
                    ErrorCode::InvalidOption,
                    format!("logitBias: token ids lie below {vocab_size}, found {token}"),
                ));
            }
        }
        Ok(())
    }
}

fn check(name: &str, value: f32, lowest: f32, highest: f32) -> Result<()> {
    if (lowest..=highest).contains(&value) {
        return Ok(());
    }
    let lowest = if lowest == f32::MIN_POSITIVE { "more than 0".to_owned() } else { format!("at least {lowest}") };
    Err(Error::new(ErrorCode::InvalidOption, format!("{name} must be {lowest} and at most {highest}, found {value}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_option_out_of_range_is_named() {
        let check = |params: SamplingParams, name: &str| {
            let error = params.validate(10).unwrap_err();
            assert_eq!(error.code(), ErrorCode::InvalidOption);
            assert!(error.to_string().contains(name), "{error}");
        };
        check(SamplingParams { temperature: -1.0, ..Default::default() }, "temperature");
        check(SamplingParams { temperature: f32::NAN, ..Default::default() }, "temperature");
        check(SamplingParams { top_p: 0.0, ..Default::default() }, "topP");
        check(SamplingParams { min_p: 1.5, ..Default::default() }, "minP");
        check(SamplingParams { logit_bias: vec![(10, 1.0)], ..Default::default() }, "logitBias");
        assert!(SamplingParams::default().validate(10).is_ok());
    }
}
