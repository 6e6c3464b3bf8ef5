//! Rows of states as tensors, with what heads are to predict at them.
//!
//! The hidden row number i of an answer decides its token i, the root of a draft. The head of depth d predicts token i + 1 + d, for
//! which the target's own distribution is that of row i + 1 + d. So the last row of an answer teaches nothing, and those before it not
//! every depth.

use candle_core::{Device, Result as CandleResult, Tensor};

use crate::error::{Error, ErrorCode, Result};
use crate::model::heads::HeadForm;
use crate::train::context::Context;
use crate::train::loss::{Loss, Targets};
use crate::train::matrices::TargetMatrices;
use crate::train::random::Random;
use crate::train::shapes::{Dropout, HeadShape, TrainHeads};
use crate::train::split::is_held_out;
use crate::train::states::States;
use crate::train::vocabulary::{DraftVocabulary, NOT_DRAFTED};

/// What the random choice of held-out rows is for.
const HELD_OUT_ROWS: u64 = 2;

/// Rows of states that can teach, in two parts.
#[derive(Debug, Clone)]
pub struct Split {
    /// Those that are learnt from.
    pub train: Vec<u32>,
    /// Those that tell how much was learnt.
    pub held_out: Vec<u32>,
    /// For every row of the states, where its answer ends.
    pub ends: Vec<u32>,
}

impl Split {
    /// Holds out a share of the answers, of which at most `most` rows are kept, drawn evenly.
    ///
    /// # Errors
    /// `InvalidOption` when either part is empty.
    pub fn new(states: &States, share: f64, most: usize) -> Result<Self> {
        let (held_out, ends) = Self::held_out(states, share, most)?;
        let train = Self::part(states, share, false);
        if train.is_empty() {
            return Err(nothing_left(states, "learn from", share));
        }
        Ok(Self { train, held_out, ends })
    }

    /// The rows of the held-out answers, at most `most`, drawn evenly; and for every row of the states, where its answer ends.
    ///
    /// # Errors
    /// `InvalidOption` when there are none.
    pub fn held_out(states: &States, share: f64, most: usize) -> Result<(Vec<u32>, Vec<u32>)> {
        let mut rows = Self::part(states, share, true);
        if rows.is_empty() {
            return Err(nothing_left(states, "check with", share));
        }
        if rows.len() > most {
            Random::new(0, HELD_OUT_ROWS).shuffle(&mut rows);
            rows.truncate(most.max(1));
            rows.sort_unstable();
        }
        let mut ends = Vec::with_capacity(states.len());
        for number in 0..states.sequences.len() {
            let end = states.range(number).end;
            ends.resize(end, end as u32);
        }
        Ok((rows, ends))
    }

    /// The rows of one part that have a token behind theirs.
    fn part(states: &States, share: f64, held_out: bool) -> Vec<u32> {
        let wanted = states.sequences.iter().enumerate().filter(|(_, it)| is_held_out(&it.id, share) == held_out);
        let rows = wanted.flat_map(|(number, _)| {
            let range = states.range(number);
            range.start as u32..range.end.saturating_sub(1) as u32
        });
        rows.collect()
    }

    /// The tokens of one part of the answers, held out or not.
    pub fn tokens(states: &States, share: f64, held_out: bool) -> impl Iterator<Item = u32> {
        let tokens = states.all().tokens;
        let wanted = states.sequences.iter().enumerate().filter(move |(_, it)| is_held_out(&it.id, share) == held_out);
        wanted.flat_map(move |(number, _)| tokens[states.range(number)].iter().copied())
    }
}

fn nothing_left(states: &States, purpose: &str, share: f64) -> Error {
    let answers = states.sequences.len();
    Error::new(
        ErrorCode::InvalidOption,
        format!(
            "of {answers} answers no rows are left to {purpose}; make more answers, or hold out another share than {share}"
        ),
    )
}

/// What rows are made to tensors with.
#[derive(Debug, Clone, Copy)]
pub struct Source<'a> {
    /// The states.
    pub states: &'a States,
    /// For every row of the states, where its answer ends.
    pub ends: &'a [u32],
    /// The target's matrices.
    pub target: &'a TargetMatrices,
    /// The shape of the heads.
    pub shape: HeadShape,
    /// The tokens that heads predict.
    pub vocabulary: &'a DraftVocabulary,
}

/// A text, what its model says of it, and what heads are to learn of that.
#[derive(Debug, Clone, Copy)]
pub struct Labels<'a> {
    /// The token that each place decides, `[places]`.
    pub tokens: &'a [u32],
    /// How many of the most probable tokens are named at each place.
    pub best: usize,
    /// These, `[places, best]`.
    pub best_tokens: &'a [u32],
    /// Their probabilities, `[places, best]`.
    pub best_probabilities: &'a [f32],
    /// For every place, where its answer ends.
    pub ends: &'a [u32],
    /// The shape of the heads.
    pub shape: HeadShape,
    /// The tokens that heads predict.
    pub vocabulary: &'a DraftVocabulary,
}

/// Some rows.
#[derive(Debug)]
pub struct Batch {
    /// Hidden rows, `[batch, hidden]`.
    pub hidden: Tensor,
    /// The output of each layer that heads read besides, normed, `[batch, hidden]`.
    pub taps: Vec<Tensor>,
    /// What rows see of the context, where heads look at it.
    pub context: Option<Context>,
    /// Embeddings of the tokens at each depth, `[batch, hidden]`; none for parallel heads.
    pub embedded: Vec<Tensor>,
    /// The pairs of a row and a depth that have something to learn, as `depth * batch + row`.
    pub pairs: Vec<u32>,
    /// The token that the children of each pair follow.
    pub parents: Vec<u32>,
    /// What is to be predicted.
    pub targets: Targets,
}

