//! Speculative sampling with rejection: what is written has the distribution of plain sampling, on toy vocabularies whose drafters are
//! known, by the reference and by the kernel, and on a model. Wrong ways of doing it, each of which somebody shipped, are found.

#![allow(clippy::unwrap_used)] // also in the helpers of tests

mod harness;

use draftree::backend::Backend;
use draftree::engine::{Drafters, Engine, GenerateOptions};
use draftree::sampling::{SamplingParams, noise};
use draftree::speculate::Source;
use draftree::speculate::accept::AcceptRule;
use draftree::speculate::costs::PassCosts;
use draftree::speculate::rejection::{Child, Drawing, Proposal, decide};
use harness::kernel::{RejectTrial, Rejections};
use harness::random::Random;
use harness::statistics::{ChiSquare, check_distribution, count, probabilities};
use harness::{cpu, embedded, engine, generate_afresh, gpu, text};

const VOCAB: usize = 24;
/// Where the row stands; children are tried for the place behind it.
const POSITION: u32 = 9;

/// A target and a drafter that somewhat agrees with it.
struct Toy {
    /// Logits of the target `[VOCAB]`.
    p: Vec<f32>,
    /// Logits of the drafter `[draft id]`.
    q: Vec<f32>,
    token_map: Option<Vec<u32>>,
    drawing: Drawing,
}

impl Toy {
    fn new(seed: u64, drawing: Drawing, draft_vocab: usize) -> Self {
        let mut random = Random::new(seed);
        let p: Vec<f32> = (0..VOCAB).map(|_| 2.5 * random.unit()).collect();
        let token_map = (draft_vocab < VOCAB).then(|| (0..draft_vocab as u32).map(|id| id * 3 / 2).collect::<Vec<_>>());
        let token = |id: usize| token_map.as_ref().map_or(id, |map| map[id] as usize);
        let q = (0..draft_vocab).map(|id| p[token(id)] + 1.5 * random.unit()).collect();
        Self { p, q, token_map, drawing }
    }

    fn token(&self, id: usize) -> u32 {
        self.token_map.as_ref().map_or(id as u32, |map| map[id])
    }

    fn q_weights(&self) -> Vec<f32> {
        self.q.iter().map(|logit| logit.exp()).collect()
    }

    fn expected(&self) -> Vec<f64> {
        probabilities(&self.p, &SamplingParams { temperature: 1.0, ..Default::default() })
    }

    /// The first `count` draws of the drafter, by the noise of a seed.
    fn draw(&self, noise_seed: u64, count: usize) -> Vec<u32> {
        let ranked = |seed: u64| {
            let score = |&id: &usize| self.q[id] + noise::gumbel(seed, POSITION, self.token(id));
            let mut ids: Vec<usize> = (0..self.q.len()).collect();
            ids.sort_by(|a, b| score(b).total_cmp(&score(a)));
            ids
        };
        let ids: Vec<usize> = match self.drawing {
            Drawing::Independent => (0..count as u64).map(|i| ranked(noise_seed ^ (i << 20))[0]).collect(),
            Drawing::WithoutReplacement => ranked(noise_seed)[..count].to_vec(),
            Drawing::Chunks(chunks) => {
                let mut taken = Vec::new();
                let mut ids = ranked(noise_seed);
                ids.retain(|id| {
                    let chunk = id / 4 % chunks;
                    let is_first = !taken.contains(&chunk);
                    taken.push(chunk);
                    is_first
                });
                ids[..count].to_vec()
            }
        };
        ids.into_iter().map(|id| self.token(id)).collect()
    }

    fn decide(&self, children: &[Child], seed: u64) -> u32 {
        self.decide_by(children, seed, &self.q_weights(), self.drawing)
    }

    fn decide_by(&self, children: &[Child], seed: u64, weights: &[f32], drawing: Drawing) -> u32 {
        let proposal = Proposal { weights, token_map: self.token_map.as_deref(), drawing };
        decide(&self.p, f32::MIN, children, Some(proposal), seed, POSITION)
    }
}

fn drawn(tokens: Vec<u32>) -> Vec<Child> {
    tokens.into_iter().map(|token| Child { token, drawn: true }).collect()
}

fn given(token: u32) -> Child {
    Child { token, drawn: false }
}

