//! How tokens are chosen: the reference against hand-made answers and against the distribution it claims to draw from, and the
//! kernels against the reference, token by token.

#![allow(clippy::unwrap_used)] // also in the helpers of tests

mod harness;

use std::collections::HashMap;

use draftree::backend::cpu::CpuBackend;
use draftree::backend::gpu::GpuBackend;
use draftree::backend::{Backend, GenerationSetup};
use draftree::engine::Engine;
use draftree::error::ErrorCode;
use draftree::sampling::{SamplingParams, noise, process_logits, sample, threshold};
use harness::random::Random;
use harness::statistics::{check_distribution, probabilities};
use harness::synthetic::Model;
use harness::{cpu, decode, embedded, engine, gpu, logits_of, prefill, setup};
use pollster::block_on;

const GREEDY: SamplingParams = at_temperature(0.0);
const SAMPLED: SamplingParams = at_temperature(1.0);

const fn at_temperature(temperature: f32) -> SamplingParams {
    SamplingParams {
        temperature,
        top_k: 0,
        top_p: 1.0,
        min_p: 0.0,
        repetition_penalty: 1.0,
        frequency_penalty: 0.0,
        presence_penalty: 0.0,
        logit_bias: Vec::new(),
        seed: 0,
    }
}

#[test]
fn penalties_bias_and_temperature_are_what_they_are_documented_to_be() {
    let check = |params: SamplingParams, expected: [f32; 4]| {
        // Not seen; in the prompt; emitted twice; both.
        let mut logits = [2.0, 2.0, -2.0, 4.0];
        process_logits(&mut logits, &[0, 1, 4, 5], &params);
        assert_eq!(logits, expected, "{params:?}");
    };
    check(GREEDY, [2.0, 2.0, -2.0, 4.0]);
    check(SamplingParams { repetition_penalty: 2.0, ..GREEDY }, [2.0, 1.0, -4.0, 2.0]);
    check(SamplingParams { frequency_penalty: 0.5, ..GREEDY }, [2.0, 2.0, -3.0, 3.0]);
    check(SamplingParams { presence_penalty: 0.5, ..GREEDY }, [2.0, 2.0, -2.5, 3.5]);
    check(SamplingParams { logit_bias: vec![(0, 1.0), (3, -8.0)], ..GREEDY }, [3.0, 2.0, -2.0, -4.0]);
    check(SamplingParams { temperature: 0.5, ..GREEDY }, [4.0, 4.0, -4.0, 8.0]);
    let all = SamplingParams {
        repetition_penalty: 2.0,
        frequency_penalty: 0.5,
        presence_penalty: 0.25,
        logit_bias: vec![(2, 1.0)],
        temperature: 2.0,
        ..GREEDY
    };
    check(all, [1.0, 0.5, -2.125, 0.375]);
}

#[test]
fn filters_keep_what_they_are_documented_to_keep() {
    // Probabilities 1/2, 1/4, 1/8, 1/8, in another order.
    let logits = [0.125f32.ln(), 0.5f32.ln(), 0.125f32.ln(), 0.25f32.ln()];
    let check = |params: SamplingParams, kept: &[usize]| {
        let edge = threshold(&logits, &params);
        let found: Vec<_> = (0..4).filter(|&token| logits[token] >= edge).collect();
        assert_eq!(found, kept, "{params:?}");
    };
    check(SAMPLED, &[0, 1, 2, 3]);
    check(SamplingParams { top_k: 1, ..SAMPLED }, &[1]);
    check(SamplingParams { top_k: 2, ..SAMPLED }, &[1, 3]);
    check(SamplingParams { top_k: 3, ..SAMPLED }, &[0, 1, 2, 3]); // two are equal at the edge
    check(SamplingParams { top_k: 9, ..SAMPLED }, &[0, 1, 2, 3]);
    check(SamplingParams { top_p: 1e-30, ..SAMPLED }, &[1]);
    check(SamplingParams { top_p: 0.49, ..SAMPLED }, &[1]);
    check(SamplingParams { top_p: 0.51, ..SAMPLED }, &[1, 3]);
    check(SamplingParams { top_p: 0.76, ..SAMPLED }, &[0, 1, 2, 3]);
    check(SamplingParams { min_p: 1.0, ..SAMPLED }, &[1]);
    check(SamplingParams { min_p: 0.49, ..SAMPLED }, &[1, 3]);
    check(SamplingParams { min_p: 0.24, ..SAMPLED }, &[0, 1, 2, 3]);
    // Of the two that top-k leaves, the first has two thirds.
    check(SamplingParams { top_k: 2, top_p: 0.6, ..SAMPLED }, &[1]);
    check(SamplingParams { top_k: 2, top_p: 0.7, ..SAMPLED }, &[1, 3]);
}

