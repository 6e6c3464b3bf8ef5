//! The GPU backend against itself, bit by bit, and against the reference backend, within a bound.
//!
//! Drafting is exact only if a row's logits do not depend on the pass they are computed in: alone or among 64 rows, at the top of
//! a tree or deep in it, after a prompt computed at once or token by token, in a cache that has grown or not. Nothing here has a
//! tolerance but the comparison with the reference.

#![allow(clippy::unwrap_used)] // also in the helpers of tests

mod harness;

use draftree::backend::Backend;
use draftree::backend::gpu::GpuBackend;
use draftree::error::ErrorCode;
use draftree::model::{MemorySource, TensorType};
use draftree::sampling::SamplingParams;
use draftree::speculate::tree::Tree;
use harness::random::Random;
use harness::synthetic::Model;
use harness::{
    assert_same_bits, cpu, decode, gpu, gpu_with, logits_of, logits_of_tree, on_disk, prefill, setup, shared,
};
use pollster::block_on;

/// GPU and reference differ by at most this, relative to the largest logit: float32 products summed in another order. The worst is
/// Q4_K, whose scales and minima nearly cancel, with 3e-6; the other formats stay below 1e-6.
const REFERENCE_BOUND: f32 = 1e-5;

/// A model for each packed format; among them every ratio of query to key heads, bias, and heads that are not tied.
const MODELS: [(&str, Model); 9] = [
    ("F32, 1 query head a key head", Model { kv_heads: 6, ..Model::RAGGED }),
    ("F16, 2 query heads a key head", Model { matrices: TensorType::F16, kv_heads: 3, ..Model::RAGGED }),
    ("BF16, 3 query heads a key head, untied", Model { matrices: TensorType::Bf16, tied: false, ..Model::RAGGED }),
    ("Q4_0", Model { matrices: TensorType::Q4_0, ffn: 160, ..Model::RAGGED }),
    (
        "Q4_1, qwen2 with bias, 7 query heads a key head, untied",
        Model {
            family: "qwen2",
            matrices: TensorType::Q4_1,
            ffn: 160,
            heads: 7,
            kv_heads: 1,
            head_dim: 32,
            tied: false,
            ..Model::RAGGED
        },
    ),
    ("Q8_0, qwen2 with bias", Model { family: "qwen2", matrices: TensorType::Q8_0, ffn: 160, ..Model::RAGGED }),
    ("Q5_1, which is packed as Q8Wide", Model { matrices: TensorType::Q5_1, ffn: 160, ..Model::RAGGED }),
    ("Q4_K, which is packed as Q4Wide", Model { matrices: TensorType::Q4K, ..Model::WIDE }),
    ("Q6_K, which is packed as Q8Wide", Model { matrices: TensorType::Q6K, ..Model::WIDE }),
];

/// Checks every node of a tree behind `context` against its path decoded alone, one row a pass.
fn check_tree(backend: &mut GpuBackend, context: &[u32], tree: &Tree, place: &str) {
    prefill(backend, 0, context);
    let together = logits_of_tree(backend, context.len(), tree);
    check_below(backend, context.len(), tree, 0, &together, place);
}

fn check_below<B: Backend>(
    backend: &mut B,
    position: usize,
    tree: &Tree,
    node: usize,
    together: &[Vec<f32>],
    place: &str,
) {
    let token = tree.tokens()[node];
    let alone = logits_of(backend, position, token);
    assert!(alone.iter().all(|logit| logit.is_finite()), "{place}, node {node}: logits are numbers");
    let rows = tree.len();
    assert_same_bits(&together[node], &alone, &format!("{place}, node {node} of {rows} at position {position}"));
    let children: Vec<usize> = (1..rows).filter(|&child| tree.parents()[child] == node).collect();
    for child in children {
        // A sibling's subtree has overwritten what stood here.
        prefill(backend, position, &[token]);
        check_below(backend, position + 1, tree, child, together, place);
    }
}

/// Checks trees of all sizes and shapes: around the edges of the register tiles, and of the chunks of 16 positions.
fn check_rows(backend: &mut GpuBackend, place: &str) {
    let vocab = backend.config().vocab_size;
    let mut random = Random::new(3);
    for (rows, start) in [(1, 0), (2, 1), (3, 14), (4, 15), (5, 16), (7, 31), (8, 17), (9, 0), (16, 32), (33, 5)] {
        let context = random.tokens(start, vocab);
        check_tree(backend, &context, &random.tree(rows, vocab), &format!("{place}, random tree"));
    }
    for (rows, start) in [(2, 3), (4, 12), (8, 16), (64, 40)] {
        let context = random.tokens(start, vocab);
        check_tree(backend, &context, &random.star(rows, vocab), &format!("{place}, star"));
    }
    let context = random.tokens(9, vocab);
    check_tree(backend, &context, &random.chain(64, vocab), &format!("{place}, chain"));
    check_tree(backend, &context, &random.tree(64, vocab), &format!("{place}, random tree"));
}

