//! How good model and heads are on answers that they have not learnt from.

use std::fmt;

use candle_core::Result as CandleResult;
use serde::{Deserialize, Serialize};

use super::language::Spoken;
use super::settings::LanguageLoss;
use super::step::Scene;
use super::texts::{Packed, Text};
use crate::train::fit::held_out::{Accuracy, Meter};

/// What was found on held-out answers.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Evaluation {
    /// How the heads predict.
    pub heads: Accuracy,
    /// The model's mean cross-entropy on the text.
    pub text: f64,
    /// Its mean divergence from the original.
    pub divergence: f64,
    /// How often its most probable token is that of the original.
    pub agreement: f64,
    /// What training makes small, at the full coefficient.
    pub objective: f64,
}

impl Evaluation {
    /// Looks at these texts.
    ///
    /// # Errors
    /// When memory is short.
    pub fn measure(scene: Scene<'_>, texts: &[Text]) -> CandleResult<Self> {
        let resting = scene.backbone.at_rest();
        let scene = Scene { backbone: &resting, ..scene };
        let settings = scene.settings;
        let mut meter = Meter::new(settings.shape.depths);
        let (mut spoken, mut labels) = (Spoken::default(), 0);
        for texts in texts.chunks(settings.batch) {
            let packed = Packed::new(texts);
            let pass = scene.pass(&packed, None, None)?;
            meter.add(scene.heads, &pass.batch, settings.loss)?;
            spoken.add(&pass.spoken);
            labels += packed.labels.len();
        }
        let mean = |sum: f64| sum / labels.max(1) as f64;
        let heads = meter.accuracy();
        let of_heads = f64::from(settings.coefficient) * settings.head_loss(&heads.loss);
        Ok(Self {
            text: mean(spoken.text),
            divergence: mean(spoken.divergence),
            agreement: mean(spoken.agreed),
            objective: mean(spoken.loss(settings.language)) + of_heads,
            heads,
        })
    }
}

impl Spoken {
    /// The sum over all rows of what the model is to make small.
    pub fn loss(&self, loss: LanguageLoss) -> f64 {
        match loss {
            LanguageLoss::Text => self.text,
            LanguageLoss::Original => self.divergence,
        }
    }
}

impl fmt::Display for Evaluation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { heads, text, divergence, agreement, objective } = self;
        write!(
            f,
            "{heads}\nmodel: loss {text:.4} on the text, divergence {divergence:.5} from the original, the same next token in \
             {:.2} %; objective {objective:.4}",
            100.0 * agreement
        )
    }
}
