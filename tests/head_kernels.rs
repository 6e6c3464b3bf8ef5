//! Draft heads on the device against the reference: the candidates of every form and format, and whole generations record by record.

#![allow(clippy::unwrap_used)] // also in the helpers of tests

mod harness;

use draftree::backend::cpu::CpuBackend;
use draftree::backend::cpu::heads::{CpuHeads, DraftScene};
use draftree::backend::gpu::GpuBackend;
use draftree::backend::{Backend, Emitted, GenerationSetup, StepRecord};
use draftree::model::heads::HeadForm;
use draftree::model::{ByteSource, MemorySource, TensorType};
use draftree::sampling::SamplingParams;
use draftree::speculate::grow::{HeadCandidate, HeadCandidates};
use draftree::speculate::shape::Shape;
use draftree::speculate::tree::Tree;
use draftree::speculate::{Calibration, DraftPlan, Source, Sources};
use harness::heads::{Heads, give_cpu, give_gpu};
use harness::random::Random;
use harness::{fitted_heads, heads, synthetic};
use pollster::block_on;

const HEADS: Sources = Sources::NONE.with(Source::Heads);

fn greedy() -> SamplingParams {
    SamplingParams::default()
}

fn sampled(seed: u64) -> SamplingParams {
    SamplingParams { temperature: 0.8, seed, ..Default::default() }
}

/// A generation in which these drafters make trees of 16 nodes.
fn setup(sampling: SamplingParams, prompt: &[u32], max_tokens: u32, vocab: usize, sources: Sources) -> GenerationSetup {
    let draft = DraftPlan { sources, shape: Shape::Grown, max_nodes: 16, ..Default::default() };
    GenerationSetup { draft, ..harness::setup(sampling, prompt, max_tokens, vocab) }
}

/// A model on the device and in the reference backend, with the same text before both.
struct Pair {
    cpu: CpuBackend,
    gpu: GpuBackend,
    text: Vec<u32>,
}

impl Pair {
    fn new(model: &impl ByteSource, length: usize) -> Self {
        let (mut cpu, mut gpu) = (harness::cpu(model), harness::gpu(model));
        let text = Random::new(5).tokens(length, cpu.config().vocab_size);
        let context = &text[..length - 1];
        harness::prefill(&mut cpu, 0, context);
        harness::prefill(&mut gpu, 0, context);
        Self { cpu, gpu, text }
    }

    /// What heads propose behind the first token that the model writes: on the device, and in the reference.
    fn candidates(&mut self, heads: &CpuHeads, sampling: &SamplingParams) -> [HeadCandidates; 2] {
        let (start, last) = (self.text.len() - 1, self.text[self.text.len() - 1]);
        let vocab = self.cpu.config().vocab_size;
        let setup = setup(sampling.clone(), &self.text, 10, vocab, HEADS);
        self.gpu.begin(start, last, &setup).unwrap();
        block_on(self.gpu.submit_step(1, setup.draft.sources)).unwrap();
        let written = block_on(self.gpu.next_record()).unwrap().tokens[0].token;
        let found = block_on(self.gpu.head_candidates()).unwrap();
        self.gpu.halt();
        let hidden = self.cpu.head_rows(heads, start, &Tree::chain(&[last]).unwrap()).unwrap().swap_remove(0);
        let scene =
            DraftScene { sampling, context_length: self.text.len(), valid_tokens: vocab as u32, shares_noise: true };
        [found, heads.draft(self.cpu.target(), &hidden, scene).candidates(written).unwrap()]
    }
}

