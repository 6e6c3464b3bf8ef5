//! Log-probabilities: the kernels against the reference, the numbers against probabilities, and that drafting changes no bit of them.

#![allow(clippy::unwrap_used)] // also in the helpers of tests

mod harness;

use draftree::backend::gpu::GpuBackend;
use draftree::backend::{Backend, GenerationSetup};
use draftree::engine::{Drafters, Engine, GenerateOptions};
use draftree::error::ErrorCode;
use draftree::sampling::{Logprobs, MAX_TOP_LOGPROBS, SamplingParams, logprobs, process_logits};
use draftree::speculate::Source;
use draftree::speculate::accept::AcceptRule;
use draftree::speculate::costs::PassCosts;
use draftree::speculate::shape::{RankTree, Shape};
use harness::heads::{give_cpu, give_gpu};
use harness::random::Random;
use harness::synthetic::Model;
use harness::{cpu, embedded, engine, fitted_heads, generate, generate_afresh, gpu, logits_of, prefill, setup, text};
use pollster::block_on;

/// Begins a story, and repeats itself: drafts are right, wrong, and right for long.
const PROMPTS: [&str; 2] =
    ["Once upon a time, there was a little", "Tom had a red ball. Tom had a red ball. Tom had a red"];

/// The larger a pass the less it costs, so that the largest is always chosen.
const GENEROUS: PassCosts = PassCosts::fixed([1.0, 1e-1, 1e-2, 1e-3, 1e-4, 1e-5, 1e-6]);

/// The kernels and the reference take logarithms and exponentials that differ in the last bits, of sums taken in another order.
const TOLERANCE: f32 = 1e-4;

/// Both backends, with heads that are right now and then.
macro_rules! on_both {
    ($check:expr) => {
        let source = embedded();
        let heads = fitted_heads::parallel(&source);
        let (mut cpu, mut gpu) = (cpu(&source), gpu(&source));
        give_cpu(&mut cpu, &heads, &source);
        give_gpu(&mut gpu, &heads, &source);
        $check(&mut engine(&source, cpu));
        $check(&mut engine(&source, gpu));
    };
}

fn plain(max_tokens: u32, top: usize) -> GenerateOptions {
    GenerateOptions {
        max_tokens,
        ignore_eos: true,
        draft: Drafters::None,
        logprobs: Some(top),
        ..GenerateOptions::default()
    }
}

/// Greedy, sampled, and with everything that changes logits.
fn samplings() -> [SamplingParams; 3] {
    let sampled = SamplingParams { temperature: 0.7, top_k: 40, seed: 3, ..Default::default() };
    let penalties = SamplingParams {
        temperature: 1.3,
        repetition_penalty: 1.3,
        frequency_penalty: 0.4,
        presence_penalty: 0.2,
        min_p: 0.02,
        logit_bias: vec![(261, 2.0), (300, -3.0)],
        ..sampled.clone()
    };
    [SamplingParams::default(), sampled, penalties]
}

/// What a generation of one row a step tells, and the logits it saw at each place as the reference processes them.
fn plain_places(backend: &mut GpuBackend, setup: &GenerationSetup) -> Vec<(Logprobs, Vec<f32>)> {
    let (root, head) = setup.prompt.split_last().unwrap();
    prefill(backend, 0, head);
    backend.begin(head.len(), *root, setup).unwrap();
    let mut told = Vec::new();
    for _ in 0..setup.max_tokens {
        block_on(backend.submit_step(1, setup.draft.sources)).unwrap();
        told.extend(block_on(backend.next_record()).unwrap().logprobs);
    }
    backend.halt();
    assert_eq!(told.len(), setup.max_tokens as usize);
    let mut history: Vec<u32> = vec![0; backend.config().vocab_size];
    setup.prompt.iter().for_each(|&token| history[token as usize] = 1);
    let (mut last, mut position) = (*root, head.len());
    let mut places = Vec::new();
    for place in told {
        let mut logits = logits_of(backend, position, last);
        process_logits(&mut logits, &history, &setup.sampling);
        logits.truncate(setup.valid_tokens as usize);
        prefill(backend, position, &[last]);
        (last, position) = (place.token, position + 1);
        history[last as usize] += 2;
        places.push((place, logits));
    }
    places
}

