//! Trained heads on their way to the runtime: what is stored computes what was trained, and begins as the target's own output matrix.

#![cfg(feature = "cli")]
#![allow(clippy::unwrap_used)] // also in the helpers of tests

mod harness;

use std::collections::BTreeMap;

use candle_core::{Device, Tensor};
use draftree::backend::cpu::heads::CpuHeads;
use draftree::backend::cpu::ops;
use draftree::error::ErrorCode;
use draftree::model::heads::{HeadForm, HeadOutput, Taps, model_identity};
use draftree::model::quantize::{dequantize, quantize};
use draftree::model::{HeadFile, MemorySource, TensorType};
use draftree::sampling::SamplingParams;
use draftree::speculate::tree::Tree;
use draftree::train::answers::Answer;
use draftree::train::calibrate::measure;
use draftree::train::extract::{ExtractOptions, extract, states_header};
use draftree::train::fit::batch::{Batch, Source, Split};
use draftree::train::matrices::TargetMatrices;
use draftree::train::save::{StoredTypes, head_file};
use draftree::train::shapes::{HeadShape, Part, TrainHeads};
use draftree::train::states::{Rows, States, StatesHeader, StatesWriter};
use draftree::train::target::Target;
use draftree::train::tensor_file::TensorFile;
use draftree::train::vocabulary::DraftVocabulary;
use half::f16;
use harness::heads;
use harness::random::Random;
use pollster::block_on;

/// Layers that some heads fuse.
const TAPS: [usize; 2] = [1, 3];

fn shapes() -> [HeadShape; 6] {
    let parallel = HeadShape {
        form: HeadForm::Parallel,
        depths: 3,
        layers: 1,
        rank: 0,
        one_block: false,
        frozen_head: false,
        taps: Taps::NONE,
        context_layer: None,
    };
    let recurrent = HeadShape { form: HeadForm::Recurrent, one_block: true, ..parallel };
    [
        parallel,
        HeadShape { layers: 2, rank: 32, ..parallel },
        HeadShape { frozen_head: true, depths: 4, ..parallel },
        recurrent,
        HeadShape { one_block: false, rank: 32, ..recurrent },
        HeadShape { taps: Taps::new(&TAPS).unwrap(), rank: 32, ..recurrent },
    ]
}

fn target() -> TargetMatrices {
    let model = harness::embedded();
    block_on(TargetMatrices::read(&harness::open(&model), &model)).unwrap()
}

/// Heads of the embedded model, with every weight at random or as training begins.
fn begun(shape: HeadShape, drafts: usize, random: bool) -> TrainHeads {
    let target = target();
    let vocab = target.lm_head().rows;
    let tokens = (0..drafts).map(|draft| (draft * vocab / drafts) as u32).collect();
    let vocabulary = DraftVocabulary::new(tokens, vocab).unwrap();
    let heads = TrainHeads::new(shape, vocabulary, &target, 1, &Device::Cpu).unwrap();
    let mut numbers = Random::new(3);
    for parameter in heads.parameters.iter().filter(|_| random) {
        let count = parameter.var.elem_count();
        let values: Vec<f32> = (0..count).map(|_| 0.2 * numbers.unit()).collect();
        parameter.var.set(&Tensor::from_vec(values, parameter.var.shape(), &Device::Cpu).unwrap()).unwrap();
    }
    heads
}

fn stored(heads: &TrainHeads, store: TensorType) -> TensorFile {
    stored_as(heads, StoredTypes::all(store))
}

fn stored_as(heads: &TrainHeads, stored: StoredTypes) -> TensorFile {
    let identity = model_identity(&harness::open(&harness::embedded()));
    head_file(heads, stored, &identity, &BTreeMap::new()).unwrap()
}

fn source(file: &TensorFile) -> MemorySource {
    MemorySource::new([("heads.safetensors", file.bytes())])
}

