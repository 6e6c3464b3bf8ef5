//! Drafting changes how fast a text comes, never the text: every drafter, tree, size and number of steps in flight against plain
//! decoding, greedy and sampled, on both backends.

#![allow(clippy::unwrap_used)] // also in the helpers of tests

mod harness;

use draftree::backend::{Backend, FinishReason};
use draftree::engine::{Drafters, Engine, GenerateOptions, MAX_STEPS_IN_FLIGHT};
use draftree::error::ErrorCode;
use draftree::model::heads::HeadForm;
use draftree::sampling::SamplingParams;
use draftree::speculate::Source;
use draftree::speculate::costs::PassCosts;
use draftree::speculate::shape::{RankTree, Shape};
use harness::heads::{Heads, give_cpu, give_gpu};
use harness::random::Random;
use harness::{Written, cpu, downloaded, embedded, engine, fitted_heads, generate, generate_afresh, gpu, heads, text};

/// Begins a story, goes back to its words, and repeats itself: drafts are right, wrong, and right for long.
const PROMPTS: [&str; 3] = [
    "Once upon a time, there was a little",
    "Tom had a red ball. Tom had a red ball. Tom had a red",
    "Lily said: I like to play. I like to run. Ben said: I like to play. I like to",
];

/// How far ahead the heads guess that most tests use.
const HEAD_DEPTHS: usize = 4;

/// The larger a pass the less it costs, so that the largest is always chosen.
const GENEROUS: PassCosts = PassCosts::fixed([1.0, 1e-1, 1e-2, 1e-3, 1e-4, 1e-5, 1e-6]);

/// Both backends, with heads that are right now and then.
macro_rules! on_both {
    ($check:expr) => {
        let source = embedded();
        on_both!($check, fitted_heads::parallel(&source));
    };
    ($check:expr, $heads:expr) => {
        let (source, heads) = (embedded(), $heads);
        let (mut cpu, mut gpu) = (cpu(&source), gpu(&source));
        give_cpu(&mut cpu, &heads, &source);
        give_gpu(&mut gpu, &heads, &source);
        $check(&mut engine(&source, cpu));
        $check(&mut engine(&source, gpu));
    };
}

fn plain(max_tokens: u32) -> GenerateOptions {
    GenerateOptions { max_tokens, ignore_eos: true, draft: Drafters::None, ..Default::default() }
}

