//! A text whose next token depends on the last alone, with hidden rows that tell the last, or a layer that does: how well heads can do on
//! it is known.

use std::path::PathBuf;

use half::f16;

use super::matrices::TargetMatrices;
use super::random::Random;
use super::states::{Rows, States, StatesHeader, StatesWriter};
use crate::backend::cpu::ops::MatrixF32;
use crate::model::ModelConfig;
use crate::model::architecture::Architecture;

/// Tokens of the vocabulary.
pub const VOCAB: usize = 24;
/// Width of the model.
pub const HIDDEN: usize = 32;
/// How often the first of a token's two successors follows.
pub const FIRST: f64 = 0.75;

/// States and target of the text.
pub struct Toy {
    pub states: States,
    pub target: TargetMatrices,
    pub folder: PathBuf,
}

impl Drop for Toy {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

/// The layer whose output the states have.
pub const LAYER: usize = 2;

/// The states of `answers` answers of 50 tokens, in a folder of this name. Their layer says nothing.
pub fn toy(name: &str, answers: usize) -> Toy {
    states(name, answers, [4.0, 0.0])
}

/// The same where the layer tells the last token, and hidden rows nothing.
pub fn blind_toy(name: &str, answers: usize) -> Toy {
    states(name, answers, [0.0, 4.0])
}

/// A model of these sizes.
fn config() -> ModelConfig {
    ModelConfig {
        architecture: Architecture::Llama,
        hidden_size: HIDDEN,
        intermediate_size: HIDDEN,
        num_hidden_layers: LAYER + 1,
        num_attention_heads: 2,
        num_key_value_heads: 1,
        head_dim: HIDDEN / 2,
        vocab_size: VOCAB,
        max_position_embeddings: 64,
        rms_norm_eps: 1e-5,
        rope_theta: 1e4,
        rope_scaling: None,
        tie_word_embeddings: false,
        attention_bias: false,
        eos_token_ids: Vec::new(),
        bos_token_id: None,
    }
}

/// `strengths` is how far hidden rows and the output of the layer stand out from noise.
fn states(name: &str, answers: usize, strengths: [f32; 2]) -> Toy {
    let mut random = Random::new(9, 0);
    let mut matrix = || MatrixF32 {
        rows: VOCAB,
        columns: HIDDEN,
        values: (0..VOCAB * HIDDEN).map(|_| random.fraction() - 0.5).collect(),
    };
    let (embedding, lm_head) = (matrix(), matrix());
    let successors: Vec<[u32; 2]> = (0..VOCAB)
        .map(|_| {
            let first = random.below(VOCAB);
            [first as u32, ((first + 1 + random.below(VOCAB - 1)) % VOCAB) as u32]
        })
        .collect();
    let folder = std::env::temp_dir().join(format!("draftree-toy-{name}-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&folder);
    let header = StatesHeader {
        model: "toy".to_owned(),
        quantisation: "F32".to_owned(),
        hidden_size: HIDDEN,
        layers: vec![LAYER],
        context: None,
        best: 2,
    };
    let mut writer = StatesWriter::open(&folder.join("states"), header).unwrap();
    for answer in 0..answers {
        let mut tokens = vec![random.below(VOCAB) as u32];
        let (mut best_tokens, mut best_probabilities) =
            (vec![tokens[0], (tokens[0] + 1) % VOCAB as u32], vec![0.9, 0.1]);
        while tokens.len() < 50 {
            let after = successors[*tokens.last().unwrap() as usize];
            tokens.push(after[usize::from(f64::from(random.fraction()) >= FIRST)]);
            best_tokens.extend(after);
            best_probabilities.extend([FIRST as f32, 1.0 - FIRST as f32]);
        }
        let parts = tokens.iter().flat_map(|&token| strengths.map(|strength| (lm_head.row(token as usize), strength)));
        let values = parts.flat_map(|(row, strength)| row.iter().map(move |value| strength * value));
        let hidden: Vec<f16> = values.map(|value| f16::from_f32(value + 0.1 * (random.fraction() - 0.5))).collect();
        let rows = Rows {
            hidden: &hidden,
            tokens: &tokens,
            best_tokens: &best_tokens,
            best_probabilities: &best_probabilities,
            context: &[],
        };
        writer.append(&format!("answer {answer}"), rows).unwrap();
    }
    let states = States::open(&folder.join("states")).unwrap();
    Toy { states, target: TargetMatrices::new(config(), embedding, Some(lm_head)), folder }
}