fn read(file: &TensorFile) -> CpuHeads {
    heads::cpu(&source(file), &harness::embedded())
}

/// A text of the embedded model, its hidden rows, and the best tokens at each of them.
struct Text {
    tokens: Vec<u32>,
    hidden: Vec<Vec<f32>>,
}

fn text(first: &[u32], length: u32) -> Text {
    let mut backend = harness::cpu(&harness::embedded());
    let setup = harness::setup(SamplingParams::default(), first, length, 512);
    harness::prefill(&mut backend, 0, &first[..first.len() - 1]);
    let root = *first.last().unwrap();
    let tokens = harness::decode(&mut backend, first.len() - 1, root, &setup, 1);
    let all = [&[root][..], &tokens].concat();
    let hidden = (0..tokens.len()).map(|at| {
        let row = Tree::chain(&all[at..=at]).unwrap();
        backend.hidden(first.len() - 1 + at, &row).swap_remove(0)
    });
    Text { hidden: hidden.collect(), tokens }
}

/// What layers might say where the hidden row is this one, `[taps, hidden]`.
fn taps(taps: Taps, hidden: &[f32]) -> Vec<f32> {
    let tap = |tap: usize| hidden.iter().map(move |value| (value * (tap + 1) as f32).sin());
    taps.layers().flat_map(tap).collect()
}

/// Logits of the file's heads below the tokens of `path`, the root first, depth by depth.
fn logits(heads: &CpuHeads, target: &TargetMatrices, hidden: &[f32], path: &[u32]) -> Vec<Vec<f32>> {
    let hidden = heads.fuse(hidden, &taps(heads.shape().taps, hidden)).unwrap();
    let parallel = match heads.shape().form {
        HeadForm::Parallel => heads.parallel_rows(&hidden).unwrap(),
        HeadForm::Recurrent => Vec::new(),
    };
    let mut state = hidden.to_vec();
    let depths = 0..heads.shape().depths;
    depths
        .map(|depth| {
            let row = match heads.shape().form {
                HeadForm::Parallel => &parallel[depth],
                HeadForm::Recurrent => {
                    state = heads.next_state(target.target(), depth, &state, path[depth]).unwrap();
                    &state
                }
            };
            let mut logits = heads.logits(target.target(), depth, row).unwrap();
            for (draft, logit) in logits.iter_mut().enumerate() {
                *logit += heads.correction(path[depth], draft).unwrap();
            }
            logits
        })
        .collect()
}

/// The same of heads in training.
fn trained_logits(heads: &TrainHeads, target: &TargetMatrices, hidden: &[f32], path: &[u32]) -> Vec<Vec<f32>> {
    let row = |values: &[f32]| Tensor::new(values, &Device::Cpu).unwrap().unsqueeze(0).unwrap();
    let embedded: Vec<Tensor> = path.iter().map(|&token| row(target.embedding().row(token as usize))).collect();
    let taps = taps(heads.shape.taps, hidden);
    let taps: Vec<Tensor> = taps.chunks_exact(hidden.len()).map(row).collect();
    let rows = heads.rows(&heads.fuse(&row(hidden), &taps, None).unwrap(), &embedded, None).unwrap();
    let depths = rows.iter().zip(path).map(|(row, &token)| {
        let mut logits = row.matmul(&heads.head().t().unwrap()).unwrap();
        if let (Some(previous), Some(correction)) = (heads.previous(&[token]).unwrap(), heads.correction()) {
            logits = (logits + previous.matmul(&correction.t().unwrap()).unwrap()).unwrap();
        }
        logits.flatten_all().unwrap().to_vec1().unwrap()
    });
    depths.collect()
}

