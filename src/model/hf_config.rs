//! The JSON files of a Hugging Face folder: what `config.json` and its companions say about the model.
//!
//! Every spelling in circulation is read: `rope_theta` or `rope_parameters`, `type` or `rope_type`, one end token or a
//! list, a special token as a text or as an object, the chat template in a file of its own or in
//! `tokenizer_config.json`. Unknown keys are ignored, since every library writes its own; the keys in `RawConfig` that
//! only exist to be refused are those that change the arithmetic.

use serde::Deserialize;
use serde::de::DeserializeOwned;

use super::architecture::Architecture;
use super::config::{ModelConfig, RopeScaling};
use super::end_tokens::{EndTokens, is_end_name};
use super::tokenizer_files::JsonTokenizer;
use crate::error::{Error, ErrorCode, Result};

/// The JSON files of a folder, each as its bytes.
#[derive(Debug, Default)]
pub(super) struct JsonFiles {
    pub config: Vec<u8>,
    pub generation_config: Option<Vec<u8>>,
    pub tokenizer: Option<Vec<u8>>,
    pub tokenizer_config: Option<Vec<u8>>,
    pub chat_template: Option<Vec<u8>>,
}

/// What the JSON files say.
#[derive(Debug)]
pub(super) struct Description {
    pub config: ModelConfig,
    pub name: Option<String>,
    pub tokenizer: JsonTokenizer,
    pub chat_template: Option<String>,
}

/// The part of `config.json` that every model has in the same form.
#[derive(Debug, Deserialize)]
struct RawKind {
    model_type: Option<String>,
    #[serde(default)]
    architectures: Vec<String>,
}

/// `config.json` of the families that can be run, as far as it matters.
#[derive(Debug, Deserialize)]
struct RawConfig {
    #[serde(rename = "_name_or_path")]
    name: Option<String>,
    hidden_size: Option<usize>,
    intermediate_size: Option<usize>,
    num_hidden_layers: Option<usize>,
    num_attention_heads: Option<usize>,
    num_key_value_heads: Option<usize>,
    head_dim: Option<usize>,
    vocab_size: Option<usize>,
    max_position_embeddings: Option<usize>,
    rms_norm_eps: Option<f64>,
    rope_theta: Option<f64>,
    rope_scaling: Option<RawRope>,
    rope_parameters: Option<RawRope>,
    tie_word_embeddings: Option<bool>,
    attention_bias: Option<bool>,
    eos_token_id: Option<Ids>,
    bos_token_id: Option<Ids>,
    hidden_act: Option<String>,
    mlp_bias: Option<bool>,
    partial_rotary_factor: Option<f64>,
    use_sliding_window: Option<bool>,
    quantization_config: Option<RawQuantization>,
}

/// `rope_scaling`, or `rope_parameters` of newer files, which also holds the base.
#[derive(Debug, Default, Deserialize)]
struct RawRope {
    rope_type: Option<String>,
    #[serde(rename = "type")]
    old_rope_type: Option<String>,
    rope_theta: Option<f64>,
    partial_rotary_factor: Option<f64>,
    factor: Option<f64>,
    low_freq_factor: Option<f64>,
    high_freq_factor: Option<f64>,
    original_max_position_embeddings: Option<usize>,
}

#[derive(Debug, Deserialize)]
struct RawQuantization {
    quant_method: Option<String>,
}

/// One token id or several; negative ones mean "none".
#[derive(Debug, Clone, Deserialize)]
#[serde(untagged)]
enum Ids {
    One(i64),
    Many(Vec<i64>),
}

impl Ids {
    fn valid(&self) -> Vec<Option<u32>> {
        let ids = match self {
            Self::One(id) => std::slice::from_ref(id),
            Self::Many(ids) => ids,
        };
        ids.iter().map(|&id| u32::try_from(id).ok()).collect()
    }
}

#[derive(Debug, Default, Deserialize)]
struct RawGenerationConfig {
    eos_token_id: Option<Ids>,
    bos_token_id: Option<Ids>,
}

#[derive(Debug, Default, Deserialize)]
struct RawTokenizerConfig {
    add_bos_token: Option<bool>,
    bos_token: Option<SpecialToken>,
    eos_token: Option<SpecialToken>,
    chat_template: Option<RawTemplate>,
}

#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum SpecialToken {
    Text(String),
    Object { content: String },
}

#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum RawTemplate {
    One(String),
    Named(Vec<NamedTemplate>),
}

#[derive(Debug, Deserialize)]
struct NamedTemplate {
    name: String,
    template: String,
}

/// `tokenizer.json`, of which only the added tokens are looked at here.
#[derive(Debug, Deserialize)]
struct RawTokenizer {
    #[serde(default)]
    added_tokens: Vec<AddedToken>,
}

