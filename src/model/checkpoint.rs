//! A model in files, understood: its configuration, its tokenizer, and where each tensor lies.
//!
//! [`Checkpoint::open`] reads headers only and checks everything that can be checked without the weights, so that a model
//! which cannot run is refused before its first megabyte: every tensor of the family is there, has the shape that the
//! configuration demands and a type that can be unpacked, and none is left over. Names are Hugging Face's whatever the
//! file; the weights themselves are read by [`stream_weights`](super::weights::stream_weights).

use std::collections::BTreeMap;

use super::architecture::{Role, RotaryOrder, TensorRule, Traits, is_derived};
use super::config::{ModelConfig, RopeScaling};
use super::container::Container;
use super::gguf;
use super::heads::is_head_tensor;
use super::hf_config;
use super::quantize::dequantize;
use super::source::{allocate, read_exact};
use super::tensor_type::TensorType;
use crate::error::{Error, ErrorCode, Result};

pub use super::source::{ByteSource, FileEntry, MemorySource};
pub use super::tokenizer_files::{GgufTokenizer, JsonTokenizer, TokenizerFiles};

/// Where one tensor lies.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TensorEntry {
    /// How its values are stored.
    pub tensor_type: TensorType,
    /// Its shape, slowest axis first.
    pub shape: Vec<usize>,
    /// The number of its file in the source.
    pub file: usize,
    /// Offset of its first byte in the file.
    pub offset: u64,
    /// Its length in bytes; 0 for a type this version does not know.
    pub bytes: u64,
}

impl TensorEntry {
    /// Number of values.
    pub fn values(&self) -> u64 {
        self.shape.iter().fold(1, |values: u64, &size| values.saturating_mul(size as u64))
    }
}

/// A model in files.
#[derive(Debug)]
pub struct Checkpoint {
    /// What the model is.
    pub config: ModelConfig,
    /// The name the model gives itself, or that of its file.
    pub name: String,
    /// The file format, as in `"GGUF v3"` or `"safetensors"`.
    pub format: String,
    /// What the files say about the tokenizer.
    pub tokenizer: TokenizerFiles,
    /// The source of the chat template.
    pub chat_template: Option<String>,
    /// The text of the token that begins a text, for the chat template.
    pub bos_text: Option<String>,
    /// The text of the token that ends a text, for the chat template.
    pub eos_text: Option<String>,
    /// The tensors that the model uses, by canonical name.
    pub tensors: BTreeMap<String, TensorEntry>,
    /// The order of q and k rows in the file.
    pub rotary_order: RotaryOrder,
}

impl Checkpoint {
    /// Opens one `.gguf` file, or a folder with `config.json`, safetensors and `tokenizer.json`.
    ///
    /// # Errors
    /// `BadModelFile` and `TruncatedFile` for damaged files, `UnsupportedModel` for what cannot be run, `MissingTensor` and
    /// `ShapeMismatch` for weights that contradict the configuration, `BadTokenizer` when there is no tokenizer, and
    /// whatever the source reports.
    pub async fn open(source: &impl ByteSource) -> Result<Self> {
        let container = Container::open(source).await?;
        Self::from_container(source, container).await
    }

    pub(super) async fn from_container(source: &impl ByteSource, container: Container) -> Result<Self> {
        match container {
            Container::Gguf(header) => Self::from_gguf(source, header).await,
            Container::Folder { json, tensors } => Self::from_folder(json, tensors),
        }
    }

    async fn from_gguf(source: &impl ByteSource, header: gguf::Header) -> Result<Self> {
        let gguf::Header { file, version, mut metadata, mut tensors, .. } = header;
        gguf::architecture(&metadata)?; // before anything a foreign family may not have
        let tokenizer = gguf::tokenizer(&mut metadata)?;
        let mut config = gguf::config(&metadata, &tokenizer, &tensors)?;
        if let Some(factors) = tensors.remove("rope_freqs.weight") {
            if config.rope_scaling.is_some() {
                return Err(Error::new(
                    ErrorCode::UnsupportedModel,
                    "the file has both rope_freqs.weight and a rope scaling, which this version cannot run together",
                ));
            }
            check_tensor("rope_freqs.weight", &factors, &[config.head_dim / 2])?;
            config.rope_scaling = Some(RopeScaling::Factors(read_vector(source, &factors).await?));
        }
        let token = |id: Option<u32>| tokenizer.tokens.get(id? as usize).cloned();
        let file_name = source.files()[file].base_name();
        let traits = config.architecture.traits();
        Ok(Self {
            tensors: select_tensors(&config, tensors, TensorRule::gguf_name_in)?,
            name: metadata.string("general.name")?.unwrap_or_else(|| file_name.trim_end_matches(".gguf").to_owned()),
            format: format!("GGUF v{version}"),
            chat_template: metadata.string("tokenizer.chat_template")?,
            bos_text: token(tokenizer.bos_token_id),
            eos_text: token(tokenizer.eos_token_id),
            tokenizer: TokenizerFiles::Gguf(tokenizer),
            rotary_order: traits.gguf_rotary_order,
            config,
        })
    }