#[test]
fn at_first_every_head_is_the_target_bit_for_bit() {
    let (target, text) = (target(), text(&[1, 403], 6));
    for shape in shapes() {
        for drafts in [512, 100] {
            let heads = begun(shape, drafts, false);
            let file = stored(&heads, TensorType::F32);
            let read = read(&file);
            for hidden in &text.hidden {
                let row = Tensor::new(&hidden[..], &Device::Cpu).unwrap().unsqueeze(0).unwrap();
                let embedded = vec![row.clone(); shape.depths];
                let of_layers: Vec<Tensor> = taps(shape.taps, hidden)
                    .chunks_exact(64)
                    .map(|tap| Tensor::new(tap, &Device::Cpu).unwrap())
                    .collect();
                let of_layers: Vec<Tensor> = of_layers.iter().map(|tap| tap.unsqueeze(0).unwrap()).collect();
                let row = heads.fuse(&row, &of_layers, None).unwrap();
                for row in heads.rows(&row, &embedded, None).unwrap() {
                    let row: Vec<f32> = row.flatten_all().unwrap().to_vec1().unwrap();
                    harness::assert_same_bits(&row, hidden, "a row in training");
                }
                let all = ops::lm_head(target.lm_head(), hidden);
                let expected: Vec<f32> = heads.vocabulary.tokens.iter().map(|&token| all[token as usize]).collect();
                for logits in logits(&read, &target, hidden, &[7; 4]) {
                    harness::assert_same_bits(&logits, &expected, "logits of the file");
                }
            }
        }
    }
}

#[test]
fn what_is_stored_computes_what_was_trained() {
    let (target, text) = (target(), text(&[1, 403], 12));
    let largest = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0f32, f32::max);
    for shape in shapes() {
        let same = [TensorType::F32, TensorType::F16, TensorType::Q8_0, TensorType::Q4_0, TensorType::Q4_1];
        let mixed = StoredTypes { output: TensorType::Q4_1, others: TensorType::Q8_0 };
        for store in same.map(StoredTypes::all).into_iter().chain([mixed]) {
            let heads = begun(shape, 200, true);
            let read = read(&stored_as(&heads, store));
            assert_eq!((read.shape().depths, read.shape().rank), (shape.depths, shape.rank));
            assert_eq!((read.shape().one_block, read.shape().warning.as_ref()), (shape.one_block, None));
            assert_eq!(read.shape().taps, shape.taps);
            round(&heads, store);
            for (at, hidden) in text.hidden[..8].iter().enumerate() {
                let path = &text.tokens[at..at + shape.depths];
                let expected = trained_logits(&heads, &target, hidden, path);
                for (found, expected) in logits(&read, &target, hidden, path).iter().zip(&expected) {
                    let difference = largest(found, expected);
                    assert!(difference <= 5e-5, "{shape:?} as {store:?}: {difference}"); // sums are taken in another order
                }
            }
        }
    }
}