/// Checks what is told of a place against the reference; where logits differ by rounding, neighbours may stand either way.
fn check_place(found: &Logprobs, logits: &[f32], top: usize, params: &SamplingParams, exactly: bool) {
    let expected = logprobs(logits, found.token, logits.len(), params);
    let near = |a: f32, b: f32| (a - b).abs() <= TOLERANCE * (1.0 + b.abs());
    assert!(near(found.logprob, expected.logprob), "{found:?}, {}, {params:?}", expected.logprob);
    assert_eq!(found.top.len(), top.min(logits.len()));
    for (rank, (found, expected_there)) in found.top.iter().zip(&expected.top).enumerate() {
        let own = expected.top.iter().find(|of| of.token == found.token).unwrap();
        assert!(near(found.logprob, own.logprob), "{found:?}, {own:?}, {params:?}");
        assert!(near(found.logprob, expected_there.logprob), "rank {rank}: {found:?}, {expected_there:?}, {params:?}");
        assert!(!exactly || found.token == expected_there.token, "rank {rank}: {found:?}, {expected_there:?}");
    }
    assert!(found.top.windows(2).all(|pair| pair[0].logprob >= pair[1].logprob), "{found:?}");
    if top > 0 && params.temperature == 0.0 {
        assert_eq!((found.token, found.logprob), (found.top[0].token, found.top[0].logprob), "the choice was greedy");
    }
    let total: f64 = found.top.iter().map(|top| f64::from(top.logprob).exp()).sum();
    assert!(total < 1.0 + 1e-4, "{total}");
}

#[test]
fn the_kernels_tell_what_the_reference_tells() {
    let source = embedded();
    let prompt = engine(&source, cpu(&source)).encode(&text(PROMPTS[0])).unwrap();
    let mut backend = gpu(&source);
    let vocab = backend.config().vocab_size;
    for params in samplings() {
        for top in [0, 1, 5, MAX_TOP_LOGPROBS] {
            let setup = GenerationSetup { logprobs: Some(top), ..setup(params.clone(), &prompt, 12, vocab) };
            for (place, logits) in plain_places(&mut backend, &setup) {
                check_place(&place, &logits, top, &params, !params.processes());
            }
        }
    }
}

#[test]
fn padding_of_the_head_has_no_part() {
    let model = Model::RAGGED;
    let prompt = Random::new(2).tokens(5, 400);
    let mut backend = gpu(&model.source());
    let logit_bias = (480..509).map(|token| (token, 50.0)).collect();
    let params = SamplingParams { logit_bias, ..Default::default() };
    // The last chunk that there is ends within a quad, or is padding as a whole.
    for valid_tokens in [509, 487, 384, 5] {
        let setup = GenerationSetup {
            valid_tokens,
            logprobs: Some(MAX_TOP_LOGPROBS),
            ..setup(params.clone(), &prompt, 6, model.vocab)
        };
        for (place, logits) in plain_places(&mut backend, &setup) {
            check_place(&place, &logits, MAX_TOP_LOGPROBS, &params, false);
            assert!(place.top.iter().all(|top| top.token < valid_tokens), "{place:?}");
        }
    }
}

#[test]
fn of_equals_the_lowest_id_comes_first() {
    let model = Model { tied: false, head_scale: 0.0, ..Model::RAGGED };
    let mut backend = gpu(&model.source());
    for params in [SamplingParams::default(), SamplingParams { temperature: 0.5, seed: 1, ..Default::default() }] {
        let setup = GenerationSetup { logprobs: Some(20), ..setup(params.clone(), &[1, 2, 3], 3, model.vocab) };
        for (place, logits) in plain_places(&mut backend, &setup) {
            check_place(&place, &logits, 20, &params, true);
            assert_eq!(place.top.iter().map(|top| top.token).collect::<Vec<_>>(), (0..20).collect::<Vec<_>>());
        }
    }
}

