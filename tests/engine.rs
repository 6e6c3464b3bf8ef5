//! Generations from start to end, on both backends: how many tokens, why they end, and that nothing but prompt, options and seed
//! decides them: not the steps in flight, nor what the cache holds from before, nor how an earlier text ended.

#![allow(clippy::unwrap_used)] // also in the helpers of tests

mod harness;

use draftree::backend::{Backend, FinishReason};
use draftree::engine::{Drafters, Engine, GenerateOptions, MAX_STEPS_IN_FLIGHT, Prompt, ShownNode};
use draftree::error::ErrorCode;
use draftree::sampling::SamplingParams;
use draftree::speculate::Source;
use draftree::speculate::shape::{RankTree, Shape};
use draftree::tokenizer::{Message, StreamDecoder};
use harness::synthetic::Model;
use harness::{Written, cpu, embedded, engine, generate, generate_afresh, gpu, text};
use pollster::block_on;

const PROMPT: &str = "Once upon a time, there was a little";

/// Runs a check on both backends, each with the embedded model.
macro_rules! on_both {
    ($check:expr) => {
        let source = embedded();
        $check(&mut engine(&source, cpu(&source)));
        $check(&mut engine(&source, gpu(&source)));
    };
}

fn options(max_tokens: u32) -> GenerateOptions {
    GenerateOptions { max_tokens, ignore_eos: true, draft: Drafters::None, ..Default::default() }
}

fn sampled(seed: u64) -> SamplingParams {
    SamplingParams { temperature: 1.2, top_p: 0.95, repetition_penalty: 1.1, seed, ..Default::default() }
}

fn assert_same(found: &Written, expected: &Written, place: &str) {
    assert_eq!(found.tokens, expected.tokens, "{place}");
    assert_eq!(found.text, expected.text, "{place}");
    assert_eq!(found.finish, expected.finish, "{place}");
}

/// A prompt of so many tokens, the beginning one included.
fn prompt_of<B: Backend>(engine: &Engine<B>, length: usize) -> Prompt {
    let words = ["the", "and", "to"];
    let text: Vec<_> = (1..length).map(|i| words[i * i % 7 % 3]).collect();
    let prompt = Prompt::Text(text.join(" "));
    assert_eq!(engine.encode(&prompt).unwrap().len(), length, "every word is a token");
    prompt
}

#[test]
fn steps_in_flight_do_not_change_the_text() {
    fn check<B: Backend>(engine: &mut Engine<B>) {
        for sampling in [SamplingParams::default(), sampled(3)] {
            let mut options = GenerateOptions { sampling, steps_in_flight: Some(1), ..options(70) };
            let one = generate_afresh(engine, &text(PROMPT), &options);
            for depth in [Some(2), Some(3), Some(8), Some(MAX_STEPS_IN_FLIGHT), None] {
                options.steps_in_flight = depth;
                let more = generate_afresh(engine, &text(PROMPT), &options);
                assert_same(&more, &one, &format!("{depth:?} steps in flight"));
                assert!(depth.is_none_or(|depth| more.stats.steps_in_flight == depth), "{depth:?}: {:?}", more.stats);
            }
        }
    }
    on_both!(check);
}

#[test]
fn trees_are_told_with_what_became_of_them() {
    fn check<B: Backend>(engine: &mut Engine<B>) {
        let dense = Shape::Fixed(RankTree::dense(&[2, 2, 1]).unwrap());
        let options = GenerateOptions { draft: Drafters::Auto, tree: dense, trees: true, ..options(40) };
        let mut session = engine.start(&text("The bus stopped. The bus stopped. The bus"), &options).unwrap();
        let mut root = session.prompt().last().copied();
        let mut accepted = 0;
        while let Some(chunk) = block_on(engine.next(&mut session)).unwrap() {
            if chunk.tokens.is_empty() {
                continue;
            }
            let tree = &chunk.tree;
            assert_eq!(tree.first().map(|node| node.drafted.token), root);
            for (at, ShownNode { drafted, text, verified, accepted }) in tree.iter().enumerate().skip(1) {
                let parent = &tree[drafted.parent];
                assert!(drafted.parent < at && drafted.source != Source::Model && !text.is_empty());
                assert!(drafted.log_probability <= parent.drafted.log_probability);
                assert!(!accepted || (*verified && parent.accepted), "{tree:?}");
            }
            let path = tree.iter().filter(|node| node.accepted).skip(1).map(|node| node.drafted.token);
            let path: Vec<u32> = path.collect();
            assert!(chunk.tokens.starts_with(&path) && chunk.tokens.len() <= path.len() + 1, "{chunk:?}");
            accepted += path.len();
            root = chunk.tokens.last().copied();
        }
        assert!(accepted > 5, "{accepted} drafted tokens were accepted");
        let plain = GenerateOptions { trees: false, ..options };
        let mut session = engine.start(&text(PROMPT), &plain).unwrap();
        while let Some(chunk) = block_on(engine.next(&mut session)).unwrap() {
            assert!(chunk.tree.is_empty());
        }
    }
    on_both!(check);
}

