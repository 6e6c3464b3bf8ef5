//! Draft heads as they are trained: the forms that the runtime draws with (`docs/heads.md`), with gradients.
//!
//! Whatever the form, a head of depth d makes a *row* `[hidden]`, and an output matrix `[drafts, hidden]` turns it into logits. Blocks
//! begin as zeros, those of fusion and context too, and the output matrix as rows of the target's own, so that at first every head says what the target says of the
//! token that the hidden row decides. The reference of what is computed is `CpuHeads`.

use candle_core::{Device, Result as CandleResult, Tensor, Var};

use super::context::Context;
use super::from_candle;
use super::matrices::TargetMatrices;
use super::random::Random;
use super::vocabulary::DraftVocabulary;
use crate::error::{Error, ErrorCode, Result};
use crate::model::heads::{CONTEXT_ALIGNMENT, HeadForm, MAX_DEPTHS, Taps};

/// What the random numbers of the first weights are for.
const FIRST_WEIGHTS: u64 = 1;
const FIRST_QUERIES: u64 = 3;

/// The shape of heads to be trained.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HeadShape {
    /// What they read.
    pub form: HeadForm,
    /// Depths that they draft.
    pub depths: usize,
    /// Blocks of a parallel head; 1 in the recurrent form.
    pub layers: usize,
    /// Rank of the correction by the previous token; 0 for none.
    pub rank: usize,
    /// Whether one block updates the recurrent state at every level, instead of one each.
    pub one_block: bool,
    /// Whether the output matrix stays what the target's is: it is not stored with the heads then.
    pub frozen_head: bool,
    /// Layers of the target whose output is fused with the hidden row.
    pub taps: Taps,
    /// The layer of the target by whose keys and values they look at the context.
    pub context_layer: Option<usize>,
}

impl HeadShape {
    /// Refuses shapes that the runtime does not draw with.
    ///
    /// # Errors
    /// `InvalidOption`.
    pub fn validate(&self) -> Result<()> {
        let invalid = |message: String| Err(Error::new(ErrorCode::InvalidOption, message));
        if !(1..=MAX_DEPTHS).contains(&self.depths) {
            return invalid(format!("heads of {} depths, expected 1 to {MAX_DEPTHS}", self.depths));
        }
        if self.layers == 0 || (self.form == HeadForm::Recurrent && self.layers != 1) {
            return invalid(format!("{} heads of {} layers, expected 1 layer", self.form.as_str(), self.layers));
        }
        if self.one_block && self.form == HeadForm::Parallel {
            return invalid("one block for all levels is for recurrent heads; parallel ones have one each".to_owned());
        }
        Ok(())
    }

    /// Heads with blocks of their own, or levels.
    pub fn blocks(&self) -> usize {
        if self.one_block { 1 } else { self.depths }
    }

    /// Numbers that a block reads, in hidden sizes.
    fn width(&self) -> usize {
        if self.form == HeadForm::Recurrent { 2 } else { 1 }
    }
}

/// What a weight belongs to: parts have their own rates of learning.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// A block.
    Blocks,
    /// The output matrix.
    Head,
    /// The correction by the previous token.
    Correction,
    /// The model itself, where it is trained with its heads.
    Model,
}

/// A weight that is trained.
#[derive(Debug, Clone)]
pub struct Parameter {
    /// Its name in a file.
    pub name: String,
    /// What it belongs to.
    pub part: Part,
    /// Its value.
    pub var: Var,
}

/// Heads in training.
#[derive(Debug)]
pub struct TrainHeads {
    /// Their shape.
    pub shape: HeadShape,
    /// The tokens they can predict.
    pub vocabulary: DraftVocabulary,
    /// Everything that is trained, in a fixed order.
    pub parameters: Vec<Parameter>,
    /// The rows of the target's output matrix that belong to the draft vocabulary, `[drafts, hidden]`.
    pub base: Tensor,
    /// Added to the mean square in the norm of a row that looks at the context.
    pub(super) epsilon: f32,
}