/// Draws, with two children before and between them that another drafter gives whatever is drawn. A token that is a child already is
/// passed over.
fn mixed(toy: &Toy, seed: u64) -> Vec<Child> {
    let mut children = vec![given(3)];
    let add = |children: &mut Vec<Child>, child: Child| {
        if children.iter().all(|known| known.token != child.token) {
            children.push(child);
        }
    };
    for (i, child) in drawn(toy.draw(seed, 4)).into_iter().enumerate() {
        add(&mut children, child);
        if i == 0 {
            add(&mut children, given(7));
        }
    }
    children
}

fn best_of_q(toy: &Toy, count: usize) -> Vec<u32> {
    let mut ids: Vec<usize> = (0..toy.q.len()).collect();
    ids.sort_by(|&a, &b| toy.q[b].total_cmp(&toy.q[a]));
    ids[..count].iter().map(|&id| toy.token(id)).collect()
}

/// The children of one trial, by the noise of drafting.
type Children = fn(&Toy, u64) -> Vec<Child>;

/// Each rule with the drafters it is for.
fn cases() -> Vec<(&'static str, Toy, Children)> {
    use Drawing::{Chunks, Independent, WithoutReplacement};
    vec![
        ("L1: one draw", Toy::new(1, WithoutReplacement, VOCAB), |toy, seed| drawn(toy.draw(seed, 1))),
        ("L1: one draw of a draft vocabulary", Toy::new(2, WithoutReplacement, 16), |toy, seed| {
            drawn(toy.draw(seed, 1))
        }),
        ("L2: independent draws", Toy::new(3, Independent, VOCAB), |toy, seed| drawn(toy.draw(seed, 3))),
        ("L3: draws without replacement", Toy::new(4, WithoutReplacement, VOCAB), |toy, seed| drawn(toy.draw(seed, 4))),
        ("L3: of a draft vocabulary", Toy::new(5, WithoutReplacement, 16), |toy, seed| drawn(toy.draw(seed, 4))),
        ("L3: until q is exhausted", Toy::new(6, WithoutReplacement, 3), |toy, seed| drawn(toy.draw(seed, 3))),
        ("L3: the best of every chunk", Toy::new(7, Chunks(5), VOCAB), |toy, seed| drawn(toy.draw(seed, 4))),
        ("L4: the best of q", Toy::new(8, WithoutReplacement, VOCAB), |toy, _| {
            best_of_q(toy, 4).into_iter().map(given).collect()
        }),
        ("L4: nothing drafted", Toy::new(9, WithoutReplacement, VOCAB), |_, _| Vec::new()),
        ("L3 and L4 side by side", Toy::new(10, WithoutReplacement, VOCAB), mixed),
        ("chunks and L4 side by side", Toy::new(11, Chunks(5), 16), mixed),
    ]
}

fn chi_square(toy: &Toy, trials: u64, mut decide: impl FnMut(u64) -> u32) -> ChiSquare {
    ChiSquare::new(&count((0..trials).map(&mut decide), VOCAB), &toy.expected())
}

const TRIALS: u64 = 100_000;

#[test]
fn every_rule_writes_what_plain_sampling_would() {
    for (name, toy, children) in cases() {
        let draw = |seed| toy.decide(&children(&toy, noise::drafting_seed(seed, POSITION - 1)), seed);
        let found = chi_square(&toy, TRIALS, draw);
        assert!(found.is_passed(), "{name}: {found:?}, limit {:.1}", found.limit());
    }
}

/// Jaymody's and MLX's residual, recurrent drafter's beams, raw probabilities for warped ones, q as it was, and a shared seed.
#[test]
fn wrong_ways_are_found() {
    let toy = Toy::new(4, Drawing::WithoutReplacement, VOCAB);
    let weights = toy.q_weights();
    let draws = |seed| drawn(toy.draw(noise::drafting_seed(seed, POSITION - 1), 3));
    let wrong = |name: &str, decide: &dyn Fn(u64) -> u32| {
        let found = chi_square(&toy, TRIALS, decide);
        assert!(found.statistic > 2.0 * found.limit(), "{name} passes: {found:?}, limit {:.1}", found.limit());
    };
    wrong("drawing from p where the residual is due", &|seed| {
        let children = draws(seed);
        let token = toy.decide(&children, seed);
        let is_accepted = children.iter().any(|child| child.token == token);
        if is_accepted { token } else { toy.decide(&[], seed) }
    });
    wrong("taking the best of q for draws", &|seed| toy.decide(&drawn(best_of_q(&toy, 3)), seed));
    let flat: Vec<f32> = toy.q.iter().map(|logit| (logit / 2.0).exp()).collect();
    wrong("another q than what was drawn from", &|seed| toy.decide_by(&draws(seed), seed, &flat, toy.drawing));
    wrong("keeping in q what was drawn", &|seed| toy.decide_by(&draws(seed), seed, &weights, Drawing::Independent));
    wrong("drafting with the noise of the last draw", &|seed| {
        toy.decide(&drawn(toy.draw(seed ^ noise::RESIDUAL, 3)), seed)
    });
}

