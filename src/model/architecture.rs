//! The model families that can be run: what each is called, which tensors it has, and what a file of it leaves unsaid.
//!
//! One [`Traits`] table per family is the only place that knows tensor names and family differences. A family joins by
//! adding a variant and a table (Qwen3: q and k norms as two more vectors, no bias; Gemma 3: four norms a layer stored as
//! 1 + w in GGUF, scaled embeddings, sliding layers), beside the arithmetic it needs in the backends.

use super::config::ModelConfig;
use crate::error::{Error, ErrorCode, Result};

/// A family of models with one arithmetic.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Architecture {
    /// Llama and what follows it to the letter (SmolLM2, TinyLlama).
    Llama,
    /// Qwen2 and Qwen2.5: Llama with a bias on q, k and v.
    Qwen2,
}

/// In which order a file keeps the rows of q and k inside each head.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RotaryOrder {
    /// Rows 2i and 2i + 1 rotate together: the order of the packed weights.
    Pairs,
    /// Rows i and i + head_dim / 2 rotate together.
    Halves,
}

/// What one family of models is like.
#[derive(Debug)]
pub struct Traits {
    /// The family.
    pub architecture: Architecture,
    /// `general.architecture` of its GGUF files, and `model_type` of its config.json.
    pub name: &'static str,
    /// Its entry of `architectures` in config.json.
    pub hf_class: &'static str,
    /// Order of q and k rows in its GGUF files; safetensors always have [`RotaryOrder::Halves`].
    pub gguf_rotary_order: RotaryOrder,
    /// Whether q, k and v have a bias when config.json does not say.
    pub attention_bias: bool,
    /// Every tensor it may have.
    pub tensors: &'static [TensorRule],
}

/// One tensor of a family, or one per layer where the names hold `{}`.
#[derive(Debug)]
pub struct TensorRule {
    /// What it is for.
    pub role: Role,
    /// Its name in safetensors, which is also the canonical one.
    pub name: &'static str,
    /// Its name in GGUF.
    pub gguf_name: &'static str,
}

/// What a tensor is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names of the field")]
pub enum Role {
    Embedding,
    AttentionNorm,
    Query,
    QueryBias,
    Key,
    KeyBias,
    Value,
    ValueBias,
    AttentionOut,
    FfnNorm,
    Gate,
    Up,
    Down,
    FinalNorm,
    LmHead,
}

/// The tensors of Llama-shaped families. The biases are there only where the configuration says so.
const LLAMA_TENSORS: &[TensorRule] = &[
    rule(Role::Embedding, "model.embed_tokens.weight", "token_embd.weight"),
    rule(Role::AttentionNorm, "model.layers.{}.input_layernorm.weight", "blk.{}.attn_norm.weight"),
    rule(Role::Query, "model.layers.{}.self_attn.q_proj.weight", "blk.{}.attn_q.weight"),
    rule(Role::Key, "model.layers.{}.self_attn.k_proj.weight", "blk.{}.attn_k.weight"),
    rule(Role::Value, "model.layers.{}.self_attn.v_proj.weight", "blk.{}.attn_v.weight"),
    rule(Role::QueryBias, "model.layers.{}.self_attn.q_proj.bias", "blk.{}.attn_q.bias"),
    rule(Role::KeyBias, "model.layers.{}.self_attn.k_proj.bias", "blk.{}.attn_k.bias"),
    rule(Role::ValueBias, "model.layers.{}.self_attn.v_proj.bias", "blk.{}.attn_v.bias"),
    rule(Role::AttentionOut, "model.layers.{}.self_attn.o_proj.weight", "blk.{}.attn_output.weight"),
    rule(Role::FfnNorm, "model.layers.{}.post_attention_layernorm.weight", "blk.{}.ffn_norm.weight"),
    rule(Role::Gate, "model.layers.{}.mlp.gate_proj.weight", "blk.{}.ffn_gate.weight"),
    rule(Role::Up, "model.layers.{}.mlp.up_proj.weight", "blk.{}.ffn_up.weight"),
    rule(Role::Down, "model.layers.{}.mlp.down_proj.weight", "blk.{}.ffn_down.weight"),
    rule(Role::FinalNorm, "model.norm.weight", "output_norm.weight"),
    rule(Role::LmHead, "lm_head.weight", "output.weight"),
];

