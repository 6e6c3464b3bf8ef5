//! Medusa-2: the model learns together with its heads, so that its hidden rows say more of what follows (Cai et al. 2024).
//!
//! In the first stage heads learn alone, from the model as it is: heads that know nothing would ruin it. In the second both learn, the
//! model at a lower rate, with `L_model + coefficient · L_heads`. The model's own loss is that of its answers, or, so that it goes on
//! saying what it said, its divergence from the original, which reads the same batch. Now and then both are measured on held-out
//! answers, and the best are kept. Everything is a function of settings, answers and model, so a run that was stopped goes on as if it had
//! not been.

pub(in crate::train) mod attention;
pub mod backbone;
pub mod evaluation;
mod language;
mod linear;
pub mod save;
mod settings;
mod step;
#[cfg(test)]
mod tests;
pub mod texts;

use std::path::Path;
use std::time::Instant;

use candle_core::{Device, Tensor};
use serde::{Deserialize, Serialize};

use self::backbone::Backbone;
use self::evaluation::Evaluation;
use self::settings::Steps;
pub use self::settings::{JointSettings, LanguageLoss, Lora, Ramp, Tuning};
use self::step::Scene;
use self::texts::{Packed, Texts};
use super::answers::Answer;
use super::fit::adamw::{Moments, Update, sum_of_squares};
use super::fit::checkpoint::Checkpoint;
use super::from_candle;
use super::matrices::TargetMatrices;
use super::random::Random;
use super::shapes::{Parameter, TrainHeads};
use super::vocabulary::DraftVocabulary;
use crate::backend::cpu::ops::MatrixF32;
use crate::error::{Error, ErrorCode, Result};

/// What random numbers are for; each epoch has its own.
const ORDER: u64 = 5 << 32;
/// Seconds between checkpoints.
const CHECKPOINT_SECONDS: f64 = 300.0;
/// Steps between reports.
const REPORT_STEPS: usize = 10;

/// What is learnt from.
#[derive(Debug, Clone, Copy)]
pub struct Material<'a> {
    /// The model as it is.
    pub original: &'a Backbone,
    /// Its hash.
    pub identity: &'a str,
    /// Its answers.
    pub answers: &'a [Answer],
    /// Tokens that the draft vocabulary has whether they occur or not: those that end a text.
    pub always: &'a [u32],
    /// Heads to begin with, of the settings' shape; new ones without.
    pub heads: Option<&'a TrainHeads>,
}

/// What a run says of itself.
#[derive(Debug, Clone)]
pub enum Report {
    /// It begins, or goes on.
    Began {
        /// Steps that are done already.
        step: usize,
        /// Steps in which heads learn alone.
        head_steps: usize,
        /// Steps in all.
        steps: usize,
        /// Answers that are learnt from.
        answers: usize,
        /// Their tokens.
        tokens: usize,
        /// Answers that are left out, since their prompts are too long.
        left_out: usize,
        /// The share of held-out tokens that are in the draft vocabulary.
        coverage: f64,
        /// Numbers of the model that are trained.
        trained: usize,
    },
    /// Some more steps are done.
    Stepped {
        /// Steps that are done.
        step: usize,
        /// Steps in all.
        steps: usize,
        /// The model's mean loss since the last report; 0 while it is left as it is.
        language: f64,
        /// That of the heads.
        heads: f64,
        /// Tokens of answers a second.
        tokens_per_second: f64,
        /// Seconds that the rest takes at this pace, evaluations left out.
        seconds_left: f64,
    },
    /// Model and heads were measured.
    Evaluated {
        /// Steps that are done.
        step: usize,
        /// Epochs that are done.
        epoch: f64,
        /// How good they are.
        evaluation: Evaluation,
        /// Whether they are the best so far.
        best: bool,
    },
}

/// A trained model with its heads.
#[derive(Debug)]
pub struct Joined {
    /// The model, the best of the run.
    pub backbone: Backbone,
    /// Its heads.
    pub heads: TrainHeads,
    /// How good they are.
    pub evaluation: Evaluation,
    /// The step after which they were.
    pub step: usize,
    /// Tokens that were learnt from.
    pub tokens: usize,
    /// The share of held-out tokens that are in the draft vocabulary.
    pub coverage: f64,
    /// Seconds of training.
    pub seconds: f64,
}

