//! A model that was trained with its heads, in files: it computes what was trained, and drafts with its heads.

#![cfg(feature = "cli")]
#![allow(clippy::unwrap_used)] // also in the helpers of tests

mod harness;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use candle_core::Device;
use draftree::backend::cpu::heads::CpuHeads;
use draftree::backend::cpu::{CpuBackend, CpuWeights};
use draftree::engine::{Drafters, Engine, GenerateOptions, Prompt, TextParts};
use draftree::error::ErrorCode;
use draftree::model::files::FileSource;
use draftree::model::heads::{HeadForm, Taps, model_identity, stream_heads};
use draftree::model::{ByteSource, Checkpoint, HeadFile, TensorType, stream_weights};
use draftree::speculate::costs::PassCosts;
use draftree::speculate::tree::Tree;
use draftree::train::answers::Answer;
use draftree::train::joint::backbone::Backbone;
use draftree::train::joint::save::{Saved, save};
use draftree::train::joint::{Joined, JointSettings, LanguageLoss, Material, Ramp, Tuning, train};
use draftree::train::save::{StoredTypes, head_file};
use draftree::train::shapes::HeadShape;
use harness::model_files::shared;
use harness::model_files::tiny::{Folder, Gguf};
use harness::random::Random;
use pollster::block_on;

