//! Heads beside one target model: whether they fit it, and how their matrices get to where the model's are.

use super::file::HeadFile;
use super::identity::model_identity;
use super::names::Slot;
use super::{CONTEXT_ALIGNMENT, DepthCalibration, HeadForm, HeadMatrix, HeadOutput, HeadVector, Taps};
use crate::error::{Error, ErrorCode, Result};
use crate::model::architecture::Role;
use crate::model::checkpoint::{Checkpoint, TensorEntry};
use crate::model::packing::PackedLayout;
use crate::model::source::ByteSource;
use crate::model::stream::{Job, MatrixPlan, Part, Rows, run_jobs};
use crate::model::weights::{Matrix, Vector, WeightSink};

/// Draft heads of one model, without the files they came from.
#[derive(Debug, Clone, PartialEq)]
pub struct DraftHeads {
    /// What they read.
    pub form: HeadForm,
    /// Depths below the root that they draft.
    pub depths: usize,
    /// Blocks of a head.
    pub layers: usize,
    /// Width of the hidden row.
    pub hidden_size: usize,
    /// Draft ids: rows of the output matrix.
    pub draft_vocab: usize,
    /// The token id of every draft id, ascending; absent where they are the same.
    pub token_map: Option<Vec<u32>>,
    /// Which matrix makes the logits.
    pub output: HeadOutput,
    /// Rank of the correction by the previous token; 0 where there is none.
    pub rank: usize,
    /// Layers of the model whose output they read besides the hidden row.
    pub taps: Taps,
    /// The layer of the model by whose keys and values they look at the context.
    pub context_layer: Option<usize>,
    /// Whether one matrix updates the recurrent state at every level.
    pub one_block: bool,
    /// How far their probabilities are to be believed, depth by depth; empty where that was not measured.
    pub calibration: Vec<DepthCalibration>,
    /// Tokens a pass to expect of their best trees of 1, 2, … nodes; empty where that was not measured.
    pub tree_tokens: Vec<f64>,
    /// Why they may draft badly, though they fit: they say they were trained for another model.
    pub warning: Option<String>,
}

impl DraftHeads {
    /// The token of a draft id.
    pub fn token(&self, draft: usize) -> u32 {
        self.token_map.as_ref().map_or(draft as u32, |map| map[draft])
    }

    /// Draft ids whose tokens lie below `valid_tokens`: the first so many, since tokens ascend.
    pub fn valid_drafts(&self, valid_tokens: usize) -> usize {
        match &self.token_map {
            Some(map) => map.partition_point(|&token| (token as usize) < valid_tokens),
            None => self.draft_vocab.min(valid_tokens),
        }
    }

    /// Whether they read more of the model than its last hidden row.
    pub fn reads_more(&self) -> bool {
        !self.taps.is_empty() || self.context_layer.is_some()
    }

    /// The number of the output matrix of a head.
    pub fn output_of(&self, head: usize) -> usize {
        if self.output == HeadOutput::Own { head } else { 0 }
    }

    /// The number of the matrix that updates the recurrent state at a level.
    pub fn block_of(&self, level: usize) -> usize {
        if self.one_block { 0 } else { level }
    }
}