    fn from_folder(json: hf_config::JsonFiles, mut tensors: BTreeMap<String, TensorEntry>) -> Result<Self> {
        let lm_head = "lm_head.weight";
        let description = hf_config::describe(json, tensors.contains_key(lm_head))?;
        let config = description.config;
        if config.tie_word_embeddings {
            tensors.remove(lm_head); // some writers store the tied matrix a second time
        }
        Ok(Self {
            tensors: select_tensors(&config, tensors, TensorRule::name_in)?,
            name: description.name.unwrap_or_else(|| config.architecture.name().to_owned()),
            format: "safetensors".to_owned(),
            chat_template: description.chat_template,
            bos_text: description.tokenizer.bos_token.clone(),
            eos_text: description.tokenizer.eos_token.clone(),
            tokenizer: TokenizerFiles::Json(description.tokenizer),
            rotary_order: RotaryOrder::Halves,
            config,
        })
    }

    /// The tensor with this role, in `layer` where there is one per layer.
    ///
    /// # Errors
    /// `MissingTensor` when the model has none.
    pub fn tensor(&self, role: Role, layer: usize) -> Result<&TensorEntry> {
        let rule = self.config.architecture.traits().rule(role);
        let name = rule.map(|rule| rule.name_in(layer)).unwrap_or_default();
        let tensor = self.tensors.get(&name);
        tensor
            .ok_or_else(|| Error::new(ErrorCode::MissingTensor, format!("the model has no {role:?} in layer {layer}")))
    }

    /// Number of weights, a tied output matrix not counted twice.
    pub fn parameters(&self) -> u64 {
        self.tensors.values().map(TensorEntry::values).sum()
    }

    /// Bytes of all weights as they are stored.
    pub fn weight_bytes(&self) -> u64 {
        self.tensors.values().map(|tensor| tensor.bytes).sum()
    }

    /// The type in which most of the weights inside the layers are stored: what the model is called after.
    pub fn quantisation(&self) -> TensorType {
        let mut values = BTreeMap::new();
        for (name, tensor) in &self.tensors {
            let in_layer = u64::from(name.contains("layers.")) << 48;
            *values.entry(tensor.tensor_type).or_insert(0) += tensor.values() + in_layer;
        }
        values.into_iter().max_by_key(|&(_, values)| values).map_or(TensorType::F32, |(tensor_type, _)| tensor_type)
    }
}

/// The tensors that the model uses, checked, by canonical name. `file_name` gives a tensor's name in these files.
fn select_tensors(
    config: &ModelConfig,
    mut found: BTreeMap<String, TensorEntry>,
    file_name: impl Fn(&TensorRule, usize) -> String,
) -> Result<BTreeMap<String, TensorEntry>> {
    config.validate()?;
    let traits: &Traits = config.architecture.traits();
    let mut selected = BTreeMap::new();
    for rule in traits.tensors.iter().filter(|rule| rule.role.is_in(config)) {
        let shape = rule.role.shape(config);
        for layer in 0..rule.count(config.num_hidden_layers) {
            let name = file_name(rule, layer);
            let tensor = found.remove(&name).ok_or_else(|| {
                Error::new(
                    ErrorCode::MissingTensor,
                    format!("the tensor {name} is missing, expected {shape:?}; the file is incomplete"),
                )
            })?;
            check_tensor(&name, &tensor, &shape)?;
            selected.insert(rule.name_in(layer), tensor);
        }
    }
    found.retain(|name, _| !is_derived(name) && !is_head_tensor(name));
    if let Some(name) = found.keys().next() {
        return Err(Error::new(
            ErrorCode::UnsupportedModel,
            format!(
                "{} tensors belong to no part of {}, the first of them {name}; this version would compute something else \
                 than the model",
                found.len(),
                traits.name
            ),
        ));
    }
    Ok(selected)
}

fn check_tensor(name: &str, tensor: &TensorEntry, shape: &[usize]) -> Result<()> {
    tensor.tensor_type.require_supported().map_err(|error| error.context(name))?;
    if tensor.shape != shape {
        return Err(Error::new(
            ErrorCode::ShapeMismatch,
            format!("{name}: its shape is {:?}, expected {shape:?} by the configuration", tensor.shape),
        ));
    }
    Ok(())
}

/// Reads a vector and dequantises it.
pub(super) async fn read_vector(source: &impl ByteSource, tensor: &TensorEntry) -> Result<Vec<f32>> {
    let mut bytes = allocate(tensor.bytes, "a vector")?;
    read_exact(source, tensor.file, tensor.offset, &mut bytes).await?;
    let mut values = vec![0.0; tensor.values() as usize];
    dequantize(tensor.tensor_type, &bytes, &mut values)?;
    Ok(values)
}