#[test]
fn the_lowest_id_wins_a_tie() {
    assert_eq!(sample(&[1.0, 3.0, 2.0, 3.0], 5, &GREEDY), 1);
    assert_eq!(sample(&[-7.0, -7.0], 5, &GREEDY), 0);
}

#[test]
fn a_temperature_too_small_to_divide_by_is_refused() {
    for (temperature, sound) in [(0.0, true), (1e-6, true), (1e-30, false), (f32::MIN_POSITIVE, false)] {
        let result = SamplingParams { temperature, ..GREEDY }.validate(10);
        assert_eq!(result.is_ok(), sound, "{temperature}");
        assert!(
            result.err().is_none_or(|e| e.code() == ErrorCode::InvalidOption && e.to_string().contains("temperature"))
        );
    }
}

/// Parameters whose draws are counted.
fn distributions() -> Vec<SamplingParams> {
    vec![
        SAMPLED,
        SamplingParams { temperature: 2.5, ..SAMPLED },
        SamplingParams { temperature: 2.0, top_k: 5, ..SAMPLED },
        SamplingParams { temperature: 2.0, top_p: 0.8, ..SAMPLED },
        SamplingParams { temperature: 2.0, min_p: 0.05, ..SAMPLED },
    ]
}

const PROMPT: &str = "Once upon a time, there was a little";

#[test]
fn draws_of_the_reference_follow_the_distribution() {
    let source = embedded();
    let prompt = engine(&source, cpu(&source)).encode(&harness::text(PROMPT)).unwrap();
    let plain = block_on(engine(&source, cpu(&source)).next_logits(&prompt)).unwrap();
    for params in distributions() {
        let mut logits = plain.clone();
        process_logits(&mut logits, &vec![0; plain.len()], &params);
        let expected = probabilities(&logits, &params);
        let draw = |seed, position| sample(&logits, position, &SamplingParams { seed, ..params.clone() });
        let over_seeds: Vec<u32> = (0..10_000).map(|seed| draw(seed, 9)).collect();
        check_distribution(&over_seeds, &expected, &format!("many seeds, {params:?}"));
        let over_high_seeds: Vec<u32> = (0..10_000).map(|seed| draw(seed << 32 | 5, 9)).collect();
        check_distribution(&over_high_seeds, &expected, &format!("many high words of the seed, {params:?}"));
        let over_positions: Vec<u32> = (0..10_000).map(|position| draw(3, position)).collect();
        check_distribution(&over_positions, &expected, &format!("many positions, {params:?}"));
    }
}

#[test]
fn draws_of_the_gpu_follow_the_distribution() {
    let source = embedded();
    let prompt = engine(&source, cpu(&source)).encode(&harness::text(PROMPT)).unwrap();
    let (root, head) = prompt.split_last().unwrap();
    let mut backend = gpu(&source);
    prefill(&mut backend, 0, head);
    let plain = logits_of(&mut backend, head.len(), *root);
    for params in [distributions().remove(1), distributions().remove(3)] {
        let mut logits = plain.clone();
        process_logits(&mut logits, &vec![0; plain.len()], &params);
        let draws: Vec<u32> = (0..1000)
            .flat_map(|seed| {
                let sampling = SamplingParams { seed: 1000 + seed, ..params.clone() };
                decode(&mut backend, head.len(), *root, &setup(sampling, &prompt, 1, plain.len()), 1)
            })
            .collect();
        check_distribution(&draws, &probabilities(&logits, &params), &format!("{params:?}"));
    }
}

/// Both backends on one model.
struct Pair {
    gpu: GpuBackend,
    cpu: CpuBackend,
    prompt: Vec<u32>,
    vocab: usize,
    /// What was written already, by parameters.
    written: HashMap<String, Vec<u32>>,
    compared: usize,
    asked: usize,
}

/// Scores closer than this may be chosen between either way: the backends' logits differ by 1e-5 of the largest, divided by the
/// temperature, and their logarithms in the last bits.
const NEAR_TIE: f32 = 2e-3;

impl Pair {
    fn new(source: &impl draftree::model::ByteSource, prompt: Vec<u32>) -> Self {
        let (gpu, cpu) = (gpu(source), cpu(source));
        let vocab = gpu.config().vocab_size;
        Self { gpu, cpu, prompt, vocab, written: HashMap::new(), compared: 0, asked: 0 }
    }

