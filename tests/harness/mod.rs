//! What tests that run a model share: where the models are, both backends on them, and one generation from start to end.
//!
//! Nothing here skips for want of a GPU: a machine without an adapter fails the tests of the GPU backend, with the reason.

#![allow(dead_code, unused_imports, reason = "each test binary uses its part")]

pub mod fitted_heads;
pub mod heads;
pub mod kernel;
#[path = "../model_files/mod.rs"]
pub mod model_files;
pub mod random;
pub mod statistics;
pub mod synthetic;

use std::io::Write as _;
use std::path::PathBuf;
use std::sync::OnceLock;
use std::time::Instant;

use draftree::backend::cpu::{CpuBackend, CpuWeights};
use draftree::backend::gpu::device::{DeviceCaps, Gpu};
use draftree::backend::gpu::kernels::Kernels;
use draftree::backend::gpu::{GpuBackend, GpuWeights};
use draftree::backend::{Backend, FinishReason, GenerationSetup};
use draftree::engine::{Engine, GenerateOptions, GenerationStats, Prompt, TextParts};
use draftree::model::files::FileSource;
use draftree::model::{ByteSource, Checkpoint, stream_weights};
use draftree::sampling::{Logprobs, SamplingParams};
use draftree::speculate::DraftPlan;
use draftree::speculate::tree::Tree;
pub use model_files::shared;
use pollster::block_on;

/// The model that is embedded in the package: the one of tests that need any model.
pub fn embedded() -> FileSource {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/models/stories260K/stories260K-q8_0.gguf");
    FileSource::open(path).expect("the embedded model is part of the repository")
}

