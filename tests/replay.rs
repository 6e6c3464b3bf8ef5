//! Evaluation by replay against the engine on the reference backend: the same passes, and the same tokens from the same drafters.

#![cfg(feature = "cli")]
#![allow(clippy::unwrap_used)] // also in the helpers of tests

mod harness;

use draftree::backend::cpu::CpuBackend;
use draftree::backend::cpu::heads::{CpuHeads, DraftScene};
use draftree::backend::{Backend as _, FinishReason};
use draftree::engine::{DraftStats, Drafters, Engine, GenerateOptions};
use draftree::error::Result;
use draftree::model::MemorySource;
use draftree::model::heads::HeadForm;
use draftree::sampling::{Candidate, SamplingParams};
use draftree::speculate::accept::AcceptRule;
use draftree::speculate::costs::PassCosts;
use draftree::speculate::grow::HeadCandidates;
use draftree::speculate::shape::Shape;
use draftree::speculate::tree::Tree;
use draftree::speculate::{DraftPlan, Sources};
use draftree::train::answers::Answer;
use draftree::train::replay::heads::{BatchedHeads, HeadRow};
use draftree::train::replay::{
    Agreement, Live, Model, ModelFacts, Place, Replay, Steps, TargetRows, Text, Written, bests,
};
use draftree::train::target::Target;
use harness::heads::{Heads, from_model};
use harness::random::Random;
use harness::{cpu, embedded, fitted_heads, logits_of_tree, prefill, text};

const MAX_TOKENS: usize = 80;
/// Larger passes are always worth it, so that each has as many rows as there are nodes.
const COSTS: PassCosts = PassCosts::fixed([1e6, 1e5, 1e4, 1e3, 1e2, 1e1, 1.0]);

const PROMPTS: [&str; 4] = [
    "Once upon a time",
    "Lily and Tom went to the park. Lily and Tom",
    "The dog was sad. The cat was sad. The bird was",
    "One day, a little girl named Lucy found a big red ball",
];

fn engine(heads: Option<&MemorySource>) -> Engine<CpuBackend> {
    let source = embedded();
    let mut backend = cpu(&source);
    if let Some(heads) = heads {
        harness::heads::give_cpu(&mut backend, heads, &source);
    }
    let mut engine = harness::engine(&source, backend);
    engine.set_costs(COSTS);
    engine
}

fn options(draft: &str, tree: &str, nodes: usize) -> GenerateOptions {
    GenerateOptions {
        max_tokens: MAX_TOKENS as u32,
        draft: Drafters::parse(draft).unwrap(),
        tree: Shape::parse(tree).unwrap(),
        max_nodes: Some(nodes),
        steps_in_flight: Some(1),
        ..Default::default()
    }
}

fn facts(engine: &Engine<CpuBackend>) -> ModelFacts {
    ModelFacts::of(engine.backend().config(), &engine.text().tokenizer)
}

/// The plain answers to the prompts, without their rows.
fn texts() -> Vec<Text> {
    let mut plain = engine(None);
    let answer = |prompt: &&str| {
        let written = harness::generate_afresh(&mut plain, &text(prompt), &options("none", "auto", 1));
        let answer = Answer {
            id: (*prompt).to_owned(),
            category: "stories".to_owned(),
            ended: written.finish == FinishReason::Stop,
            prompt: written.prompt,
            tokens: written.tokens,
        };
        Text { answer, rows: Vec::new() }
    };
    PROMPTS.iter().map(answer).collect()
}

fn target() -> Target {
    let source = embedded();
    Target::load(&harness::open(&source), &source).unwrap()
}

/// The reference backend, one text after the other.
struct Reference {
    backend: CpuBackend,
    valid_tokens: usize,
    /// Every text and the position of its first row.
    texts: Vec<(Vec<u32>, usize)>,
    /// Rows that were asked for.
    asked: usize,
}