impl HeadFile {
    /// These heads for a model.
    ///
    /// # Errors
    /// `ShapeMismatch` when the width or the vocabulary is another than the model's.
    pub fn fit(&self, model: &Checkpoint) -> Result<DraftHeads> {
        let config = &model.config;
        let mismatch = |message: String| {
            let error =
                Error::new(ErrorCode::ShapeMismatch, format!("{message}; the draft heads are for another model"));
            Err(error)
        };
        if self.hidden_size != config.hidden_size {
            let name = self.naming.name(Slot::Block { head: 0, layer: 0 }, self.layers);
            return mismatch(format!(
                "{name}: its shape is {:?}, expected {:?} by the hidden size of {}",
                self.tensors.get(&Slot::Block { head: 0, layer: 0 }).map_or(&[][..], |tensor| &tensor.shape),
                if self.form == HeadForm::Parallel {
                    [config.hidden_size; 2]
                } else {
                    [config.hidden_size, 2 * config.hidden_size]
                },
                model.name
            ));
        }
        if let Some(layer) = self.taps.layers().find(|&layer| layer >= config.num_hidden_layers) {
            return mismatch(format!("taps has layer {layer}, expected layers below {}", config.num_hidden_layers));
        }
        if let Some(layer) = self.context_layer {
            let query = self.tensor(Slot::ContextQuery)?.shape[0];
            if layer >= config.num_hidden_layers {
                let layers = config.num_hidden_layers;
                return mismatch(format!("context_layer is {layer}, expected a layer below {layers}"));
            }
            if query != config.q_size() {
                let name = self.naming.name(Slot::ContextQuery, self.layers);
                return mismatch(format!("{name}: it has {query} rows, expected {}", config.q_size()));
            }
            if !config.hidden_size.is_multiple_of(CONTEXT_ALIGNMENT) {
                let message = format!(
                    "heads look at the context of models whose hidden size is a multiple of {CONTEXT_ALIGNMENT}, found {}",
                    config.hidden_size
                );
                return Err(Error::new(ErrorCode::UnsupportedModel, message));
            }
        }
        let largest = self.token_map.as_ref().and_then(|map| map.last().copied());
        if let Some(token) = largest.filter(|&token| token as usize >= config.vocab_size) {
            return mismatch(format!("token_map has token {token}, expected ids below {}", config.vocab_size));
        }
        // Output matrices padded to more rows than the vocabulary, or cut to fewer, are common.
        let rows = self.outputs.first().map_or(config.vocab_size, |tensor| tensor.shape[0].min(config.vocab_size));
        let draft_vocab = self.token_map.as_ref().map_or(rows, Vec::len);
        for (slot, expected) in [(Slot::Previous, config.vocab_size), (Slot::Correction, draft_vocab)] {
            if let Some(tensor) = self.tensors.get(&slot)
                && tensor.shape[0] != expected
            {
                let name = self.naming.name(slot, self.layers);
                return mismatch(format!("{name}: its shape is {:?}, expected {expected} rows", tensor.shape));
            }
        }
        let identity = model_identity(model);
        let warning = self.model.as_ref().filter(|trained_for| **trained_for != identity).map(|trained_for| {
            format!(
                "the draft heads were trained for the model {trained_for}, but {} is {identity}; they may draft badly",
                model.name
            )
        });
        Ok(DraftHeads {
            form: self.form,
            depths: self.depths,
            layers: self.layers,
            hidden_size: self.hidden_size,
            draft_vocab,
            token_map: self.token_map.clone(),
            output: match (self.outputs.len(), &self.token_map) {
                (0, None) => HeadOutput::Target,
                (0 | 1, _) => HeadOutput::Shared,
                _ => HeadOutput::Own,
            },
            rank: self.rank,
            taps: self.taps,
            context_layer: self.context_layer,
            one_block: self.form == HeadForm::Recurrent && self.blocks == 1,
            calibration: self.calibration.clone(),
            tree_tokens: self.tree_tokens.clone(),
            warning,
        })
    }

    fn tensor(&self, slot: Slot) -> Result<&TensorEntry> {
        let missing = || Error::new(ErrorCode::MissingTensor, format!("the draft heads have no {slot:?}"));
        self.tensors.get(&slot).ok_or_else(missing)
    }