#[test]
fn rows_in_training_are_those_of_the_runtime_whatever_they_read() {
    let model = harness::embedded();
    let (matrices, checkpoint) = (target(), harness::open(&model));
    let target = Target::load(&checkpoint, &model).unwrap();
    let mut backend = harness::cpu(&model);
    let folder = std::env::temp_dir().join(format!("draftree-rows-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&folder);
    let options = ExtractOptions { best: 1, layers: vec![0, 1, 3], context_layer: Some(2), valid_tokens: 512 };
    let mut writer = StatesWriter::open(&folder, states_header(&target, &options).unwrap()).unwrap();
    let prompts: [&[u32]; 2] = [&[1, 403, 407, 261], &[1, 300]];
    let answers: Vec<Answer> = prompts
        .iter()
        .map(|prompt| {
            let tokens = text(prompt, 20).tokens;
            Answer { id: format!("{prompt:?}"), category: String::new(), prompt: prompt.to_vec(), tokens, ended: false }
        })
        .collect();
    extract(&target, &answers, &options, &mut writer, &mut |_| {}).unwrap();
    let states = States::open(&folder).unwrap();
    std::fs::remove_dir_all(&folder).unwrap();

    let shape = HeadShape { depths: 1, context_layer: Some(2), taps: Taps::new(&TAPS).unwrap(), ..shapes()[0] };
    let heads = begun(shape, 512, true);
    let reader = read(&stored(&heads, TensorType::F32));
    assert_eq!((reader.shape().taps, reader.shape().context_layer), (shape.taps, Some(2)));
    let (_, ends) = Split::held_out(&states, 1.0, usize::MAX).unwrap();
    let from = Source { states: &states, ends: &ends, target: &matrices, shape, vocabulary: &heads.vocabulary };
    // Rows of both texts, mixed.
    let rows: Vec<u32> = (0..18).flat_map(|row| [20 + row, row]).collect();
    let batch = Batch::new(from, &rows, None, 1.0, &Device::Cpu).unwrap();
    let found: Vec<Vec<f32>> = batch.rows(&heads, None).unwrap().to_vec2().unwrap();
    for (&row, found) in rows.iter().zip(&found) {
        let (answer, at) = (&answers[row as usize / 20], row as usize % 20);
        let whole = [&answer.prompt[..], &answer.tokens].concat();
        let position = answer.prompt.len() - 1 + at;
        harness::prefill(&mut backend, 0, &whole[..position]);
        let root = Tree::chain(&whole[position..=position]).unwrap();
        let first = backend.head_rows(&reader, position, &root).unwrap().swap_remove(0);
        let expected = reader.parallel_rows(&first).unwrap().swap_remove(0);
        for (found, expected) in found.iter().zip(&expected) {
            // States are in half precision.
            assert!(
                (found - expected).abs() < 0.02 * (1.0 + expected.abs()),
                "row {row}: {found}, expected {expected}"
            );
        }
    }
    let other = HeadShape { context_layer: Some(1), ..shape };
    let refused = states.header.check(&other.taps, other.context_layer).unwrap_err();
    assert!(refused.to_string().contains("layer 1") && refused.code() == ErrorCode::InvalidOption, "{refused}");

    let (rows, ends) = Split::held_out(&states, 1.0, usize::MAX).unwrap();
    let findings = measure(&reader, &matrices, (&states, &ends), &rows).unwrap();
    assert_eq!(findings.paths.places(), 38);
}

/// Gives the matrices of heads the values that they have when they are stored.
fn round(heads: &TrainHeads, stored: StoredTypes) {
    for parameter in heads.parameters.iter().filter(|parameter| parameter.var.dims().len() == 2) {
        let store = if parameter.part == Part::Head { stored.output } else { stored.others };
        let mut values: Vec<f32> = parameter.var.flatten_all().unwrap().to_vec1().unwrap();
        let mut bytes = vec![0; store.bytes_for(values.len() as u64).unwrap() as usize];
        quantize(store, &values, &mut bytes).unwrap();
        dequantize(store, &bytes, &mut values).unwrap();
        parameter.var.set(&Tensor::from_vec(values, parameter.var.shape(), &Device::Cpu).unwrap()).unwrap();
    }
}

#[test]
fn a_whole_frozen_output_matrix_is_the_targets_own_and_a_trained_one_is_stored() {
    let frozen = HeadShape { frozen_head: true, ..shapes()[0] };
    for (shape, drafts, output) in [
        (frozen, 512, HeadOutput::Target),
        (frozen, 100, HeadOutput::Shared),
        (shapes()[0], 512, HeadOutput::Shared),
        (shapes()[0], 100, HeadOutput::Shared),
    ] {
        let file = stored(&begun(shape, drafts, false), TensorType::Q8_0);
        assert_eq!(read(&file).shape().output, output);
        assert_eq!(file.tensors.contains_key("head.weight"), !shape.frozen_head);
        assert_eq!(file.tensors.contains_key("token_map"), drafts < 512);
    }
}

#[test]
fn rows_that_are_no_whole_blocks_are_stored_in_half_precision() {
    let heads = begun(HeadShape { rank: 12, ..shapes()[0] }, 100, true);
    let file = stored(&heads, TensorType::Q4_1);
    let opened = block_on(HeadFile::open(&source(&file))).unwrap();
    assert_eq!(opened.rank, 12);
    assert_eq!(file.metadata.get("type.head.weight").map(String::as_str), Some("Q4_1"));
    assert_eq!(file.metadata.get("type.previous.weight"), None);
    let refused = head_file(&heads, StoredTypes::all(TensorType::Q6K), "m", &BTreeMap::new()).unwrap_err();
    assert_eq!(refused.code(), ErrorCode::UnsupportedModel);
}

#[test]
fn heads_are_calibrated_on_a_text_of_the_target() {
    let target = target();
    let folder = std::env::temp_dir().join(format!("draftree-calibrate-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&folder);
    let header = StatesHeader {
        model: model_identity(&harness::open(&harness::embedded())),
        quantisation: "Q8_0".to_owned(),
        hidden_size: 64,
        layers: Vec::new(),
        context: None,
        best: 1,
    };
    let mut writer = StatesWriter::open(&folder, header).unwrap();
    for first in 300..306 {
        let text = text(&[1, first], 40);
        let hidden: Vec<f16> = text.hidden.iter().flatten().map(|&value| f16::from_f32(value)).collect();
        let probabilities = vec![0.5; text.tokens.len()];
        let rows = Rows {
            hidden: &hidden,
            tokens: &text.tokens,
            best_tokens: &text.tokens,
            best_probabilities: &probabilities,
            context: &[],
        };
        writer.append(&first.to_string(), rows).unwrap();
    }
    let states = States::open(&folder).unwrap();
    std::fs::remove_dir_all(&folder).unwrap();
    let (rows, ends) = Split::held_out(&states, 1.0, usize::MAX).unwrap();
    assert_eq!((rows.len(), ends.len()), (6 * 39, 6 * 40));

    let model = harness::embedded();
    let fused = heads::cpu(&harness::fitted_heads::fused(&model), &model);
    let refused = measure(&fused, &target, (&states, &ends), &rows).unwrap_err();
    assert!(refused.code() == ErrorCode::InvalidOption && refused.to_string().contains("[0,3]"), "{refused}");
    for fitted in [harness::fitted_heads::parallel(&model), harness::fitted_heads::recurrent(&model)] {
        let heads = heads::cpu(&fitted, &model);
        let findings = measure(&heads, &target, (&states, &ends), &rows).unwrap();
        // The same with a tree that has every candidate, one place after the other.
        let sparse: Vec<f64> = (1..=32).map(|nodes| findings.paths.expected_of_best(nodes)).collect();
        assert!(sparse[0] == 1.0 && sparse.is_sorted() && sparse[31] > 1.2, "{findings}");
        for (nodes, &sparse) in (1..).zip(&sparse) {
            assert!(findings.paths.best_dense(nodes).1 <= sparse + 1e-9, "{nodes}");
        }
        assert!(
            findings.grown_calibrated.is_sorted() && findings.grown.is_sorted() && findings.grown[31] > 1.2,
            "{findings}"
        );
        assert!(findings.calibration.iter().all(|it| it.slope > 0.0), "{findings}");

        let mut file = stored(&begun(shapes()[3], 100, false), TensorType::F32);
        file.metadata.extend(findings.words());
        file.metadata.insert("depths".to_owned(), findings.calibration.len().to_string());
        let opened = block_on(HeadFile::open(&source(&file))).unwrap();
        assert_eq!(opened.trees, findings.paths.best(31));
        assert_eq!(opened.calibration.len(), findings.calibration.len());
        let kept = opened.calibration.iter().zip(&findings.calibration);
        assert!(kept.clone().all(|(a, b)| (a.slope - b.slope).abs() < 1e-4 && (a.offset - b.offset).abs() < 1e-4));
    }
}