#[derive(Debug, Deserialize)]
struct AddedToken {
    id: u32,
    content: String,
    #[serde(default)]
    special: bool,
}

/// Reads the JSON files; `has_lm_head` says whether the weights include an output matrix of their own.
///
/// # Errors
/// `BadModelFile` and `BadTokenizer` for files that are missing or do not parse; `UnsupportedModel` for an architecture or
/// setting that cannot be run.
pub(super) fn describe(files: JsonFiles, has_lm_head: bool) -> Result<Description> {
    let architecture = architecture(&parse("config.json", &files.config, ErrorCode::BadModelFile)?)?;
    let raw: RawConfig = parse("config.json", &files.config, ErrorCode::BadModelFile)?;
    let generation: RawGenerationConfig = match &files.generation_config {
        Some(bytes) => parse("generation_config.json", bytes, ErrorCode::BadModelFile)?,
        None => RawGenerationConfig::default(),
    };
    let tokenizer_json = files.tokenizer.ok_or_else(|| {
        Error::new(
            ErrorCode::BadTokenizer,
            "the folder has no tokenizer.json; save the tokenizer in that form (AutoTokenizer … save_pretrained)",
        )
    })?;
    let tokenizer: RawTokenizer = parse("tokenizer.json", &tokenizer_json, ErrorCode::BadTokenizer)?;
    let tokenizer_config: RawTokenizerConfig = match &files.tokenizer_config {
        Some(bytes) => parse("tokenizer_config.json", bytes, ErrorCode::BadTokenizer)?,
        None => RawTokenizerConfig::default(),
    };
    let [bos_token, eos_token] = [tokenizer_config.bos_token, tokenizer_config.eos_token].map(|token| match token? {
        SpecialToken::Text(text) | SpecialToken::Object { content: text } => Some(text),
    });
    let special_id = |token: &Option<String>| {
        let token = token.as_ref()?;
        tokenizer.added_tokens.iter().find(|added| added.special && added.content == *token).map(|added| added.id)
    };

    let configured_bos = [&raw.bos_token_id, &generation.bos_token_id].into_iter().flatten().flat_map(Ids::valid);
    let bos_token_id = configured_bos.flatten().next().or_else(|| special_id(&bos_token));
    let mut ends = EndTokens::default();
    ends.extend([&raw.eos_token_id, &generation.eos_token_id].into_iter().flatten().flat_map(Ids::valid));
    ends.extend([bos_token_id, special_id(&eos_token)]);
    let vocab_size = required("vocab_size", raw.vocab_size)?;
    // A tokenizer may know more tokens than the model has logits for; those cannot be produced.
    let named = tokenizer.added_tokens.iter().filter(|token| token.special && is_end_name(&token.content));
    ends.extend(named.map(|token| Some(token.id).filter(|&id| (id as usize) < vocab_size)));

    let name = raw.name.clone().filter(|name| !name.is_empty());
    let mut config = model_config(architecture, &raw, has_lm_head)?;
    config.eos_token_ids = ends.into_sorted();
    config.bos_token_id = bos_token_id;
    let chat_template = chat_template(files.chat_template, tokenizer_config.chat_template)?;
    let tokenizer = JsonTokenizer { tokenizer_json, add_bos: tokenizer_config.add_bos_token, bos_token, eos_token };
    Ok(Description { config, name, tokenizer, chat_template })
}

fn parse<T: DeserializeOwned>(name: &str, bytes: &[u8], code: ErrorCode) -> Result<T> {
    serde_json::from_slice(bytes)
        .map_err(|error| Error::new(code, format!("reading {name}: {error}; the file is damaged")))
}

fn architecture(raw: &RawKind) -> Result<Architecture> {
    let Some(model_type) = &raw.model_type else {
        return Err(Error::new(
            ErrorCode::BadModelFile,
            "config.json has no model_type; it is no model's configuration",
        ));
    };
    let architecture = Architecture::from_name(model_type)?;
    let class = architecture.traits().hf_class;
    if raw.architectures.is_empty() || raw.architectures.iter().any(|found| found == class) {
        return Ok(architecture);
    }
    Err(unsupported(format!("config.json is for {}, expected {class}", raw.architectures.join(", "))))
}

