use std::path::PathBuf;

use serde::Deserialize;

use super::*;
use crate::backend::Backend as _;
use crate::backend::cpu::{CpuBackend, CpuWeights};
use crate::model::files::FileSource;
use crate::model::stream_weights;

#[derive(Deserialize)]
struct Golden {
    prompts: Vec<GoldenPrompt>,
}

#[derive(Deserialize)]
struct GoldenPrompt {
    name: String,
    prompt_ids: Vec<u32>,
    greedy_ids: Vec<u32>,
    margins: Vec<f32>,
}

fn shared(path: &str) -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../shared")).join(path)
}

fn golden(name: &str) -> Vec<GoldenPrompt> {
    let file = std::fs::read(shared(&format!("golden/{name}.json"))).unwrap();
    serde_json::from_slice::<Golden>(&file).unwrap().prompts
}

fn open(path: PathBuf) -> (FileSource, Checkpoint) {
    let source = FileSource::open(path).unwrap();
    let checkpoint = pollster::block_on(Checkpoint::open(&source)).unwrap();
    (source, checkpoint)
}

fn load(path: PathBuf) -> Target {
    let (source, checkpoint) = open(path);
    Target::load(&checkpoint, &source).unwrap()
}

fn argmax(row: &[f32]) -> u32 {
    (1..row.len()).fold(0, |best, i| if row[i] > row[best] { i } else { best }) as u32
}

/// The most probable next token of every row.
fn best_tokens(target: &Target, hidden: &[f32]) -> Vec<u32> {
    let logits = target.logits(hidden).unwrap();
    values(&logits, |logits| logits.chunks_exact(target.config().vocab_size).map(argmax).collect()).unwrap()
}

/// All prompts at once, greedily: they have different lengths, and prompts join one after the other.
fn check_golden(target: &Target, prompts: &[GoldenPrompt], n_tokens: usize) {
    let mut caches: Vec<KvCache> = prompts.iter().map(|_| target.new_cache()).collect();
    let mut texts: Vec<Vec<u32>> = prompts.iter().map(|prompt| prompt.prompt_ids.clone()).collect();
    let hidden_size = target.config().hidden_size;
    for step in 0..n_tokens + prompts.len() {
        let running = |i: usize| i <= step && step - i < n_tokens;
        let mut batch: Vec<SequenceSlice<'_>> = caches
            .iter_mut()
            .zip(&texts)
            .enumerate()
            .filter(|&(i, _)| running(i))
            .map(|(_, (cache, text))| SequenceSlice { new: NewTokens::Text(&text[cache.len()..]), cache })
            .collect();
        let counts: Vec<usize> = batch.iter().map(|slice| slice.new.tokens().len()).collect();
        let rows = target.forward(&mut batch, &[]).unwrap();
        let mut end = 0;
        let last: Vec<f32> = counts
            .iter()
            .flat_map(|count| {
                end += count;
                rows.hidden[(end - 1) * hidden_size..end * hidden_size].to_vec()
            })
            .collect();
        let mut chosen = best_tokens(target, &last).into_iter();
        for (i, text) in texts.iter_mut().enumerate().filter(|&(i, _)| running(i)) {
            text.push(chosen.next().unwrap_or_else(|| panic!("text {i} has a row")));
        }
    }
    for (prompt, text) in prompts.iter().zip(texts) {
        let certain = prompt.margins.iter().take_while(|&&margin| margin >= 1e-3).count().min(n_tokens);
        assert!(certain >= n_tokens.min(16), "{}: step {certain} is a near-tie", prompt.name);
        let written = &text[prompt.prompt_ids.len()..];
        assert_eq!(written[..certain], prompt.greedy_ids[..certain], "{}", prompt.name);
    }
}

#[test]
fn stories260k_writes_the_reference_text_in_a_ragged_batch() {
    check_golden(&load(shared("models/stories260K")), &golden("stories260K"), 128);
    check_golden(&load(shared("models/stories260K/stories260K-q4_1.gguf")), &golden("stories260K-q4_1"), 128);
}

#[test]
fn large_models_write_the_reference_text_where_they_were_downloaded() {
    use std::io::Write as _;
    let models = [
        ("smollm2-135m-instruct.gguf", "SmolLM2-135M-Instruct.Q4_1", 9),
        ("qwen2.5-coder-0.5b-instruct.gguf", "Qwen2.5-Coder-0.5B-Instruct.Q4_K_M", 2),
    ];
    for (file, name, prompts) in models {
        let path = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/.cache/models")).join(file);
        if !path.exists() {
            let _ =
                writeln!(std::io::stderr(), "SKIPPED: {} is not there; fetch the test models first", path.display());
            continue;
        }
        check_golden(&load(path), &golden(name)[..prompts], 16);
    }
}

