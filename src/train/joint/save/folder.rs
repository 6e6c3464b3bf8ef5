//! A folder as published on a hub: configuration and tokenizer as they were, the weights in one file.

use std::fs;
use std::path::Path;

use pollster::block_on;
use safetensors::Dtype;
use serde_json::{Map, Value};

use super::{Saved, encode, entry, failed, stored_type};
use crate::error::{Error, ErrorCode, Result};
use crate::model::source::read_file;
use crate::model::{ByteSource, Checkpoint, TensorType};
use crate::train::joint::backbone::Backbone;
use crate::train::tensor_file::{Stored, TensorFile};

/// Files that are taken over as they are.
const COPIED: [&str; 11] = [
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "tokenizer.model",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "chat_template.jinja",
    "LICENSE",
    "NOTICE",
];
/// Keys of the configuration that name the type of the weights.
const TYPE_KEYS: [&str; 2] = ["dtype", "torch_dtype"];

pub(super) fn save(
    source: &impl ByteSource,
    backbone: &Backbone,
    (checkpoint, store): (&Checkpoint, Option<TensorType>),
    out: &Path,
) -> Result<Saved> {
    let mut file = TensorFile::default();
    file.metadata.insert("format".to_owned(), "pt".to_owned());
    let mut written = None;
    for name in backbone.names() {
        let entry = entry(checkpoint, name)?;
        let ty = store.unwrap_or_else(|| stored_type(entry, None));
        let (dtype, _) = names(ty);
        file.tensors.insert(
            name.to_owned(),
            Stored { dtype, shape: entry.shape.clone(), data: encode(&backbone.merged(name)?, ty)? },
        );
        if entry.shape.len() > 1 {
            written = Some(ty);
        }
    }
    let write = |name: &str, bytes: &[u8]| {
        let path = out.join(name);
        fs::write(&path, bytes).map_err(|error| failed(&path, &error))
    };
    for (number, copied) in source.files().iter().enumerate() {
        let name = copied.base_name();
        if COPIED.contains(&name) {
            write(name, &block_on(read_file(source, number))?)?;
        } else if name == "config.json" {
            write(name, &config(&block_on(read_file(source, number))?, written)?)?;
        }
    }
    file.write(&out.join("model.safetensors"))?;
    Ok(Saved { model: out.to_owned(), heads: out.join("heads.safetensors") })
}

/// The name of a type in safetensors and in a configuration.
fn names(ty: TensorType) -> (Dtype, &'static str) {
    match ty {
        TensorType::F32 => (Dtype::F32, "float32"),
        TensorType::Bf16 => (Dtype::BF16, "bfloat16"),
        _ => (Dtype::F16, "float16"),
    }
}

/// The configuration, with the type that weights have now.
fn config(bytes: &[u8], written: Option<TensorType>) -> Result<Vec<u8>> {
    let bad = |error: serde_json::Error| Error::new(ErrorCode::BadModelFile, format!("config.json: {error}"));
    let mut config: Map<String, Value> = serde_json::from_slice(bytes).map_err(bad)?;
    if let Some(ty) = written {
        for key in TYPE_KEYS {
            if let Some(value) = config.get_mut(key) {
                *value = names(ty).1.into();
            }
        }
    }
    let mut text = serde_json::to_vec_pretty(&config).map_err(bad)?;
    text.push(b'\n');
    Ok(text)
}