fn folder(name: &str) -> PathBuf {
    let folder = std::env::temp_dir().join(format!("draftree-joint-files-{name}-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&folder);
    folder
}

fn backbone(source: &impl ByteSource) -> Backbone {
    Backbone::read(&harness::open(source), source, &Device::Cpu).unwrap()
}

/// The rows of a text behind the final norm.
fn rows(model: &Backbone, tokens: &[u32]) -> Vec<Vec<f32>> {
    model.hidden(tokens, &[tokens.len()]).unwrap().to_vec2().unwrap()
}

fn furthest(a: &[Vec<f32>], b: &[Vec<f32>]) -> f32 {
    assert_eq!(a.len(), b.len());
    a.iter().flatten().zip(b.iter().flatten()).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max)
}

fn check_rows(source: &impl ByteSource, tokens: &[u32]) {
    let (mut reference, chain) = (harness::cpu(source), Tree::chain(tokens).unwrap());
    let expected = reference.hidden(0, &chain);
    let model = backbone(source);
    let found = rows(&model, tokens);
    assert!(furthest(&found, &expected) < 1e-3, "{}", furthest(&found, &expected));
    let hidden = model.hidden(tokens, &[tokens.len()]).unwrap();
    let logits = hidden.matmul(&model.lm_head().unwrap().tensor().t().unwrap()).unwrap().to_vec2().unwrap();
    let expected = harness::logits_of_tree(&mut reference, 0, &chain);
    assert!(furthest(&logits, &expected) < 1e-3, "{}", furthest(&logits, &expected));
    // A text behind another one sees nothing of it.
    let two = [tokens, tokens].concat();
    let both = backbone(source).hidden(&two, &[tokens.len(), tokens.len()]).unwrap().to_vec2().unwrap();
    assert!(furthest(&both[tokens.len()..], &found) < 1e-4);
}

/// Small random values for the tiny model, whose own are all different.
fn tiny(family: &str) -> Gguf {
    let mut random = Random::new(5);
    let mut gguf = Gguf::tiny(family);
    for tensor in &mut gguf.tensors {
        tensor.data = (0..tensor.data.len() / 4).flat_map(|_| (0.5 * random.unit()).to_le_bytes()).collect();
    }
    gguf
}

#[test]
fn rows_and_logits_are_those_of_the_reference() {
    let text: Vec<u32> = (0..40).map(|i| 1 + i * 37 % 500).collect();
    check_rows(&harness::embedded(), &text);
    check_rows(&harness::on_disk(shared("models/stories260K")), &text);
    check_rows(&harness::on_disk(shared("models/stories260K/stories260K-q4_1.gguf")), &text);
    for family in ["llama", "qwen2"] {
        check_rows(&tiny(family).source(), &[1, 3, 4, 3, 3, 5, 0, 4, 2]);
    }
}

const SHAPE: HeadShape = HeadShape {
    form: HeadForm::Recurrent,
    depths: 3,
    layers: 1,
    rank: 0,
    one_block: true,
    frozen_head: false,
    taps: Taps::NONE,
    context_layer: None,
};

fn settings() -> JointSettings {
    JointSettings {
        shape: SHAPE,
        draft_vocab: 200,
        tuning: Tuning::All,
        language: LanguageLoss::Original,
        loss: "kl+0.1ce".parse().unwrap(),
        depth_decay: 0.8,
        coefficient: 0.2,
        ramp: Ramp::Linear,
        ramp_share: 0.5,
        head_epochs: 2.0,
        epochs: 2.0,
        batch: 4,
        longest: 100,
        rate: 1e-3,
        head_factor: 4.0,
        warm_up: 0.1,
        floor: 0.1,
        weight_decay: 0.0,
        clip: 1.0,
        seed: 1,
        held_out: 0.2,
        held_out_answers: 10,
        evaluate_every: 0,
        patience: 0,
    }
}

/// Answers of a model to beginnings of one token, greedily.
fn answers(source: &impl ByteSource) -> Vec<Answer> {
    let mut backend = harness::cpu(source);
    let answer = |first: u32| {
        let setup = harness::setup(draftree::sampling::SamplingParams::default(), &[1, first], 40, 512);
        harness::prefill(&mut backend, 0, &[1]);
        let tokens = harness::decode(&mut backend, 1, first, &setup, 1);
        Answer { id: first.to_string(), category: String::new(), prompt: vec![1, first], tokens, ended: false }
    };
    (300..332).map(answer).collect()
}

fn check_description(before: &Checkpoint, after: &Checkpoint) {
    assert_eq!(
        (&before.config, &before.name, &before.chat_template),
        (&after.config, &after.name, &after.chat_template)
    );
    assert_eq!(format!("{:?}", before.tokenizer), format!("{:?}", after.tokenizer));
}

/// Trains a model with heads, and writes both.
fn trained(source: &impl ByteSource, store: Option<TensorType>, out: &Path) -> (Joined, Saved) {
    let checkpoint = harness::open(source);
    let original = backbone(source);
    let (answers, identity) = (answers(source), model_identity(&checkpoint));
    let material = Material { original: &original, identity: &identity, answers: &answers, always: &[2], heads: None };
    let joined = train(material, &settings(), &out.join("run"), &mut |_| {}).unwrap();
    let saved = save((&checkpoint, source), &joined.backbone, store, &out.join("model")).unwrap();
    let words = BTreeMap::new();
    head_file(&joined.heads, StoredTypes::all(TensorType::F16), &identity, &words)
        .unwrap()
        .write(&saved.heads)
        .unwrap();
    (joined, saved)
}

/// The text that the engine writes, and the passes that it takes.
fn write(folder: &Path, drafts: bool) -> (Vec<u32>, u32) {
    let source = FileSource::open(folder).unwrap();
    let checkpoint = block_on(Checkpoint::open(&source)).unwrap();
    let mut weights = CpuWeights::default();
    block_on(stream_weights(&checkpoint, &source, &mut weights, &mut |_, _| {})).unwrap();
    let mut backend = CpuBackend::new(checkpoint.config.clone(), weights, None).unwrap();
    let heads = block_on(HeadFile::find(&source)).unwrap().expect("heads lie beside the model");
    let fitted = heads.fit(&checkpoint).unwrap();
    assert_eq!(fitted.warning, None, "they are of this model");
    let mut weights = CpuWeights::default();
    block_on(stream_heads((&heads, &fitted, &source), (&checkpoint, &source), &mut weights, &mut |_, _| {})).unwrap();
    backend.set_heads(CpuHeads::new(fitted, weights).unwrap());
    let text = TextParts::new(&checkpoint, || 0).unwrap();
    let mut engine = Engine::new(backend, text, || 0.0);
    engine.set_costs(PassCosts::fixed([1.0, 1e-1, 1e-2, 1e-3, 1e-4, 1e-5, 1e-6])); // it pays to draft
    let drafters = if drafts { "medusa" } else { "none" };
    let options =
        GenerateOptions { max_tokens: 40, draft: Drafters::parse(drafters).unwrap(), ..GenerateOptions::default() };
    let mut session = engine.start(&Prompt::Text("Once upon a time".to_owned()), &options).unwrap();
    while block_on(engine.next(&mut session)).unwrap().is_some() {}
    (session.tokens().to_vec(), session.stats().passes)
}

#[test]
fn a_model_that_was_not_trained_says_the_same_when_it_is_written() {
    let source = harness::embedded();
    let out = folder("untouched").join("other.gguf");
    let saved = save((&harness::open(&source), &source), &backbone(&source), None, &out).unwrap();
    assert_eq!((&saved.model, &saved.heads), (&out, &out.with_extension("heads.safetensors")));
    let written = FileSource::open(&saved.model).unwrap();
    let tokens = |answers: Vec<Answer>| answers.into_iter().map(|answer| answer.tokens).collect::<Vec<_>>();
    assert_eq!(tokens(answers(&written)), tokens(answers(&source)));
    let folder = harness::on_disk(shared("models/stories260K"));
    let refused = save((&harness::open(&folder), &folder), &backbone(&folder), None, &out).unwrap_err();
    assert_eq!(refused.code(), ErrorCode::InvalidOption);
    std::fs::remove_dir_all(out.parent().unwrap()).unwrap();
}

#[test]
fn a_gguf_model_is_written_as_one_and_drafts_with_its_heads() {
    let source = harness::embedded();
    let out = folder("gguf");
    let (joined, saved) = trained(&source, None, &out);
    assert_eq!(saved.model, out.join("model/stories260K-q8_0.gguf"));
    let found = FileSource::open(&saved.model).unwrap();
    let (before, after) = (harness::open(&source), harness::open(&found));
    check_description(&before, &after);
    for (name, entry) in &before.tensors {
        assert_eq!(
            (entry.tensor_type, &entry.shape),
            (after.tensors[name].tensor_type, &after.tensors[name].shape),
            "{name}"
        );
    }
    let text: Vec<u32> = (0..40).map(|i| 1 + i * 37 % 500).collect();
    let [original, stored, kept] =
        [&backbone(&source), &backbone(&found), &joined.backbone].map(|model| rows(model, &text));
    assert!(
        furthest(&stored, &kept) < 0.5 * furthest(&original, &kept),
        "{} of {}",
        furthest(&stored, &kept),
        furthest(&original, &kept)
    );

    let (plain, passes) = write(&out.join("model"), false);
    let (drafted, fewer) = write(&out.join("model"), true);
    assert_eq!(drafted, plain);
    assert!(fewer < passes, "{fewer} passes instead of {passes}");

    let whole = save((&before, &source), &joined.backbone, Some(TensorType::F32), &out.join("whole")).unwrap();
    let whole = backbone(&FileSource::open(&whole.model).unwrap());
    assert_eq!(rows(&whole, &text), kept, "nothing is lost in F32");
    let refused = save((&before, &source), &joined.backbone, Some(TensorType::Q6K), &out).unwrap_err();
    assert_eq!(refused.code(), ErrorCode::InvalidOption);
    std::fs::remove_dir_all(&out).unwrap();
}

#[test]
fn a_folder_is_written_as_one_and_drafts_with_its_heads() {
    let source = harness::on_disk(shared("models/stories260K"));
    let out = folder("folder");
    let (joined, saved) = trained(&source, None, &out);
    let found = FileSource::open(&saved.model).unwrap();
    let (before, after) = (harness::open(&source), harness::open(&found));
    check_description(&before, &after);
    let text: Vec<u32> = (0..40).map(|i| 1 + i * 37 % 500).collect();
    assert_eq!(rows(&backbone(&found), &text), rows(&joined.backbone, &text));
    let (plain, passes) = write(&saved.model, false);
    let (drafted, fewer) = write(&saved.model, true);
    assert_eq!(drafted, plain);
    assert!(fewer < passes, "{fewer} passes instead of {passes}");

    for ty in [TensorType::Bf16, TensorType::F16] {
        let half = save((&before, &source), &joined.backbone, Some(ty), &out.join("half")).unwrap();
        let half = FileSource::open(&half.model).unwrap();
        assert_eq!(harness::open(&half).quantisation(), ty);
        let away = furthest(&rows(&backbone(&half), &text), &rows(&joined.backbone, &text));
        assert!(away > 0.0 && away < 0.1, "{ty}: {away}");
        let config = std::fs::read_to_string(out.join("half/config.json")).unwrap();
        assert!(config.contains(if ty == TensorType::F16 { "\"float16\"" } else { "\"bfloat16\"" }), "{config}");
    }
    let refused = save((&before, &source), &joined.backbone, Some(TensorType::Q8_0), &out).unwrap_err();
    assert_eq!(refused.code(), ErrorCode::InvalidOption);
    std::fs::remove_dir_all(&out).unwrap();
}

#[test]
fn tiny_models_of_every_family_keep_their_other_tensors_and_their_metadata() {
    let out = folder("tiny");
    for family in ["llama", "qwen2"] {
        let gguf = tiny(family).set("general.file_type", harness::model_files::tiny::number(7));
        let source = gguf.source();
        let (checkpoint, model) = (harness::open(&source), backbone(&source));
        let saved = save((&checkpoint, &source), &model, Some(TensorType::F16), &out).unwrap();
        let written = std::fs::read(&saved.model).unwrap();
        let expected = gguf.set("general.file_type", harness::model_files::tiny::number(1));
        let metadata = |bytes: &[u8], length: usize| bytes[8..length].to_vec();
        let length = 24 + expected.metadata.iter().map(|(key, value)| 8 + key.len() + value.len()).sum::<usize>();
        assert_eq!(metadata(&written, length), metadata(&expected.bytes(), length), "{family}");
        let folder = Folder::tiny(family).source();
        let saved = save((&harness::open(&folder), &folder), &backbone(&folder), None, &out.join("folder")).unwrap();
        let text = [1, 3, 4, 5, 0];
        assert_eq!(rows(&backbone(&FileSource::open(saved.model).unwrap()), &text), rows(&backbone(&folder), &text));
    }
    std::fs::remove_dir_all(&out).unwrap();
}

#[test]
fn the_command_writes_a_model_with_its_heads_and_begins_with_heads_of_a_file() {
    const MODEL: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/models/stories260K/stories260K-q8_0.gguf");
    let work = folder("command");
    let run = |out: &Path, more: &[&str]| {
        Command::new(env!("CARGO_BIN_EXE_draftree"))
            .args(["train-joint", "--model", MODEL, "--work", work.to_str().unwrap(), "--out", out.to_str().unwrap()])
            .args(["--epochs", "1", "--step-answers", "4", "--held-out", "0.2"])
            .args(more)
            .output()
            .unwrap()
    };
    let (first, second) = (work.join("first.gguf"), work.join("second.gguf"));
    let done = run(&first, &["--limit", "24", "--max-tokens", "30", "--head-epochs", "1", "--form", "parallel"]);
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    let heads = first.with_extension("heads.safetensors");
    assert_eq!(String::from_utf8(done.stdout).unwrap(), format!("{}\n{}\n", first.display(), heads.display()));

    // The same folder with other settings has to be another run.
    let other = run(&second, &["--heads", heads.to_str().unwrap(), "--head-epochs", "0", "--train", "lora"]);
    let message = String::from_utf8(other.stdout).unwrap();
    assert!(!other.status.success() && message.contains("run of other settings"), "{message}");
    std::fs::remove_dir_all(work.join("joint")).unwrap();
    let done = run(&second, &["--heads", heads.to_str().unwrap(), "--head-epochs", "0", "--train", "lora"]);
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    for model in [&first, &second] {
        let source = FileSource::open(model).unwrap();
        let own = FileSource::open(model.with_extension("heads.safetensors")).unwrap();
        let file = block_on(HeadFile::open(&own)).unwrap();
        assert_eq!((file.form, file.depths), (HeadForm::Parallel, 4));
        let identity = model_identity(&block_on(Checkpoint::open(&source)).unwrap());
        assert_eq!(file.model.as_deref(), Some(&*identity));
        for word in ["recipe", "held_out_top_1", "held_out_divergence", "held_out_text_loss"] {
            assert!(file.metadata.contains_key(word), "{word}");
        }
        let divergence: f64 = file.metadata["held_out_divergence"].parse().unwrap();
        assert!(divergence > 0.0 && divergence < 0.5, "{divergence}");
    }
    let refused = run(Path::new(MODEL), &[]);
    let message = String::from_utf8(refused.stdout).unwrap();
    assert!(!refused.status.success() && message.contains("written over"), "{message}");
    std::fs::remove_dir_all(&work).unwrap();
}