/// Trains a model with its heads, in a folder that may have a stopped run of the same settings.
///
/// # Errors
/// `InvalidOption` for settings that cannot be, or for a folder with another run; `LoadFailed` when the disk is full.
pub fn train(
    material: Material<'_>,
    settings: &JointSettings,
    folder: &Path,
    report: &mut dyn FnMut(Report),
) -> Result<Joined> {
    settings.validate()?;
    let original = material.original;
    let texts = texts(material, settings)?;
    let heads = first_heads(material, settings, &texts)?;
    let coverage = heads.vocabulary.coverage(Texts::tokens(&texts.held_out));
    let mut backbone = original.clone();
    let parameters = backbone.train(settings.tuning, settings.seed)?;
    let moments = heads.parameters.iter().chain(&parameters).map(|parameter| Moments::zeros(&parameter.var));
    let moments = moments.collect::<candle_core::Result<Vec<_>>>().map_err(from_candle)?;
    let (steps, tokens) = (settings.steps(&texts), Texts::tokens(&texts.train).count());
    let mut run = Run {
        original,
        settings,
        steps,
        checkpoint: Checkpoint::new(folder),
        identity: describe(material, settings, &texts)?,
        standing: Standing::default(),
        texts,
        all: heads.parameters.iter().chain(&parameters).cloned().collect(),
        parameters,
        backbone,
        heads,
        moments,
    };
    if let Some(standing) = run.checkpoint.resume(&run.all, &mut run.moments, &run.identity)? {
        run.standing = standing;
    }
    report(Report::Began {
        step: run.standing.step,
        head_steps: steps.heads,
        steps: steps.all(),
        answers: run.texts.train.len(),
        tokens,
        left_out: run.texts.left_out,
        coverage,
        trained: run.parameters.iter().map(|parameter| parameter.var.elem_count()).sum(),
    });
    if !run.standing.finished {
        run.learn(report)?;
    }
    run.checkpoint.load_best(&run.all)?;
    run.share_head()?;
    let Standing { best: evaluation, best_step: step, seconds, .. } = run.standing;
    Ok(Joined { backbone: run.backbone, heads: run.heads, evaluation, step, tokens, coverage, seconds })
}

/// The heads that training begins with.
fn first_heads(material: Material<'_>, settings: &JointSettings, texts: &Texts) -> Result<TrainHeads> {
    let Material { original, always, heads, .. } = material;
    if let Some(heads) = heads {
        if heads.shape != settings.shape {
            return Err(Error::new(
                ErrorCode::InvalidOption,
                format!("the heads to begin with are {:?}, expected {:?}", heads.shape, settings.shape),
            ));
        }
        return heads.copy();
    }
    let learnt = Texts::tokens(&texts.train);
    let vocabulary = DraftVocabulary::choose(learnt, settings.draft_vocab, always, original.config().vocab_size)?;
    TrainHeads::new(settings.shape, vocabulary, &matrices(original)?, settings.seed, original.device())
}

/// What makes a run the same as another.
fn describe(material: Material<'_>, settings: &JointSettings, texts: &Texts) -> Result<String> {
    let heads = match material.heads {
        Some(heads) => format!("heads {:016x}", heads.identity()?),
        None => "new heads".to_owned(),
    };
    let (answers, tokens) = (texts.train.len(), Texts::tokens(&texts.train).count());
    Ok(format!("{settings:?}, {heads}, on {tokens} tokens of {answers} answers of {}", material.identity))
}

/// Measures another model, the trained one as it is stored for example, with heads that were trained.
///
/// # Errors
/// As [`train`].
pub fn measure(
    material: Material<'_>,
    settings: &JointSettings,
    backbone: &Backbone,
    heads: &TrainHeads,
) -> Result<Evaluation> {
    let scene = Scene { backbone, original: material.original, heads, settings };
    Evaluation::measure(scene, &texts(material, settings)?.held_out).map_err(from_candle)
}