#[test]
fn acceptance_is_what_theory_says() {
    let share = |decide: &dyn Fn(u64) -> bool| {
        let accepted = (0..TRIALS).filter(|&seed| decide(seed)).count();
        accepted as f64 / TRIALS as f64
    };
    let toy = Toy::new(1, Drawing::WithoutReplacement, VOCAB);
    let p = toy.expected();
    let q = probabilities(&toy.q, &SamplingParams { temperature: 1.0, ..Default::default() });
    let overlap: f64 = p.iter().zip(&q).map(|(p, q)| p.min(*q)).sum();
    let found = share(&|seed| {
        let children = drawn(toy.draw(noise::drafting_seed(seed, POSITION - 1), 1));
        toy.decide(&children, seed) == children[0].token
    });
    // A rejected draw is never drawn again, so what is written tells.
    assert!((found - overlap).abs() < 0.005, "{found}, one minus the total variation is {overlap}");
    let best = best_of_q(&toy, 4);
    let expected: f64 = best.iter().map(|&token| p[token as usize]).sum();
    let children: Vec<Child> = best.iter().copied().map(given).collect();
    let found = share(&|seed| best.contains(&toy.decide(&children, seed)));
    assert!((found - expected).abs() < 0.005, "{found}, the children have {expected}");
}

/// Two tokens of a toy whose second depends on its first, written in steps as a generation would: a draft of depth two, and another one
/// where the walk ends early. The pairs must be distributed as plain sampling's.
#[test]
fn tokens_of_several_steps_are_independent_of_earlier_drafts() {
    const KINDS: usize = 4;
    let mut random = Random::new(12);
    let mut row = |scale: f32| -> Vec<f32> { (0..KINDS).map(|_| scale * random.unit()).collect() };
    let p: Vec<Vec<f32>> = (0..=KINDS).map(|_| row(1.5)).collect();
    let q: Vec<Vec<f32>> = p.iter().map(|p| row(1.0).iter().zip(p).map(|(noise, p)| noise + p).collect()).collect();
    let run = |seed: u64, drafting_seed: &dyn Fn(u64, u32) -> u64| -> u32 {
        // Row 4 is that of the root, row t that behind token t.
        let (mut written, mut at) = (Vec::new(), KINDS);
        while written.len() < 2 {
            let noise_seed = drafting_seed(seed, written.len() as u32);
            let mut is_accepted = true;
            while written.len() < 2 && is_accepted {
                let position = 1 + written.len() as u32;
                let score = |&token: &u32| q[at][token as usize] + noise::gumbel(noise_seed, position, token);
                let mut tokens: Vec<u32> = (0..KINDS as u32).collect();
                tokens.sort_by(|a, b| score(b).total_cmp(&score(a)));
                let children = drawn(tokens[..2].to_vec());
                let weights: Vec<f32> = q[at].iter().map(|logit| logit.exp()).collect();
                let proposal = Proposal { weights: &weights, token_map: None, drawing: Drawing::WithoutReplacement };
                let token = decide(&p[at], f32::MIN, &children, Some(proposal), seed, position);
                is_accepted = children.iter().any(|child| child.token == token);
                written.push(token);
                at = token as usize;
            }
        }
        written[0] * KINDS as u32 + written[1]
    };
    let softmax = |logits: &[f32]| probabilities(logits, &SamplingParams { temperature: 1.0, ..Default::default() });
    let first = softmax(&p[KINDS]);
    let pairs: Vec<f64> =
        (0..KINDS).flat_map(|a| softmax(&p[a]).into_iter().map(|b| b * first[a]).collect::<Vec<_>>()).collect();
    let counts = count((0..TRIALS).map(|seed| run(seed, &noise::drafting_seed)), KINDS * KINDS);
    let found = ChiSquare::new(&counts, &pairs);
    assert!(found.is_passed(), "{found:?}, limit {:.1}", found.limit());
}

