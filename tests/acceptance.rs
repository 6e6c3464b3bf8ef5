//! The rules of acceptance other than the exact one: that both backends decide alike, that a text ends where it must, that each rule
//! keeps what it promises, and that the lossy ones are lossy and worth it.

#![allow(clippy::unwrap_used)] // also in the helpers of tests

mod harness;

use draftree::backend::{Backend, FinishReason};
use draftree::engine::{Drafters, Engine, GenerateOptions, MAX_STEPS_IN_FLIGHT};
use draftree::error::ErrorCode;
use draftree::sampling::SamplingParams;
use draftree::speculate::Source;
use draftree::speculate::accept::{AcceptRule, Guarantee};
use draftree::speculate::costs::PassCosts;
use draftree::speculate::shape::Shape;
use harness::{Written, cpu, embedded, engine, generate, generate_afresh, gpu, text};

/// Begins a story, goes back to its words, and repeats itself: drafts are right, nearly right, and wrong.
const PROMPTS: [&str; 3] = [
    "Once upon a time, there was a little",
    "Tom had a red ball. Tom had a red ball. Tom had a red",
    "Lily said: I like to play. I like to run. Ben said: I like to play. I like to",
];

/// Every rule that is not the exact one, narrow and wide.
const RULES: [AcceptRule; 6] = [
    AcceptRule::Rejection,
    AcceptRule::TYPICAL,
    AcceptRule::Typical { epsilon: 0.01, alpha: 0.02 },
    AcceptRule::TopK { k: 1, tolerance: 0.0 },
    AcceptRule::TOP_K,
    AcceptRule::TopK { k: 20, tolerance: 4.0 },
];

fn plain(max_tokens: u32) -> GenerateOptions {
    GenerateOptions { max_tokens, ignore_eos: true, draft: Drafters::None, ..Default::default() }
}

fn drafting(accept: AcceptRule, sampling: SamplingParams, max_tokens: u32) -> GenerateOptions {
    GenerateOptions { draft: Drafters::Auto, accept, sampling, ..plain(max_tokens) }
}

fn sampled(temperature: f32, seed: u64) -> SamplingParams {
    SamplingParams { temperature, seed, ..Default::default() }
}

/// An engine whose passes are as large as can be: the larger the less they cost.
fn generous<B: Backend>(backend: B) -> Engine<B> {
    let mut engine = engine(&embedded(), backend);
    engine.set_costs(PassCosts::fixed([1.0, 1e-1, 1e-2, 1e-3, 1e-4, 1e-5, 1e-6]));
    engine
}

macro_rules! on_both {
    ($check:expr) => {
        let source = embedded();
        $check(&mut generous(cpu(&source)));
        $check(&mut generous(gpu(&source)));
    };
}

fn assert_same(found: &Written, expected: &Written, place: &str) {
    assert_eq!(found.tokens, expected.tokens, "{place}");
    assert_eq!(found.text, expected.text, "{place}");
    assert_eq!(found.finish, expected.finish, "{place}");
}

/// Which drafts there are depends on near-ties too, and what recycling has learnt goes on from one text to the next: where the backends'
/// texts part, both begin anew. Logits 1e-5 apart part as many as this.
const PARTED: usize = 4;

#[test]
fn both_backends_decide_alike() {
    let source = embedded();
    let anew = || (generous(gpu(&source)), generous(cpu(&source)));
    let drafters = [Drafters::These(vec![Source::NGram]), Drafters::These(vec![Source::Recycling]), Drafters::Auto];
    let samplings = [
        SamplingParams::default(),
        sampled(0.7, 1),
        sampled(1.0, 2),
        SamplingParams { top_k: 20, top_p: 0.9, ..sampled(1.0, 3) },
        SamplingParams { repetition_penalty: 1.2, frequency_penalty: 0.3, min_p: 0.02, ..sampled(0.8, 4) },
    ];
    let mut engines = anew();
    let mut parted = Vec::new();
    for accept in RULES {
        for sampling in &samplings {
            for draft in &drafters {
                for (prompt, tree) in [(PROMPTS[1], Shape::Grown), (PROMPTS[2], Shape::parse("dense:3,2,2").unwrap())] {
                    // Step by step: trees are alike only if their sizes are, which the controller chooses by the records it has seen.
                    let options = drafting(accept, sampling.clone(), 40);
                    let options = GenerateOptions { draft: draft.clone(), tree, steps_in_flight: Some(1), ..options };
                    let found = generate_afresh(&mut engines.0, &text(prompt), &options);
                    let expected = generate_afresh(&mut engines.1, &text(prompt), &options);
                    assert_eq!((found.tokens.len(), found.finish), (40, FinishReason::Length));
                    if (&found.tokens, &found.stats.draft) != (&expected.tokens, &expected.stats.draft) {
                        parted.push(format!("{accept:?}, {draft:?}, {prompt:?}, {sampling:?}"));
                        engines = anew();
                    }
                }
            }
        }
    }
    assert!(parted.len() <= PARTED, "{} of 180 texts part:\n{}", parted.len(), parted.join("\n"));
}

