//! Text and logits against those of another implementation, in float32 on the same dequantised weights.
//!
//! The files say by how much each token was preferred over the next one; tokens must be equal up to the first step where that is
//! less than a float32 sum can tell. The large models are a sample unless `DRAFTREE_GOLDEN=all` is set: all prompts, all tokens.

#![allow(clippy::unwrap_used)] // also in the helpers of tests

mod harness;

use std::fs;

use draftree::backend::Backend;
use draftree::engine::{Engine, GenerateOptions, Prompt};
use draftree::model::{ByteSource, TensorType};
use draftree::tokenizer::Message;
use harness::{cpu, downloaded, embedded, engine, generate, gpu, on_disk, open, shared, text};
use pollster::block_on;
use serde::Deserialize;

/// A step whose best two logits are closer than this may go either way: float32 noise is 1e-4.
const NEAR_TIE: f32 = 1e-3;
/// Logits differ by no more than this.
const LOGIT_BOUND: f32 = 1e-3;

#[derive(Deserialize)]
struct Golden {
    prompts: Vec<GoldenPrompt>,
}

#[derive(Deserialize)]
struct GoldenPrompt {
    name: String,
    text: String,
    messages: Option<Vec<GoldenMessage>>,
    prompt_ids: Vec<u32>,
    greedy_ids: Vec<u32>,
    margins: Vec<f32>,
    logits: Vec<GoldenLogits>,
}

impl GoldenPrompt {
    /// What a caller would ask for.
    fn request(&self) -> Prompt {
        let Some(messages) = &self.messages else { return text(&self.text) };
        let message = |m: &GoldenMessage| Message { role: m.role.clone(), content: m.content.clone() };
        Prompt::Messages(messages.iter().map(message).collect())
    }
}

#[derive(Deserialize)]
struct GoldenMessage {
    role: String,
    content: String,
}

#[derive(Deserialize)]
struct GoldenLogits {
    step: usize,
    top5: Vec<(usize, f32)>,
}

