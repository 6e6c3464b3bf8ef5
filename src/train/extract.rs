//! From answers to states: the target reads each answer behind its prompt once, and the rows that decided its tokens are kept.

use std::collections::HashSet;

use half::f16;
use rayon::prelude::*;

use super::answers::Answer;
use super::from_candle;
use super::progress::Progress;
use super::sampler::most_probable;
use super::states::{KeptContext, Rows, StatesHeader, StatesWriter};
use super::target::{HiddenRows, KvCache, NewTokens, SequenceSlice, Target, values};
use crate::error::{Error, ErrorCode, Result};

/// Rows of a pass, about: whole answers with their prompts.
const PASS_ROWS: usize = 1500;
/// Rows whose logits are in memory at once.
const LOGIT_ROWS: usize = 256;

/// What is kept of each row.
#[derive(Debug, Clone)]
pub struct ExtractOptions {
    /// How many of the target's most probable next tokens.
    pub best: usize,
    /// Layers whose output stands behind the final hidden row, normed without a gain.
    pub layers: Vec<usize>,
    /// The layer whose keys and values are kept, for heads that look at the context.
    pub context_layer: Option<usize>,
    /// Ids from here on are padding of the output matrix and are no tokens.
    pub valid_tokens: usize,
}

/// What a run did.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Extracted {
    /// Answers that were there already.
    pub kept: usize,
    /// Answers that were added.
    pub made: usize,
    /// Their rows.
    pub rows: usize,
    /// Answers left out since they are longer than the model's context.
    pub too_long: usize,
}

/// The header of states that a target makes.
///
/// # Errors
/// `InvalidOption` for a layer that is not there, or for more tokens than there are.
pub fn states_header(target: &Target, options: &ExtractOptions) -> Result<StatesHeader> {
    let config = target.config();
    let layers = options.layers.iter().chain(&options.context_layer);
    if let Some(layer) = layers.clone().find(|&&layer| layer >= config.num_hidden_layers) {
        let message = format!("layers count from 0 and there are {}; found {layer}", config.num_hidden_layers);
        return Err(Error::new(ErrorCode::InvalidOption, message));
    }
    if options.best == 0 || options.best > options.valid_tokens {
        let message = format!("best tokens must be from 1 to {}, found {}", options.valid_tokens, options.best);
        return Err(Error::new(ErrorCode::InvalidOption, message));
    }
    Ok(StatesHeader {
        model: target.identity().to_owned(),
        quantisation: target.quantisation().to_string(),
        hidden_size: config.hidden_size,
        layers: options.layers.clone(),
        context: options.context_layer.map(|layer| KeptContext { layer, width: 2 * config.kv_size() }),
        best: options.best,
    })
}

/// Adds the states of what of `answers` the folder does not have yet. `writer` was opened with [`states_header`] of these options.
///
/// # Errors
/// `LoadFailed` when the disk is full.
pub fn extract(
    target: &Target,
    answers: &[Answer],
    options: &ExtractOptions,
    writer: &mut StatesWriter,
    tell: &mut dyn FnMut(&str),
) -> Result<Extracted> {
    let there: HashSet<String> = writer.sequences.iter().map(|sequence| sequence.id.clone()).collect();
    let context = target.config().max_position_embeddings;
    let mut done = Extracted::default();
    let mut left = Vec::new();
    for answer in answers {
        if there.contains(&answer.id) {
            done.kept += 1;
        } else if read_length(answer) > context {
            done.too_long += 1;
        } else {
            left.push(answer);
        }
    }
    let mut progress = Progress::new("states", left.len(), tell);
    let mut caches = Vec::new();
    let mut rest = &left[..];
    while !rest.is_empty() {
        let mut rows = 0;
        let fits = rest.iter().take_while(|answer| {
            rows += read_length(answer);
            rows <= PASS_ROWS
        });
        let (now, later) = rest.split_at(fits.count().max(1));
        rest = later;
        for (answer, states) in now.iter().zip(read(target, now, options, &mut caches)?) {
            writer.append(&answer.id, states.rows(&answer.tokens))?;
            done.made += 1;
            done.rows += answer.tokens.len();
            progress.finish_one(answer.tokens.len());
            progress.advance(answer.tokens.len());
        }
    }
    progress.report();
    Ok(done)
}

/// Tokens that are read for an answer: its last one decides nothing more.
fn read_length(answer: &Answer) -> usize {
    answer.prompt.len() + answer.tokens.len() - 1
}

/// The states of one answer.
#[derive(Default)]
struct AnswerStates {
    hidden: Vec<f16>,
    best_tokens: Vec<u32>,
    best_probabilities: Vec<f32>,
    context: Vec<f16>,
}