#[test]
fn steps_in_flight_end_as_steps_alone_do() {
    let source = embedded();
    let mut engine = generous(gpu(&source));
    for accept in RULES {
        for draft in [vec![Source::NGram], vec![Source::Recycling]] {
            for steps_in_flight in [None, Some(4), Some(MAX_STEPS_IN_FLIGHT)] {
                let options = drafting(accept, sampled(1.0, 7), 40);
                let draft = Drafters::These(draft.clone());
                let written =
                    generate(&mut engine, &text(PROMPTS[1]), &GenerateOptions { draft, steps_in_flight, ..options });
                assert_eq!((written.tokens.len(), written.finish), (40, FinishReason::Length), "{accept:?}");
            }
        }
    }
}

#[test]
fn rules_that_promise_the_same_text_write_it() {
    fn check<B: Backend>(engine: &mut Engine<B>) {
        for prompt in PROMPTS {
            let expected = generate_afresh(engine, &text(prompt), &plain(60));
            for accept in RULES.into_iter().filter(|rule| rule.guarantee(0.0) == Guarantee::SameText) {
                let written = generate_afresh(engine, &text(prompt), &drafting(accept, SamplingParams::default(), 60));
                assert_same(&written, &expected, &format!("{accept:?}, {prompt:?}"));
                assert_eq!(written.stats.guarantee, Guarantee::SameText);
                assert!(written.stats.passes < expected.stats.passes, "{accept:?}, {prompt:?}");
            }
        }
        assert_eq!(RULES.into_iter().filter(|rule| rule.guarantee(0.0) == Guarantee::SameText).count(), 4);
    }
    on_both!(check);
}

#[test]
fn lossy_rules_say_so_and_accept_more() {
    fn check<B: Backend>(engine: &mut Engine<B>) {
        for accept in [RULES[2], RULES[5]] {
            let (mut lenient, mut exact, mut changed) = (0, 0, 0);
            for seed in 0..10 {
                let options = drafting(accept, sampled(1.0, seed), 60);
                let written = generate_afresh(engine, &text(PROMPTS[1]), &options);
                let options = GenerateOptions { accept: AcceptRule::Exact, ..options };
                let expected = generate_afresh(engine, &text(PROMPTS[1]), &options);
                lenient += written.stats.passes;
                exact += expected.stats.passes;
                changed += u32::from(written.tokens != expected.tokens);
                assert_eq!(written.stats.guarantee, Guarantee::Lossy);
                assert_eq!(expected.stats.guarantee, Guarantee::SameText);
            }
            assert!(changed >= 8, "{accept:?}: {changed} of 10 texts were changed");
            assert!(lenient * 10 < exact * 9, "{accept:?}: {lenient} passes, {exact} under the exact rule");
        }
    }
    on_both!(check);
}

#[test]
fn nothing_drafted_is_plain_decoding_under_every_rule() {
    fn check<B: Backend>(engine: &mut Engine<B>) {
        for sampling in [SamplingParams::default(), sampled(1.0, 5)] {
            let options = GenerateOptions { sampling, ..plain(30) };
            let expected = generate_afresh(engine, &text(PROMPTS[0]), &options);
            for accept in RULES {
                let written =
                    generate_afresh(engine, &text(PROMPTS[0]), &GenerateOptions { accept, ..options.clone() });
                assert_same(&written, &expected, &format!("{accept:?}"));
                assert_eq!(written.stats.guarantee, Guarantee::SameText);
            }
        }
    }
    on_both!(check);
}