fn drafters() -> [(&'static str, Drafters); 4] {
    [
        ("medusa", Drafters::These(vec![Source::Heads])),
        ("ngram", Drafters::These(vec![Source::NGram])),
        ("recycling", Drafters::These(vec![Source::Recycling])),
        ("auto", Drafters::Auto),
    ]
}

/// A tree whose paths go on from earlier ones, no deeper than these drafters may be asked to fill.
fn random_tree(random: &mut Random, drafter: &str) -> Shape {
    let deepest = if drafter == "medusa" { HEAD_DEPTHS } else { 12 };
    let nodes = 1 + random.below(40);
    let mut paths: Vec<Vec<usize>> = Vec::new();
    while paths.len() < nodes {
        let above = if paths.is_empty() || random.below(3) == 0 {
            Vec::new()
        } else {
            paths[random.below(paths.len())].clone()
        };
        let path = [above.as_slice(), &[random.below(4)]].concat();
        if !paths.contains(&path) && path.len() <= deepest {
            paths.push(path);
        }
    }
    Shape::Fixed(RankTree::from_paths(&paths).unwrap())
}

fn sampled(temperature: f32, seed: u64) -> [SamplingParams; 3] {
    let plain = SamplingParams { temperature, seed, ..Default::default() };
    [
        plain.clone(),
        SamplingParams { top_k: 20, top_p: 0.9, ..plain.clone() },
        SamplingParams { repetition_penalty: 1.3, frequency_penalty: 0.4, presence_penalty: 0.2, min_p: 0.02, ..plain },
    ]
}

fn assert_same(found: &Written, expected: &Written, place: &str) {
    assert_eq!(found.tokens, expected.tokens, "{place}");
    assert_eq!(found.text, expected.text, "{place}");
    assert_eq!(found.finish, expected.finish, "{place}");
}

#[test]
fn a_drafted_text_is_the_plain_text_for_any_tree() {
    fn check<B: Backend>(engine: &mut Engine<B>) {
        engine.set_costs(GENEROUS);
        let mut random = Random::new(11);
        for prompt in PROMPTS {
            let expected = generate_afresh(engine, &text(prompt), &plain(32));
            for (name, draft) in drafters() {
                let grown = [2, 3, 16, 64].map(|nodes| (Shape::Grown, Some(nodes)));
                let fixed = [(); 10].map(|()| (random_tree(&mut random, name), None));
                for (tree, max_nodes) in grown.into_iter().chain(fixed) {
                    for steps_in_flight in [Some(1), None] {
                        let place =
                            format!("{prompt:?}, {name}, {tree:?}, {max_nodes:?} nodes, {steps_in_flight:?} in flight");
                        let options = GenerateOptions {
                            draft: draft.clone(),
                            tree: tree.clone(),
                            max_nodes,
                            steps_in_flight,
                            ..plain(32)
                        };
                        let written = generate_afresh(engine, &text(prompt), &options);
                        assert_same(&written, &expected, &place);
                        assert!(written.stats.passes <= expected.stats.passes, "{place}");
                    }
                }
            }
        }
    }
    on_both!(check);
}

#[test]
fn a_text_drafted_from_fused_rows_and_the_context_is_the_plain_text() {
    fn check<B: Backend>(engine: &mut Engine<B>) {
        engine.set_costs(GENEROUS);
        for (prompt, sampling) in
            PROMPTS.into_iter().zip([SamplingParams::default()].into_iter().chain(sampled(0.7, 3)))
        {
            let plain = GenerateOptions { sampling, ..plain(48) };
            let expected = generate_afresh(engine, &text(prompt), &plain);
            let mut accepted = 0;
            for (name, draft) in drafters() {
                for (nodes, steps_in_flight) in [(3, Some(1)), (16, None)] {
                    let place = format!("{prompt:?}, {name}, {nodes} nodes, {steps_in_flight:?} in flight");
                    let options = GenerateOptions {
                        draft: draft.clone(),
                        max_nodes: Some(nodes),
                        steps_in_flight,
                        ..plain.clone()
                    };
                    let written = generate_afresh(engine, &text(prompt), &options);
                    assert_same(&written, &expected, &place);
                    accepted += written.stats.draft.tokens[Source::Heads as usize];
                }
            }
            assert!(accepted > 0, "{prompt:?}: heads are right now and then");
        }
    }
    on_both!(check, fitted_heads::fused(&embedded()));
    on_both!(check, fitted_heads::looking_back(&embedded()));
}

#[test]
fn a_drafted_sample_is_the_plain_sample_of_its_seed() {
    fn check<B: Backend>(engine: &mut Engine<B>) {
        engine.set_costs(GENEROUS);
        for seed in 0..5 {
            for sampling in [sampled(0.7, seed), sampled(1.0, seed)].concat() {
                let options = GenerateOptions { sampling, ..plain(24) };
                let expected = generate_afresh(engine, &text(PROMPTS[1]), &options);
                for (name, draft) in drafters() {
                    for steps_in_flight in [Some(1), None] {
                        let options = GenerateOptions { draft: draft.clone(), steps_in_flight, ..options.clone() };
                        let written = generate_afresh(engine, &text(PROMPTS[1]), &options);
                        assert_same(
                            &written,
                            &expected,
                            &format!("{name}, {steps_in_flight:?}, {:?}", options.sampling),
                        );
                    }
                }
            }
        }
    }
    on_both!(check);
}

#[test]
fn heads_of_every_kind_change_nothing() {
    fn check<B: Backend>(engine: &mut Engine<B>) {
        engine.set_costs(GENEROUS);
        let mut random = Random::new(23);
        let heads = engine.backend().heads().cloned();
        for sampling in [SamplingParams::default(), sampled(0.8, 3)[1].clone()] {
            let plain = GenerateOptions { sampling, ..plain(40) };
            let expected = generate_afresh(engine, &text(PROMPTS[1]), &plain);
            for (name, draft) in [&drafters()[0], &drafters()[3]] {
                for tree in [Shape::Grown, random_tree(&mut random, name)] {
                    let options = GenerateOptions {
                        draft: draft.clone(),
                        tree: tree.clone(),
                        max_nodes: Some(32),
                        ..plain.clone()
                    };
                    let written = generate_afresh(engine, &text(PROMPTS[1]), &options);
                    assert_same(&written, &expected, &format!("{name}, {tree:?}, {heads:?}"));
                }
            }
        }
    }
    let source = embedded();
    let parallel = Heads { count: 5, ..Heads::default() };
    let recurrent = Heads { form: HeadForm::Recurrent, ..parallel };
    let noise = 0.5;
    let files = [
        fitted_heads::recurrent(&source),
        heads::from_model(&source, parallel),
        heads::from_model(&source, Heads { noise, layers: 2, draft_vocab: Some(200), rank: Some(6), ..parallel }),
        heads::from_model(&source, Heads { noise, own: true, draft_vocab: Some(300), rank: Some(6), ..recurrent }),
    ];
    for file in files {
        on_both!(check, file);
    }
}

#[test]
fn a_tree_deeper_than_the_heads_is_refused_when_nobody_else_drafts() {
    fn check<B: Backend>(engine: &mut Engine<B>) {
        let tree = Shape::Fixed(RankTree::dense(&[1; 5]).unwrap());
        let options = |sources: &[Source]| GenerateOptions {
            draft: Drafters::These(sources.to_vec()),
            tree: tree.clone(),
            ..plain(10)
        };
        let error = engine.start(&text(PROMPTS[0]), &options(&[Source::Heads])).unwrap_err();
        assert_eq!(error.code(), ErrorCode::InvalidOption);
        let words = error.to_string();
        assert!(words.contains("depth 5") && words.contains("guess 4 tokens"), "{words}");
        assert!(engine.start(&text(PROMPTS[0]), &options(&[Source::Heads, Source::NGram])).is_ok());
    }
    on_both!(check);
    let source = embedded();
    let mut without = engine(&source, cpu(&source));
    let options = GenerateOptions { draft: Drafters::These(vec![Source::Heads]), ..plain(10) };
    let error = without.start(&text(PROMPTS[0]), &options).unwrap_err();
    assert!(error.code() == ErrorCode::InvalidOption && error.to_string().contains("medusa"), "{error}");
}

#[test]
fn drafts_are_accepted() {
    fn check<B: Backend>(engine: &mut Engine<B>) {
        engine.set_costs(GENEROUS);
        for (name, draft) in drafters() {
            let options = GenerateOptions { draft, steps_in_flight: Some(1), ..plain(100) };
            let stats = generate_afresh(engine, &text(PROMPTS[1]), &options).stats;
            assert!(stats.passes < 90, "{name}: {} passes for 100 tokens", stats.passes);
            assert_eq!(stats.draft.rows.len(), stats.passes as usize);
        }
    }
    on_both!(check);
}

#[test]
fn as_many_tokens_are_written_as_were_asked_for() {
    fn check<B: Backend>(engine: &mut Engine<B>) {
        engine.set_costs(GENEROUS);
        let all = generate_afresh(engine, &text(PROMPTS[1]), &plain(20)).tokens;
        for max_tokens in 1..=20 {
            for depth in [1, 3, MAX_STEPS_IN_FLIGHT] {
                let options =
                    GenerateOptions { draft: Drafters::Auto, steps_in_flight: Some(depth), ..plain(max_tokens) };
                let written = generate(engine, &text(PROMPTS[1]), &options);
                assert_eq!(written.tokens, all[..max_tokens as usize], "{max_tokens} tokens, {depth} in flight");
                assert_eq!(written.finish, FinishReason::Length);
            }
        }
    }
    on_both!(check);
}

#[test]
fn an_end_token_ends_the_text_anywhere_in_an_accepted_run() {
    fn check<B: Backend>(engine: &mut Engine<B>) {
        engine.set_costs(GENEROUS);
        let end = engine.text().tokenizer.end_ids()[0];
        for at in [1, 3, 5, 7, 9, 11] {
            // The loop is drafted far ahead; a bias that grows stronger than the model breaks it off with the end token.
            let plain_options = GenerateOptions { ignore_eos: false, ..plain(60) };
            let sampling = SamplingParams { logit_bias: vec![(end, at as f32)], ..Default::default() };
            let expected = generate_afresh(
                engine,
                &text(PROMPTS[1]),
                &GenerateOptions { sampling: sampling.clone(), ..plain_options.clone() },
            );
            for depth in [1, 2, 8] {
                let options = GenerateOptions {
                    sampling: sampling.clone(),
                    draft: Drafters::Auto,
                    steps_in_flight: Some(depth),
                    ..plain_options.clone()
                };
                let written = generate(engine, &text(PROMPTS[1]), &options);
                assert_same(&written, &expected, &format!("bias {at}, {depth} in flight"));
                let longer = text(&format!("{} {} The", PROMPTS[1], expected.text));
                let next = generate(engine, &longer, &plain(10));
                assert_same(
                    &next,
                    &generate_afresh(engine, &longer, &plain(10)),
                    &format!("behind the end, bias {at}"),
                );
            }
        }
    }
    on_both!(check);
}

#[test]
fn a_stop_string_ends_the_text_wherever_a_run_of_accepted_tokens_holds_it() {
    fn check<B: Backend>(engine: &mut Engine<B>) {
        engine.set_costs(GENEROUS);
        let whole = generate_afresh(engine, &text(PROMPTS[1]), &plain(60)).text;
        for (at, length) in [(3, 1), (17, 4), (30, 9), (41, 2), (55, 6), (70, 3)] {
            let stop = vec![whole[at..at + length].to_owned()];
            let expected =
                generate_afresh(engine, &text(PROMPTS[1]), &GenerateOptions { stop: stop.clone(), ..plain(60) });
            assert_eq!(expected.finish, FinishReason::Stop);
            let longer = text(&format!("{}{} And then", PROMPTS[1], expected.text));
            let expected_next = generate_afresh(engine, &longer, &plain(10));
            for depth in [1, 2, 8] {
                let place = format!("stop at {stop:?}, {depth} in flight");
                let options = GenerateOptions {
                    stop: stop.clone(),
                    draft: Drafters::Auto,
                    steps_in_flight: Some(depth),
                    ..plain(60)
                };
                assert_same(&generate_afresh(engine, &text(PROMPTS[1]), &options), &expected, &place);
                // What was accepted behind the stop string stands in the cache; it must not be taken for a part of the next prompt.
                let next = generate(engine, &longer, &GenerateOptions { draft: Drafters::Auto, ..plain(10) });
                assert_same(&next, &expected_next, &format!("{place}, the generation after it"));
            }
        }
    }
    on_both!(check);
}

#[test]
fn a_real_model_writes_its_plain_text() {
    let Some(source) = downloaded("smollm2-135m-instruct.gguf") else { return };
    let mut engine = engine(&source, gpu(&source));
    engine.set_costs(GENEROUS);
    let prompt = "Copy this: the cat sat on the mat, and the dog sat on the cat.\nthe cat sat on the mat, and";
    for sampling in [SamplingParams::default(), SamplingParams { temperature: 0.7, seed: 1, ..Default::default() }] {
        let options = GenerateOptions { sampling, ..plain(24) };
        let expected = generate_afresh(&mut engine, &text(prompt), &options);
        for nodes in [4, 16] {
            let options = GenerateOptions { draft: Drafters::Auto, max_nodes: Some(nodes), ..options.clone() };
            let written = generate_afresh(&mut engine, &text(prompt), &options);
            assert_same(&written, &expected, &format!("{nodes} nodes, {:?}", options.sampling));
            assert!(written.stats.passes < expected.stats.passes, "drafts of a copy are right now and then");
        }
    }
}

#[test]
fn a_text_goes_on_to_the_last_position_of_the_context() {
    fn check<B: Backend>(engine: &mut Engine<B>) {
        engine.set_costs(GENEROUS);
        let context = engine.backend().context_limit();
        let expected = generate_afresh(engine, &text(PROMPTS[1]), &plain(10_000));
        assert_eq!(expected.finish, FinishReason::Context);
        for nodes in [2, 4, 8, 16, 32, 64] {
            let options = GenerateOptions { draft: Drafters::Auto, max_nodes: Some(nodes), ..plain(10_000) };
            let written = generate_afresh(engine, &text(PROMPTS[1]), &options);
            assert_same(&written, &expected, &format!("{nodes} nodes"));
            assert_eq!(written.prompt.len() + written.tokens.len(), context + 1);
        }
    }
    on_both!(check);
}

#[test]
fn a_pass_is_one_submit_whatever_it_verifies() {
    let source = embedded();
    let mut gpu = gpu(&source);
    give_gpu(&mut gpu, &fitted_heads::parallel(&source), &source);
    let mut engine = engine(&source, gpu);
    engine.set_costs(GENEROUS);
    for nodes in [1, 4, 64] {
        let options =
            GenerateOptions { draft: Drafters::Auto, max_nodes: Some(nodes), steps_in_flight: Some(1), ..plain(40) };
        let stats = generate_afresh(&mut engine, &text(PROMPTS[1]), &options).stats;
        assert_eq!(stats.passes, stats.submits, "{nodes} nodes");
        let layers = engine.backend().config().num_hidden_layers as u32;
        // One launch for each of the four heads' own outputs, and four around them.
        let heads = if nodes > 1 { 8 } else { 0 };
        assert!(stats.dispatches_per_pass <= 7 * layers + 10 + heads, "{stats:?}");
    }
}
