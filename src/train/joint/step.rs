//! Losses and gradients of one batch, for heads and model.
//!
//! Between them stand the hidden rows: the heads' loss is differentiated down to these, and what it asks of them is added, times its
//! coefficient, to what the model's own loss asks of them. So the coefficient says how far the model follows its heads, and heads learn
//! at their own rate from the first step to the last.

use candle_core::{Result as CandleResult, Tensor, Var};

use super::backbone::Backbone;
use super::language::{Rows, Spoken, Wanted};
use super::settings::{JointSettings, LanguageLoss};
use super::texts::Packed;
use crate::train::fit::batch::{Batch, Labels};
use crate::train::fit::step::Step;
use crate::train::loss::Loss;
use crate::train::shapes::{Parameter, TrainHeads};

/// The model's most probable tokens that teach its heads.
const NAMED: usize = 16;

/// A model with its heads, and with itself as it was.
#[derive(Debug, Clone, Copy)]
pub struct Scene<'a> {
    /// The model.
    pub backbone: &'a Backbone,
    /// As it was before it was trained.
    pub original: &'a Backbone,
    /// Its heads.
    pub heads: &'a TrainHeads,
    /// How they are trained.
    pub settings: &'a JointSettings,
}

/// What a batch came to.
#[derive(Debug)]
pub struct JointStep {
    /// The model's own loss, the mean over its rows; 0 while it is left as it is.
    pub language: f64,
    /// The heads' loss.
    pub heads: f64,
    /// The gradient of each of the heads' parameters.
    pub of_heads: Vec<Option<Tensor>>,
    /// The gradient of each of the model's; empty while it is left as it is.
    pub of_model: Vec<Option<Tensor>>,
}

/// What a pass over a batch found, before any of it is differentiated.
pub struct Pass {
    /// The rows that decide tokens of answers.
    pub rows: Tensor,
    /// How well the model speaks there.
    pub spoken: Spoken,
    /// What heads are to predict.
    pub batch: Batch,
    /// The tokens whose embeddings heads read, depth by depth.
    pub read: Vec<Tensor>,
}

impl Scene<'_> {
    /// A pass. `learns` is the loss that the model is to be given gradients of; the batch has every pair that has a token without
    /// `teaches`.
    ///
    /// # Errors
    /// When memory is short.
    pub fn pass(&self, packed: &Packed, learns: Option<LanguageLoss>, teaches: Option<Loss>) -> CandleResult<Pass> {
        let Self { backbone, heads, settings, .. } = *self;
        let device = backbone.device();
        let rows = rows_of(backbone, packed)?;
        let lm_head = backbone.lm_head()?;
        let found = Rows { hidden: rows.detach(), lm_head: lm_head.tensor().detach() };
        let needs_original = learns == Some(LanguageLoss::Original) || teaches.is_none();
        let original = needs_original.then(|| rows_of_original(self.original, packed)).transpose()?;
        let best = if settings.loss.needs_teacher() { NAMED.min(backbone.config().vocab_size) } else { 0 };
        let wanted = Wanted { gradients: learns, of_lm_head: lm_head.is_trained(), best };
        let spoken = match learns.is_some() || original.is_some() || best > 0 {
            true => Spoken::new(&found, &packed.labels, original.as_ref(), wanted)?,
            false => Spoken::default(),
        };
        let labels = Labels {
            tokens: &packed.labels,
            best,
            best_tokens: &spoken.best_tokens,
            best_probabilities: &spoken.best_probabilities,
            ends: &packed.ends,
            shape: settings.shape,
            vocabulary: &heads.vocabulary,
        };
        let hidden = found.hidden.index_select(&Tensor::new(&packed.roots[..], device)?, 0)?;
        let (embedding, mut read) = (backbone.embedding()?.tensor().detach(), Vec::new());
        let mut embed = |tokens: &[u32]| {
            let ids = Tensor::new(tokens, device)?;
            let rows = embedding.index_select(&ids, 0)?;
            read.push(ids);
            leaf(&rows)
        };
        let batch = Batch::of(labels, &packed.roots, leaf(&hidden)?, &mut embed, teaches, settings.depth_decay)?;
        Ok(Pass { rows, spoken, batch, read })
    }

    /// Losses and gradients. `parameters` are the model's; it is left as it is without a coefficient.
    ///
    /// # Errors
    /// When memory is short.
    pub fn step(&self, packed: &Packed, coefficient: Option<f32>, parameters: &[Parameter]) -> CandleResult<JointStep> {
        let settings = self.settings;
        let resting;
        let scene = match coefficient {
            Some(_) => *self,
            None => {
                resting = self.backbone.at_rest();
                Scene { backbone: &resting, ..*self }
            }
        };
        let learns = coefficient.map(|_| settings.language);
        let pass = scene.pass(packed, learns, Some(settings.loss))?;
        let found = Step::new(self.heads, &pass.batch, settings.loss, None)?;
        let (language, of_model) = match coefficient {
            Some(coefficient) => (
                pass.spoken.loss(settings.language) / packed.labels.len() as f64,
                self.of_model(&pass, &found, packed, f64::from(coefficient), parameters)?,
            ),
            None => (0.0, Vec::new()),
        };
        Ok(JointStep { language, heads: found.loss, of_heads: found.gradients, of_model })
    }

    /// The gradients of the model's parameters.
    fn of_model(
        &self,
        pass: &Pass,
        found: &Step,
        packed: &Packed,
        coefficient: f64,
        parameters: &[Parameter],
    ) -> CandleResult<Vec<Option<Tensor>>> {
        let Some(mut of_rows) = pass.spoken.of_hidden.clone() else { return Ok(vec![None; parameters.len()]) };
        if let Some(of_hidden) = &found.hidden {
            let roots = Tensor::new(&packed.roots[..], of_rows.device())?;
            of_rows = of_rows.index_add(&roots, &(of_hidden * coefficient)?, 0)?;
        }
        // A function of the parameters whose gradients are the ones that were found.
        let mut linear = (&pass.rows * of_rows)?.sum_all()?;
        if let Some(of_lm_head) = &pass.spoken.of_lm_head {
            linear = (linear + (self.backbone.lm_head()?.tensor() * of_lm_head)?.sum_all()?)?;
        }
        let embedding = self.backbone.embedding()?;
        for (ids, of_embedded) in pass.read.iter().zip(&found.embedded).filter(|_| embedding.is_trained()) {
            if let Some(gradient) = of_embedded {
                let embedded = embedding.tensor().index_select(ids, 0)?;
                linear = (linear + (embedded * (gradient * coefficient)?)?.sum_all()?)?;
            }
        }
        let gradients = linear.backward()?;
        Ok(parameters.iter().map(|parameter| gradients.get(parameter.var.as_tensor()).cloned()).collect())
    }
}

/// A tensor whose own gradient is wanted.
fn leaf(tensor: &Tensor) -> CandleResult<Tensor> {
    Ok(Var::from_tensor(tensor)?.as_tensor().clone())
}

fn rows_of(model: &Backbone, packed: &Packed) -> CandleResult<Tensor> {
    let rows = Tensor::new(&packed.rows[..], model.device())?;
    model.hidden(&packed.tokens, &packed.lengths)?.index_select(&rows, 0)
}

fn rows_of_original(original: &Backbone, packed: &Packed) -> CandleResult<Rows> {
    Ok(Rows { hidden: rows_of(original, packed)?, lm_head: original.lm_head()?.tensor().clone() })
}