fn texts(material: Material<'_>, settings: &JointSettings) -> Result<Texts> {
    let config = material.original.config();
    let longest = settings.longest.min(config.max_position_embeddings);
    let held_out = (settings.held_out, settings.held_out_answers);
    Texts::new(material.answers, config.vocab_size, longest, held_out)
}

/// The model's matrices that heads begin with.
fn matrices(model: &Backbone) -> Result<TargetMatrices> {
    let matrix = |tensor: &Tensor| {
        let (rows, columns) = tensor.dims2()?;
        let values = tensor.to_device(&Device::Cpu)?.flatten_all()?.to_vec1()?;
        Ok::<_, candle_core::Error>(MatrixF32 { rows, columns, values })
    };
    let all = || {
        let lm_head = (!model.config().tie_word_embeddings).then(|| matrix(model.lm_head()?.tensor())).transpose()?;
        Ok(TargetMatrices::new(model.config().clone(), matrix(model.embedding()?.tensor())?, lm_head))
    };
    all().map_err(from_candle)
}

/// Where a run stands.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
struct Standing {
    /// Steps that are done.
    step: usize,
    /// Seconds that they took.
    seconds: f64,
    /// Whether it has come to its end.
    finished: bool,
    /// The step after which the objective was least.
    best_step: usize,
    /// What was found then.
    best: Evaluation,
    /// Evaluations of joint training since.
    since_best: usize,
}

/// A run at work.
struct Run<'a> {
    original: &'a Backbone,
    settings: &'a JointSettings,
    steps: Steps,
    checkpoint: Checkpoint,
    /// What makes it the same as another.
    identity: String,
    standing: Standing,
    texts: Texts,
    backbone: Backbone,
    heads: TrainHeads,
    /// Those of the model.
    parameters: Vec<Parameter>,
    /// Those of the heads, then those of the model.
    all: Vec<Parameter>,
    moments: Vec<Moments>,
}

