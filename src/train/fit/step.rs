//! Loss and gradients of one batch.
//!
//! What costs is the output matrix: three products of `[pairs, hidden]` and `[drafts, hidden]`. Their gradients are made by hand, so
//! that logits are there once, and only those of some thousand pairs at a time; candle's automatic differentiation goes on from the
//! gradient of the heads' last rows.

use candle_core::{Result as CandleResult, Tensor};

use super::batch::Batch;
use crate::train::loss::{Loss, Targets};
use crate::train::shapes::{Dropout, TrainHeads};
use crate::train::softmax;

/// Logits that are held at a time.
const MAX_LOGITS: usize = 32 << 20;

/// What a batch came to.
#[derive(Debug)]
pub struct Step {
    /// The weighted sum of losses.
    pub loss: f64,
    /// The gradient of each of the heads' parameters; none where the batch says nothing of one.
    pub gradients: Vec<Option<Tensor>>,
    /// The gradient of the hidden rows, where those of the batch are variables, `[batch, hidden]`.
    pub hidden: Option<Tensor>,
    /// The same of the embeddings at each depth.
    pub embedded: Vec<Option<Tensor>>,
}

impl Step {
    /// Loss and gradients of heads at a batch.
    ///
    /// # Errors
    /// When memory is short.
    pub fn new(heads: &TrainHeads, batch: &Batch, loss: Loss, dropout: Option<&mut Dropout>) -> CandleResult<Self> {
        if batch.pairs.is_empty() {
            return Ok(Self {
                loss: 0.0,
                gradients: vec![None; heads.parameters.len()],
                hidden: None,
                embedded: Vec::new(),
            });
        }
        let rows = batch.rows(heads, dropout)?;
        let previous = heads.previous(&batch.parents)?;
        let output = Output::new(heads, &rows, previous.as_ref(), &batch.targets, loss)?;
        // A function of the rows whose gradient is the one that was found.
        let mut linear = (&rows * &output.rows)?.sum_all()?;
        if let (Some(previous), Some(gradient)) = (&previous, &output.previous) {
            linear = (linear + (previous * gradient)?.sum_all()?)?;
        }
        let found = linear.backward()?;
        let gradients = heads.parameters.iter().map(|parameter| match parameter.name.as_str() {
            "head.weight" => output.head.clone(),
            "correction.weight" => output.correction.clone(),
            _ => found.get(parameter.var.as_tensor()).cloned(),
        });
        let of_input = |input: &Tensor| found.get(input).filter(|_| input.is_variable()).cloned();
        Ok(Self {
            gradients: gradients.collect(),
            loss: output.loss,
            hidden: of_input(&batch.hidden),
            embedded: batch.embedded.iter().map(of_input).collect(),
        })
    }
}

/// Gradients of what the logits are made of.
struct Output {
    loss: f64,
    /// `[pairs, hidden]`.
    rows: Tensor,
    /// `[pairs, rank]`.
    previous: Option<Tensor>,
    /// `[drafts, hidden]`.
    head: Option<Tensor>,
    /// `[drafts, rank]`.
    correction: Option<Tensor>,
}

impl Output {
    /// Drafting corrects only the candidates that rank best without a correction, so where there is one, the logits without it are
    /// taught the same; the loss is that of the corrected ones.
    fn new(
        heads: &TrainHeads,
        rows: &Tensor,
        previous: Option<&Tensor>,
        targets: &Targets,
        loss: Loss,
    ) -> CandleResult<Self> {
        let hidden = rows.dim(1)?;
        let (input, weights) = joined(heads, rows, previous)?;
        let rank = input.dim(1)? - hidden;
        // The columns of the input whose weights are trained.
        let trained = if heads.shape.frozen_head { (hidden, rank) } else { (0, hidden + rank) };
        let found = Product::new(&input, &weights, trained, targets, loss)?;
        let columns = |first: usize, count: usize| match &found.weights {
            Some(found) if first >= trained.0 && count > 0 => found.narrow(1, first - trained.0, count).map(Some),
            _ => Ok(None),
        };
        let mut output = Self {
            loss: found.loss,
            rows: found.input.narrow(1, 0, hidden)?,
            previous: (rank > 0).then(|| found.input.narrow(1, hidden, rank)).transpose()?,
            head: columns(0, hidden)?,
            correction: columns(hidden, rank)?,
        };
        if rank > 0 {
            let trained = if heads.shape.frozen_head { (0, 0) } else { (0, hidden) };
            let uncorrected = Product::new(&rows.detach(), &heads.head().detach(), trained, targets, loss)?;
            output.rows = (output.rows + uncorrected.input)?;
            output.head = output.head.zip(uncorrected.weights).map(|(a, b)| a + b).transpose()?;
        }
        Ok(output)
    }
}

