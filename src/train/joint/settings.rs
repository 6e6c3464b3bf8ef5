//! How model and heads are trained together.

use std::f64::consts::FRAC_PI_2;

use super::texts::Texts;
use crate::error::{Error, ErrorCode, Result};
use crate::train::fit::schedule;
use crate::train::loss::Loss;
use crate::train::shapes::HeadShape;

/// What of the model is trained.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Tuning {
    /// All of it.
    All,
    /// Adapters of the linear layers, which become part of them when the model is saved.
    Lora(Lora),
}

/// Adapters of low rank.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Lora {
    /// Their rank.
    pub rank: usize,
    /// What they add counts this over the rank.
    pub alpha: f32,
}

/// What the model is to say.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LanguageLoss {
    /// The text of the answers: cross-entropy.
    Text,
    /// What it said before: Kullback-Leibler divergence from the original model.
    Original,
}

/// How the coefficient of the heads rises once the model learns too.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ramp {
    /// As a sine does up to its first maximum.
    Sine,
    /// As a line.
    Linear,
    /// It is there at once.
    None,
}

/// How a model is trained with its heads.
#[derive(Debug, Clone, PartialEq)]
pub struct JointSettings {
    /// The shape of the heads. A frozen output matrix is the model's own, and changes with it.
    pub shape: HeadShape,
    /// Tokens that they can predict; 0 for all.
    pub draft_vocab: usize,
    /// What of the model is trained.
    pub tuning: Tuning,
    /// What the model is to say.
    pub language: LanguageLoss,
    /// What the heads are to say. Their teacher is the model as it is by then.
    pub loss: Loss,
    /// A depth counts this to the power of itself.
    pub depth_decay: f32,
    /// What the loss of the heads counts beside the model's own.
    pub coefficient: f32,
    /// How it rises.
    pub ramp: Ramp,
    /// Share of the joint steps in which it does.
    pub ramp_share: f64,
    /// Times that every answer is seen by the heads alone, at first.
    pub head_epochs: f64,
    /// Times that every answer is seen by both.
    pub epochs: f64,
    /// Answers of a step.
    pub batch: usize,
    /// Tokens of a prompt with its answer, at most.
    pub longest: usize,
    /// The model's rate of learning, at its highest.
    pub rate: f32,
    /// The heads' is so many times that.
    pub head_factor: f32,
    /// Share of the steps of each stage in which rates rise from 0.
    pub warm_up: f64,
    /// What rates fall to by the last step of a stage, relative to the highest.
    pub floor: f32,
    /// What weights lose, relative to the rate.
    pub weight_decay: f32,
    /// Gradients longer than this are shortened, those of model and heads apart; 0 for none.
    pub clip: f32,
    /// Another seed, another order of answers.
    pub seed: u64,
    /// Share of the answers that are not learnt from.
    pub held_out: f64,
    /// Answers of them that are looked at, at most.
    pub held_out_answers: usize,
    /// Steps between evaluations; 0 for one an epoch.
    pub evaluate_every: usize,
    /// Evaluations of joint training without a better one before it ends; 0 for never.
    pub patience: usize,
}

impl JointSettings {
    /// Refuses what cannot be.
    ///
    /// # Errors
    /// `InvalidOption`.
    pub fn validate(&self) -> Result<()> {
        self.shape.validate()?;
        let invalid = |message: &str| Err(Error::new(ErrorCode::InvalidOption, message));
        if !self.shape.taps.is_empty() || self.shape.context_layer.is_some() {
            return invalid(
                "heads that fuse the output of layers or look at the context are not trained with their model; begin with \
                 other heads",
            );
        }
        let times = |times: f64| (0.0..f64::INFINITY).contains(&times);
        if self.batch == 0 || !times(self.head_epochs) || !times(self.epochs) || self.head_epochs + self.epochs == 0.0 {
            return invalid("training needs an answer a step, and epochs of either stage; found none");
        }
        if !(self.coefficient >= 0.0 && self.coefficient.is_finite()) {
            return invalid("the coefficient of the heads is a number from 0 on");
        }
        if let Tuning::Lora(Lora { rank: 0, .. }) = self.tuning {
            return invalid("adapters have a rank of 1 or more; found 0");
        }
        Ok(())
    }

    /// The steps of both stages.
    pub(super) fn steps(&self, texts: &Texts) -> Steps {
        let batch = self.batch.min(texts.train.len());
        let epoch = texts.train.len() / batch;
        let of = |epochs: f64| (epochs * epoch as f64).ceil() as usize;
        Steps { batch, epoch, heads: of(self.head_epochs), joint: of(self.epochs) }
    }

    /// The model's rate of learning at a step.
    pub(super) fn rate(&self, step: usize, steps: Steps) -> f32 {
        let (step, steps) = if step < steps.heads { (step, steps.heads) } else { (step - steps.heads, steps.joint) };
        self.rate * schedule(step, steps, self.warm_up, self.floor)
    }

    /// What the heads count at a step beside the model; none while the model is left as it is.
    pub(super) fn coefficient(&self, step: usize, steps: Steps) -> Option<f32> {
        let joint = step.checked_sub(steps.heads)?;
        let risen = ((joint + 1) as f64 / (self.ramp_share * steps.joint as f64).max(1.0)).min(1.0);
        let share = match self.ramp {
            Ramp::Sine => (FRAC_PI_2 * risen).sin(),
            Ramp::Linear => risen,
            Ramp::None => 1.0,
        };
        Some(self.coefficient * share as f32)
    }

    /// What the losses of every depth come to.
    pub(super) fn head_loss(&self, of_depths: &[f64]) -> f64 {
        let decay = f64::from(self.depth_decay);
        of_depths.iter().zip(0..).map(|(loss, depth)| loss * decay.powi(depth)).sum()
    }
}

/// The steps of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Steps {
    /// Answers of each.
    pub batch: usize,
    /// Those of an epoch.
    pub epoch: usize,
    /// Those in which heads learn alone.
    pub heads: usize,
    /// Those in which both learn.
    pub joint: usize,
}

impl Steps {
    /// All of them.
    pub fn all(self) -> usize {
        self.heads + self.joint
    }
}