    fn write(&mut self, setup: &GenerationSetup) -> (Vec<u32>, Vec<u32>) {
        let (root, head) = setup.prompt.split_last().unwrap();
        prefill(&mut self.gpu, 0, head);
        prefill(&mut self.cpu, 0, head);
        (decode(&mut self.gpu, head.len(), *root, setup, 3), decode(&mut self.cpu, head.len(), *root, setup, 1))
    }

    /// Checks that both write the same tokens; returns them.
    fn check(&mut self, params: &SamplingParams) -> Vec<u32> {
        let key = format!("{params:?}");
        if let Some(written) = self.written.get(&key) {
            return written.clone();
        }
        let written = self.check_setup(&setup(params.clone(), &self.prompt, 48, self.vocab));
        self.written.insert(key, written.clone());
        written
    }

    fn check_setup(&mut self, setup: &GenerationSetup) -> Vec<u32> {
        let (found, expected) = self.write(setup);
        self.asked += expected.len();
        let same = found.iter().zip(&expected).take_while(|(a, b)| a == b).count();
        self.compared += same;
        if same < expected.len() {
            let gap = self.gap(setup, &expected[..same], [found[same], expected[same]]);
            let params = &setup.sampling;
            assert!(
                gap <= NEAR_TIE,
                "token {same}: the GPU chose {}, the reference {}, {gap} apart; {params:?}",
                found[same],
                expected[same]
            );
        }
        expected
    }

    /// How far the reference is from choosing otherwise between two tokens: by their scores, or by the edge of the filters.
    fn gap(&mut self, setup: &GenerationSetup, written: &[u32], tokens: [u32; 2]) -> f32 {
        let all = [&setup.prompt[..], written].concat();
        let (last, head) = all.split_last().unwrap();
        prefill(&mut self.cpu, 0, head);
        let mut logits = logits_of(&mut self.cpu, head.len(), *last);
        let mut history = vec![0; logits.len()];
        for &token in &setup.prompt {
            history[token as usize] = 1;
        }
        for &token in written {
            history[token as usize] += 2;
        }
        let params = &setup.sampling;
        logits.truncate(setup.valid_tokens as usize);
        process_logits(&mut logits, &history, params);
        let noise = |token| match params.temperature > 0.0 {
            true => noise::gumbel(params.seed, all.len() as u32, token),
            false => 0.0,
        };
        let [a, b] = tokens.map(|token| logits[token as usize] + noise(token));
        let edge = if params.filters() { threshold(&logits, params) } else { f32::MIN };
        let to_edge = tokens.map(|token| (logits[token as usize] - edge).abs());
        (a - b).abs().min(to_edge[0]).min(to_edge[1])
    }

    /// Asserts that near-ties did not end the comparison early.
    fn finish(&self) {
        assert!(self.compared * 10 >= self.asked * 9, "{} of {} tokens were compared", self.compared, self.asked);
    }
}

fn stories() -> Pair {
    let source = embedded();
    let prompt = Engine::encode(&engine(&source, cpu(&source)), &harness::text(PROMPT)).unwrap();
    Pair::new(&source, prompt)
}

/// Everything that can be turned on, alone and together. The second of a pair is the same without it: the two must differ.
fn cases() -> Vec<(SamplingParams, SamplingParams)> {
    let warm = SamplingParams { temperature: 1.5, ..GREEDY };
    let filter = |params: SamplingParams| (params, warm.clone());
    let penalty = |params: SamplingParams| (params, GREEDY);
    let mut cases = vec![
        (SAMPLED, GREEDY),
        (SamplingParams { temperature: 0.3, ..GREEDY }, SAMPLED),
        (warm.clone(), SAMPLED),
        (SamplingParams { temperature: 100.0, ..GREEDY }, warm.clone()),
    ];
    cases.extend([2, 5, 40].map(|top_k| filter(SamplingParams { top_k, ..warm.clone() })));
    cases.extend([0.1, 0.5, 0.9, 0.99].map(|top_p| filter(SamplingParams { top_p, ..warm.clone() })));
    cases.extend([0.02, 0.3, 0.9].map(|min_p| filter(SamplingParams { min_p, ..warm.clone() })));
    cases.extend([
        filter(SamplingParams { top_k: 20, top_p: 0.7, ..warm.clone() }),
        filter(SamplingParams { top_p: 0.9, min_p: 0.1, ..warm.clone() }),
        filter(SamplingParams { top_k: 10, top_p: 0.95, min_p: 0.05, ..warm.clone() }),
    ]);
    cases.extend([0.5, 1.3, 10.0].map(|repetition_penalty| penalty(SamplingParams { repetition_penalty, ..GREEDY })));
    cases.extend([-2.0, 1.5].map(|frequency_penalty| penalty(SamplingParams { frequency_penalty, ..GREEDY })));
    cases.extend([-2.0, 3.0].map(|presence_penalty| penalty(SamplingParams { presence_penalty, ..GREEDY })));
    cases.extend([
        penalty(SamplingParams { logit_bias: vec![(432, -100.0)], ..GREEDY }),
        penalty(SamplingParams { logit_bias: vec![(511, 1e6), (0, -1e6)], ..GREEDY }),
        filter(SamplingParams {
            top_k: 30,
            top_p: 0.9,
            min_p: 0.01,
            repetition_penalty: 1.2,
            frequency_penalty: 0.3,
            presence_penalty: 0.2,
            logit_bias: vec![(300, 2.0), (301, 3.0)],
            ..warm.clone()
        }),
    ]);
    cases
}