impl AnswerStates {
    fn rows<'a>(&'a self, tokens: &'a [u32]) -> Rows<'a> {
        Rows {
            hidden: &self.hidden,
            tokens,
            best_tokens: &self.best_tokens,
            best_probabilities: &self.best_probabilities,
            context: &self.context,
        }
    }
}

/// One pass over whole answers.
fn read(
    target: &Target,
    answers: &[&Answer],
    options: &ExtractOptions,
    caches: &mut Vec<KvCache>,
) -> Result<Vec<AnswerStates>> {
    caches.resize_with(caches.len().max(answers.len()), || target.new_cache());
    let texts: Vec<Vec<u32>> = answers
        .iter()
        .map(|answer| {
            let read = answer.prompt.iter().chain(&answer.tokens).take(read_length(answer));
            read.copied().collect()
        })
        .collect();
    let slices = caches.iter_mut().zip(&texts).map(|(cache, text)| {
        cache.truncate(0);
        SequenceSlice { cache, new: NewTokens::Text(text) }
    });
    let mut found = target.forward(&mut slices.collect::<Vec<_>>(), &options.layers)?;
    for layer in &mut found.layers {
        *layer = target.plain_norm(layer);
    }
    let mut end = 0;
    let states = answers.iter().zip(&texts).zip(caches).map(|((answer, text), cache)| {
        end += text.len();
        let mut states = keep(target, &found, end - answer.tokens.len()..end, options)?;
        if let Some(layer) = options.context_layer {
            states.context = cache.rows(layer).into_iter().map(to_half).collect();
        }
        Ok(states)
    });
    states.collect()
}

/// What is kept of some rows of a pass.
fn keep(
    target: &Target,
    found: &HiddenRows,
    rows: std::ops::Range<usize>,
    options: &ExtractOptions,
) -> Result<AnswerStates> {
    let (hidden_size, vocab_size) = (target.config().hidden_size, target.config().vocab_size);
    let mut states = AnswerStates::default();
    for row in rows.clone() {
        for part in std::iter::once(&found.hidden).chain(&found.layers) {
            let values = &part[row * hidden_size..(row + 1) * hidden_size];
            states.hidden.extend(values.iter().map(|&value| to_half(value)));
        }
    }
    let hidden = &found.hidden[rows.start * hidden_size..rows.end * hidden_size];
    for some in hidden.chunks(LOGIT_ROWS * hidden_size) {
        let best = values(&target.logits(some)?, |logits| {
            let rows = logits.par_chunks_exact(vocab_size);
            rows.map(|row| most_probable(&row[..options.valid_tokens], options.best)).collect::<Vec<_>>()
        });
        for (token, probability) in best.map_err(from_candle)?.into_iter().flatten() {
            states.best_tokens.push(token);
            states.best_probabilities.push(probability);
        }
    }
    Ok(states)
}