#[test]
fn as_many_tokens_are_written_as_were_asked_for() {
    fn check<B: Backend>(engine: &mut Engine<B>) {
        for accept in RULES {
            for max_tokens in 1..=20 {
                for depth in [1, 3, MAX_STEPS_IN_FLIGHT] {
                    let options = drafting(accept, sampled(1.0, u64::from(max_tokens)), max_tokens);
                    let options = GenerateOptions { steps_in_flight: Some(depth), ..options };
                    let written = generate(engine, &text(PROMPTS[1]), &options);
                    assert_eq!(written.tokens.len(), max_tokens as usize, "{accept:?}, {depth} in flight");
                    assert_eq!(written.finish, FinishReason::Length, "{accept:?}, {depth} in flight");
                }
            }
        }
    }
    on_both!(check);
}

#[test]
fn an_end_token_ends_the_text_anywhere_in_an_accepted_run() {
    fn check<B: Backend>(engine: &mut Engine<B>) {
        let end = engine.text().tokenizer.end_ids()[0];
        let mut ended = 0;
        for accept in RULES {
            for seed in 0..6 {
                let sampling =
                    SamplingParams { logit_bias: vec![(end, 2.0 + 2.0 * seed as f32)], ..sampled(0.8, seed) };
                let options = GenerateOptions { ignore_eos: false, ..drafting(accept, sampling, 60) };
                let written = generate(engine, &text(PROMPTS[1]), &options);
                let place = format!("{accept:?}, seed {seed}");
                let ends = written.tokens.iter().filter(|&&token| token == end).count();
                assert_eq!(ends, usize::from(written.finish == FinishReason::Stop), "{place}");
                assert!(ends == 0 || written.tokens.last() == Some(&end), "{place}: {:?}", written.tokens);
                ended += ends;
                // What is in the cache behind the end is what a prefill would have put there.
                let longer = text(&format!("{} {} The", PROMPTS[1], written.text));
                let next = generate(engine, &longer, &plain(10));
                assert_same(&next, &generate_afresh(engine, &longer, &plain(10)), &place);
            }
        }
        assert!(ended > 10, "{ended} texts ended");
    }
    on_both!(check);
}

#[test]
fn a_text_goes_on_to_the_last_position_of_the_context() {
    fn check<B: Backend>(engine: &mut Engine<B>) {
        let context = engine.backend().context_limit();
        for accept in RULES {
            let options = GenerateOptions { max_nodes: Some(64), ..drafting(accept, sampled(0.9, 3), 10_000) };
            let written = generate_afresh(engine, &text(PROMPTS[1]), &options);
            assert_eq!(written.finish, FinishReason::Context, "{accept:?}");
            assert_eq!(written.prompt.len() + written.tokens.len(), context + 1, "{accept:?}");
        }
    }
    on_both!(check);
}

#[test]
fn a_pass_is_one_submit_and_the_exact_rule_launches_nothing_more() {
    let source = embedded();
    let mut engine = generous(gpu(&source));
    let mut launches = |accept| {
        let options = GenerateOptions { steps_in_flight: Some(1), ..drafting(accept, sampled(1.0, 1), 40) };
        let stats = generate_afresh(&mut engine, &text(PROMPTS[1]), &options).stats;
        assert_eq!(stats.passes, stats.submits, "{accept:?}");
        stats.dispatches_per_pass
    };
    let exact = launches(AcceptRule::Exact);
    for accept in RULES {
        let more = if accept == AcceptRule::Rejection { 1 } else { 2 };
        assert_eq!(launches(accept), exact + more, "{accept:?}");
    }
}

#[test]
fn a_value_out_of_range_is_refused() {
    let source = embedded();
    let mut engine = generous(cpu(&source));
    for accept in [
        AcceptRule::Typical { epsilon: -0.1, alpha: 0.3 },
        AcceptRule::Typical { epsilon: 0.1, alpha: f32::NAN },
        AcceptRule::TopK { k: 0, tolerance: 1.0 },
        AcceptRule::TopK { k: 3, tolerance: f32::INFINITY },
    ] {
        let error = engine.start(&text(PROMPTS[0]), &drafting(accept, sampled(1.0, 1), 5)).unwrap_err();
        assert_eq!(error.code(), ErrorCode::InvalidOption, "{accept:?}");
        assert!(error.to_string().starts_with("accept: "), "{error}");
    }
}