impl TrainHeads {
    /// Heads that know nothing yet.
    ///
    /// # Errors
    /// `InvalidOption` for a shape that cannot be run.
    pub fn new(
        shape: HeadShape,
        vocabulary: DraftVocabulary,
        target: &TargetMatrices,
        seed: u64,
        device: &Device,
    ) -> Result<Self> {
        shape.validate()?;
        let lm_head = target.lm_head();
        let hidden = lm_head.columns;
        if shape.context_layer.is_some() && !hidden.is_multiple_of(CONTEXT_ALIGNMENT) {
            return Err(Error::new(
                ErrorCode::InvalidOption,
                format!(
                    "heads look at the context of models whose hidden size is a multiple of {CONTEXT_ALIGNMENT}, found {hidden}"
                ),
            ));
        }
        let rows = vocabulary.tokens.iter().flat_map(|&token| lm_head.row(token as usize)).copied().collect();
        let base = Tensor::from_vec(rows, (vocabulary.len(), hidden), device).map_err(from_candle)?;
        let config = target.config();
        let mut heads = Self { shape, vocabulary, parameters: Vec::new(), base, epsilon: config.rms_norm_eps };
        heads.add_parameters((lm_head.rows, hidden, config.q_size()), seed).map_err(from_candle)?;
        Ok(heads)
    }

    fn add_parameters(&mut self, (vocab, hidden, query): (usize, usize, usize), seed: u64) -> CandleResult<()> {
        let HeadShape { layers, rank, frozen_head, .. } = self.shape;
        let device = self.base.device().clone();
        let mut parameters = Vec::new();
        let mut add = |name: String, part: Part, value: Tensor| -> CandleResult<()> {
            parameters.push(Parameter { name, part, var: Var::from_tensor(&value)? });
            Ok(())
        };
        let zeros = |shape: (usize, usize)| Tensor::zeros(shape, candle_core::DType::F32, &device);
        if !self.shape.taps.is_empty() {
            let width = (1 + self.shape.taps.len()) * hidden;
            add("fusion.weight".to_owned(), Part::Blocks, zeros((hidden, width))?)?;
            add("fusion.bias".to_owned(), Part::Blocks, zeros((1, hidden))?.flatten_all()?)?;
        }
        if self.shape.context_layer.is_some() {
            // Queries of about the size of normed rows, so that some positions count more than others from the first.
            let mut random = Random::new(seed, FIRST_QUERIES);
            let scale = (3.0 / hidden as f32).sqrt();
            let values = (0..query * hidden).map(|_| scale * (2.0 * random.fraction() - 1.0)).collect();
            let queries = Tensor::from_vec(values, (query, hidden), &device)?;
            add("context.query.weight".to_owned(), Part::Blocks, queries)?;
            add("context.weight".to_owned(), Part::Blocks, zeros((hidden, hidden + query))?)?;
            add("context.bias".to_owned(), Part::Blocks, zeros((1, hidden))?.flatten_all()?)?;
        }
        for (block, layer) in (0..self.shape.blocks()).flat_map(|block| (0..layers).map(move |layer| (block, layer))) {
            let width = self.shape.width() * hidden;
            add(format!("blocks.{block}.{layer}.weight"), Part::Blocks, zeros((hidden, width))?)?;
            add(format!("blocks.{block}.{layer}.bias"), Part::Blocks, zeros((1, hidden))?.flatten_all()?)?;
        }
        if !frozen_head {
            add("head.weight".to_owned(), Part::Head, self.base.copy()?)?;
        }
        if rank > 0 {
            let mut random = Random::new(seed, FIRST_WEIGHTS);
            let scale = 1.0 / (rank as f32).sqrt();
            let values = (0..vocab * rank).map(|_| scale * (2.0 * random.fraction() - 1.0)).collect();
            let previous = Tensor::from_vec(values, (vocab, rank), &device)?;
            add("previous.weight".to_owned(), Part::Correction, previous)?;
            add("correction.weight".to_owned(), Part::Correction, zeros((self.vocabulary.len(), rank))?)?;
        }
        self.parameters = parameters;
        Ok(())
    }

    /// The weight of this name.
    pub fn parameter(&self, name: &str) -> Option<&Tensor> {
        self.parameters.iter().find(|parameter| parameter.name == name).map(|parameter| parameter.var.as_tensor())
    }

    fn weight(&self, name: &str) -> CandleResult<&Tensor> {
        self.parameter(name).ok_or_else(|| candle_core::Error::Msg(format!("heads of this shape have no {name}")))
    }

    /// The output matrix, `[drafts, hidden]`.
    pub fn head(&self) -> &Tensor {
        self.parameter("head.weight").unwrap_or(&self.base)
    }

    /// What each draft id makes of a previous token, `[drafts, rank]`.
    pub fn correction(&self) -> Option<&Tensor> {
        self.parameter("correction.weight")
    }