#[test]
fn probabilities_of_a_small_vocabulary_add_up_to_one() {
    let model = Model { vocab: 19, ..Model::RAGGED };
    for temperature in [0.0, 0.5, 3.0] {
        let params = SamplingParams { temperature, seed: 5, ..Default::default() };
        let setup = GenerationSetup { logprobs: Some(20), ..setup(params, &[1, 2, 3], 8, model.vocab) };
        for (place, _) in plain_places(&mut gpu(&model.source()), &setup) {
            assert_eq!(place.top.len(), 19);
            let total: f64 = place.top.iter().map(|top| f64::from(top.logprob).exp()).sum();
            assert!((total - 1.0).abs() < 1e-5, "{total}");
        }
    }
}

#[test]
fn neither_temperature_nor_filters_have_a_part() {
    fn check<B: Backend>(engine: &mut Engine<B>) {
        let first = |engine: &mut Engine<B>, sampling| {
            let options = GenerateOptions { sampling, ..plain(1, 20) };
            generate_afresh(engine, &text(PROMPTS[0]), &options).logprobs[0].top.clone()
        };
        let greedy = first(engine, SamplingParams::default());
        for sampling in [
            SamplingParams { temperature: 0.3, ..Default::default() },
            SamplingParams { temperature: 2.0, top_k: 3, ..Default::default() },
            SamplingParams { temperature: 1.0, top_p: 0.5, min_p: 0.3, ..Default::default() },
        ] {
            for (found, expected) in first(engine, sampling).iter().zip(&greedy) {
                assert_eq!(found.token, expected.token);
                assert!((found.logprob - expected.logprob).abs() < TOLERANCE, "{found:?}, {expected:?}");
            }
        }
    }
    on_both!(check);
}

fn assert_same_bits(found: &[Logprobs], expected: &[Logprobs], place: &str) {
    let bits = |all: &[Logprobs]| -> Vec<Vec<(u32, u32)>> {
        let of = |one: &Logprobs| {
            let own = std::iter::once((one.token, one.logprob.to_bits()));
            own.chain(one.top.iter().map(|top| (top.token, top.logprob.to_bits()))).collect()
        };
        all.iter().map(of).collect()
    };
    assert_eq!(bits(found), bits(expected), "{place}");
}

#[test]
fn drafting_changes_no_bit_of_them() {
    fn check<B: Backend>(engine: &mut Engine<B>) {
        engine.set_costs(GENEROUS);
        let these = |sources: &[Source]| Drafters::These(sources.to_vec());
        let drafters = [these(&[Source::Heads]), these(&[Source::NGram]), these(&[Source::Recycling]), Drafters::Auto];
        let trees = [
            (Shape::Grown, Some(2)),
            (Shape::Grown, Some(5)),
            (Shape::Grown, Some(64)),
            (Shape::Fixed(RankTree::dense(&[2, 2, 2]).unwrap()), None),
            (Shape::Fixed(RankTree::dense(&[1, 1, 1, 1]).unwrap()), None),
        ];
        let mut drafted = 0;
        for (sampling, prompt) in samplings().into_iter().zip([PROMPTS[1], PROMPTS[0], PROMPTS[1]]) {
            let plain = GenerateOptions { sampling, ..plain(32, 7) };
            let expected = generate_afresh(engine, &text(prompt), &plain);
            assert_eq!(expected.logprobs.len(), 32);
            for draft in &drafters {
                for (tree, max_nodes) in &trees {
                    for steps_in_flight in [Some(1), Some(3)] {
                        let options = GenerateOptions {
                            draft: draft.clone(),
                            tree: tree.clone(),
                            max_nodes: *max_nodes,
                            steps_in_flight,
                            ..plain.clone()
                        };
                        let written = generate_afresh(engine, &text(prompt), &options);
                        assert_eq!(written.tokens, expected.tokens);
                        assert_same_bits(&written.logprobs, &expected.logprobs, &format!("{options:?}"));
                        drafted += 32 - written.stats.draft.tokens[Source::Model as usize];
                    }
                }
            }
        }
        assert!(drafted > 500, "{drafted} drafted tokens were accepted");
    }
    on_both!(check);
}