fn golden(name: &str) -> Vec<GoldenPrompt> {
    let path = shared("golden").join(format!("{name}.json"));
    let file = fs::read(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    serde_json::from_slice::<Golden>(&file).expect("a golden file").prompts
}

/// Checks ids, tokens and logits of some prompts on one backend, over the first `n_tokens` tokens.
fn check<B: Backend>(engine: &mut Engine<B>, prompts: &[GoldenPrompt], n_tokens: usize, place: &str) {
    for prompt in prompts {
        let place = format!("{place}, {}", prompt.name);
        check_ids(engine, prompt, &place);
        check_tokens(engine, prompt, n_tokens, &place);
        check_logits(engine, prompt, &place);
    }
}

fn check_ids<B: Backend>(engine: &Engine<B>, prompt: &GoldenPrompt, place: &str) {
    let ids = engine.text().tokenizer.encode(&prompt.text, prompt.messages.is_none()).unwrap();
    assert_eq!(ids, prompt.prompt_ids, "{place}: ids of the prompt");
    if let Prompt::Messages(messages) = prompt.request() {
        let rendered = engine.text().template.as_ref().unwrap().render(&messages, true).unwrap();
        assert_eq!(rendered, prompt.text, "{place}: the messages through the chat template");
    }
}

fn check_tokens<B: Backend>(engine: &mut Engine<B>, prompt: &GoldenPrompt, n_tokens: usize, place: &str) {
    let options = GenerateOptions { max_tokens: n_tokens as u32, ignore_eos: true, ..Default::default() };
    let written = generate(engine, &prompt.request(), &options);
    assert_eq!(written.prompt, prompt.prompt_ids, "{place}: ids as the engine makes them");
    let certain = prompt.margins.iter().take_while(|&&margin| margin >= NEAR_TIE).count().min(n_tokens);
    assert!(certain >= n_tokens.min(16), "{place}: step {certain} is a near-tie, too early for a test");
    assert_eq!(written.tokens[..certain], prompt.greedy_ids[..certain], "{place}: greedy tokens");
}

fn check_logits<B: Backend>(engine: &mut Engine<B>, prompt: &GoldenPrompt, place: &str) {
    assert_eq!(prompt.logits.len(), 3, "{place}: three steps are recorded");
    for GoldenLogits { step, top5 } in &prompt.logits {
        let tokens = [&prompt.prompt_ids[..], &prompt.greedy_ids[..*step]].concat();
        let logits = block_on(engine.next_logits(&tokens)).unwrap();
        for &(token, expected) in top5 {
            let found = logits[token];
            assert!(
                (found - expected).abs() <= LOGIT_BOUND,
                "{place}, step {step}: logit of {token} is {found}, expected {expected}"
            );
        }
        let fifth = top5.last().map_or(f32::MAX, |&(_, logit)| logit);
        let above = logits.iter().filter(|&&logit| logit > fifth + LOGIT_BOUND).count();
        assert!(above < top5.len(), "{place}, step {step}: {above} logits are above the fifth");
    }
}

/// Every file of the small model, on both backends.
fn check_stories(golden_name: &str, file: &str) {
    let source = on_disk(shared("models/stories260K").join(file));
    let prompts = golden(golden_name);
    assert_eq!(prompts.len(), 9);
    check(&mut engine(&source, gpu(&source)), &prompts, 128, &format!("{file} on the GPU"));
    check(&mut engine(&source, cpu(&source)), &prompts, 128, &format!("{file} on the CPU"));
}

#[test]
fn stories260k_from_safetensors_writes_the_reference_text() {
    check_stories("stories260K", "");
}

#[test]
fn stories260k_in_f32_writes_the_reference_text() {
    check_stories("stories260K", "stories260K-f32.gguf");
}

#[test]
fn stories260k_in_f16_writes_the_reference_text() {
    check_stories("stories260K-f16", "stories260K-f16.gguf");
}

#[test]
fn stories260k_in_q8_0_writes_the_reference_text() {
    check_stories("stories260K-q8_0", "stories260K-q8_0.gguf");
}

#[test]
fn stories260k_in_q5_0_writes_the_reference_text() {
    check_stories("stories260K-q5_0", "stories260K-q5_0.gguf");
}

#[test]
fn stories260k_in_q4_1_writes_the_reference_text() {
    check_stories("stories260K-q4_1", "stories260K-q4_1.gguf");
}

#[test]
fn stories260k_in_q4_0_writes_the_reference_text() {
    check_stories("stories260K-q4_0", "stories260K-q4_0.gguf");
}

#[test]
fn the_embedded_model_is_the_one_that_is_tested() {
    let original = fs::read(shared("models/stories260K/stories260K-q8_0.gguf")).unwrap();
    let source = embedded();
    let mut ours = vec![0; source.files()[0].size as usize];
    block_on(source.read(0, 0, &mut ours)).unwrap();
    assert!(ours == original, "models/stories260K/stories260K-q8_0.gguf is a copy");
}

/// A large model on the GPU, where it was downloaded.
fn check_large(golden_name: &str, file: &str, embedding: TensorType) {
    let Some(source) = downloaded(file) else { return };
    assert_eq!(open(&source).tensors["model.embed_tokens.weight"].tensor_type, embedding, "{file} is the golden file");
    let prompts = golden(golden_name);
    let all = std::env::var("DRAFTREE_GOLDEN").is_ok_and(|value| value == "all");
    let (prompts, n_tokens) = if all { (&prompts[..], 128) } else { (&prompts[..1], 16) };
    check(&mut engine(&source, gpu(&source)), prompts, n_tokens, file);
}

#[test]
fn smollm2_135m_in_q4_1_writes_the_reference_text() {
    check_large("SmolLM2-135M-Instruct.Q4_1", "smollm2-135m-instruct.gguf", TensorType::Q8_0);
}

#[test]
fn qwen2_5_coder_0_5b_in_q4_k_m_writes_the_reference_text() {
    check_large("Qwen2.5-Coder-0.5B-Instruct.Q4_K_M", "qwen2.5-coder-0.5b-instruct.gguf", TensorType::Q5_0);
}

/// The folder is made from the Q4_1 file by the converter beside the references.
#[test]
fn smollm2_135m_in_bf16_writes_the_reference_text() {
    check_large("SmolLM2-135M-Instruct-bf16", "smollm2-135m-instruct-bf16", TensorType::Bf16);
}