#[test]
fn the_kernels_choose_what_the_reference_chooses() {
    let mut pair = stories();
    for (params, without) in cases() {
        // What draws no noise is the same for every seed.
        let seeds = if params.temperature > 0.0 { &[7, u64::MAX, 1 << 40][..] } else { &[0] };
        let changes = seeds.iter().filter(|&&seed| {
            let with = pair.check(&SamplingParams { seed, ..params.clone() });
            with != pair.check(&SamplingParams { seed, ..without.clone() })
        });
        assert!(changes.count() > 0, "{params:?} changes nothing");
    }
    pair.finish();
}

#[test]
fn settings_that_leave_one_token_are_greedy() {
    let mut pair = stories();
    let greedy = pair.check(&GREEDY);
    for params in [
        SamplingParams { temperature: 1e-6, ..GREEDY },
        SamplingParams { top_k: 1, ..SAMPLED },
        SamplingParams { top_p: 1e-30, ..SAMPLED },
        SamplingParams { min_p: 1.0, ..SAMPLED },
        SamplingParams { top_k: 5, top_p: 0.9, min_p: 0.1, ..GREEDY },
    ] {
        assert_eq!(pair.check(&params), greedy, "{params:?}");
    }
    pair.finish();
}

#[test]
fn filters_that_leave_everything_change_nothing() {
    let mut pair = stories();
    let plain = pair.check(&SAMPLED);
    for params in [
        SamplingParams { top_k: 512, ..SAMPLED },
        SamplingParams { top_k: u32::MAX, ..SAMPLED },
        SamplingParams { min_p: 1e-30, ..SAMPLED },
    ] {
        assert_eq!(pair.check(&params), plain, "{params:?}");
    }
    pair.finish();
}

#[test]
fn equal_logits_leave_the_choice_to_the_noise_alone() {
    let model = Model { tied: false, head_scale: 0.0, ..Model::RAGGED };
    let mut pair = Pair::new(&model.source(), vec![1, 2, 3]);
    assert_eq!(pair.check(&GREEDY), [0; 48], "the lowest id wins a tie");
    for seed in 0..8 {
        let plain = pair.check(&SamplingParams { seed, ..SAMPLED });
        // Ties at an edge stay in.
        assert_eq!(pair.check(&SamplingParams { seed, top_k: 1, ..SAMPLED }), plain);
        assert_eq!(pair.check(&SamplingParams { seed, min_p: 1.0, ..SAMPLED }), plain);
    }
    assert_eq!(pair.compared, pair.asked, "noise alone is far from ties");
}

#[test]
fn padding_of_the_head_is_never_chosen() {
    let model = Model::RAGGED;
    let prompt = Random::new(2).tokens(5, 500);
    let mut pair = Pair::new(&model.source(), prompt.clone());
    let padded: Vec<(u32, f32)> = (500..509).map(|token| (token, 100.0)).collect();
    for params in [
        GREEDY,
        SAMPLED,
        SamplingParams { top_k: 9, temperature: 3.0, ..GREEDY },
        SamplingParams { top_p: 0.5, temperature: 5.0, ..GREEDY },
        SamplingParams { min_p: 0.2, temperature: 5.0, ..GREEDY },
    ] {
        let clean = GenerationSetup { valid_tokens: 500, ..setup(params.clone(), &prompt, 48, 509) };
        let biased = SamplingParams { logit_bias: padded.clone(), ..params.clone() };
        let setup = GenerationSetup { sampling: biased, ..clean.clone() };
        let written = pair.check_setup(&setup);
        assert!(written.iter().all(|&token| token < 500), "{params:?}");
        assert_eq!(written, pair.check_setup(&clean), "{params:?}: padding has no share in the filters");
    }
    pair.finish();
}
