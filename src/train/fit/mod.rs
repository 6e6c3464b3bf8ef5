//! Medusa-1: heads learn from rows of states, the target stays as it is.
//!
//! Rows are drawn in a random order, whatever answer they belong to. Now and then the heads are measured on the answers that are held
//! out, and those that were best are kept: small heads soon learn answers by heart. Everything is a function of settings and states,
//! so a run that was stopped goes on as if it had not been.

pub mod adamw;
pub mod batch;
pub mod checkpoint;
pub mod held_out;
pub mod step;
#[cfg(test)]
mod tests;

use std::path::Path;
use std::time::Instant;

use candle_core::Device;

use self::adamw::{Moments, Update, sum_of_squares};
use self::batch::{Batch, Source, Split};
use self::checkpoint::{Checkpoint, Standing};
use self::held_out::Accuracy;
use self::step::Step;
use super::from_candle;
use super::loss::Loss;
use super::matrices::TargetMatrices;
use super::random::Random;
use super::shapes::{Dropout, HeadShape, Part, TrainHeads};
use super::states::States;
use super::vocabulary::DraftVocabulary;
use crate::error::{Error, ErrorCode, Result};

/// What random numbers are for; each epoch and each step has its own.
const ORDER: u64 = 1 << 32;
const DROPOUT: u64 = 2 << 32;
/// Seconds between checkpoints.
const CHECKPOINT_SECONDS: f64 = 300.0;
/// Steps between reports.
const REPORT_STEPS: usize = 20;

/// How heads are trained.
#[derive(Debug, Clone, PartialEq)]
pub struct FitSettings {
    /// Their shape.
    pub shape: HeadShape,
    /// Tokens that they can predict; 0 for all.
    pub draft_vocab: usize,
    /// What is made small.
    pub loss: Loss,
    /// A depth counts this to the power of itself.
    pub depth_decay: f32,
    /// Times that every row is seen.
    pub epochs: f64,
    /// Rows of a step.
    pub batch: usize,
    /// Rate of learning, at its highest.
    pub rate: f32,
    /// The same of the output matrix.
    pub head_rate: f32,
    /// Share of the steps in which rates rise from 0.
    pub warm_up: f64,
    /// What rates fall to by the last step, relative to the highest.
    pub floor: f32,
    /// What blocks and correction lose, relative to the rate.
    pub weight_decay: f32,
    /// How much of its distance from the target's rows the output matrix loses, relative to the rate.
    pub regularise: f32,
    /// Gradients longer than this are shortened; 0 for none.
    pub clip: f32,
    /// Share of what blocks read that is left out.
    pub dropout: f32,
    /// Another seed, another order of rows.
    pub seed: u64,
    /// Share of the answers that are not learnt from.
    pub held_out: f64,
    /// Rows of them that are looked at, at most.
    pub held_out_rows: usize,
    /// Steps between evaluations; 0 for one an epoch.
    pub evaluate_every: usize,
    /// Evaluations without a better one before training ends; 0 for never.
    pub patience: usize,
}

impl FitSettings {
    fn validate(&self, states: &States) -> Result<()> {
        self.shape.validate()?;
        let invalid = |message: &str| Err(Error::new(ErrorCode::InvalidOption, message));
        if self.batch == 0 || self.epochs <= 0.0 || !self.epochs.is_finite() {
            return invalid("training needs an epoch and a batch above 0");
        }
        if !(0.0..1.0).contains(&self.dropout) {
            return invalid("dropout is a share below 1");
        }
        if self.loss.needs_teacher() && states.header.best == 0 {
            return invalid("kl and tv need the target's probabilities, which these states do not have; use ce");
        }
        states.header.check(&self.shape.taps, self.shape.context_layer)
    }

    /// The rate of learning at a step of so many, relative to the highest.
    fn schedule(&self, step: usize, steps: usize) -> f32 {
        schedule(step, steps, self.warm_up, self.floor)
    }
}

/// The rate of learning at a step of so many, relative to the highest: a line up in a share of the steps, then a cosine down to a floor.
pub(in crate::train) fn schedule(step: usize, steps: usize, warm_up: f64, floor: f32) -> f32 {
    let warm_up = (warm_up * steps as f64).max(1.0);
    let step = step as f64;
    if step < warm_up {
        return ((step + 1.0) / warm_up).min(1.0) as f32;
    }
    let done = (step - warm_up) / (steps as f64 - warm_up).max(1.0);
    let cosine = 0.5 + 0.5 * (std::f64::consts::PI * done).cos();
    floor + (1.0 - floor) * cosine as f32
}

/// What is learnt from.
#[derive(Debug, Clone, Copy)]
pub struct Material<'a> {
    /// The target's answers.
    pub states: &'a States,
    /// The target's matrices.
    pub target: &'a TargetMatrices,
    /// Tokens that the draft vocabulary has whether they occur or not: those that end a text.
    pub always: &'a [u32],
}