/// Loss and gradients of logits that are the product of an input and weights.
struct Product {
    loss: f64,
    /// `[pairs, columns]`.
    input: Tensor,
    /// `[drafts, trained columns]`.
    weights: Option<Tensor>,
}

impl Product {
    /// `trained`: the first of the columns whose weights are trained, and their number.
    fn new(
        input: &Tensor,
        weights: &Tensor,
        trained: (usize, usize),
        targets: &Targets,
        loss: Loss,
    ) -> CandleResult<Self> {
        let piece = (MAX_LOGITS / weights.dim(0)?).max(1);
        let (mut loss_sum, mut of_input, mut of_weights) = (0.0, Vec::new(), None::<Tensor>);
        for first in (0..targets.len()).step_by(piece) {
            let count = piece.min(targets.len() - first);
            let (input, targets) = (input.narrow(0, first, count)?, targets.slice(first, count));
            let (gradient, losses) = softmax::gradient(input.matmul(&weights.t()?)?, &targets, loss)?;
            loss_sum += losses.iter().zip(&targets.weights).map(|(loss, weight)| f64::from(loss * weight)).sum::<f64>();
            of_input.push(gradient.matmul(weights)?);
            if trained.1 > 0 {
                let of_piece = gradient.t()?.matmul(&input.narrow(1, trained.0, trained.1)?)?;
                of_weights = Some(match of_weights {
                    Some(sum) => (sum + of_piece)?,
                    None => of_piece,
                });
            }
        }
        Ok(Self { loss: loss_sum, input: Tensor::cat(&of_input, 0)?, weights: of_weights })
    }
}

/// Input `[pairs, hidden + rank]` and weights `[drafts, hidden + rank]` of the logits, cut off from what they were made of.
fn joined(heads: &TrainHeads, rows: &Tensor, previous: Option<&Tensor>) -> CandleResult<(Tensor, Tensor)> {
    Ok(match (previous, heads.correction()) {
        (Some(previous), Some(correction)) => {
            (Tensor::cat(&[rows, previous], 1)?.detach(), Tensor::cat(&[heads.head(), correction], 1)?.detach())
        }
        _ => (rows.detach(), heads.head().detach()),
    })
}

/// Logits `[pairs, drafts]` of a batch, some pairs at a time: calls `each` with the first pair of every piece, its logits, and, where
/// there is a correction, those without it.
///
/// # Errors
/// When memory is short, and whatever `each` reports.
pub fn logits(
    heads: &TrainHeads,
    batch: &Batch,
    mut each: impl FnMut(usize, Tensor, Option<Tensor>) -> CandleResult<()>,
) -> CandleResult<()> {
    if batch.pairs.is_empty() {
        return Ok(());
    }
    let rows = batch.rows(heads, None)?;
    let (input, weights) = joined(heads, &rows, heads.previous(&batch.parents)?.as_ref())?;
    let head = heads.head().t()?;
    let piece = (MAX_LOGITS / weights.dim(0)?).max(1);
    for first in (0..batch.pairs.len()).step_by(piece) {
        let count = piece.min(batch.pairs.len() - first);
        let corrects = heads.correction().is_some();
        let uncorrected = corrects.then(|| rows.narrow(0, first, count)?.matmul(&head)).transpose()?;
        each(first, input.narrow(0, first, count)?.matmul(&weights.t()?)?, uncorrected)?;
    }
    Ok(())
}