#[test]
fn a_seed_decides_the_text() {
    fn check<B: Backend>(engine: &mut Engine<B>) {
        let mut write = |seed| {
            let options = GenerateOptions { sampling: sampled(seed), ..options(40) };
            generate(engine, &text(PROMPT), &options).tokens
        };
        let seeds = [0, 1, 2, 1 << 32, u64::MAX];
        let texts: Vec<_> = seeds.map(&mut write).to_vec();
        for (i, one) in texts.iter().enumerate() {
            assert_eq!(*one, write(seeds[i]), "seed {} again", seeds[i]);
            assert!(texts[..i].iter().all(|other| other != one), "seed {} is not another", seeds[i]);
        }
    }
    on_both!(check);
}

#[test]
fn as_many_tokens_are_written_as_were_asked_for() {
    fn check<B: Backend>(engine: &mut Engine<B>) {
        let all = generate_afresh(engine, &text(PROMPT), &options(20)).tokens;
        for max_tokens in 1..=20 {
            for depth in [1, 3, 8] {
                let options = GenerateOptions { steps_in_flight: Some(depth), ..options(max_tokens) };
                let written = generate(engine, &text(PROMPT), &options);
                assert_eq!(written.tokens, all[..max_tokens as usize], "{max_tokens} tokens, {depth} in flight");
                assert_eq!(written.finish, FinishReason::Length);
            }
        }
    }
    on_both!(check);
}

#[test]
fn a_pass_is_one_submit_of_few_dispatches() {
    let source = embedded();
    let mut engine = engine(&source, gpu(&source));
    let layers = engine.backend().config().num_hidden_layers as u32;
    for sampling in [SamplingParams::default(), sampled(1)] {
        let options = GenerateOptions { sampling, steps_in_flight: Some(4), ..options(24) };
        let stats = generate_afresh(&mut engine, &text(PROMPT), &options).stats;
        assert_eq!((stats.passes, stats.submits), (24, 24), "no pass runs behind the last token");
        assert!((7 * layers..=7 * layers + 12).contains(&stats.dispatches_per_pass), "{stats:?}");
    }
}

/// Steps of a greedy text at which a bias on the end token, given beside them, makes that token win for the first time: where
/// the end token comes closer to the best one than at every step before.
fn ends<B: Backend>(engine: &mut Engine<B>, end: u32, n_steps: usize) -> Vec<(usize, f32)> {
    let written = generate_afresh(engine, &text(PROMPT), &options(n_steps as u32));
    let (mut closest, mut ends) = (f32::MAX, Vec::new());
    for step in 0..n_steps {
        let tokens = [&written.prompt[..], &written.tokens[..step]].concat();
        let logits = block_on(engine.next_logits(&tokens)).unwrap();
        let gap = logits.iter().copied().fold(f32::MIN, f32::max) - logits[end as usize];
        if gap < closest - 0.02 {
            closest = gap;
            ends.push((step, gap + 0.01));
        }
    }
    ends
}