    /// What tokens contribute to the logits of their children, `[tokens, rank]`; none without a correction.
    ///
    /// # Errors
    /// None for ids that are tokens.
    pub fn previous(&self, tokens: &[u32]) -> CandleResult<Option<Tensor>> {
        let Some(previous) = self.parameter("previous.weight") else { return Ok(None) };
        let ids = Tensor::new(tokens, previous.device())?;
        Ok(Some(previous.index_select(&ids, 0)?))
    }

    /// The rows `[batch, hidden]` that heads draft from: the hidden rows, and what other layers say, normed, fused with them.
    ///
    /// # Errors
    /// None for tensors of these shapes.
    pub fn fuse(&self, hidden: &Tensor, taps: &[Tensor], dropout: Option<&mut Dropout>) -> CandleResult<Tensor> {
        if taps.is_empty() {
            return Ok(hidden.clone());
        }
        let parts: Vec<&Tensor> = std::iter::once(hidden).chain(taps).collect();
        self.block("fusion", hidden, &Tensor::cat(&parts, 1)?, dropout)
    }

    /// The same rows after they have looked at the context.
    ///
    /// # Errors
    /// None for heads that do.
    pub fn look_back(&self, row: &Tensor, context: &Context, dropout: Option<&mut Dropout>) -> CandleResult<Tensor> {
        let mean_square = row.sqr()?.mean_keepdim(1)?;
        let normed = row.broadcast_div(&(mean_square + f64::from(self.epsilon))?.sqrt()?)?;
        let mixed = context.attend(&normed.matmul(&self.weight("context.query.weight")?.t()?)?)?;
        self.block("context", row, &Tensor::cat(&[row, &mixed], 1)?, dropout)
    }

    /// The rows `[batch, hidden]` of every depth, before the output matrix. `hidden` is `[batch, hidden]`; the recurrent form also reads
    /// the embeddings of the tokens that the text has at each depth, the root's first, `[batch, hidden]`.
    ///
    /// # Errors
    /// None for tensors of these shapes.
    pub fn rows(
        &self,
        hidden: &Tensor,
        embedded: &[Tensor],
        mut dropout: Option<&mut Dropout>,
    ) -> CandleResult<Vec<Tensor>> {
        let mut rows: Vec<Tensor> = Vec::with_capacity(self.shape.depths);
        for depth in 0..self.shape.depths {
            let row = match self.shape.form {
                HeadForm::Parallel => {
                    let mut row = hidden.clone();
                    for layer in 0..self.shape.layers {
                        row = self.block(&format!("blocks.{depth}.{layer}"), &row, &row, dropout.as_deref_mut())?;
                    }
                    row
                }
                HeadForm::Recurrent => {
                    let state = rows.last().unwrap_or(hidden);
                    let block = if self.shape.one_block { 0 } else { depth };
                    let missing = || candle_core::Error::Msg(format!("no embeddings of depth {depth}"));
                    let input = Tensor::cat(&[state, embedded.get(depth).ok_or_else(missing)?], 1)?;
                    self.block(&format!("blocks.{block}.0"), state, &input, dropout.as_deref_mut())?
                }
            };
            rows.push(row);
        }
        Ok(rows)
    }

    /// `x + silu(W input + b)`.
    fn block(&self, name: &str, x: &Tensor, input: &Tensor, dropout: Option<&mut Dropout>) -> CandleResult<Tensor> {
        let weight = self.weight(&format!("{name}.weight"))?;
        let bias = self.weight(&format!("{name}.bias"))?;
        let dropped = dropout.map(|dropout| dropout.apply(input)).transpose()?;
        let product = dropped.as_ref().unwrap_or(input).matmul(&weight.t()?)?;
        x + product.broadcast_add(bias)?.silu()?
    }
}

/// Leaves out some of what blocks read, while they are trained (Srivastava et al. 2014).
#[derive(Debug)]
pub struct Dropout {
    rate: f32,
    random: Random,
}

impl Dropout {
    /// Leaves out this share; none when it is 0.
    pub fn new(rate: f32, random: Random) -> Option<Self> {
        (rate > 0.0).then_some(Self { rate, random })
    }

    fn apply(&mut self, input: &Tensor) -> CandleResult<Tensor> {
        let kept = 1.0 / (1.0 - self.rate);
        let mask = (0..input.elem_count()).map(|_| if self.random.fraction() < self.rate { 0.0 } else { kept });
        input * Tensor::from_vec(mask.collect::<Vec<f32>>(), input.shape(), input.device())?
    }
}
