//! What the metadata of a GGUF file says about the model: its configuration and its tokenizer.
//!
//! Keys are those of `ggml/docs/gguf.md`. A key that would change the arithmetic in a way that is not implemented
//! (experts, other scalings, a rotary embedding on part of a head) is refused here.

use std::collections::BTreeMap;

use super::metadata::{Array, Metadata, Value};
use crate::error::{Error, ErrorCode, Result};
use crate::model::architecture::{Architecture, Role};
use crate::model::checkpoint::TensorEntry;
use crate::model::config::{ModelConfig, RopeScaling};
use crate::model::end_tokens::{EndTokens, is_end_name};
use crate::model::tokenizer_files::GgufTokenizer;

/// `token_type` of control tokens.
const CONTROL: i32 = 3;

/// The family of the model.
///
/// # Errors
/// `UnsupportedModel` when it cannot be run; `BadModelFile` when the file does not say.
pub fn architecture(metadata: &Metadata) -> Result<Architecture> {
    let name = metadata.string("general.architecture")?;
    Architecture::from_name(&name.ok_or_else(|| missing("general.architecture"))?)
}

/// The configuration of a model, from its metadata, its tokenizer, and which tensors there are.
///
/// # Errors
/// `UnsupportedModel` for an architecture or setting that cannot be run; `BadModelFile` for a missing or damaged key.
pub fn config(
    metadata: &Metadata,
    tokenizer: &GgufTokenizer,
    tensors: &BTreeMap<String, TensorEntry>,
) -> Result<ModelConfig> {
    let architecture = architecture(metadata)?;
    let keys = Keys { metadata, prefix: architecture.name() };
    keys.refuse_unsupported()?;

    let num_attention_heads = keys.required_size("attention.head_count")?;
    let hidden_size = keys.required_size("embedding_length")?;
    let head_dim = match keys.size("attention.key_length")? {
        Some(head_dim) => head_dim,
        None => hidden_size.checked_div(num_attention_heads).unwrap_or(0),
    };
    keys.require_equal("attention.value_length", head_dim, "values as wide as keys")?;
    keys.require_equal("rope.dimension_count", head_dim, "a rotary embedding over whole heads")?;
    let has = |role: Role| {
        let rule = architecture.traits().rule(role);
        rule.is_some_and(|rule| tensors.contains_key(&rule.gguf_name_in(0)))
    };
    Ok(ModelConfig {
        architecture,
        hidden_size,
        intermediate_size: keys.required_size("feed_forward_length")?,
        num_hidden_layers: keys.required_size("block_count")?,
        num_attention_heads,
        num_key_value_heads: keys.size("attention.head_count_kv")?.unwrap_or(num_attention_heads),
        head_dim,
        vocab_size: keys.size("vocab_size")?.unwrap_or(tokenizer.tokens.len()),
        max_position_embeddings: keys.required_size("context_length")?,
        rms_norm_eps: metadata
            .float(&keys.key("attention.layer_norm_rms_epsilon"))?
            .ok_or_else(|| missing(&keys.key("attention.layer_norm_rms_epsilon")))?,
        rope_theta: metadata.float(&keys.key("rope.freq_base"))?.unwrap_or(10_000.0),
        rope_scaling: keys.rope_scaling()?,
        tie_word_embeddings: !has(Role::LmHead),
        attention_bias: architecture.traits().attention_bias || has(Role::QueryBias),
        eos_token_ids: end_tokens(tokenizer),
        bos_token_id: tokenizer.bos_token_id,
    })
}

/// The keys of one architecture, `<name>.<key>`.
struct Keys<'m> {
    metadata: &'m Metadata,
    prefix: &'static str,
}