#[test]
fn an_end_token_ends_the_text_at_any_step() {
    fn check<B: Backend>(engine: &mut Engine<B>) {
        let end = engine.text().tokenizer.end_ids()[0];
        let plain = generate_afresh(engine, &text(PROMPT), &options(40));
        let ends = ends(engine, end, 40);
        assert!(ends.len() >= 3 && ends[0].0 == 0, "{ends:?}: the first step and later ones");
        for (step, bias) in ends {
            for depth in [1, 2, 8] {
                let place = format!("end at step {step}, {depth} in flight");
                let sampling = SamplingParams { logit_bias: vec![(end, bias)], ..Default::default() };
                let mut options =
                    GenerateOptions { sampling, ignore_eos: false, steps_in_flight: Some(depth), ..options(40) };
                let written = generate(engine, &text(PROMPT), &options);
                assert_eq!(written.tokens[..step], plain.tokens[..step], "{place}");
                assert_eq!(written.tokens[step..], [end], "{place}: nothing follows the end token");
                assert_eq!(written.finish, FinishReason::Stop, "{place}");
                assert!(plain.text.starts_with(&written.text), "{place}: {:?} has no end token in it", written.text);
                assert_eq!(written.stats.passes, step as u32 + 1, "{place}: steps behind the end do not count");

                // At the limit the end token is the reason: the text is complete.
                options.max_tokens = step as u32 + 1;
                let written = generate(engine, &text(PROMPT), &options);
                assert_eq!(
                    (written.tokens.len(), written.finish),
                    (step + 1, FinishReason::Stop),
                    "{place}, at the limit"
                );

                options.max_tokens = 40;
                options.ignore_eos = true;
                let ignored = generate(engine, &text(PROMPT), &options);
                assert_eq!((ignored.tokens.len(), ignored.finish), (40, FinishReason::Length), "{place}, ignored");
                assert_eq!(ignored.tokens[step], end, "{place}, ignored");
            }
        }
    }
    on_both!(check);
}

/// A stop string from the middle of one token to the middle of the next: where it begins in the text, in bytes, the string, and the
/// number of tokens that hold it.
fn stop_across_tokens<B: Backend>(engine: &Engine<B>, plain: &Written) -> (usize, String, usize) {
    let text_of = |n: usize| StreamDecoder::continuing(true).push(&engine.text().tokenizer, &plain.tokens[..n]);
    (8..plain.tokens.len() - 8)
        .find_map(|n| {
            let (before, here, after) = (text_of(n - 1), text_of(n), text_of(n + 1));
            let two_letters = here.len() >= before.len() + 2 && after.len() >= here.len() + 2;
            let stop = two_letters.then(|| plain.text.get(here.len() - 1..here.len() + 1)).flatten()?;
            let first = plain.text.find(stop)? == here.len() - 1;
            first.then(|| (here.len() - 1, stop.to_owned(), n + 1))
        })
        .expect("two neighbouring tokens of at least two letters")
}

#[test]
fn a_stop_string_across_two_tokens_ends_the_text_before_it() {
    fn check<B: Backend>(engine: &mut Engine<B>) {
        let plain = generate_afresh(engine, &text(PROMPT), &options(60));
        let (at, stop, n_tokens) = stop_across_tokens(engine, &plain);
        let next_prompt = text(&format!("{PROMPT}{}", plain.text));
        let expected_next = generate_afresh(engine, &next_prompt, &options(20));
        for depth in [1, 2, 8, MAX_STEPS_IN_FLIGHT] {
            let place = format!("stop at {stop:?}, {depth} in flight");
            let stop = vec!["never".to_owned(), stop.clone()];
            let options = GenerateOptions { stop, steps_in_flight: Some(depth), ..options(60) };
            let written = generate_afresh(engine, &text(PROMPT), &options);
            assert_eq!(written.text, plain.text[..at], "{place}");
            assert_eq!(written.tokens, plain.tokens[..n_tokens], "{place}: no token behind the stop string");
            assert_eq!(written.finish, FinishReason::Stop, "{place}");
            // Steps in flight wrote keys and values behind the end; they must not be taken for a part of the next prompt.
            let next = generate(engine, &next_prompt, &self::options(20));
            assert_same(&next, &expected_next, &format!("{place}, the generation after it"));
            assert!(next.stats.reused_prompt_tokens > 0, "{place}: {:?}", next.stats);
        }
    }
    on_both!(check);
}