fn assert_alike(found: &HeadCandidates, expected: &HeadCandidates, place: &str) {
    assert_eq!((found.by_depth, found.slots.len()), (expected.by_depth, expected.slots.len()), "{place}");
    // From the root on, since nobody reads a slot that nothing leads to.
    let mut open = if found.by_depth { (0..found.slots.len()).collect() } else { vec![0] };
    while let Some(slot) = open.pop() {
        let (found, expected) = (&found.slots[slot], &expected.slots[slot]);
        let tokens = |list: &[HeadCandidate]| list.iter().map(|listed| (listed.token, listed.next)).collect::<Vec<_>>();
        assert_eq!(tokens(found), tokens(expected), "{place}, slot {slot}");
        for (found, expected) in found.iter().zip(expected) {
            let (found, expected) = (found.log_probability, expected.log_probability);
            assert!((found - expected).abs() < 2e-3, "{place}, slot {slot}: {found}, expected {expected}");
        }
        open.extend(expected.iter().filter_map(|candidate| candidate.next));
    }
}

fn every_kind() -> Vec<Heads> {
    let mut kinds = Vec::new();
    for form in [HeadForm::Parallel, HeadForm::Recurrent] {
        for (own, draft_vocab) in [(false, None), (false, Some(203)), (true, None), (true, Some(203))] {
            for (rank, layers) in [(None, 1), (Some(5), 2), (None, 3)] {
                if form == HeadForm::Parallel || layers < 3 {
                    kinds.push(Heads { form, own, draft_vocab, rank, layers, noise: 0.5, ..Heads::default() });
                }
            }
        }
    }
    kinds.extend([&[0][..], &[1], &[0, 1]].into_iter().flat_map(|taps| {
        [HeadForm::Parallel, HeadForm::Recurrent].map(|form| Heads { form, taps, noise: 0.5, ..Heads::default() })
    }));
    kinds
}

/// Heads that look at the context, of models whose hidden size allows it.
fn looking_back() -> Vec<Heads> {
    let of = |layer, form, taps| Heads { form, taps, context: Some(layer), noise: 0.5, ..Heads::default() };
    [(0, HeadForm::Parallel, &[][..]), (1, HeadForm::Recurrent, &[]), (1, HeadForm::Parallel, &[0])]
        .map(|(layer, form, taps)| of(layer, form, taps))
        .to_vec()
}

#[test]
fn rows_that_look_at_the_context_are_those_of_the_reference_at_every_length() {
    for model in [
        synthetic::Model { matrices: TensorType::Q8_0, ..synthetic::Model::WIDE },
        synthetic::Model { kv_heads: 1, heads: 6, ..synthetic::Model::WIDE },
    ] {
        let source = model.source();
        // One position; a chunk of attention less one, whole, and one more; several.
        for length in [1, 15, 16, 17, 33, 70] {
            let mut pair = Pair::new(&source, length);
            for kind in looking_back() {
                let file = heads::file(&source, kind);
                for file in [file.source(), file.quantised(TensorType::Q8_0).source()] {
                    give_gpu(&mut pair.gpu, &file, &source);
                    let [found, expected] = pair.candidates(&heads::cpu(&file, &source), &greedy());
                    assert_alike(&found, &expected, &format!("{kind:?} behind {length} tokens"));
                }
            }
        }
    }
}

#[test]
fn quantised_heads_propose_what_the_reference_does() {
    let source = synthetic::Model { matrices: TensorType::Q4_1, ..synthetic::Model::WIDE }.source();
    let mut pair = Pair::new(&source, 12);
    for form in [HeadForm::Parallel, HeadForm::Recurrent] {
        let kind = Heads { form, own: true, draft_vocab: Some(203), rank: Some(32), noise: 0.5, ..Heads::default() };
        let kind = Heads { taps: &[0, 1], ..kind };
        for ty in [TensorType::Q8_0, TensorType::Q4_0, TensorType::Q4_1] {
            let file = heads::file(&source, kind).quantised(ty);
            assert!(file.tensors.values().filter(|tensor| tensor.dtype == "U8").count() > 3);
            give_gpu(&mut pair.gpu, &file.source(), &source);
            let [found, expected] = pair.candidates(&heads::cpu(&file.source(), &source), &greedy());
            assert_alike(&found, &expected, &format!("{form:?} as {ty}"));
        }
    }
}