impl Keys<'_> {
    fn key(&self, key: &str) -> String {
        format!("{}.{key}", self.prefix)
    }

    /// A size; where the file has one per layer, they must all be the same.
    fn size(&self, key: &str) -> Result<Option<usize>> {
        let key = self.key(key);
        let per_layer: Vec<i128> = match self.metadata.get(&key) {
            Some(Value::Array(Array::Unsigned(sizes))) => sizes.iter().map(|&size| size.into()).collect(),
            Some(Value::Array(Array::Signed(sizes))) => sizes.iter().map(|&size| size.into()).collect(),
            _ => return self.metadata.size(&key),
        };
        let first = per_layer.first().copied();
        if per_layer.iter().any(|&size| Some(size) != first) {
            return Err(unsupported(&format!("{key} differs between layers")));
        }
        let size = first.map(usize::try_from).transpose();
        size.map_err(|_| Error::new(ErrorCode::BadModelFile, format!("{key} is no size; the file is damaged")))
    }

    fn required_size(&self, key: &str) -> Result<usize> {
        self.size(key)?.ok_or_else(|| missing(&self.key(key)))
    }

    fn require_equal(&self, key: &str, expected: usize, what: &str) -> Result<()> {
        match self.size(key)? {
            Some(found) if found != expected => {
                Err(unsupported(&format!("{} is {found}, expected {expected}: {what}", self.key(key))))
            }
            _ => Ok(()),
        }
    }

    fn refuse_unsupported(&self) -> Result<()> {
        if let Some(experts @ 1..) = self.size("expert_count")? {
            return Err(unsupported(&format!("the model is a mixture of {experts} experts")));
        }
        let window = self.size("attention.sliding_window")?.filter(|&window| window > 0);
        match (window, self.size("context_length")?) {
            (Some(window), Some(context)) if window < context => {
                Err(unsupported(&format!("attention sees a sliding window of {window} tokens")))
            }
            _ => Ok(()),
        }
    }

    fn rope_scaling(&self) -> Result<Option<RopeScaling>> {
        let key = self.key("rope.scaling.type");
        let kind = self.metadata.string(&key)?;
        let factor = match self.metadata.float(&self.key("rope.scaling.factor"))? {
            Some(factor) => Some(factor),
            None => self.metadata.float(&self.key("rope.scale_linear"))?, // the key's name before it was generalised
        };
        match (kind.as_deref(), factor) {
            (Some("none"), _) | (Some("linear") | None, None | Some(0.0 | 1.0)) => Ok(None),
            (Some("linear") | None, Some(factor)) => Ok(Some(RopeScaling::Linear { factor })),
            (Some(other), _) => Err(unsupported(&format!("{key} is {other:?}"))),
        }
    }
}

/// The tokenizer of the file, whose lists are moved out of the metadata.
///
/// # Errors
/// `BadTokenizer` when there is none; `BadModelFile` when a key is of the wrong kind.
pub fn tokenizer(metadata: &mut Metadata) -> Result<GgufTokenizer> {
    let key = |key: &str| format!("tokenizer.ggml.{key}");
    let tokens = metadata.take_strings(&key("tokens"))?;
    let model = metadata.string(&key("model"))?;
    let (Some(model), false) = (model, tokens.is_empty()) else {
        return Err(Error::new(
            ErrorCode::BadTokenizer,
            "the GGUF file has no tokenizer (tokenizer.ggml.model and .tokens); use a file that includes it",
        ));
    };
    Ok(GgufTokenizer {
        model,
        pre: metadata.string(&key("pre"))?,
        tokens,
        scores: metadata.floats(&key("scores"))?,
        token_types: metadata.integers(&key("token_type"))?,
        merges: metadata.take_strings(&key("merges"))?,
        bos_token_id: metadata.token_id(&key("bos_token_id"))?,
        eos_token_id: metadata.token_id(&key("eos_token_id"))?,
        eot_token_id: metadata.token_id(&key("eot_token_id"))?,
        eom_token_id: metadata.token_id(&key("eom_token_id"))?,
        unknown_token_id: metadata.token_id(&key("unknown_token_id"))?,
        padding_token_id: metadata.token_id(&key("padding_token_id"))?,
        add_bos: metadata.bool(&key("add_bos_token"))?,
        add_space_prefix: metadata.bool(&key("add_space_prefix"))?,
        remove_extra_whitespaces: metadata.bool(&key("remove_extra_whitespaces"))?,
    })
}

fn end_tokens(tokenizer: &GgufTokenizer) -> Vec<u32> {
    let mut ids = EndTokens::default();
    ids.extend([tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.eot_token_id, tokenizer.eom_token_id]);
    let tokens = tokenizer.tokens.iter().zip(&tokenizer.token_types).zip(0..);
    ids.extend(tokens.filter(|((token, ty), _)| **ty == CONTROL && is_end_name(token)).map(|(_, id)| Some(id)));
    ids.into_sorted()
}

fn missing(key: &str) -> Error {
    Error::new(ErrorCode::BadModelFile, format!("the metadata key {key:?} is missing; convert the model again"))
}

fn unsupported(what: &str) -> Error {
    Error::new(ErrorCode::UnsupportedModel, format!("{what}, which this version cannot run"))
}