impl Model for Reference {
    fn open(&mut self, texts: &[&Text], heads: Option<&BatchedHeads<'_>>) -> Result<Vec<Vec<f32>>> {
        let whole =
            |text: &&Text| ([&text.answer.prompt[..], &text.answer.tokens].concat(), text.answer.prompt.len() - 1);
        self.texts = texts.iter().map(whole).collect();
        let backend = &mut self.backend;
        let hidden = |(text, first): &(Vec<u32>, usize)| {
            prefill(backend, 0, text);
            let row = |at: usize| {
                let tree = Tree::chain(&text[at..=at]).unwrap();
                match heads {
                    Some(heads) => backend.head_rows(heads.reference(), at, &tree).unwrap().swap_remove(0),
                    None => backend.hidden(at, &tree).swap_remove(0),
                }
            };
            (*first..text.len() - 1).flat_map(row).collect()
        };
        Ok(self.texts.iter().map(hidden).collect())
    }

    fn bests(&mut self, places: &[Place]) -> Result<Vec<Vec<Candidate>>> {
        self.asked += places.len();
        let mut found = Vec::new();
        for (at, place) in places.iter().enumerate() {
            let (text, first) = &self.texts[place.text];
            if at == 0 || places[at - 1].text != place.text {
                prefill(&mut self.backend, 0, text);
            }
            let start = first + place.row;
            let tree = Tree::chain(&[&text[start..=start], &place.tail].concat()).unwrap();
            let logits = logits_of_tree(&mut self.backend, start, &tree).pop().unwrap();
            found.push(bests(&logits[..self.valid_tokens]));
        }
        Ok(found)
    }
}

fn reference(facts: &ModelFacts) -> Reference {
    let valid_tokens = facts.valid_tokens as usize;
    Reference { backend: cpu(&embedded()), valid_tokens, texts: Vec::new(), asked: 0 }
}

fn plan(draft: &str, tree: &str, nodes: usize) -> DraftPlan {
    let Drafters::These(named) = Drafters::parse(draft).unwrap() else { unreachable!("they are named") };
    let sources = named.iter().fold(Sources::NONE, |set, &source| set.with(source));
    DraftPlan { sources, shape: Shape::parse(tree).unwrap(), max_nodes: nodes, ..Default::default() }
}

/// What the engine came to with each prompt; `keep`s what it learnt, or begins anew.
fn written(heads: &MemorySource, options: &GenerateOptions, keep: bool) -> Vec<(u32, DraftStats)> {
    let mut kept = engine(Some(heads));
    let generation = |prompt: &&str| {
        if !keep {
            kept = engine(Some(heads));
        }
        let written = harness::generate_afresh(&mut kept, &text(prompt), options);
        (written.stats.passes, written.stats.draft)
    };
    PROMPTS.iter().map(generation).collect()
}

/// Replays the texts, their rows as the reference backend or as the target computes them.
fn check(heads: &MemorySource, drafts: &[(&str, &str, usize)], keep: bool) {
    let (source, target) = (embedded(), target());
    let reader = harness::heads::cpu(heads, &source);
    let batched = BatchedHeads::new(&reader, &target).unwrap();
    let facts = facts(&engine(None));
    let plans: Vec<DraftPlan> = drafts.iter().map(|&(draft, tree, nodes)| plan(draft, tree, nodes)).collect();
    let replay =
        Replay { facts: &facts, plans: &plans, heads: Some(&batched), max_tokens: MAX_TOKENS, costs: None, keep };
    let texts = texts();
    let run = |model: &mut dyn Model| {
        let mut last = (0, 0);
        let found = replay.run(&texts, Some(model), &mut |done, total| {
            assert!(done >= last.0 && done <= total, "progress rises to its end");
            last = (done, total);
        });
        assert_eq!(last.0, last.1, "progress reaches its end");
        found.unwrap()
    };
    let by_reference = run(&mut reference(&facts));
    let by_target = run(&mut TargetRows::new(&target, facts.valid_tokens));
    for (at, &(draft, tree, nodes)) in drafts.iter().enumerate() {
        let what = format!("{draft}, tree {tree}, {nodes} nodes, kept: {keep}");
        let expected = written(heads, &options(draft, tree, nodes), keep);
        for found in [&by_reference[at], &by_target[at]] {
            let found: Vec<(u32, DraftStats)> =
                found.iter().map(|steps: &Steps| (steps.passes(), steps.stats.clone())).collect();
            assert_eq!(found, expected, "{what}");
        }
        let passes: u32 = expected.iter().map(|(passes, _)| passes).sum();
        let tokens: u32 = expected.iter().flat_map(|(_, stats)| stats.tokens).sum();
        assert!(tokens > passes + passes / 10, "{what}: drafts are accepted");
    }
}