const fn rule(role: Role, name: &'static str, gguf_name: &'static str) -> TensorRule {
    TensorRule { role, name, gguf_name }
}

static FAMILIES: [Traits; 2] = [
    Traits {
        architecture: Architecture::Llama,
        name: "llama",
        hf_class: "LlamaForCausalLM",
        gguf_rotary_order: RotaryOrder::Pairs,
        attention_bias: false,
        tensors: LLAMA_TENSORS,
    },
    Traits {
        architecture: Architecture::Qwen2,
        name: "qwen2",
        hf_class: "Qwen2ForCausalLM",
        gguf_rotary_order: RotaryOrder::Halves,
        attention_bias: true,
        tensors: LLAMA_TENSORS,
    },
];

/// Tensors that some writers leave in a file although they follow from the configuration.
const DERIVED_TENSORS: [&str; 3] = ["rotary_emb.inv_freq", "attn_rot_embd", "rope_freqs.weight"];

impl Architecture {
    /// The family with this name, as in `general.architecture` and `model_type`.
    ///
    /// # Errors
    /// `UnsupportedModel`, naming the families there are.
    pub fn from_name(name: &str) -> Result<Self> {
        let family = FAMILIES.iter().find(|family| family.name == name);
        family.map(|family| family.architecture).ok_or_else(|| {
            let known: Vec<_> = FAMILIES.iter().map(|family| family.name).collect();
            Error::new(
                ErrorCode::UnsupportedModel,
                format!("the model's architecture is {name:?}; this version runs {}", known.join(" and ")),
            )
        })
    }

    /// What this family is like.
    pub fn traits(self) -> &'static Traits {
        match self {
            Self::Llama => &FAMILIES[0],
            Self::Qwen2 => &FAMILIES[1],
        }
    }

    /// The name, as in `general.architecture` and `model_type`.
    pub fn name(self) -> &'static str {
        self.traits().name
    }
}

impl Traits {
    /// The tensor with this role.
    pub fn rule(&self, role: Role) -> Option<&'static TensorRule> {
        self.tensors.iter().find(|rule| rule.role == role)
    }
}

impl TensorRule {
    /// The canonical name in `layer`, which is ignored where there is only one.
    pub fn name_in(&self, layer: usize) -> String {
        in_layer(self.name, layer)
    }

    /// The name in a GGUF file.
    pub fn gguf_name_in(&self, layer: usize) -> String {
        in_layer(self.gguf_name, layer)
    }

    /// How many there are in a model of `layers` layers.
    pub fn count(&self, layers: usize) -> usize {
        if self.name.contains("{}") { layers } else { 1 }
    }
}

fn in_layer(name: &str, layer: usize) -> String {
    name.replace("{}", &layer.to_string())
}

impl Role {
    /// The shape that the configuration demands, slowest axis first.
    pub fn shape(self, config: &ModelConfig) -> Vec<usize> {
        let (hidden, ffn) = (config.hidden_size, config.intermediate_size);
        match self {
            Self::Embedding | Self::LmHead => vec![config.vocab_size, hidden],
            Self::AttentionNorm | Self::FfnNorm | Self::FinalNorm => vec![hidden],
            Self::Query => vec![config.q_size(), hidden],
            Self::Key | Self::Value => vec![config.kv_size(), hidden],
            Self::QueryBias => vec![config.q_size()],
            Self::KeyBias | Self::ValueBias => vec![config.kv_size()],
            Self::AttentionOut => vec![hidden, config.q_size()],
            Self::Gate | Self::Up => vec![ffn, hidden],
            Self::Down => vec![hidden, ffn],
        }
    }

    /// Whether a model of this configuration has the tensor.
    pub fn is_in(self, config: &ModelConfig) -> bool {
        match self {
            Self::QueryBias | Self::KeyBias | Self::ValueBias => config.attention_bias,
            Self::LmHead => !config.tie_word_embeddings,
            _ => true,
        }
    }
}

/// Whether a tensor may be ignored: everything it says follows from the configuration.
pub fn is_derived(name: &str) -> bool {
    DERIVED_TENSORS.iter().any(|derived| name.contains(derived))
}