#[test]
fn they_do_not_depend_on_how_many_are_asked_for_and_change_no_token() {
    fn check<B: Backend>(engine: &mut Engine<B>) {
        engine.set_costs(GENEROUS);
        let options = |logprobs| GenerateOptions { draft: Drafters::Auto, logprobs, ..plain(32, 0) };
        let off = generate_afresh(engine, &text(PROMPTS[1]), &options(None));
        assert!(off.logprobs.is_empty());
        let most = generate_afresh(engine, &text(PROMPTS[1]), &options(Some(MAX_TOP_LOGPROBS)));
        for top in [0, 1, 6] {
            let found = generate_afresh(engine, &text(PROMPTS[1]), &options(Some(top)));
            assert_eq!(found.tokens, off.tokens);
            let fewer = |place: &Logprobs| Logprobs { top: place.top[..top].to_vec(), ..place.clone() };
            let expected: Vec<Logprobs> = most.logprobs.iter().map(fewer).collect();
            assert_same_bits(&found.logprobs, &expected, &format!("{top} asked for"));
        }
    }
    on_both!(check);
}

#[test]
fn under_every_rule_they_are_those_of_what_was_written() {
    fn check<B: Backend>(engine: &mut Engine<B>) {
        engine.set_costs(GENEROUS);
        let prompt = engine.encode(&text(PROMPTS[1])).unwrap();
        let sampling = SamplingParams { temperature: 0.9, frequency_penalty: 0.3, seed: 2, ..Default::default() };
        for accept in [AcceptRule::Rejection, AcceptRule::TYPICAL, AcceptRule::TopK { k: 20, tolerance: 4.0 }] {
            let options = GenerateOptions {
                sampling: sampling.clone(),
                draft: Drafters::Auto,
                accept,
                steps_in_flight: Some(2),
                ..plain(24, 3)
            };
            let written = generate_afresh(engine, &text(PROMPTS[1]), &options);
            assert!(written.stats.passes < 24, "{accept:?}: no draft was accepted");
            let mut history = vec![0; engine.backend().config().vocab_size];
            prompt.iter().for_each(|&token| history[token as usize] = 1);
            for (at, place) in written.logprobs.iter().enumerate() {
                let before = [&prompt[..], &written.tokens[..at]].concat();
                let mut logits = block_on(engine.next_logits(&before)).unwrap();
                process_logits(&mut logits, &history, &sampling);
                check_place(place, &logits, 3, &sampling, false);
                history[place.token as usize] += 2;
            }
        }
    }
    on_both!(check);
}

#[test]
fn they_end_where_the_tokens_end() {
    fn check<B: Backend>(engine: &mut Engine<B>) {
        engine.set_costs(GENEROUS);
        let whole = generate_afresh(engine, &text(PROMPTS[1]), &plain(40, 2));
        for stop in [&whole.text[17..21], &whole.text[40..42]] {
            let options = GenerateOptions { stop: vec![stop.to_owned()], draft: Drafters::Auto, ..plain(40, 2) };
            let written = generate(engine, &text(PROMPTS[1]), &options);
            assert!(written.tokens.len() < 40);
            assert_same_bits(&written.logprobs, &whole.logprobs[..written.tokens.len()], stop);
        }
    }
    on_both!(check);
}

#[test]
fn they_cost_two_launches_and_no_submit() {
    let source = embedded();
    let mut engine = engine(&source, gpu(&source));
    engine.set_costs(GENEROUS);
    let mut stats = |logprobs| {
        let options = GenerateOptions {
            draft: Drafters::Auto,
            max_nodes: Some(8),
            steps_in_flight: Some(1),
            logprobs,
            ..plain(24, 0)
        };
        generate_afresh(&mut engine, &text(PROMPTS[1]), &options).stats
    };
    let (without, with) = (stats(None), stats(Some(5)));
    assert_eq!(with.dispatches_per_pass, without.dispatches_per_pass + 2);
    assert_eq!(with.passes, with.submits);
}

#[test]
fn more_than_there_can_be_are_refused() {
    let source = embedded();
    let mut engine = engine(&source, cpu(&source));
    let error = engine.start(&text(PROMPTS[0]), &plain(4, MAX_TOP_LOGPROBS + 1)).unwrap_err();
    assert_eq!(error.code(), ErrorCode::InvalidOption);
    assert!(error.to_string().contains("logprobs must be from 0 to 20, found 21"), "{error}");
}
