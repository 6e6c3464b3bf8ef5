//! What the model is: sizes, rotary embedding, end tokens; the same whatever file they were read from.
//!
//! Field names are Hugging Face's. Reading them out of a file belongs to `hf_config` and
//! [`gguf`](super::gguf); this file owns their meaning and the check that they fit together, so code behind
//! [`ModelConfig::validate`] divides and multiplies sizes freely. A setting that would change the arithmetic and that the
//! kernels do not have is refused by the readers, not stored here and forgotten.

use std::f64::consts::PI;

use super::architecture::Architecture;
use crate::error::{Error, ErrorCode, Result};

/// No size of a runnable model reaches this; it keeps products of two sizes far from overflow.
const MAX_SIZE: usize = 1 << 24;

/// The description of one model.
#[derive(Debug, Clone, PartialEq)]
pub struct ModelConfig {
    /// The family whose arithmetic it follows.
    pub architecture: Architecture,
    /// Width of the residual stream.
    pub hidden_size: usize,
    /// Width of the feed-forward layer.
    pub intermediate_size: usize,
    /// Layers.
    pub num_hidden_layers: usize,
    /// Query heads.
    pub num_attention_heads: usize,
    /// Key and value heads.
    pub num_key_value_heads: usize,
    /// Width of one head.
    pub head_dim: usize,
    /// Rows of the embedding, and logits per position.
    pub vocab_size: usize,
    /// Longest context, in tokens.
    pub max_position_embeddings: usize,
    /// Added to the mean square in every RMS norm.
    pub rms_norm_eps: f32,
    /// Base of the rotary frequencies.
    pub rope_theta: f32,
    /// How the rotary frequencies are stretched.
    pub rope_scaling: Option<RopeScaling>,
    /// Whether the embedding is also the output matrix.
    pub tie_word_embeddings: bool,
    /// Whether q, k and v have a bias.
    pub attention_bias: bool,
    /// Every token that ends a text, ascending.
    pub eos_token_ids: Vec<u32>,
    /// The token that begins a text.
    pub bos_token_id: Option<u32>,
}

/// How rotary frequencies are stretched for contexts longer than the model was first trained on.
#[derive(Debug, Clone, PartialEq)]
pub enum RopeScaling {
    /// Every frequency divided by `factor`.
    Linear {
        /// The divisor.
        factor: f32,
    },
    /// Llama 3: low frequencies divided by `factor`, high ones kept, a ramp between.
    Llama3 {
        /// The divisor of low frequencies.
        factor: f32,
        /// Wavelengths above `original_max_position_embeddings / low_freq_factor` count as low frequencies.
        low_freq_factor: f32,
        /// Wavelengths below `original_max_position_embeddings / high_freq_factor` count as high frequencies.
        high_freq_factor: f32,
        /// The context of the first training, in tokens.
        original_max_position_embeddings: usize,
    },
    /// One divisor per frequency, `[head_dim / 2]`: how a GGUF file stores the scaling of Llama 3 (`rope_freqs.weight`).
    Factors(Vec<f32>),
}

impl ModelConfig {
    /// Rows of the query projection.
    pub const fn q_size(&self) -> usize {
        self.num_attention_heads * self.head_dim
    }

    /// Rows of the key projection, and of the value projection.
    pub const fn kv_size(&self) -> usize {
        self.num_key_value_heads * self.head_dim
    }