/// What a run says of itself.
#[derive(Debug, Clone)]
pub enum Report {
    /// It begins, or goes on.
    Began {
        /// Steps that are done already.
        step: usize,
        /// Steps in all.
        steps: usize,
        /// Rows that are learnt from.
        rows: usize,
        /// The share of held-out tokens that are in the draft vocabulary.
        coverage: f64,
    },
    /// Some more steps are done.
    Stepped {
        /// Steps that are done.
        step: usize,
        /// Steps in all.
        steps: usize,
        /// Mean loss since the last report.
        loss: f64,
        /// Rows a second.
        rows_per_second: f64,
        /// Seconds that the rest takes at this pace, evaluations left out.
        seconds_left: f64,
    },
    /// Heads were measured.
    Evaluated {
        /// Steps that are done.
        step: usize,
        /// Epochs that are done.
        epoch: f64,
        /// How good they are.
        accuracy: Accuracy,
        /// Whether they are the best so far.
        best: bool,
    },
}

/// Trained heads.
#[derive(Debug)]
pub struct Fitted {
    /// The best of the run.
    pub heads: TrainHeads,
    /// How good they are.
    pub accuracy: Accuracy,
    /// The step after which they were.
    pub step: usize,
    /// Rows that were learnt from.
    pub rows: usize,
    /// The share of held-out tokens that are in the draft vocabulary.
    pub coverage: f64,
    /// Seconds of training.
    pub seconds: f64,
}

/// Trains heads, in a folder that may have a stopped run of the same settings.
///
/// # Errors
/// `InvalidOption` for settings that cannot be, or for a folder with another run; `LoadFailed` when the disk is full.
pub fn train(
    material: Material<'_>,
    settings: &FitSettings,
    folder: &Path,
    device: &Device,
    report: &mut dyn FnMut(Report),
) -> Result<Fitted> {
    let Material { states, target, always } = material;
    settings.validate(states)?;
    let split = Split::new(states, settings.held_out, settings.held_out_rows)?;
    let learnt = Split::tokens(states, settings.held_out, false);
    let vocabulary = DraftVocabulary::choose(learnt, settings.draft_vocab, always, target.lm_head().rows)?;
    let coverage = vocabulary.coverage(Split::tokens(states, settings.held_out, true));
    let heads = TrainHeads::new(settings.shape, vocabulary, target, settings.seed, device)?;
    let moments = heads.parameters.iter().map(|parameter| Moments::zeros(&parameter.var));
    let moments = moments.collect::<candle_core::Result<Vec<_>>>().map_err(from_candle)?;
    let batch = settings.batch.min(split.train.len());
    let steps_per_epoch = split.train.len() / batch;
    let mut run = Run {
        material,
        settings,
        device,
        steps: (settings.epochs * steps_per_epoch as f64).ceil().max(1.0) as usize,
        steps_per_epoch,
        batch,
        checkpoint: Checkpoint::new(folder),
        identity: describe(settings, states),
        standing: Standing::default(),
        split,
        heads,
        moments,
    };
    run.resume()?;
    let (step, steps, rows) = (run.standing.step, run.steps, run.split.train.len());
    report(Report::Began { step, steps, rows, coverage });
    if !run.standing.finished {
        run.learn(report)?;
    }
    run.checkpoint.load_best(&run.heads.parameters)?;
    let Standing { best, best_step, seconds, .. } = run.standing;
    Ok(Fitted { heads: run.heads, accuracy: best, step: best_step, rows, coverage, seconds })
}

/// What makes a run the same as another.
fn describe(settings: &FitSettings, states: &States) -> String {
    format!("{settings:?} on {} rows of {:?}", states.len(), states.header)
}

/// A run at work.
struct Run<'a> {
    material: Material<'a>,
    settings: &'a FitSettings,
    device: &'a Device,
    steps: usize,
    steps_per_epoch: usize,
    batch: usize,
    checkpoint: Checkpoint,
    /// What makes it the same as another.
    identity: String,
    standing: Standing,
    split: Split,
    heads: TrainHeads,
    moments: Vec<Moments>,
}

