//! Draft trees on the device against the reference: which trees are drafted, how the walk goes, and what stands in the cache after it.

#![allow(clippy::unwrap_used)] // also in the helpers of tests

mod harness;

use std::mem::take;

use draftree::backend::{Backend, FinishReason, GenerationSetup, StepRecord};
use draftree::sampling::SamplingParams;
use draftree::speculate::grow::DraftedNode;
use draftree::speculate::shape::{RankTree, Shape};
use draftree::speculate::{Calibration, DraftPlan, Source, Sources};
use harness::random::Random;
use harness::synthetic::Model;
use harness::{assert_same_bits, cpu, embedded, gpu, logits_of, prefill, setup};
use pollster::block_on;

const NGRAM: Sources = Sources::NONE.with(Source::NGram);
const RECYCLING: Sources = Sources::NONE.with(Source::Recycling);
/// Steps after which the cache is looked at.
const STEPS: [usize; 7] = [1, 2, 3, 5, 8, 13, 19];
const BOTH: Sources = NGRAM.with(Source::Recycling);

/// A prompt that goes round in a circle of seven tokens.
fn prompt(vocab_size: usize) -> Vec<u32> {
    (0..40).map(|i| (i % 7 * 31 + 5) % vocab_size as u32).collect()
}

fn drafted(sampling: SamplingParams, plan: DraftPlan, max_tokens: u32, vocab_size: usize) -> GenerationSetup {
    GenerationSetup { draft: plan, ..setup(sampling, &prompt(vocab_size), max_tokens, vocab_size) }
}

/// The records of `steps` steps of `rows` rows, one in flight.
fn records<B: Backend>(backend: &mut B, setup: &GenerationSetup, rows: usize, steps: usize) -> Vec<StepRecord> {
    let [head @ .., root] = &setup.prompt[..] else { unreachable!("a prompt has a token") };
    prefill(backend, 0, head);
    backend.begin(head.len(), *root, setup).unwrap();
    backend.calibrate(&Calibration::default());
    let mut records = Vec::new();
    for _ in 0..steps {
        block_on(backend.submit_step(rows, setup.draft.sources)).unwrap();
        records.push(block_on(backend.next_record()).unwrap());
    }
    backend.halt();
    records
}

/// Checks that a device tells the tree that the reference drafted. Nodes of the same probability but for the last bit may come in another
/// order; how many do is returned.
fn check_trees(found: &[DraftedNode], expected: &[DraftedNode], nodes: usize) -> usize {
    assert_eq!((found.len(), expected.len()), (nodes, nodes));
    let place = |node: &DraftedNode| (node.token, node.parent, node.source);
    let mut others = 0;
    for (found, expected) in found.iter().zip(expected) {
        let apart = (found.log_probability - expected.log_probability).abs();
        assert!(apart < 1e-4, "{found:?}, expected {expected:?}");
        others += usize::from(place(found) != place(expected));
    }
    others
}

#[test]
fn the_device_drafts_and_walks_as_the_reference_does() {
    let source = embedded();
    let (mut reference, mut device) = (cpu(&source), gpu(&source));
    let vocab_size = device.config().vocab_size;
    let sampled = SamplingParams { temperature: 0.8, seed: 4, repetition_penalty: 1.1, ..Default::default() };
    let dense = Shape::Fixed(RankTree::dense(&[3, 2, 2]).unwrap());
    for sampling in [SamplingParams::default(), sampled] {
        for sources in [NGRAM, RECYCLING, BOTH] {
            for (shape, rows) in [(Shape::Grown, 4), (Shape::Grown, 16), (Shape::Grown, 64), (dense.clone(), 22)] {
                let plan = DraftPlan { sources, shape, max_nodes: 64, ..Default::default() };
                let setup = GenerationSetup { trees: true, ..drafted(sampling.clone(), plan, 200, vocab_size) };
                let mut expected = records(&mut reference, &setup, rows, 30);
                let mut found = records(&mut device, &setup, rows, 30);
                let (mut nodes, mut others) = (0, 0);
                for (found, expected) in found.iter_mut().zip(&mut expected) {
                    nodes += expected.drafted;
                    others += check_trees(&take(&mut found.tree), &take(&mut expected.tree), expected.drafted);
                }
                assert!(10 * others < nodes, "{others} of {nodes} nodes are others");
                assert_eq!(found, expected, "{:?}, {rows} rows, temperature {}", setup.draft, sampling.temperature);
                let accepted = expected.iter().any(|record| record.tokens.len() > 1);
                assert!(accepted || sources != BOTH, "drafts are accepted");
            }
        }
    }
}