#[test]
fn a_replay_takes_the_engines_passes_with_parallel_heads() {
    let heads = fitted_heads::parallel(&embedded());
    let drafts = [
        ("medusa", "auto", 2),
        ("medusa", "auto", 8),
        ("medusa", "dense:3,2,1", 64),
        ("ngram", "auto", 8),
        ("medusa,ngram", "auto", 5),
        ("medusa,ngram", "auto", 32),
    ];
    check(&heads, &drafts, false);
}

#[test]
fn a_replay_takes_the_engines_passes_with_recurrent_heads() {
    let heads = fitted_heads::recurrent(&embedded());
    let drafts = [("medusa", "auto", 4), ("medusa,ngram", "[[0], [0, 0], [0, 0, 0], [1], [1, 0]]", 64)];
    check(&heads, &drafts, false);
}

#[test]
fn a_replay_takes_the_engines_passes_with_heads_that_fuse_layers() {
    let heads = fitted_heads::fused(&embedded());
    check(&heads, &[("medusa", "auto", 8), ("medusa,ngram,recycling", "auto", 16)], false);
}

#[test]
fn a_replay_takes_the_engines_passes_with_heads_that_look_back() {
    let heads = fitted_heads::looking_back(&embedded());
    check(&heads, &[("medusa", "auto", 8), ("medusa,ngram,recycling", "auto", 16)], false);
}

#[test]
fn a_replay_learns_the_successors_that_the_backend_learns() {
    let heads = fitted_heads::parallel(&embedded());
    let drafts = [
        ("recycling", "auto", 4),
        ("ngram,recycling", "dense:3,2,2", 64),
        ("medusa,ngram,recycling", "auto", 8),
        ("medusa,ngram,recycling", "auto", 16),
    ];
    check(&heads, &drafts, false);
}

#[test]
fn a_replay_remembers_what_an_engine_does() {
    let heads = fitted_heads::parallel(&embedded());
    check(&heads, &[("medusa,ngram", "auto", 8), ("medusa,ngram,recycling", "auto", 8)], true);
}

#[test]
fn what_is_written_live_is_what_the_engine_writes() {
    check_live(fitted_heads::parallel(&embedded()));
    check_live(fitted_heads::looking_back(&embedded()));
}

fn check_live(heads: MemorySource) {
    let (source, target) = (embedded(), target());
    let reader = harness::heads::cpu(&heads, &source);
    let batched = BatchedHeads::new(&reader, &target).unwrap();
    let facts = facts(&engine(None));
    let texts = texts();
    let prompts: Vec<&[u32]> = texts.iter().map(|text| &text.answer.prompt[..]).collect();
    let sampled = SamplingParams { temperature: 0.7, seed: 5, ..Default::default() };
    let rules = ["exact", "typical:0.2,0.4", "topk:3,1"].map(|rule| AcceptRule::parse(rule).unwrap());
    let with = |rule, draft| DraftPlan { accept: rule, ..plan(draft, "auto", 8) };
    let plans: Vec<DraftPlan> = rules.iter().map(|&rule| with(rule, "medusa,ngram,recycling")).collect();
    for sampling in [SamplingParams::default(), sampled] {
        let live = Live {
            target: &target,
            facts: &facts,
            heads: Some(&batched),
            plans: &plans,
            sampling: &sampling,
            max_tokens: MAX_TOKENS,
        };
        let found = live.run(&prompts, &mut |done, total| assert!(done <= total)).unwrap();
        for (&accept, found) in rules.iter().zip(&found) {
            let options =
                GenerateOptions { accept, sampling: sampling.clone(), ..options("medusa,ngram,recycling", "auto", 8) };
            for (prompt, found) in PROMPTS.iter().zip(found) {
                let written = harness::generate_afresh(&mut engine(Some(&heads)), &text(prompt), &options);
                assert_eq!(found.tokens, written.tokens, "{accept:?}, {sampling:?}");
                assert_eq!(found.steps.stats, written.stats.draft, "{accept:?}, {sampling:?}");
            }
        }
        let lossy = Agreement::of(&found[2], &found[0]);
        assert!(lossy.identical < 1.0 && lossy.prefix > 0.0, "{lossy:?}");
        let rate = |found: &[Written]| {
            let sum = |count: fn(&Steps) -> u32| found.iter().map(|text| count(&text.steps)).sum::<u32>();
            f64::from(sum(Steps::tokens)) / f64::from(sum(Steps::passes))
        };
        assert!(rate(&found[2]) > rate(&found[0]), "more passes");
    }
}

