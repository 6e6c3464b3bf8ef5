//! A report on a model file: what it holds, and whether it can be run.
//!
//! Works on every file whose headers can be read, also of families and quantisations that cannot be run; the verdict is
//! then the error that loading it would give, so the two never disagree.

use std::collections::BTreeMap;
use std::fmt;

use super::checkpoint::{Checkpoint, TensorEntry};
use super::config::ModelConfig;
use super::container::Container;
use super::source::ByteSource;
use super::tensor_type::TensorType;
use super::weights::layouts;
use crate::error::Result;

/// What a model file holds.
#[derive(Debug)]
pub struct Report {
    /// The file format, as in `"GGUF v3"` or `"safetensors"`.
    pub format: String,
    /// The family the file says it is of.
    pub architecture: Option<String>,
    /// Settings in the file's order, each on one line: GGUF metadata, or `config.json`.
    pub metadata: Vec<(String, String)>,
    /// The tensors by their names in the file.
    pub tensors: BTreeMap<String, TensorEntry>,
    /// The model as it would run, or why it cannot.
    pub verdict: Result<Runnable>,
}

/// A model that can be run.
#[derive(Debug)]
pub struct Runnable {
    /// Its name.
    pub name: String,
    /// Its configuration.
    pub config: ModelConfig,
    /// Weights, a tied output matrix not counted twice.
    pub parameters: u64,
    /// Bytes of its weights in the files.
    pub weight_bytes: u64,
    /// Bytes of its matrices in GPU memory.
    pub packed_bytes: u64,
    /// Whether it has a chat template.
    pub has_chat_template: bool,
}

/// The tensors of one type.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct TypeTotal {
    /// How many there are.
    pub tensors: usize,
    /// Values in all of them.
    pub values: u64,
    /// Bytes in all of them.
    pub bytes: u64,
}

/// Reads the headers of a model and judges it.
///
/// # Errors
/// Only when the headers themselves cannot be read: `BadModelFile`, `TruncatedFile`, `UnsupportedModel` for another version
/// of the format, and whatever the source reports.
pub async fn inspect(source: &impl ByteSource) -> Result<Report> {
    let container = Container::open(source).await?;
    let (format, architecture, metadata, tensors) = match &container {
        Container::Gguf(header) => {
            let entries = header.metadata.entries().iter();
            (
                format!("GGUF v{}", header.version),
                header.metadata.string("general.architecture")?,
                entries.map(|(key, value)| (key.clone(), value.to_string())).collect(),
                header.tensors.clone(),
            )
        }
        Container::Folder { json, tensors } => {
            let settings: serde_json::Map<String, serde_json::Value> =
                serde_json::from_slice(&json.config).unwrap_or_default();
            let architecture = settings.get("model_type").and_then(|name| name.as_str()).map(str::to_owned);
            let lines = settings.into_iter().map(|(key, value)| (key, value.to_string())).collect();
            ("safetensors".to_owned(), architecture, lines, tensors.clone())
        }
    };
    let verdict = match Checkpoint::from_container(source, container).await {
        Ok(checkpoint) => Runnable::new(checkpoint),
        Err(error) => Err(error),
    };
    Ok(Report { format, architecture, metadata, tensors, verdict })
}

impl Runnable {
    fn new(checkpoint: Checkpoint) -> Result<Self> {
        Ok(Self {
            parameters: checkpoint.parameters(),
            weight_bytes: checkpoint.weight_bytes(),
            packed_bytes: layouts(&checkpoint)?.iter().map(|(_, layout)| layout.bytes()).sum(),
            has_chat_template: checkpoint.chat_template.is_some(),
            name: checkpoint.name,
            config: checkpoint.config,
        })
    }
}

impl Report {
    /// The tensors counted by type.
    pub fn totals(&self) -> BTreeMap<TensorType, TypeTotal> {
        let mut totals: BTreeMap<_, TypeTotal> = BTreeMap::new();
        for tensor in self.tensors.values() {
            let total = totals.entry(tensor.tensor_type).or_default();
            total.tensors += 1;
            total.values = total.values.saturating_add(tensor.values());
            total.bytes = total.bytes.saturating_add(tensor.bytes);
        }
        totals
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}, architecture {}", self.format, self.architecture.as_deref().unwrap_or("not given"))?;
        writeln!(f, "\nmetadata")?;
        for (key, value) in &self.metadata {
            writeln!(f, "  {key:<44} {value}")?;
        }
        writeln!(f, "\ntensors")?;
        for (name, tensor) in &self.tensors {
            let shape = format!("{:?}", tensor.shape);
            writeln!(f, "  {name:<48} {:<8} {shape:<18} {:>12} bytes", tensor.tensor_type, tensor.bytes)?;
        }
        writeln!(f, "\ntotals")?;
        for (tensor_type, total) in self.totals() {
            let TypeTotal { tensors, values, bytes } = total;
            writeln!(f, "  {tensor_type:<8} {tensors:>5} tensors {values:>14} values {bytes:>14} bytes")?;
        }
        match &self.verdict {
            Ok(model) => write!(f, "\nsupported: yes\n{model}"),
            Err(error) => writeln!(f, "\nsupported: no ({})\n  {error}", error.code()),
        }
    }
}

impl fmt::Display for Runnable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let config = &self.config;
        let yes_no = |yes: bool| if yes { "yes" } else { "no" };
        let lines = [
            ("name", self.name.clone()),
            ("parameters", self.parameters.to_string()),
            ("layers", config.num_hidden_layers.to_string()),
            ("hidden size", config.hidden_size.to_string()),
            ("feed-forward size", config.intermediate_size.to_string()),
            ("heads", format!("{} of {}", config.num_attention_heads, config.head_dim)),
            ("key and value heads", config.num_key_value_heads.to_string()),
            ("vocabulary", config.vocab_size.to_string()),
            ("context", config.max_position_embeddings.to_string()),
            ("rotary base", config.rope_theta.to_string()),
            (
                "rotary scaling",
                config.rope_scaling.as_ref().map_or("none".to_owned(), |scaling| format!("{scaling:?}")),
            ),
            ("tied embeddings", yes_no(config.tie_word_embeddings).to_owned()),
            ("bias on q, k, v", yes_no(config.attention_bias).to_owned()),
            ("begins with token", config.bos_token_id.map_or("none".to_owned(), |id| id.to_string())),
            ("ends with tokens", format!("{:?}", config.eos_token_ids)),
            ("chat template", yes_no(self.has_chat_template).to_owned()),
            ("weights in the file", format!("{} bytes", self.weight_bytes)),
            ("weights in GPU memory", format!("{} bytes", self.packed_bytes)),
        ];
        lines.iter().try_for_each(|(name, value)| writeln!(f, "  {name:<24} {value}"))
    }
}