/// Checks that the cache after `steps` steps of `rows` rows is the one that the emitted text alone would have left.
fn check_cache<B: Backend>(drafting: &mut B, plain: &mut B, plan: &DraftPlan, rows: usize, steps: usize) -> bool {
    let vocab_size = plain.config().vocab_size;
    let setup = drafted(SamplingParams::default(), plan.clone(), 300, vocab_size);
    let records = records(drafting, &setup, rows, steps);
    let emitted = records.iter().flat_map(|record| &record.tokens).map(|emitted| emitted.token);
    let text: Vec<u32> = setup.prompt.iter().copied().chain(emitted).collect();
    let [head @ .., root] = &text[..] else { unreachable!("the prompt has a token") };
    assert_eq!(records.last().map(|record| record.context_length), Some(head.len()));
    for (position, &token) in head.iter().enumerate() {
        prefill(plain, position, &[token]);
    }
    // Every key and value of every layer takes part in these logits.
    let found = logits_of(drafting, head.len(), *root);
    assert_same_bits(&found, &logits_of(plain, head.len(), *root), &format!("after {steps} steps of {rows} rows"));
    records.iter().flat_map(|record| &record.tokens).any(|emitted| emitted.node > 1)
}

#[test]
fn after_any_step_the_cache_is_that_of_the_emitted_text() {
    // Nine layers, so that one launch moves seven of them and another the rest.
    let layers = Model { layers: 9, ..Model::RAGGED };
    let (mut drafting, mut plain) = (gpu(&layers.source()), gpu(&layers.source()));
    let plan = DraftPlan { sources: BOTH, max_nodes: 64, ..Default::default() };
    for steps in [1, 2, 5] {
        check_cache(&mut drafting, &mut plain, &plan, 16, steps);
    }
    let source = embedded();
    let (mut drafting, mut plain) = (gpu(&source), gpu(&source));
    let mut moved = false;
    for rows in [2, 8, 64] {
        for steps in STEPS {
            moved |= check_cache(&mut drafting, &mut plain, &plan, rows, steps);
        }
    }
    let dense = Shape::Fixed(RankTree::dense(&[4, 2, 2]).unwrap());
    let wide = DraftPlan { sources: RECYCLING, shape: dense, ..Default::default() };
    for steps in STEPS {
        moved |= check_cache(&mut drafting, &mut plain, &wide, 64, steps);
    }
    assert!(moved, "a visited row had to move");
}

#[test]
fn a_step_behind_the_end_moves_nothing() {
    let source = embedded();
    let (mut drafting, mut plain) = (gpu(&source), gpu(&source));
    let vocab_size = plain.config().vocab_size;
    let plan = DraftPlan { sources: BOTH, max_nodes: 16, ..Default::default() };
    for max_tokens in 1..25 {
        let setup = drafted(SamplingParams::default(), plan.clone(), max_tokens, vocab_size);
        let all = records(&mut drafting, &setup, 16, 30);
        let tokens: Vec<u32> = all.iter().flat_map(|record| &record.tokens).map(|emitted| emitted.token).collect();
        assert_eq!(tokens.len(), max_tokens as usize);
        let last = all.iter().position(|record| record.finish.is_some()).unwrap();
        assert_eq!(all[last].finish, Some(FinishReason::Length));
        assert!(all[last + 1..].iter().all(|record| record.tokens.is_empty()), "steps behind the end are empty");
        let text = [&setup.prompt[..], &tokens].concat();
        prefill(&mut plain, 0, &text[..text.len() - 1]);
        let root = text[text.len() - 1];
        let found = logits_of(&mut drafting, text.len() - 1, root);
        assert_same_bits(&found, &logits_of(&mut plain, text.len() - 1, root), &format!("{max_tokens} tokens"));
    }
}

#[test]
fn a_published_tree_of_64_nodes_runs_as_it_is() {
    let source = embedded();
    let (mut reference, mut device) = (cpu(&source), gpu(&source));
    let vocab_size = device.config().vocab_size;
    let mut random = Random::new(5);
    let mut paths: Vec<Vec<usize>> = (0..4).map(|rank| vec![rank]).collect();
    while paths.len() < 63 {
        let path = [paths[random.below(paths.len())].as_slice(), &[random.below(4)]].concat();
        if !paths.contains(&path) {
            paths.push(path);
        }
    }
    let shape = Shape::Fixed(RankTree::from_paths(&paths).unwrap());
    let plan = DraftPlan { sources: BOTH, shape, ..Default::default() };
    let setup = drafted(SamplingParams::default(), plan, 100, vocab_size);
    let found = records(&mut device, &setup, 64, 20);
    assert_eq!(found, records(&mut reference, &setup, 64, 20));
    assert!(found.iter().any(|record| record.rows > 10), "many of its nodes exist");
}