#[test]
fn candidates_are_those_of_the_reference_for_every_form_of_heads() {
    for model in [
        synthetic::Model::RAGGED,
        synthetic::Model { tied: false, matrices: TensorType::Q8_0, ..synthetic::Model::WIDE },
        synthetic::Model { matrices: TensorType::Q4K, vocab: 9001, ..synthetic::Model::WIDE },
    ] {
        let source = model.source();
        let mut pair = Pair::new(&source, 12);
        for kind in every_kind() {
            let file = heads::file(&source, kind);
            for file in [file.source(), file.in_half().source()] {
                give_gpu(&mut pair.gpu, &file, &source);
                let reference = heads::cpu(&file, &source);
                for sampling in [greedy(), sampled(3)] {
                    let [found, expected] = pair.candidates(&reference, &sampling);
                    assert_alike(&found, &expected, &format!("{kind:?}, {sampling:?}"));
                }
            }
        }
    }
}

#[test]
fn every_head_of_medusa_has_its_own_output() {
    let model = harness::embedded();
    let mut pair = Pair::new(&model, 12);
    for layers in [1, 2] {
        let file = fitted_heads::fitted(&model, Heads { count: 5, layers, noise: 0.4, ..Heads::default() });
        give_gpu(&mut pair.gpu, &file, &model);
        let reference = heads::cpu(&file, &model);
        for sampling in [greedy(), sampled(4)] {
            let [found, expected] = pair.candidates(&reference, &sampling);
            assert_alike(&found, &expected, &format!("{layers} layers"));
        }
    }
}

#[test]
fn a_vocabulary_smaller_than_the_lists_leaves_them_short() {
    let model = synthetic::Model::RAGGED.source();
    let mut pair = Pair::new(&model, 12);
    for form in [HeadForm::Parallel, HeadForm::Recurrent] {
        for rank in [None, Some(3)] {
            for draft_vocab in [1, 3, 11] {
                let kind = Heads { form, rank, draft_vocab: Some(draft_vocab), noise: 0.5, ..Heads::default() };
                let file = heads::from_model(&model, kind);
                give_gpu(&mut pair.gpu, &file, &model);
                let [found, expected] = pair.candidates(&heads::cpu(&file, &model), &greedy());
                assert_alike(&found, &expected, &format!("{kind:?}"));
            }
        }
    }
}

/// Every record of a generation of passes of up to `rows` rows, all drafters at work in every step.
fn records<B: Backend>(backend: &mut B, setup: &GenerationSetup, rows: usize) -> Vec<StepRecord> {
    records_by(backend, setup, rows, |_| setup.draft.sources)
}

/// The same where each step has drafters of its own.
fn records_by<B: Backend>(
    backend: &mut B,
    setup: &GenerationSetup,
    rows: usize,
    drafters: impl Fn(usize) -> Sources,
) -> Vec<StepRecord> {
    let (last, context) = setup.prompt.split_last().unwrap();
    harness::prefill(backend, 0, context);
    backend.begin(context.len(), *last, setup).unwrap();
    backend.calibrate(&Calibration::of(backend.heads()));
    let mut records: Vec<StepRecord> = Vec::new();
    while records.last().is_none_or(|record| record.finish.is_none()) {
        block_on(backend.submit_step(rows, drafters(records.len()))).unwrap();
        records.push(block_on(backend.next_record()).unwrap());
    }
    backend.halt();
    records
}