#[test]
fn a_text_goes_on_to_the_last_position_of_the_context() {
    fn check<B: Backend>(engine: &mut Engine<B>) {
        let context = engine.backend().context_limit();
        assert_eq!(context, 512);
        for length in [1, 500, 511, 512] {
            let prompt = prompt_of(engine, length);
            let mut shallow = GenerateOptions { steps_in_flight: Some(1), ..options(10_000) };
            let expected = generate_afresh(engine, &prompt, &shallow);
            // The last token of all needs no position of its own.
            assert_eq!(expected.tokens.len(), context + 1 - length, "a prompt of {length}");
            assert_eq!(expected.finish, FinishReason::Context);
            shallow.steps_in_flight = Some(MAX_STEPS_IN_FLIGHT);
            assert_same(&generate(engine, &prompt, &shallow), &expected, &format!("a prompt of {length}"));
            // Exactly as many as there is room for: length and context end together, and length was asked for.
            let exact = generate(engine, &prompt, &options(expected.tokens.len() as u32));
            assert_eq!((exact.tokens, exact.finish), (expected.tokens, FinishReason::Length));
        }
        let error = engine.start(&prompt_of(engine, 513), &options(1)).unwrap_err();
        assert_eq!(error.code(), ErrorCode::PromptTooLong, "{error}");
        assert!(error.to_string().contains("513") && error.to_string().contains("512"), "{error}");
    }
    on_both!(check);
}

#[test]
fn a_prompt_that_goes_on_from_the_last_text_is_not_computed_again() {
    fn check<B: Backend>(engine: &mut Engine<B>) {
        let first = generate_afresh(engine, &text(PROMPT), &options(30));
        assert_eq!(first.stats.reused_prompt_tokens, 0);
        let longer = text(&format!("{PROMPT}{} The end. Then a big dog", first.text));
        let expected = generate_afresh(engine, &longer, &options(30));

        let again = generate_afresh(engine, &text(PROMPT), &options(30));
        let second = generate(engine, &longer, &options(30));
        assert_same(&second, &expected, "with a cache");
        // Everything is in the cache but the last token, which nothing has followed yet.
        let cached = [&again.prompt[..], &again.tokens[..29]].concat();
        let head = &second.prompt[..second.prompt.len() - 1];
        let common = cached.iter().zip(head).take_while(|(a, b)| a == b).count();
        assert_eq!(second.stats.reused_prompt_tokens, common);
        assert!(common > again.prompt.len() + 10, "{common} tokens: the answer is reused as well");

        // Back to the beginning, the same prompt again, and one that shares nothing but its first token.
        assert_same(&generate(engine, &text(PROMPT), &options(30)), &first, "a shorter prompt");
        let same = generate(engine, &text(PROMPT), &options(30));
        assert_same(&same, &first, "the same prompt");
        assert_eq!(same.stats.reused_prompt_tokens, first.prompt.len() - 1);
        let other = generate(engine, &text("Tom had a red ball"), &options(30));
        assert_eq!(other.stats.reused_prompt_tokens, 1);
        let afresh = generate_afresh(engine, &text("Tom had a red ball"), &options(30));
        assert_same(&other, &afresh, "another prompt");
    }
    on_both!(check);
}

#[test]
fn a_text_that_was_broken_off_leaves_no_trace() {
    fn check<B: Backend>(engine: &mut Engine<B>) {
        let next = text(&format!("{PROMPT} girl named Lily. She loved to play"));
        let expected = generate_afresh(engine, &next, &options(30));
        for (steps, depth) in [(0, 1), (1, 8), (3, 1), (5, 3), (5, 8), (20, MAX_STEPS_IN_FLIGHT)] {
            for drop_it in [false, true] {
                let place = format!("after {steps} steps, {depth} in flight, dropped: {drop_it}");
                engine.forget();
                let options = GenerateOptions { steps_in_flight: Some(depth), ..options(60) };
                let mut session = engine.start(&text(PROMPT), &options).unwrap();
                for _ in 0..steps {
                    block_on(engine.next(&mut session)).unwrap().unwrap();
                }
                if !drop_it {
                    engine.abort(&mut session);
                    assert_eq!(session.finish(), Some(FinishReason::Aborted), "{place}");
                    assert_eq!(session.tokens().len(), steps, "{place}");
                    assert_eq!(session.stats().passes as usize, steps, "{place}");
                    assert!(session.stats().submits as usize <= steps + depth, "{place}: {:?}", session.stats());
                    assert_eq!(block_on(engine.next(&mut session)).unwrap(), None, "{place}: it stays ended");
                }
                drop(session);
                assert_same(&generate(engine, &next, &self::options(30)), &expected, &place);
            }
        }
    }
    on_both!(check);
}