impl Batch {
    /// These rows of the states. The pairs that the loss has nothing for are left out; without a loss, those alone that have no token.
    /// A pair of depth d counts `decay` to the power of d, over the number of rows.
    ///
    /// # Errors
    /// When memory is short.
    pub fn new(from: Source<'_>, rows: &[u32], loss: Option<Loss>, decay: f32, device: &Device) -> CandleResult<Self> {
        let size = from.states.header.hidden_size;
        let width = from.states.header.width();
        let all = from.states.all();
        let part = |place: usize| {
            let row = |&row: &u32| &all.hidden[row as usize * width + place..][..size];
            let values = rows.iter().flat_map(row).map(|value| value.to_f32()).collect::<Vec<_>>();
            Tensor::from_vec(values, (rows.len(), size), device)
        };
        let places = from.states.header.places(&from.shape.taps).map_err(candle_core::Error::wrap)?;
        let taps = places.into_iter().map(part).collect::<CandleResult<_>>()?;
        let embedding = from.target.embedding();
        let mut embed = |tokens: &[u32]| {
            let values = tokens.iter().flat_map(|&token| embedding.row(token as usize)).copied().collect();
            Tensor::from_vec(values, (tokens.len(), size), device)
        };
        let labels = Labels {
            tokens: all.tokens,
            best: from.states.header.best,
            best_tokens: all.best_tokens,
            best_probabilities: all.best_probabilities,
            ends: from.ends,
            shape: from.shape,
            vocabulary: from.vocabulary,
        };
        let context = from.shape.context_layer.map(|_| {
            let seen = rows.iter().map(|&row| from.states.seen(row as usize)).collect();
            Context::new(from.target.config(), from.states.context().clone(), seen)
        });
        Ok(Self { taps, context, ..Self::of(labels, rows, part(0)?, &mut embed, loss, decay)? })
    }

    /// The same of these places of a text with their hidden rows `[rows, hidden]`; `embed` gives the embeddings of tokens.
    ///
    /// # Errors
    /// When memory is short.
    pub fn of(
        from: Labels<'_>,
        rows: &[u32],
        hidden: Tensor,
        embed: &mut dyn FnMut(&[u32]) -> CandleResult<Tensor>,
        loss: Option<Loss>,
        decay: f32,
    ) -> CandleResult<Self> {
        let mut batch = Self {
            hidden,
            taps: Vec::new(),
            context: None,
            embedded: Vec::new(),
            pairs: Vec::new(),
            parents: Vec::new(),
            targets: Targets { named: from.best, ..Targets::default() },
        };
        for depth in 0..from.shape.depths {
            // Where an answer has ended, any token will do: what is made of it is not used.
            let token = |row: u32| from.tokens[(row as usize + depth).min(from.ends[row as usize] as usize - 1)];
            if from.shape.form == HeadForm::Recurrent {
                let tokens: Vec<u32> = rows.iter().map(|&row| token(row)).collect();
                batch.embedded.push(embed(&tokens)?);
            }
            let weight = decay.powi(depth as i32) / rows.len() as f32;
            for (number, &row) in rows.iter().enumerate() {
                let place = row as usize + depth + 1;
                if place < from.ends[row as usize] as usize && batch.add(from, place, loss, weight) {
                    batch.pairs.push((depth * rows.len() + number) as u32);
                    batch.parents.push(token(row));
                }
            }
        }
        Ok(batch)
    }

    /// Adds what is to be predicted at a place of the text, unless there is nothing to be learnt.
    fn add(&mut self, from: Labels<'_>, place: usize, loss: Option<Loss>, weight: f32) -> bool {
        let named = self.targets.named;
        let label = from.vocabulary.draft(from.tokens[place]);
        let best = place * named..(place + 1) * named;
        let drafts = from.best_tokens[best.clone()].iter().map(|&token| from.vocabulary.draft(token));
        let learns_from_label = loss.is_none_or(|loss| loss.ce > 0.0) && label != NOT_DRAFTED;
        let learns_from_teacher =
            loss.is_some_and(|loss| loss.needs_teacher()) && drafts.clone().any(|draft| draft != NOT_DRAFTED);
        if loss.is_some() && !learns_from_label && !learns_from_teacher {
            return false;
        }
        self.targets.drafts.extend(drafts);
        self.targets.probabilities.extend(&from.best_probabilities[best]);
        self.targets.labels.push(label);
        self.targets.weights.push(weight);
        true
    }

    /// The rows `[pairs, hidden]` that heads make of the batch's pairs, before the output matrix.
    ///
    /// # Errors
    /// When memory is short.
    pub fn rows(&self, heads: &TrainHeads, mut dropout: Option<&mut Dropout>) -> CandleResult<Tensor> {
        let mut first = heads.fuse(&self.hidden, &self.taps, dropout.as_deref_mut())?;
        if let Some(context) = &self.context {
            first = heads.look_back(&first, context, dropout.as_deref_mut())?;
        }
        let pairs = Tensor::new(&self.pairs[..], self.hidden.device())?;
        Tensor::cat(&heads.rows(&first, &self.embedded, dropout)?, 0)?.index_select(&pairs, 0)
    }
}