#[test]
fn rows_of_a_tree_are_those_of_the_reference_and_a_path_can_be_committed() {
    let path = shared("models/stories260K/stories260K-q8_0.gguf");
    let (source, checkpoint) = open(path);
    let target = Target::load(&checkpoint, &source).unwrap();
    assert_eq!((target.quantisation(), target.identity()), (TensorType::Q8_0, &*model_identity(&checkpoint)));
    let mut weights = CpuWeights::default();
    pollster::block_on(stream_weights(&checkpoint, &source, &mut weights, &mut |_, _| {})).unwrap();
    let mut reference = CpuBackend::new(checkpoint.config.clone(), weights, None).unwrap();
    let prompt: Vec<u32> = golden("stories260K-q8_0")[1].prompt_ids.clone();
    let tree = Tree::new(&[403, 407, 261, 378, 300, 301], &[0, 0, 0, 2, 1, 3]).unwrap();
    pollster::block_on(reference.prefill(0, &prompt)).unwrap();
    let expected = reference.hidden(prompt.len(), &tree);

    let hidden_size = target.config().hidden_size;
    let (mut cache, mut other) = (target.new_cache(), target.new_cache());
    let text = [prompt.clone(), vec![403, 261, 378]].concat();
    let mut batch = [
        SequenceSlice { cache: &mut cache, new: NewTokens::Text(&prompt) },
        SequenceSlice { cache: &mut other, new: NewTokens::Text(&text) },
    ];
    target.forward(&mut batch, &[]).unwrap();
    let mut batch = [
        SequenceSlice { cache: &mut other, new: NewTokens::Text(&[301, 5]) },
        SequenceSlice { cache: &mut cache, new: NewTokens::Tree(&tree) },
    ];
    let last = target.config().num_hidden_layers - 1;
    let found = target.forward(&mut batch, &[last]).unwrap();
    for (row, expected) in found.hidden.chunks_exact(hidden_size).skip(2).zip(&expected) {
        let furthest = row.iter().zip(expected).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        assert!(furthest < 1e-3, "a hidden row is {furthest} off");
    }
    let normed = rows::norm(&found.layers[0], &target.final_norm, target.config().rms_norm_eps);
    assert_eq!(normed, found.hidden, "the last layer's output is what the final norm reads");

    // The path 0, 2, 3, 5 committed is the text 403, 261, 378, 301, which the other sequence has.
    cache.commit(&[0, 2, 3, 5]);
    assert_eq!(cache.len(), prompt.len() + 4);
    let mut batch = [SequenceSlice { cache: &mut cache, new: NewTokens::Text(&[5]) }];
    let again = target.forward(&mut batch, &[]).unwrap();
    let furthest =
        again.hidden.iter().zip(&found.hidden[hidden_size..]).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    assert!(furthest < 1e-3, "the row behind the committed path is {furthest} off");
}

#[test]
fn trees_at_many_places_of_a_text_see_what_stands_before_them() {
    let target = load(shared("models/stories260K/stories260K-q8_0.gguf"));
    let prompts = golden("stories260K-q8_0");
    let text = [&prompts[1].prompt_ids[..], &prompts[1].greedy_ids[..40]].concat();
    let mut forest = Forest::default();
    let (late, early) = (forest.plant(text.len() - 3, 403), forest.plant(7, 261));
    let rows = [late, early, forest.grow(early, 378), forest.grow(late, 5), forest.grow(late, 6), forest.plant(7, 9)];
    let child = forest.grow(rows[4], 300);
    let texts: [(usize, usize, &[u32]); 7] = [
        (late, text.len() - 3, &[403]),
        (early, 7, &[261]),
        (rows[2], 7, &[261, 378]),
        (rows[3], text.len() - 3, &[403, 5]),
        (rows[4], text.len() - 3, &[403, 6]),
        (rows[5], 7, &[9]),
        (child, text.len() - 3, &[403, 6, 300]),
    ];
    let mut cache = target.new_cache();
    target.forward(&mut [SequenceSlice { cache: &mut cache, new: NewTokens::Text(&text) }], &[]).unwrap();
    let hidden_size = target.config().hidden_size;
    let found =
        target.forward(&mut [SequenceSlice { cache: &mut cache, new: NewTokens::Forest(&forest) }], &[]).unwrap();
    assert_eq!((forest.len(), found.hidden.len(), cache.len()), (7, 7 * hidden_size, text.len()));
    for (row, start, tail) in texts {
        let alone = [&text[..start], tail].concat();
        let mut cache = target.new_cache();
        let expected =
            target.forward(&mut [SequenceSlice { cache: &mut cache, new: NewTokens::Text(&alone) }], &[]).unwrap();
        let (_, expected) = expected.hidden.split_at(expected.hidden.len() - hidden_size);
        let found = &found.hidden[row * hidden_size..][..hidden_size];
        let furthest = found.iter().zip(expected).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        assert!(furthest < 1e-4, "row {row} is {furthest} off");
    }
}