impl Run<'_> {
    fn resume(&mut self) -> Result<()> {
        if let Some(standing) = self.checkpoint.resume(&self.heads.parameters, &mut self.moments, &self.identity)? {
            self.standing = standing;
        }
        Ok(())
    }

    fn source(&self) -> Source<'_> {
        Source {
            states: self.material.states,
            ends: &self.split.ends,
            target: self.material.target,
            shape: self.settings.shape,
            vocabulary: &self.heads.vocabulary,
        }
    }

    fn learn(&mut self, report: &mut dyn FnMut(Report)) -> Result<()> {
        if self.standing.step == 0 {
            self.evaluate(report)?;
        }
        let mut order: (usize, Vec<u32>) = (usize::MAX, Vec::new());
        let (mut clock, mut kept, mut loss, mut since) = (Instant::now(), self.standing.seconds, 0.0, 0);
        let (mut reported, every) = (Instant::now(), self.evaluate_every());
        while self.standing.step < self.steps && !self.standing.finished {
            let (epoch, place) = (self.standing.step / self.steps_per_epoch, self.standing.step % self.steps_per_epoch);
            if order.0 != epoch {
                order = (epoch, self.split.train.clone());
                Random::new(self.settings.seed, ORDER + epoch as u64).shuffle(&mut order.1);
            }
            loss += self.step(&order.1[place * self.batch..(place + 1) * self.batch])?;
            since += 1;
            self.standing.seconds += clock.elapsed().as_secs_f64();
            clock = Instant::now();
            if since == REPORT_STEPS {
                let per_step = reported.elapsed().as_secs_f64() / since as f64;
                let (step, steps) = (self.standing.step, self.steps);
                let (loss_of_each, rows_per_second) = (loss / since as f64, self.batch as f64 / per_step);
                let seconds_left = (steps - step) as f64 * per_step;
                report(Report::Stepped { step, steps, loss: loss_of_each, rows_per_second, seconds_left });
                (loss, since, reported) = (0.0, 0, Instant::now());
            }
            if self.standing.step.is_multiple_of(every) || self.standing.step == self.steps {
                self.evaluate(report)?;
                kept = self.standing.seconds;
                (clock, reported, loss, since) = (Instant::now(), Instant::now(), 0.0, 0);
            } else if self.standing.seconds > kept + CHECKPOINT_SECONDS {
                self.keep()?;
                kept = self.standing.seconds;
            }
        }
        Ok(())
    }

    fn evaluate_every(&self) -> usize {
        match self.settings.evaluate_every {
            0 => self.steps_per_epoch,
            steps => steps,
        }
    }

    /// One step with these rows; gives their loss.
    fn step(&mut self, rows: &[u32]) -> Result<f64> {
        let settings = self.settings;
        let step = self.standing.step;
        let mut dropout = Dropout::new(settings.dropout, Random::new(settings.seed, DROPOUT + step as u64));
        let found = Batch::new(self.source(), rows, Some(settings.loss), settings.depth_decay, self.device)
            .and_then(|batch| Step::new(&self.heads, &batch, settings.loss, dropout.as_mut()))
            .map_err(from_candle)?;
        if !found.loss.is_finite() {
            return Err(Error::new(
                ErrorCode::InvalidOption,
                format!("the loss of step {step} is no number: training has run away; begin anew with a lower rate"),
            ));
        }
        let schedule = settings.schedule(step, self.steps);
        self.update(&found, schedule).map_err(from_candle)?;
        self.standing.step += 1;
        Ok(found.loss)
    }

    fn update(&mut self, found: &Step, schedule: f32) -> candle_core::Result<()> {
        let settings = self.settings;
        let squares: candle_core::Result<f64> = found.gradients.iter().flatten().map(sum_of_squares).sum();
        let length = squares?.sqrt() as f32;
        let gradient_factor = if settings.clip > 0.0 && length > settings.clip { settings.clip / length } else { 1.0 };
        for ((parameter, moments), gradient) in
            self.heads.parameters.iter().zip(&mut self.moments).zip(&found.gradients)
        {
            let Some(gradient) = gradient else { continue };
            let of_head = parameter.part == Part::Head;
            let rate = schedule * if of_head { settings.head_rate } else { settings.rate };
            let decay = if of_head { settings.regularise } else { settings.weight_decay };
            let update = Update { step: self.standing.step + 1, rate, decay, gradient_factor };
            moments.step(&parameter.var, gradient, of_head.then_some(&self.heads.base), update)?;
        }
        Ok(())
    }

    /// Measures the heads, and keeps them if they are the best.
    fn evaluate(&mut self, report: &mut dyn FnMut(Report)) -> Result<()> {
        let loss = self.settings.loss;
        let accuracy = Accuracy::measure(&self.heads, self.source(), &self.split.held_out, loss, self.device)
            .map_err(from_candle)?;
        let best = self.standing.step == 0 || accuracy.tree_8 > self.standing.best.tree_8;
        if best {
            self.standing.best = accuracy.clone();
            self.standing.best_step = self.standing.step;
            self.standing.since_best = 0;
            self.checkpoint.keep_best(&self.heads.parameters)?;
        } else {
            self.standing.since_best += 1;
        }
        let patience = self.settings.patience;
        self.standing.finished =
            self.standing.step == self.steps || (patience > 0 && self.standing.since_best >= patience);
        self.keep()?;
        self.checkpoint.log(&serde_json::json!({
            "step": self.standing.step,
            "steps": self.steps,
            "epoch": self.standing.step as f64 / self.steps_per_epoch as f64,
            "seconds": self.standing.seconds,
            "held_out": accuracy,
        }))?;
        let (step, epoch) = (self.standing.step, self.standing.step as f64 / self.steps_per_epoch as f64);
        report(Report::Evaluated { step, epoch, accuracy, best });
        Ok(())
    }

    fn keep(&self) -> Result<()> {
        self.checkpoint.keep(&self.heads.parameters, &self.moments, &self.identity, &self.standing)
    }
}