#[test]
fn a_text_can_be_broken_off_between_the_pieces_of_a_long_prompt() {
    fn check<B: Backend>(engine: &mut Engine<B>) {
        let prompt = prompt_of(engine, 480);
        let expected = generate_afresh(engine, &prompt, &options(10));
        engine.forget();
        let mut session = engine.start(&prompt, &options(10)).unwrap();
        let chunk = block_on(engine.next(&mut session)).unwrap().unwrap();
        assert!(chunk.tokens.is_empty(), "a piece of the prompt comes first");
        engine.abort(&mut session);
        assert_eq!((session.tokens().len(), session.stats().submits), (0, 0));
        let written = generate(engine, &prompt, &options(10));
        assert_same(&written, &expected, "the same prompt again");
        let reused = written.stats.reused_prompt_tokens;
        assert!((1..479).contains(&reused), "{reused} tokens were computed before the stop");
    }
    on_both!(check);
}

#[test]
fn measuring_what_passes_cost_leaves_no_trace() {
    fn check<B: Backend>(engine: &mut Engine<B>) {
        let options = GenerateOptions { draft: Drafters::None, ..options(12) };
        let expected = generate_afresh(engine, &text(PROMPT), &options);
        block_on(engine.measure_costs()).unwrap();
        let measured = engine.measured().to_vec();
        assert!(measured.len() > 1 && measured[0].0 == 1, "{measured:?}");
        assert!(measured.iter().all(|&(_, ms)| ms.is_finite() && ms > 0.0), "{measured:?}");
        assert!(measured.windows(2).all(|pair| pair[0].0 < pair[1].0 && pair[0].1 <= pair[1].1), "{measured:?}");
        assert_same(&generate(engine, &text(PROMPT), &options), &expected, "after measuring");
    }
    on_both!(check);
}

#[test]
fn the_embedded_model_goes_on_from_an_empty_text() {
    fn check<B: Backend>(engine: &mut Engine<B>) {
        let written = generate_afresh(engine, &text(""), &options(8));
        assert_eq!(written.prompt, [engine.text().tokenizer.bos_id().unwrap()]);
        assert_eq!(written.tokens.len(), 8);
    }
    on_both!(check);
}

#[test]
fn a_prompt_that_says_nothing_is_refused() {
    // 7 is the type of a truth value, 0 is false.
    let model = Model::RAGGED.gguf().set("tokenizer.ggml.add_bos_token", [&7u32.to_le_bytes()[..], &[0]].concat());
    let source = model.source();
    let mut engine = engine(&source, cpu(&source));
    let mut check = |prompt: Prompt, code: ErrorCode| {
        let error = engine.start(&prompt, &options(1)).unwrap_err();
        assert_eq!(error.code(), code, "{prompt:?}: {error}");
    };
    check(text(""), ErrorCode::EmptyPrompt);
    let hello = Message { role: "user".to_owned(), content: "Hello".to_owned() };
    check(Prompt::Messages(vec![hello]), ErrorCode::BadChatTemplate);
    check(Prompt::Messages(Vec::new()), ErrorCode::BadChatTemplate);
}

#[test]
fn options_out_of_range_are_refused() {
    let source = embedded();
    let mut engine = engine(&source, cpu(&source));
    let mut check = |options: GenerateOptions, name: &str| {
        let error = engine.start(&text(PROMPT), &options).unwrap_err();
        assert_eq!(error.code(), ErrorCode::InvalidOption, "{error}");
        assert!(error.to_string().contains(name), "{error} names {name}");
    };
    check(options(0), "maxTokens");
    check(GenerateOptions { stop: vec!["end".to_owned(), String::new()], ..options(1) }, "stop");
    check(GenerateOptions { steps_in_flight: Some(0), ..options(1) }, "stepsInFlight");
    check(GenerateOptions { steps_in_flight: Some(33), ..options(1) }, "stepsInFlight");
    let bias = SamplingParams { logit_bias: vec![(512, 1.0)], ..Default::default() };
    check(GenerateOptions { sampling: bias, ..options(1) }, "logitBias");
}

#[test]
fn logits_are_asked_for_tokens_that_exist() {
    let source = embedded();
    let mut engine = engine(&source, cpu(&source));
    let mut check = |tokens: &[u32], code: ErrorCode| {
        let error = block_on(engine.next_logits(tokens)).unwrap_err();
        assert_eq!(error.code(), code, "{error}");
    };
    check(&[], ErrorCode::EmptyPrompt);
    check(&[1, 512], ErrorCode::InvalidOption);
    check(&[1; 513], ErrorCode::PromptTooLong);
    assert_eq!(block_on(engine.next_logits(&[1; 512])).unwrap().len(), 512);
}