#[test]
fn the_kernel_decides_as_the_reference_does() {
    let mut kernel = Rejections::new();
    for (name, toy, children) in cases() {
        let trials: Vec<RejectTrial> = (0..10_000u64)
            .map(|i| RejectTrial {
                children: children(&toy, noise::drafting_seed(i, POSITION - 1)),
                position: i as u32,
            })
            .collect();
        let seed = 5;
        let found = kernel.run(&toy.p, &toy.q, toy.token_map.as_deref(), toy.drawing, seed, &trials);
        check_distribution(&found, &toy.expected(), name);
        let weights = toy.q_weights();
        let proposal = Proposal { weights: &weights, token_map: toy.token_map.as_deref(), drawing: toy.drawing };
        let same = found.iter().zip(&trials).filter(|&(&token, trial)| {
            token == decide(&toy.p, f32::MIN, &trial.children, Some(proposal), seed, trial.position)
        });
        let differing = found.len() - same.count();
        assert!(differing <= 2, "{name}: {differing} of {} are decided otherwise", found.len());
    }
}

/// A prompt that repeats itself, so that n-grams are drafted, and what follows is not certain.
const PROMPT: &str = "Tom had a red ball. Tom had a big ball. Tom had a red hat. Tom had a";

#[test]
fn what_a_model_writes_has_the_distribution_of_plain_sampling() {
    fn check<B: Backend>(engine: &mut Engine<B>, seeds: u64) {
        // The larger a pass the less it costs.
        engine.set_costs(PassCosts::fixed([1.0, 1e-1, 1e-2, 1e-3, 1e-4, 1e-5, 1e-6]));
        let sampling = |seed| SamplingParams { temperature: 0.8, top_p: 0.95, seed, ..Default::default() };
        let vocab = engine.backend().config().vocab_size;
        let prompt = engine.encode(&text(PROMPT)).unwrap();
        let next = |engine: &mut Engine<B>, tokens: &[u32]| -> Vec<f64> {
            let mut logits = pollster::block_on(engine.next_logits(tokens)).unwrap();
            logits.iter_mut().for_each(|logit| *logit /= 0.8);
            probabilities(&logits, &sampling(0))
        };
        for draft in [vec![Source::NGram], vec![Source::Recycling], vec![Source::NGram, Source::Recycling]] {
            let mut accepted = 0;
            let mut texts = Vec::new();
            for seed in 0..seeds {
                let options = GenerateOptions {
                    sampling: sampling(seed),
                    max_tokens: 3,
                    ignore_eos: true,
                    steps_in_flight: Some(1),
                    draft: Drafters::These(draft.clone()),
                    accept: AcceptRule::Rejection,
                    ..Default::default()
                };
                let written = generate_afresh(engine, &text(PROMPT), &options);
                accepted += 3 - written.stats.passes;
                texts.push(written.tokens);
            }
            assert!(u64::from(accepted) > seeds / 20, "{draft:?}: {accepted} of {seeds} texts had drafts accepted");
            let first: Vec<u32> = texts.iter().map(|tokens| tokens[0]).collect();
            check_distribution(&first, &next(engine, &prompt), &format!("{draft:?}, first token"));
            // Behind the most frequent beginnings, the next token, which drafts were there for.
            for length in 1..3 {
                let begin = |tokens: &Vec<u32>| tokens[..length].to_vec();
                let most = texts.iter().map(begin).max_by_key(|b| texts.iter().filter(|t| t.starts_with(b)).count());
                let most = most.unwrap();
                let draws: Vec<u32> =
                    texts.iter().filter(|t| t.starts_with(&most)).map(|tokens| tokens[length]).collect();
                assert!(draws.len() > 40, "{} texts begin alike", draws.len());
                let expected = next(engine, &[&prompt[..], &most].concat());
                assert!(expected.len() == vocab);
                check_distribution(&draws, &expected, &format!("{draft:?}, behind {most:?}"));
            }
        }
    }
    let source = embedded();
    check(&mut engine(&source, cpu(&source)), 1000);
    check(&mut engine(&source, gpu(&source)), 600);
}