/// A model on the disk.
pub fn on_disk(path: PathBuf) -> FileSource {
    FileSource::open(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// A model that `scripts/fetch-model.mjs` downloads; says loudly that the test was skipped where it is not there.
pub fn downloaded(name: &str) -> Option<FileSource> {
    let path = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/.cache/models")).join(name);
    if !path.exists() {
        // Straight to the stream: what a passing test prints by macro is not shown.
        let _ = writeln!(std::io::stderr(), "SKIPPED: {} is not there; fetch the test models first", path.display());
        return None;
    }
    Some(on_disk(path))
}

/// Opens a model.
pub fn open(source: &impl ByteSource) -> Checkpoint {
    block_on(Checkpoint::open(source)).expect("the model's header is sound")
}

/// A model in the reference backend.
pub fn cpu(source: &impl ByteSource) -> CpuBackend {
    let checkpoint = open(source);
    let mut weights = CpuWeights::default();
    block_on(stream_weights(&checkpoint, source, &mut weights, &mut |_, _| {})).expect("the weights are sound");
    CpuBackend::new(checkpoint.config, weights, None).expect("the model has every weight")
}

/// A model on a device of its own.
pub fn gpu(source: &impl ByteSource) -> GpuBackend {
    gpu_with(source, |_| {})
}

/// A model on a device that is taken for another one: `change` alters what kernels and buffers are fitted to.
pub fn gpu_with(source: &impl ByteSource, change: impl FnOnce(&mut DeviceCaps)) -> GpuBackend {
    let checkpoint = open(source);
    let mut gpu = block_on(Gpu::request())
        .unwrap_or_else(|e| panic!("these tests run on a GPU and fail without one (Mesa's lavapipe will do): {e}"));
    change(&mut gpu.caps);
    let mut weights = GpuWeights::new(gpu.clone());
    block_on(stream_weights(&checkpoint, source, &mut weights, &mut |_, _| {})).expect("the weights are sound");
    block_on(GpuBackend::new(checkpoint.config, weights, Kernels::new(gpu), None)).expect("the model fits the device")
}

/// An engine of a backend and the texts of a model.
pub fn engine<B: Backend>(source: &impl ByteSource, backend: B) -> Engine<B> {
    let text = TextParts::new(&open(source), || 0).expect("the tokenizer is sound");
    Engine::new(backend, text, now_ms)
}

fn now_ms() -> f64 {
    static BEGAN: OnceLock<Instant> = OnceLock::new();
    BEGAN.get_or_init(Instant::now).elapsed().as_secs_f64() * 1000.0
}

/// A text prompt.
pub fn text(text: &str) -> Prompt {
    Prompt::Text(text.to_owned())
}

/// What a generation came to.
#[derive(Debug, Clone)]
pub struct Written {
    pub prompt: Vec<u32>,
    pub tokens: Vec<u32>,
    pub text: String,
    pub logprobs: Vec<Logprobs>,
    pub finish: FinishReason,
    pub stats: GenerationStats,
}

/// Runs one generation to its end. What came piece by piece must be what the session holds at its end.
pub fn generate<B: Backend>(engine: &mut Engine<B>, prompt: &Prompt, options: &GenerateOptions) -> Written {
    let mut session = engine.start(prompt, options).expect("the prompt and the options are sound");
    let (mut streamed_text, mut streamed_tokens, mut streamed_logprobs) = (String::new(), Vec::new(), Vec::new());
    while let Some(chunk) = block_on(engine.next(&mut session)).expect("the device works") {
        assert_eq!(chunk.pieces.concat(), chunk.text, "every token has its piece of the text");
        assert_eq!((chunk.pieces.len(), chunk.sources.len()), (chunk.tokens.len(), chunk.tokens.len()));
        streamed_text += &chunk.text;
        streamed_tokens.extend(chunk.tokens);
        streamed_logprobs.extend(chunk.logprobs);
    }
    assert_eq!(streamed_text, session.text(), "the pieces are the text");
    assert_eq!(streamed_tokens, session.tokens(), "the pieces are the tokens");
    assert_eq!(streamed_logprobs, session.logprobs().unwrap_or_default(), "the pieces are the log-probabilities");
    if let Some(logprobs) = session.logprobs() {
        let told: Vec<u32> = logprobs.iter().map(|place| place.token).collect();
        assert_eq!(told, streamed_tokens, "every token has its log-probability");
    }
    let by_source = session.stats().draft.tokens.iter().sum::<u32>();
    assert_eq!(by_source as usize, streamed_tokens.len(), "every token came from somewhere");
    Written {
        prompt: session.prompt().to_vec(),
        tokens: session.tokens().to_vec(),
        text: session.text().to_owned(),
        logprobs: streamed_logprobs,
        finish: session.finish().expect("a session that gives nothing more has ended"),
        stats: session.stats().clone(),
    }
}

/// The same from an empty cache.
pub fn generate_afresh<B: Backend>(engine: &mut Engine<B>, prompt: &Prompt, options: &GenerateOptions) -> Written {
    engine.forget();
    generate(engine, prompt, options)
}

/// Logits `[vocab]` of `token` at position `start`, alone.
pub fn logits_of<B: Backend>(backend: &mut B, start: usize, token: u32) -> Vec<f32> {
    let root = Tree::chain(&[token]).expect("one node is a tree");
    block_on(backend.evaluate(start, &root)).expect("the device works")
}

/// Logits `[nodes][vocab]` of a tree at position `start`.
pub fn logits_of_tree<B: Backend>(backend: &mut B, start: usize, tree: &Tree) -> Vec<Vec<f32>> {
    let logits = block_on(backend.evaluate(start, tree)).expect("the device works");
    let vocab_size = backend.config().vocab_size;
    assert_eq!(logits.len(), tree.len() * vocab_size, "one row a node");
    logits.chunks_exact(vocab_size).map(<[f32]>::to_vec).collect()
}

/// Commits `tokens` from position `start` on.
pub fn prefill<B: Backend>(backend: &mut B, start: usize, tokens: &[u32]) {
    block_on(backend.prefill(start, tokens)).expect("the device works");
}

/// Asserts that two rows are the same to the last bit, so that nothing passes for equal that is not.
pub fn assert_same_bits(found: &[f32], expected: &[f32], place: &str) {
    assert_eq!(found.len(), expected.len(), "{place}: one row each");
    let mut pairs = found.iter().zip(expected);
    if let Some(at) = pairs.position(|(found, expected)| found.to_bits() != expected.to_bits()) {
        let different = found.iter().zip(expected).filter(|(a, b)| a.to_bits() != b.to_bits()).count();
        let (found, expected) = (found[at], expected[at]);
        panic!("{place}: value {at} is {found:e}, expected {expected:e} to the last bit; {different} values differ");
    }
}

/// One plain decode step at a time until `count` tokens are there, with `depth` steps in flight; the backend is then halted.
pub fn decode<B: Backend>(backend: &mut B, start: usize, root: u32, setup: &GenerationSetup, depth: usize) -> Vec<u32> {
    backend.begin(start, root, setup).expect("the generation is sound");
    let (mut tokens, mut in_flight) = (Vec::new(), 0);
    while tokens.len() < setup.max_tokens as usize {
        while in_flight < depth {
            block_on(backend.submit_step(1, setup.draft.sources)).expect("the device works");
            in_flight += 1;
        }
        let record = block_on(backend.next_record()).expect("the device works");
        tokens.extend(record.tokens.iter().map(|emitted| emitted.token));
        in_flight -= 1;
    }
    backend.halt();
    tokens
}

/// A generation that nothing ends but its length.
pub fn setup(sampling: SamplingParams, prompt: &[u32], max_tokens: u32, vocab_size: usize) -> GenerationSetup {
    let valid_tokens = vocab_size as u32;
    let draft = DraftPlan::default();
    GenerationSetup {
        sampling,
        end_tokens: Vec::new(),
        max_tokens,
        prompt: prompt.to_vec(),
        valid_tokens,
        draft,
        logprobs: None,
        trees: false,
    }
}