impl Run<'_> {
    fn scene(&self) -> Scene<'_> {
        Scene { backbone: &self.backbone, original: self.original, heads: &self.heads, settings: self.settings }
    }

    fn learn(&mut self, report: &mut dyn FnMut(Report)) -> Result<()> {
        if self.standing.step == 0 {
            self.evaluate(report)?;
        }
        let (mut pace, mut kept) = (Pace::new(), self.standing.seconds);
        let mut order: (usize, Vec<u32>) = (usize::MAX, Vec::new());
        while self.standing.step < self.steps.all() && !self.standing.finished {
            let begun = Instant::now();
            let (epoch, place) = (self.standing.step / self.steps.epoch, self.standing.step % self.steps.epoch);
            if order.0 != epoch {
                order = (epoch, (0..self.texts.train.len() as u32).collect());
                Random::new(self.settings.seed, ORDER + epoch as u64).shuffle(&mut order.1);
            }
            let texts = &order.1[place * self.steps.batch..(place + 1) * self.steps.batch];
            let packed = Packed::new(texts.iter().map(|&text| &self.texts.train[text as usize]));
            pace.add(self.step(&packed)?, packed.labels.len());
            self.standing.seconds += begun.elapsed().as_secs_f64();
            if pace.steps == REPORT_STEPS {
                report(pace.report(self.standing.step, self.steps.all()));
                pace = Pace::new();
            }
            if self.is_time_to_evaluate() {
                self.evaluate(report)?;
                (pace, kept) = (Pace::new(), self.standing.seconds);
            } else if self.standing.seconds > kept + CHECKPOINT_SECONDS {
                self.keep()?;
                kept = self.standing.seconds;
            }
        }
        Ok(())
    }

    fn is_time_to_evaluate(&self) -> bool {
        let every = if self.settings.evaluate_every == 0 { self.steps.epoch } else { self.settings.evaluate_every };
        let step = self.standing.step;
        step.is_multiple_of(every) || step == self.steps.heads || step == self.steps.all()
    }

    /// One step with these texts; gives the losses of model and heads.
    fn step(&mut self, packed: &Packed) -> Result<(f64, f64)> {
        let step = self.standing.step;
        let coefficient = self.settings.coefficient(step, self.steps);
        let found = self.scene().step(packed, coefficient, &self.parameters).map_err(from_candle)?;
        if !found.language.is_finite() || !found.heads.is_finite() {
            return Err(Error::new(
                ErrorCode::InvalidOption,
                format!("a loss of step {step} is no number: training has run away; begin anew with a lower rate"),
            ));
        }
        let rate = self.settings.rate(step, self.steps);
        let count = self.heads.parameters.len();
        self.update(0, &found.of_heads, (step, rate * self.settings.head_factor))?;
        self.update(count, &found.of_model, (step.saturating_sub(self.steps.heads), rate))?;
        self.standing.step += 1;
        self.share_head()?;
        Ok((found.language, found.heads))
    }

    /// Moves the parameters from `first` on; `done` are steps in which they were.
    fn update(&mut self, first: usize, gradients: &[Option<Tensor>], (done, rate): (usize, f32)) -> Result<()> {
        let Self { settings, all, moments, .. } = self;
        let squares: candle_core::Result<f64> = gradients.iter().flatten().map(sum_of_squares).sum();
        let length = squares.map_err(from_candle)?.sqrt() as f32;
        let gradient_factor = if settings.clip > 0.0 && length > settings.clip { settings.clip / length } else { 1.0 };
        let update = Update { step: done + 1, rate, decay: settings.weight_decay, gradient_factor };
        for ((parameter, moments), gradient) in all[first..].iter().zip(&mut moments[first..]).zip(gradients) {
            if let Some(gradient) = gradient {
                moments.step(&parameter.var, gradient, None, update).map_err(from_candle)?;
            }
        }
        Ok(())
    }

    /// Gives heads without an output matrix of their own the model's, as it is by now.
    fn share_head(&mut self) -> Result<()> {
        let Self { heads, backbone, .. } = self;
        if heads.shape.frozen_head {
            let share = || {
                let tokens = Tensor::new(&heads.vocabulary.tokens[..], backbone.device())?;
                backbone.lm_head()?.tensor().detach().index_select(&tokens, 0)
            };
            heads.base = share().map_err(from_candle)?;
        }
        Ok(())
    }

    /// Measures model and heads, and keeps them if they are the best.
    fn evaluate(&mut self, report: &mut dyn FnMut(Report)) -> Result<()> {
        let evaluation = Evaluation::measure(self.scene(), &self.texts.held_out).map_err(from_candle)?;
        let step = self.standing.step;
        let best = step == 0 || evaluation.objective < self.standing.best.objective;
        if best {
            self.standing.best = evaluation.clone();
            self.standing.best_step = step;
            self.standing.since_best = 0;
            self.checkpoint.keep_best(&self.all)?;
        } else if step > self.steps.heads {
            self.standing.since_best += 1;
        }
        let patience = self.settings.patience;
        self.standing.finished = step == self.steps.all() || (patience > 0 && self.standing.since_best >= patience);
        self.keep()?;
        let epoch = step as f64 / self.steps.epoch as f64;
        let line = serde_json::json!({
            "step": step, "steps": self.steps.all(), "epoch": epoch, "seconds": self.standing.seconds, "held_out": evaluation,
        });
        self.checkpoint.log(&line)?;
        report(Report::Evaluated { step, epoch, evaluation, best });
        Ok(())
    }

    fn keep(&self) -> Result<()> {
        self.checkpoint.keep(&self.all, &self.moments, &self.identity, &self.standing)
    }
}

/// Losses and tokens since the last report.
struct Pace {
    began: Instant,
    steps: usize,
    tokens: usize,
    language: f64,
    heads: f64,
}

impl Pace {
    fn new() -> Self {
        Self { began: Instant::now(), steps: 0, tokens: 0, language: 0.0, heads: 0.0 }
    }

    fn add(&mut self, (language, heads): (f64, f64), tokens: usize) {
        self.steps += 1;
        self.tokens += tokens;
        self.language += language;
        self.heads += heads;
    }

    fn report(&self, step: usize, steps: usize) -> Report {
        let (seconds, count) = (self.began.elapsed().as_secs_f64(), self.steps as f64);
        Report::Stepped {
            step,
            steps,
            language: self.language / count,
            heads: self.heads / count,
            tokens_per_second: self.tokens as f64 / seconds,
            seconds_left: (steps - step) as f64 * seconds / count,
        }
    }
}