    /// What is read from the file of the heads.
    fn own_jobs(&self, heads: &DraftHeads) -> Result<Vec<Job<'_>>> {
        let mut jobs = Vec::new();
        let all = |slot: &dyn Fn(usize) -> Slot| -> Result<Vec<Part<'_>>> {
            (0..self.blocks).map(|head| self.tensor(slot(head)).map(Part::whole)).collect()
        };
        let parallel = self.form == HeadForm::Parallel;
        if parallel {
            jobs.push(matrix(HeadMatrix::Trunk, all(&|head| Slot::Block { head, layer: 0 })?)?);
        }
        let first_layer = usize::from(parallel);
        let blocks = (0..self.blocks).flat_map(|head| (first_layer..self.layers).map(move |layer| (head, layer)));
        for (head, layer) in blocks.clone() {
            let block = self.tensor(Slot::Block { head, layer })?;
            jobs.push(matrix(HeadMatrix::Block { head, layer }, vec![Part::whole(block)])?);
        }
        for (number, tensor) in self.outputs.iter().enumerate() {
            let order = self.output_rows.as_deref().map_or(Rows::First(heads.draft_vocab), Rows::Listed);
            jobs.push(matrix(HeadMatrix::Output(number), vec![Part { tensor, order }])?);
        }
        if !self.taps.is_empty() {
            jobs.push(matrix(HeadMatrix::Fusion, vec![Part::whole(self.tensor(Slot::Fusion)?)])?);
            let bias = vec![Part::whole(self.tensor(Slot::FusionBias)?)];
            jobs.push(Job::Vector(Vector::Heads(HeadVector::FusionBias), bias));
        }
        if self.context_layer.is_some() {
            jobs.push(matrix(HeadMatrix::ContextQuery, vec![Part::whole(self.tensor(Slot::ContextQuery)?)])?);
            jobs.push(matrix(HeadMatrix::Context, vec![Part::whole(self.tensor(Slot::Context)?)])?);
            let bias = vec![Part::whole(self.tensor(Slot::ContextBias)?)];
            jobs.push(Job::Vector(Vector::Heads(HeadVector::ContextBias), bias));
        }
        if self.rank > 0 {
            let parts = [Slot::Previous, Slot::Correction].map(|slot| self.tensor(slot).map(Part::whole));
            jobs.push(matrix(HeadMatrix::Correction, parts.into_iter().collect::<Result<_>>()?)?);
        }
        if self.biased {
            if parallel {
                let parts = all(&|head| Slot::Bias { head, layer: 0 })?;
                jobs.push(Job::Vector(Vector::Heads(HeadVector::TrunkBias), parts));
            }
            for (head, layer) in blocks {
                let parts = vec![Part::whole(self.tensor(Slot::Bias { head, layer })?)];
                jobs.push(Job::Vector(Vector::Heads(HeadVector::BlockBias { head, layer }), parts));
            }
        }
        Ok(jobs)
    }

    /// What is read from the files of the model: the rows of its output matrix that heads without one of their own use.
    fn model_jobs<'c>(&'c self, model: &'c Checkpoint) -> Result<Vec<Job<'c>>> {
        let Some(map) = self.token_map.as_deref().filter(|_| self.outputs.is_empty()) else { return Ok(Vec::new()) };
        let role = if model.config.tie_word_embeddings { Role::Embedding } else { Role::LmHead };
        let part = Part { tensor: model.tensor(role, 0)?, order: Rows::Listed(map) };
        Ok(vec![matrix(HeadMatrix::Output(0), vec![part])?])
    }
}

fn matrix(matrix: HeadMatrix, parts: Vec<Part<'_>>) -> Result<Job<'_>> {
    Ok(Job::Matrix(Matrix::Heads(matrix), MatrixPlan::new(parts, false)?))
}

/// The packed matrices of draft heads, in no particular order.
///
/// # Errors
/// None for a file that was opened and a model it fits.
pub fn head_layouts(file: &HeadFile, heads: &DraftHeads, model: &Checkpoint) -> Result<Vec<(Matrix, PackedLayout)>> {
    let jobs = file.own_jobs(heads)?.into_iter().chain(file.model_jobs(model)?);
    let layouts = jobs.filter_map(|job| match job {
        Job::Matrix(matrix, plan) => Some((matrix, plan.layout)),
        Job::Vector(..) => None,
    });
    Ok(layouts.collect())
}

/// Reads every weight of draft heads that [fit](HeadFile::fit) a model and hands it to `sink`, rows of the model's output matrix
/// among them where the heads use it. `progress` is called with stored bytes done and in all.
///
/// # Errors
/// Whatever a source or the sink reports.
pub async fn stream_heads(
    (file, heads, source): (&HeadFile, &DraftHeads, &impl ByteSource),
    (model, model_source): (&Checkpoint, &impl ByteSource),
    sink: &mut impl WeightSink,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<()> {
    let (own, of_model) = (file.own_jobs(heads)?, file.model_jobs(model)?);
    let (mut done, total) = (0, own.iter().chain(&of_model).map(Job::bytes).sum());
    progress(done, total);
    let mut advance = |bytes: u64| {
        done += bytes;
        progress(done, total);
    };
    run_jobs(of_model, model_source, sink, &mut advance).await?;
    run_jobs(own, source, sink, &mut advance).await
}