fn check_rows_of(models: &[(&str, Model)]) {
    for (name, model) in models {
        check_rows(&mut gpu(&model.source()), name);
    }
}

// In three tests, so that they run side by side.
#[test]
fn a_row_is_the_same_alone_and_in_any_tree_of_floats() {
    check_rows_of(&MODELS[..3]);
}

#[test]
fn a_row_is_the_same_alone_and_in_any_tree_of_blocks() {
    check_rows_of(&MODELS[3..6]);
}

#[test]
fn a_row_is_the_same_alone_and_in_any_tree_of_wide_blocks() {
    check_rows_of(&MODELS[6..]);
}

#[test]
fn a_row_is_the_same_alone_and_in_any_tree_of_a_real_model() {
    for file in ["stories260K-f32.gguf", "stories260K-f16.gguf", "stories260K-q4_1.gguf", "stories260K-q8_0.gguf"] {
        check_rows(&mut gpu(&on_disk(shared("models/stories260K").join(file))), file);
    }
}

/// A model where neighbours share loads, which not every device is made to do by itself.
fn sharing_loads(source: &MemorySource) -> GpuBackend {
    gpu_with(source, |caps| caps.quads = true)
}

#[test]
fn equal_rows_of_one_pass_are_equal_bits() {
    let mut backend = gpu(&Model::RAGGED.source());
    prefill(&mut backend, 0, &[7, 8, 9]);
    let rows = logits_of_tree(&mut backend, 3, &Tree::new(&[5; 64], &[0; 64]).unwrap());
    for (row, logits) in rows.iter().enumerate().skip(1) {
        assert_same_bits(logits, &rows[1], &format!("row {row}"));
    }
}

/// Checks that the way in which a prompt got into the cache leaves no trace.
fn check_prefill(name: &str, model: &Model) {
    let mut backend = gpu(&model.source());
    let mut random = Random::new(5);
    for length in [1, 2, 7, 15, 16, 63, 64, 65, 130] {
        let tokens = random.tokens(length, model.vocab);
        let last = random.below(model.vocab) as u32;
        prefill(&mut backend, 0, &tokens);
        let at_once = logits_of(&mut backend, length, last);
        for piece_length in [1, 3, 64] {
            prefill(&mut backend, 0, &random.tokens(length, model.vocab));
            for (number, piece) in tokens.chunks(piece_length).enumerate() {
                prefill(&mut backend, number * piece_length, piece);
            }
            let place = format!("{name}: {length} tokens in pieces of {piece_length}");
            assert_same_bits(&logits_of(&mut backend, length, last), &at_once, &place);
        }
    }
}

#[test]
fn a_prompt_in_pieces_is_the_same_prompt() {
    for (name, model) in [&MODELS[1], &MODELS[4], &MODELS[7]] {
        check_prefill(name, model);
    }
}

#[test]
fn written_tokens_are_in_the_cache_as_if_they_had_been_a_prompt() {
    for (name, model) in [&MODELS[2], &MODELS[5]] {
        let mut backend = gpu(&model.source());
        let prompt = Random::new(11).tokens(20, model.vocab);
        prefill(&mut backend, 0, &prompt[..19]);
        let setup = setup(SamplingParams::default(), &prompt, 45, model.vocab);
        let written = decode(&mut backend, 19, prompt[19], &setup, 4);
        let all = [&prompt[..], &written].concat();
        let (last, head) = all.split_last().unwrap();
        let decoded = logits_of(&mut backend, head.len(), *last);
        prefill(&mut backend, 0, head);
        assert_same_bits(&decoded, &logits_of(&mut backend, head.len(), *last), name);
    }
}

/// Checks logits of a tree on both backends.
fn check_reference(name: &str, model: &Model, mut gpu: GpuBackend) {
    let mut cpu = cpu(&model.source());
    let mut random = Random::new(23);
    for (start, rows) in [(0, 1), (1, 4), (40, 24)] {
        let context = random.tokens(start, model.vocab);
        let tree = random.tree(rows, model.vocab);
        prefill(&mut gpu, 0, &context);
        prefill(&mut cpu, 0, &context);
        let (found, expected) = (logits_of_tree(&mut gpu, start, &tree), logits_of_tree(&mut cpu, start, &tree));
        let spread = expected.iter().flatten().fold(0f32, |most, logit| most.max(logit.abs()));
        assert!(spread > 5.0, "{name}: logits up to {spread} say something");
        for (node, (found, expected)) in found.iter().zip(&expected).enumerate() {
            for (token, (found, expected)) in found.iter().zip(expected).enumerate() {
                assert!(
                    (found - expected).abs() <= REFERENCE_BOUND * spread,
                    "{name}, {rows} rows behind {start}: node {node}, token {token}: {found}, the reference has {expected}"
                );
            }
        }
    }
}