#[test]
fn no_row_is_computed_twice() {
    let facts = facts(&engine(None));
    let rows = |nodes: &[usize]| {
        let plans: Vec<DraftPlan> = nodes.iter().map(|&nodes| plan("recycling", "auto", nodes)).collect();
        let mut model = reference(&facts);
        let replay = Replay { facts: &facts, plans: &plans, heads: None, max_tokens: 40, costs: None, keep: false };
        replay.run(&texts(), Some(&mut model), &mut |_, _| {}).unwrap();
        model.asked
    };
    assert_eq!(rows(&[8, 8]), rows(&[8]));
    assert!(rows(&[8, 16]) < rows(&[8]) + rows(&[16]));
}

/// Draft heads of every kind, batched and one by one.
#[test]
fn batched_heads_propose_what_the_reference_proposes() {
    let (model, target) = (embedded(), target());
    let noisy = Heads { noise: 0.5, ..Heads::default() };
    let recurrent = Heads { form: HeadForm::Recurrent, count: 4, ..noisy };
    for heads in [
        noisy,
        Heads { layers: 2, own: true, ..noisy },
        Heads { own: true, draft_vocab: Some(200), rank: Some(8), ..noisy },
        recurrent,
        Heads { own: true, draft_vocab: Some(300), rank: Some(4), ..recurrent },
    ] {
        let reader = harness::heads::cpu(&from_model(&model, heads), &model);
        for temperature in [0.0, 0.9] {
            check_heads(&target, &reader, &SamplingParams { temperature, seed: 3, ..Default::default() });
        }
    }
}

fn check_heads(target: &Target, heads: &CpuHeads, sampling: &SamplingParams) {
    let (mut random, backend) = (Random::new(9), cpu(&embedded()));
    let hidden: Vec<Vec<f32>> =
        (0..150).map(|_| (0..heads.shape().hidden_size).map(|_| 3.0 * random.unit()).collect()).collect();
    let scene = |at: usize| DraftScene { sampling, context_length: at, valid_tokens: 500, shares_noise: true };
    let row = |(at, hidden)| HeadRow { hidden, root: (at * 7 % 500) as u32, scene: scene(at) };
    let rows: Vec<HeadRow<'_>> = hidden.iter().map(Vec::as_slice).enumerate().map(row).collect();
    let found = BatchedHeads::new(heads, target).unwrap().candidates(&rows).unwrap();
    assert_eq!(found.len(), rows.len());
    let agrees = |(row, found): (&HeadRow<'_>, &HeadCandidates)| {
        let expected = heads.draft(backend.target(), row.hidden, row.scene).candidates(row.root).unwrap();
        same(found, &expected)
    };
    let agreeing = rows.iter().zip(&found).filter(|&pair| agrees(pair)).count();
    // Sums are taken in another order, so one or two of ten thousands of candidates change places.
    assert!(agreeing + 3 > rows.len(), "{agreeing} of {} rows, {:?}", rows.len(), heads.shape());
}

/// Whether both have the same candidates in the same slots, with the same probabilities.
fn same(found: &HeadCandidates, expected: &HeadCandidates) -> bool {
    let shapes = |candidates: &HeadCandidates| candidates.slots.iter().map(Vec::len).collect::<Vec<_>>();
    assert_eq!((shapes(found), found.by_depth), (shapes(expected), expected.by_depth));
    found.slots.iter().flatten().zip(expected.slots.iter().flatten()).all(|(found, expected)| {
        let near = (found.log_probability - expected.log_probability).abs() < 1e-4;
        near && (found.token, found.next) == (expected.token, expected.next)
    })
}