/// The nearest half-precision number; outside their range the last one, since learning from infinities ends in none.
fn to_half(value: f32) -> f16 {
    f16::from_f32(value.clamp(f16::MIN.to_f32(), f16::MAX.to_f32()))
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;
    use crate::backend::Backend as _;
    use crate::backend::cpu::{CpuBackend, CpuWeights};
    use crate::model::files::FileSource;
    use crate::model::{Checkpoint, stream_weights};
    use crate::speculate::tree::Tree;
    use crate::train::states::States;

    fn folder() -> PathBuf {
        let folder = std::env::temp_dir().join(format!("draftree-extract-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&folder);
        folder
    }

    /// The model, and its reference.
    fn stories() -> (Target, CpuBackend) {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/models/stories260K/stories260K-q8_0.gguf");
        let source = FileSource::open(path).unwrap();
        let checkpoint = pollster::block_on(Checkpoint::open(&source)).unwrap();
        let mut weights = CpuWeights::default();
        pollster::block_on(stream_weights(&checkpoint, &source, &mut weights, &mut |_, _| {})).unwrap();
        let reference = CpuBackend::new(checkpoint.config.clone(), weights, None).unwrap();
        (Target::load(&checkpoint, &source).unwrap(), reference)
    }

    /// What the reference writes greedily, and the hidden rows that decided it.
    fn write(reference: &mut CpuBackend, prompt: &[u32], count: usize) -> (Vec<u32>, Vec<Vec<f32>>) {
        let (mut text, mut rows) = (prompt.to_vec(), Vec::new());
        for _ in 0..count {
            let (last, head) = text.split_last().unwrap();
            pollster::block_on(reference.prefill(0, head)).unwrap();
            let root = Tree::chain(&[*last]).unwrap();
            rows.extend(reference.hidden(head.len(), &root));
            let logits = pollster::block_on(reference.evaluate(head.len(), &root)).unwrap();
            text.push(crate::sampling::sample(&logits, 0, &crate::sampling::SamplingParams::default()));
        }
        (text.split_off(prompt.len()), rows)
    }

    #[test]
    fn only_rows_of_answers_are_kept_and_they_are_those_of_the_reference() {
        let (target, mut reference) = stories();
        let prompts: [&[u32]; 3] = [&[1, 403, 407, 261, 378], &[1, 350], &[1, 300, 301, 302, 303, 304, 305]];
        let counts = [12, 1, 7];
        let mut expected = Vec::new();
        let mut answers = Vec::new();
        for (i, (prompt, count)) in prompts.iter().zip(counts).enumerate() {
            let (tokens, rows) = write(&mut reference, prompt, count);
            let (id, category) = (i.to_string(), String::new());
            answers.push(Answer { id, category, prompt: prompt.to_vec(), tokens, ended: false });
            expected.extend(rows);
        }
        let options = ExtractOptions { best: 3, layers: vec![1, 4], context_layer: Some(2), valid_tokens: 512 };
        let header = states_header(&target, &options).unwrap();
        assert_eq!((header.width(), &*header.quantisation), (3 * 64, "Q8_0"));
        let folder = folder();
        // Two of them first, then all: the third is added.
        let mut writer = StatesWriter::open(&folder, header.clone()).unwrap();
        let done = extract(&target, &answers[..2], &options, &mut writer, &mut |_| {}).unwrap();
        assert_eq!(done, Extracted { kept: 0, made: 2, rows: 13, too_long: 0 });
        let mut writer = StatesWriter::open(&folder, header).unwrap();
        let done = extract(&target, &answers, &options, &mut writer, &mut |_| {}).unwrap();
        assert_eq!(done, Extracted { kept: 2, made: 1, rows: 7, too_long: 0 });

        let states = States::open(&folder).unwrap();
        let all = states.all();
        assert_eq!(states.len(), 20, "rows of prompts are not there");
        assert_eq!(all.tokens, answers.iter().flat_map(|answer| answer.tokens.clone()).collect::<Vec<_>>());
        for (row, expected) in expected.iter().enumerate() {
            assert_eq!(all.best_tokens[3 * row], all.tokens[row], "row {row} decides its token");
            for (found, expected) in all.hidden[3 * 64 * row..].iter().zip(expected) {
                let off = (found.to_f32() - expected).abs();
                assert!(off < 1e-3 * (1.0 + expected.abs()), "row {row}: {found} instead of {expected}");
            }
            let logits = crate::backend::cpu::ops::lm_head(reference.target().lm_head, expected);
            let total: f32 = logits.iter().map(|logit| logit.exp()).sum();
            for place in 3 * row..3 * row + 3 {
                let probability = logits[all.best_tokens[place] as usize].exp() / total;
                assert!((all.best_probabilities[place] - probability).abs() < 1e-3);
            }
        }
        std::fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn what_does_not_fit_is_left_out_or_refused() {
        let (target, _) = stories();
        let options = ExtractOptions { best: 1, layers: vec![], context_layer: None, valid_tokens: 512 };
        let folder = folder().with_extension("long");
        let mut writer = StatesWriter::open(&folder, states_header(&target, &options).unwrap()).unwrap();
        let answer = |prompt: usize, id: &str| Answer {
            id: id.to_owned(),
            category: String::new(),
            prompt: vec![5; prompt],
            tokens: vec![6; 2],
            ended: true,
        };
        let context = target.config().max_position_embeddings;
        let answers = [answer(context, "long"), answer(context - 1, "fits")];
        let done = extract(&target, &answers, &options, &mut writer, &mut |_| {}).unwrap();
        assert_eq!((done.too_long, done.made, &*writer.sequences[0].id), (1, 1, "fits"));
        std::fs::remove_dir_all(&folder).unwrap();
        let of = |best, layers, context_layer| ExtractOptions { best, layers, context_layer, valid_tokens: 512 };
        let refused = |best, layers| states_header(&target, &of(best, layers, None));
        assert_eq!(states_header(&target, &of(1, vec![], Some(5))).unwrap_err().code(), ErrorCode::InvalidOption);
        assert_eq!(refused(0, vec![]).unwrap_err().code(), ErrorCode::InvalidOption);
        assert_eq!(refused(1, vec![5]).unwrap_err().code(), ErrorCode::InvalidOption);
        assert_eq!((to_half(1e9), to_half(-1e9)), (f16::MAX, f16::MIN));
    }
}