#[test]
fn logits_are_those_of_the_reference() {
    for (name, model) in &MODELS {
        check_reference(name, model, gpu(&model.source()));
        check_reference(&format!("{name}, loads shared"), model, sharing_loads(&model.source()));
    }
}

/// A backend whose cache has had room for `tokens` tokens from the start.
fn roomy(source: &MemorySource, tokens: usize) -> GpuBackend {
    let mut backend = gpu(source);
    prefill(&mut backend, 0, &vec![3; tokens]);
    backend
}

#[test]
fn a_cache_that_grew_is_the_same_cache() {
    let (name, model) = &MODELS[3];
    let source = model.source();
    let tokens = Random::new(31).tokens(1300, model.vocab);
    let mut grown = gpu(&source);
    let mut roomy = roomy(&source, 1400);
    // Capacity begins at 512 slots: within it, up to its edge, over it by a tree, by a prompt, and once more.
    let mut at = 0;
    for (length, rows) in [(300, 8), (448, 64), (449, 64), (511, 1), (512, 1), (700, 16), (1300, 64)] {
        prefill(&mut grown, at, &tokens[at..length]);
        prefill(&mut roomy, 0, &tokens[..length]);
        let tree = Random::new(length as u64).tree(rows, model.vocab);
        let (found, expected) = (logits_of_tree(&mut grown, length, &tree), logits_of_tree(&mut roomy, length, &tree));
        for (node, (found, expected)) in found.iter().zip(&expected).enumerate() {
            assert_same_bits(found, expected, &format!("{name}: node {node} of {rows} behind {length} tokens"));
        }
        at = length;
    }
}

#[test]
fn a_cache_that_grows_under_steps_in_flight_is_the_same_cache() {
    let (_, model) = &MODELS[3];
    let source = model.source();
    let prompt = Random::new(37).tokens(506, model.vocab);
    let (root, head) = prompt.split_last().unwrap();
    let sampling = SamplingParams { temperature: 1.0, seed: 5, ..Default::default() };
    let setup = setup(sampling, &prompt, 24, model.vocab);
    let write = |backend: &mut GpuBackend| {
        prefill(backend, 0, head);
        let tokens = decode(backend, head.len(), *root, &setup, 16);
        let (last, written) = tokens.split_last().unwrap();
        let logits = logits_of(backend, prompt.len() + written.len(), *last);
        (tokens, logits)
    };
    let (tokens, logits) = write(&mut gpu(&source));
    let (expected_tokens, expected_logits) = write(&mut roomy(&source, 700));
    assert_eq!(tokens, expected_tokens);
    assert_same_bits(&logits, &expected_logits, "after the last token");
}

/// Checks that a device with other properties computes the same bits.
fn check_device(model: &Model, place: &str, other: &mut GpuBackend) {
    let mut random = Random::new(41);
    let mut backend = gpu(&model.source());
    let context = random.tokens(60, model.vocab);
    prefill(&mut backend, 0, &context);
    prefill(other, 0, &context);
    for rows in [1, 2, 3, 6, 12] {
        let tree = random.tree(rows, model.vocab);
        let (found, expected) = (logits_of_tree(other, 60, &tree), logits_of_tree(&mut backend, 60, &tree));
        for (found, expected) in found.iter().zip(&expected) {
            assert_same_bits(found, expected, &format!("{place}, {rows} rows"));
        }
    }
}

#[test]
fn the_size_of_workgroups_changes_nothing() {
    for (name, model) in [&MODELS[0], &MODELS[4], &MODELS[8]] {
        for workgroup in [4, 64] {
            let mut other = gpu_with(&model.source(), |caps| caps.workgroup = workgroup);
            check_device(model, &format!("{name}: workgroups of {workgroup}"), &mut other);
        }
    }
}

#[test]
fn a_model_split_over_many_bindings_computes_the_same() {
    for ((name, model), kilobytes) in [(&("F32", Model::RAGGED), 160), (&MODELS[4], 352)] {
        // Six groups of 64 rows fit where there are eight, and the parts of a dozen rows of attention.
        let mut split = gpu_with(&model.source(), |caps| caps.max_binding_bytes = kilobytes << 10);
        check_device(model, name, &mut split);
        assert!(split.context_limit() < model.context, "{name}: so short a binding holds no whole context");
        let error = block_on(split.evaluate(60, &Tree::chain(&[1; 64]).unwrap())).unwrap_err();
        assert_eq!(error.code(), ErrorCode::InvalidOption, "{error}");
    }
}