    /// Rotary frequencies in radians per position, `[head_dim / 2]`, scaling applied.
    ///
    /// Frequency `i` is `rope_theta^(-2i / head_dim)`; the Llama 3 ramp is that of `_compute_llama3_parameters` in
    /// transformers' `modeling_rope_utils.py`.
    pub fn inverse_frequencies(&self) -> Vec<f32> {
        let frequency = |i: usize| f64::from(self.rope_theta).powf(-2.0 * i as f64 / self.head_dim as f64);
        let scaled = |i: usize| match &self.rope_scaling {
            None => frequency(i),
            Some(RopeScaling::Linear { factor }) => frequency(i) / f64::from(*factor),
            Some(RopeScaling::Factors(factors)) => frequency(i) / f64::from(factors[i]),
            &Some(RopeScaling::Llama3 {
                factor,
                low_freq_factor,
                high_freq_factor,
                original_max_position_embeddings,
            }) => {
                let (low, high) = (f64::from(low_freq_factor), f64::from(high_freq_factor));
                let turns = original_max_position_embeddings as f64 * frequency(i) / (2.0 * PI);
                let kept = ((turns - low) / (high - low)).clamp(0.0, 1.0);
                frequency(i) * (kept + (1.0 - kept) / f64::from(factor))
            }
        };
        (0..self.head_dim / 2).map(|i| scaled(i) as f32).collect()
    }

    /// Checks that the sizes are possible and fit together.
    ///
    /// # Errors
    /// `BadModelFile` for a size of zero or beyond any model; `ShapeMismatch` for sizes and ids that contradict each other.
    pub fn validate(&self) -> Result<()> {
        let sizes = [
            ("hidden_size", self.hidden_size),
            ("intermediate_size", self.intermediate_size),
            ("num_hidden_layers", self.num_hidden_layers),
            ("num_attention_heads", self.num_attention_heads),
            ("num_key_value_heads", self.num_key_value_heads),
            ("head_dim", self.head_dim),
            ("vocab_size", self.vocab_size),
            ("max_position_embeddings", self.max_position_embeddings),
        ];
        for (name, size) in sizes {
            if size == 0 || size >= MAX_SIZE {
                return Err(bad(format!("{name} is {size}, expected between 1 and {}", MAX_SIZE - 1)));
            }
        }
        if self.num_attention_heads.saturating_mul(self.head_dim) >= MAX_SIZE {
            return Err(bad(format!("{} heads of {} are too large", self.num_attention_heads, self.head_dim)));
        }
        let contradiction = |message: String| Err(Error::new(ErrorCode::ShapeMismatch, message));
        if !self.num_attention_heads.is_multiple_of(self.num_key_value_heads) {
            return contradiction(format!(
                "num_attention_heads is {}, expected a multiple of num_key_value_heads, {}",
                self.num_attention_heads, self.num_key_value_heads
            ));
        }
        if !self.head_dim.is_multiple_of(2) {
            return contradiction(format!("head_dim is {}, expected an even number", self.head_dim));
        }
        for &id in self.eos_token_ids.iter().chain(&self.bos_token_id) {
            if id as usize >= self.vocab_size {
                return contradiction(format!("token id {id} is outside the vocabulary of {}", self.vocab_size));
            }
        }
        self.validate_numbers()
    }

    fn validate_numbers(&self) -> Result<()> {
        let positive = |name: &str, value: f32| {
            if value.is_finite() && value > 0.0 {
                return Ok(());
            }
            Err(bad(format!("{name} is {value}, expected a positive number")))
        };
        positive("rms_norm_eps", self.rms_norm_eps)?;
        positive("rope_theta", self.rope_theta)?;
        match &self.rope_scaling {
            None => Ok(()),
            Some(RopeScaling::Linear { factor }) => positive("the rope scaling factor", *factor),
            Some(RopeScaling::Factors(factors)) => {
                if factors.len() != self.head_dim / 2 {
                    return Err(Error::new(
                        ErrorCode::ShapeMismatch,
                        format!("{} rope factors, expected head_dim / 2 = {}", factors.len(), self.head_dim / 2),
                    ));
                }
                factors.iter().try_for_each(|&factor| positive("a rope factor", factor))
            }
            &Some(RopeScaling::Llama3 { factor, low_freq_factor, high_freq_factor, .. }) => {
                positive("the rope scaling factor", factor)?;
                positive("low_freq_factor", low_freq_factor)?;
                positive("high_freq_factor - low_freq_factor", high_freq_factor - low_freq_factor)
            }
        }
    }
}

fn bad(message: String) -> Error {
    Error::new(ErrorCode::BadModelFile, format!("{message}; the configuration is damaged or no model's"))
}