#[test]
fn device_and_reference_draft_and_accept_the_same_in_every_step() {
    let model = harness::embedded();
    let (mut cpu, mut gpu) = (harness::cpu(&model), harness::gpu(&model));
    // Exact ones would give paths that are equally probable; which comes first may then hang on the last bit.
    let near = |form| heads::from_model(&model, Heads { form, rank: Some(4), noise: 0.05, ..Heads::default() });
    let corrected = Heads { count: 4, own: true, rank: Some(8), noise: 0.5, ..Heads::default() };
    let calibrated =
        heads::file(&model, Heads { form: HeadForm::Recurrent, rank: None, noise: 0.05, ..Heads::default() })
            .word("calibration", "[[0.7,-0.1],[1.6,-0.9],[0.3,-0.2]]");
    let files: [(&str, MemorySource); 8] = [
        ("looking back", fitted_heads::looking_back(&model)),
        ("fused", fitted_heads::fused(&model)),
        ("parallel", fitted_heads::parallel(&model)),
        ("recurrent", fitted_heads::recurrent(&model)),
        ("corrected", heads::from_model(&model, corrected)),
        ("calibrated", calibrated.source()),
        ("nearly exact", near(HeadForm::Parallel)),
        ("nearly exact, recurrent", near(HeadForm::Recurrent)),
    ];
    let tokenizer = draftree::engine::TextParts::new(&harness::open(&model), || 0).unwrap().tokenizer;
    let prompt = tokenizer.encode("Once upon a time, there was a little", true).unwrap();
    for (name, file) in files {
        give_cpu(&mut cpu, &file, &model);
        give_gpu(&mut gpu, &file, &model);
        for sources in [HEADS, HEADS.with(Source::NGram).with(Source::Recycling)] {
            for sampling in [greedy(), sampled(7)] {
                let setup = setup(sampling, &prompt, 60, 512, sources);
                for rows in [4, 16] {
                    let place = format!("{name}, {sources:?}, {:?}, {rows} rows", setup.sampling.temperature);
                    let (found, expected) = (records(&mut gpu, &setup, rows), records(&mut cpu, &setup, rows));
                    assert_eq!(found, expected, "{place}");
                }
            }
        }
    }
}

#[test]
fn drafters_may_change_from_step_to_step() {
    let model = harness::embedded();
    let (mut cpu, mut gpu) = (harness::cpu(&model), harness::gpu(&model));
    let file = fitted_heads::recurrent(&model);
    give_cpu(&mut cpu, &file, &model);
    give_gpu(&mut gpu, &file, &model);
    let text = Sources::NONE.with(Source::NGram).with(Source::Recycling);
    let all = text.with(Source::Heads);
    let setup = setup(greedy(), &Random::new(5).tokens(40, 512), 100, 512, all);
    let drafters = |step: usize| [all, text, Sources::NONE, all, HEADS, Sources::NONE, text][step % 7];
    let [found, expected] = [records_by(&mut gpu, &setup, 8, drafters), records_by(&mut cpu, &setup, 8, drafters)];
    assert_eq!(found, expected);
    for (step, record) in found.iter().enumerate().filter(|(_, record)| record.finish.is_none()) {
        assert!(record.drafted <= 1 || !drafters(step).is_empty(), "step {step}");
        let earlier = step.checked_sub(1).map_or(Sources::NONE, drafters);
        let source = |emitted: &Emitted| emitted.source;
        assert!(record.tokens.iter().map(source).all(|by| by == Source::Model || earlier.contains(by)), "step {step}");
    }
    let by_heads = found.iter().flat_map(|record| &record.tokens).filter(|emitted| emitted.source == Source::Heads);
    assert!(by_heads.count() > 0, "heads are right now and then");
}

#[test]
fn heads_that_are_right_now_and_then_save_passes_at_several_depths() {
    let model = harness::embedded();
    let mut cpu = harness::cpu(&model);
    let tokenizer = draftree::engine::TextParts::new(&harness::open(&model), || 0).unwrap().tokenizer;
    let prompt = tokenizer.encode("Once upon a time, there was a little", true).unwrap();
    for (name, file) in [("parallel", fitted_heads::parallel(&model)), ("recurrent", fitted_heads::recurrent(&model))] {
        give_cpu(&mut cpu, &file, &model);
        for sampling in [greedy(), sampled(7)] {
            let steps = records(&mut cpu, &setup(sampling, &prompt, 120, 512, HEADS), 16);
            let deepest = steps.iter().map(|step| step.tokens.len()).max().unwrap();
            assert!(steps.len() < 90, "{name}: {} passes", steps.len());
            assert!(deepest >= 3, "{name}: {deepest} tokens in one step");
        }
    }
}