fn model_config(architecture: Architecture, raw: &RawConfig, has_lm_head: bool) -> Result<ModelConfig> {
    refuse_unsupported(raw)?;
    let hidden_size = required("hidden_size", raw.hidden_size)?;
    let num_attention_heads = required("num_attention_heads", raw.num_attention_heads)?;
    let rope = raw.rope_parameters.as_ref().or(raw.rope_scaling.as_ref());
    let rope_theta = rope.and_then(|rope| rope.rope_theta).or(raw.rope_theta);
    Ok(ModelConfig {
        architecture,
        hidden_size,
        intermediate_size: required("intermediate_size", raw.intermediate_size)?,
        num_hidden_layers: required("num_hidden_layers", raw.num_hidden_layers)?,
        num_attention_heads,
        num_key_value_heads: raw.num_key_value_heads.unwrap_or(num_attention_heads),
        head_dim: raw.head_dim.unwrap_or_else(|| hidden_size.checked_div(num_attention_heads).unwrap_or(0)),
        vocab_size: required("vocab_size", raw.vocab_size)?,
        max_position_embeddings: required("max_position_embeddings", raw.max_position_embeddings)?,
        rms_norm_eps: required("rms_norm_eps", raw.rms_norm_eps)? as f32,
        rope_theta: rope_theta.unwrap_or(10_000.0) as f32,
        rope_scaling: rope.map_or(Ok(None), |rope| rope_scaling(rope, raw.max_position_embeddings))?,
        // Left unsaid, it follows from the weights; said to be untied, a missing output matrix is an error.
        tie_word_embeddings: raw.tie_word_embeddings.unwrap_or(!has_lm_head),
        attention_bias: raw.attention_bias.unwrap_or(architecture.traits().attention_bias),
        eos_token_ids: Vec::new(),
        bos_token_id: None,
    })
}

fn refuse_unsupported(raw: &RawConfig) -> Result<()> {
    if let Some(activation) = raw.hidden_act.as_deref().filter(|&activation| activation != "silu") {
        return Err(unsupported(format!("hidden_act is {activation:?}, expected \"silu\"")));
    }
    if raw.mlp_bias == Some(true) {
        return Err(unsupported("the feed-forward layers have biases (mlp_bias)".to_owned()));
    }
    if raw.use_sliding_window == Some(true) {
        return Err(unsupported("attention sees a sliding window (use_sliding_window)".to_owned()));
    }
    let in_rope = raw.rope_parameters.as_ref().and_then(|rope| rope.partial_rotary_factor);
    if let Some(part) = raw.partial_rotary_factor.or(in_rope).filter(|&part| part != 1.0) {
        return Err(unsupported(format!("the rotary embedding covers {part} of each head, expected all of it")));
    }
    if let Some(quantization) = &raw.quantization_config {
        let method = quantization.quant_method.as_deref().unwrap_or("an unnamed method");
        return Err(unsupported(format!(
            "the safetensors are quantised with {method}, expected plain F32, F16 or BF16 (a GGUF file may be quantised)"
        )));
    }
    Ok(())
}

fn rope_scaling(rope: &RawRope, context: Option<usize>) -> Result<Option<RopeScaling>> {
    let number =
        |name: &str, value: Option<f64>| required(&format!("rope_scaling.{name}"), value).map(|value| value as f32);
    match rope.rope_type.as_ref().or(rope.old_rope_type.as_ref()).map(String::as_str) {
        None | Some("default") => Ok(None),
        Some("linear") => Ok(Some(RopeScaling::Linear { factor: number("factor", rope.factor)? })),
        Some("llama3") => Ok(Some(RopeScaling::Llama3 {
            factor: number("factor", rope.factor)?,
            low_freq_factor: number("low_freq_factor", rope.low_freq_factor)?,
            high_freq_factor: number("high_freq_factor", rope.high_freq_factor)?,
            original_max_position_embeddings: required(
                "rope_scaling.original_max_position_embeddings",
                rope.original_max_position_embeddings.or(context),
            )?,
        })),
        Some(other) => {
            Err(unsupported(format!("the rope scaling is {other:?}, expected \"default\", \"linear\" or \"llama3\"")))
        }
    }
}

fn chat_template(file: Option<Vec<u8>>, configured: Option<RawTemplate>) -> Result<Option<String>> {
    if let Some(bytes) = file {
        let text = String::from_utf8(bytes);
        return text.map(Some).map_err(|_| Error::new(ErrorCode::BadChatTemplate, "chat_template.jinja is not UTF-8"));
    }
    Ok(match configured {
        None => None,
        Some(RawTemplate::One(template)) => Some(template),
        Some(RawTemplate::Named(templates)) => {
            templates.into_iter().find(|named| named.name == "default").map(|named| named.template)
        }
    })
}

fn required<T>(key: &str, value: Option<T>) -> Result<T> {
    value.ok_or_else(|| Error::new(ErrorCode::BadModelFile, format!("config.json has no {key}, which the model needs")))
}

fn unsupported(what: String) -> Error {
    Error::new(ErrorCode::UnsupportedModel, format!("{what}; this version cannot run the model"))
}
