//! How well the model speaks: its loss on the text of answers, and how far it is from the original. With the gradients of either.
//!
//! As with heads, what costs is the output matrix; logits are there once, those of some thousand rows at a time, and their gradient is
//! made by hand.

use candle_core::{Device, Result as CandleResult, Tensor};
use candle_nn::ops::log_softmax;
use rayon::prelude::*;

use super::LanguageLoss;
use crate::train::sampler::most_probable;
use crate::train::target::values;

/// Logits that are held at a time.
const MAX_LOGITS: usize = 16 << 20;

/// Rows of a model, with what turns them into logits.
#[derive(Debug, Clone)]
pub struct Rows {
    /// Those that decide a token of an answer, behind the final norm, `[rows, hidden]`.
    pub hidden: Tensor,
    /// Output matrix, `[vocab_size, hidden]`.
    pub lm_head: Tensor,
}

impl Rows {
    fn log_probabilities(&self, first: usize, count: usize) -> CandleResult<Tensor> {
        log_softmax(&self.hidden.narrow(0, first, count)?.matmul(&self.lm_head.t()?)?, 1)
    }
}

/// What is asked besides the losses.
#[derive(Debug, Clone, Copy, Default)]
pub struct Wanted {
    /// The gradients of this loss, its mean over the rows.
    pub gradients: Option<LanguageLoss>,
    /// Whether the output matrix is trained.
    pub of_lm_head: bool,
    /// The model's most probable tokens of every row, so many.
    pub best: usize,
}

/// How well a model speaks at some rows. Losses are sums over them.
#[derive(Debug, Clone, Default)]
pub struct Spoken {
    /// Cross-entropy of the text.
    pub text: f64,
    /// Kullback-Leibler divergence from the original; 0 without one.
    pub divergence: f64,
    /// Rows where the most probable token is that of the original.
    pub agreed: f64,
    /// Gradient of the hidden rows, `[rows, hidden]`.
    pub of_hidden: Option<Tensor>,
    /// Gradient of the output matrix, `[vocab_size, hidden]`.
    pub of_lm_head: Option<Tensor>,
    /// `[rows, best]`
    pub best_tokens: Vec<u32>,
    /// Their probabilities, `[rows, best]`.
    pub best_probabilities: Vec<f32>,
}

impl Spoken {
    /// Of rows whose text goes on with `labels`; `original` are the same rows of the original. Neither of them is asked for gradients by
    /// differentiation.
    ///
    /// # Errors
    /// When memory is short.
    pub fn new(rows: &Rows, labels: &[u32], original: Option<&Rows>, wanted: Wanted) -> CandleResult<Self> {
        let mut spoken = Self::default();
        let mut of_hidden = Vec::new();
        let piece = (MAX_LOGITS / rows.lm_head.dim(0)?).max(1);
        for first in (0..labels.len()).step_by(piece) {
            let labels = &labels[first..labels.len().min(first + piece)];
            let ids = Tensor::new(labels, rows.hidden.device())?.unsqueeze(1)?;
            let log_p = rows.log_probabilities(first, labels.len())?;
            let log_q = original.map(|original| original.log_probabilities(first, labels.len())).transpose()?;
            spoken.add_losses(&log_p, log_q.as_ref(), &ids)?;
            if wanted.best > 0 {
                spoken.add_best(&log_p, wanted.best)?;
            }
            let p = log_p.exp()?;
            let gradient = match (wanted.gradients, &log_q) {
                (None, _) => continue,
                (Some(LanguageLoss::Original), Some(log_q)) => (p - log_q.exp()?)?,
                (Some(LanguageLoss::Original), None) => candle_core::bail!("there is no original to compare with"),
                (Some(LanguageLoss::Text), _) => {
                    p.scatter_add(&ids, &Tensor::full(-1.0f32, ids.shape(), p.device())?, 1)?
                }
            };
            let gradient = (gradient / rows.hidden.dim(0)? as f64)?;
            of_hidden.push(gradient.matmul(&rows.lm_head)?);
            if wanted.of_lm_head {
                let of_piece = gradient.t()?.matmul(&rows.hidden.narrow(0, first, labels.len())?)?;
                spoken.of_lm_head = Some(match spoken.of_lm_head.take() {
                    Some(sum) => (sum + of_piece)?,
                    None => of_piece,
                });
            }
        }
        if !of_hidden.is_empty() {
            spoken.of_hidden = Some(Tensor::cat(&of_hidden, 0)?);
        }
        Ok(spoken)
    }

    /// Adds the losses of other rows.
    pub fn add(&mut self, other: &Self) {
        self.text += other.text;
        self.divergence += other.divergence;
        self.agreed += other.agreed;
    }

    fn add_losses(&mut self, log_p: &Tensor, log_q: Option<&Tensor>, labels: &Tensor) -> CandleResult<()> {
        let total = |losses: Tensor| Ok::<_, candle_core::Error>(f64::from(losses.sum_all()?.to_scalar::<f32>()?));
        self.text -= total(log_p.gather(labels, 1)?)?;
        if let Some(log_q) = log_q {
            self.divergence += total((log_q.exp()? * (log_q - log_p)?)?)?;
            self.agreed += total(log_p.argmax(1)?.eq(&log_q.argmax(1)?)?.to_dtype(candle_core::DType::F32)?)?;
        }
        Ok(())
    }

    fn add_best(&mut self, log_p: &Tensor, count: usize) -> CandleResult<()> {
        let vocab = log_p.dim(1)?;
        let log_p = log_p.to_device(&Device::Cpu)?;
        let best: Vec<Vec<(u32, f32)>> =
            values(&log_p, |rows| rows.par_chunks_exact(vocab).map(|row| most_probable(row, count)).collect())?;
        self.best_tokens.extend(best.iter().flatten().map(|&(token, _)| token));
        self.best_probabilities.extend(best.iter().flatten().map(|&(_, probability)| probability));
        Ok(())
    }
}
