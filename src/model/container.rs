//! Which of a source's files are the model, and what their headers hold, before any of it is given a meaning.
//!
//! A source is one `.gguf` file, or a folder as published on a hub: `config.json`, safetensors, tokenizer files, and much
//! that is not looked at. The step exists on its own because `inspect` reports on models that cannot be run.

use std::collections::{BTreeMap, BTreeSet};

use serde::Deserialize;

use super::checkpoint::TensorEntry;
use super::gguf;
use super::heads::is_head_file;
use super::hf_config::JsonFiles;
use super::safetensors;
use super::source::{ByteSource, read_file};
use crate::error::{Error, ErrorCode, Result};

/// The headers of a model.
#[derive(Debug)]
pub(super) enum Container {
    /// A GGUF file.
    Gguf(gguf::Header),
    /// A folder with safetensors; tensors by their names in the files.
    Folder {
        /// The JSON files, as bytes.
        json: JsonFiles,
        /// The tensors of all safetensors files.
        tensors: BTreeMap<String, TensorEntry>,
    },
}

impl Container {
    /// Finds the model among the files and reads its headers.
    ///
    /// # Errors
    /// `BadModelFile` when there is no model, or more than one; otherwise as the readers of the formats.
    pub(super) async fn open(source: &impl ByteSource) -> Result<Self> {
        let files = source.files();
        let named = |name: &str| files.iter().position(|file| file.base_name() == name);
        let ending = |ending: &str| -> Vec<usize> {
            (0..files.len()).filter(|&file| files[file].base_name().ends_with(ending)).collect()
        };
        let ggufs = ending(".gguf");
        let has_safetensors = !ending(".safetensors").is_empty();
        match (named("config.json"), &ggufs[..]) {
            (Some(config), _) if has_safetensors => Self::open_folder(source, config).await,
            (_, &[file]) => Self::open_gguf(source, file).await,
            (_, [_, ..]) => Err(no_model(format!(
                "{} GGUF files were given; choose one ({})",
                ggufs.len(),
                if ggufs.iter().any(|&file| files[file].name.contains("-of-")) {
                    "a model split over several files has to be merged first"
                } else {
                    "they are different models or quantisations"
                }
            ))),
            // A file without a telling name may still be GGUF; its first bytes decide.
            (None, []) if files.len() == 1 && !has_safetensors => Self::open_gguf(source, 0).await,
            (None, []) if has_safetensors => {
                Err(no_model("there are safetensors but no config.json beside them; give the whole folder".to_owned()))
            }
            (Some(_), []) => Err(no_model(
                "there is a config.json but no weights beside it; the weights have to be .safetensors files".to_owned(),
            )),
            _ => Err(no_model(format!(
                "no model among the {} files; expected one .gguf, or config.json with .safetensors",
                files.len()
            ))),
        }
    }

    async fn open_gguf(source: &impl ByteSource, file: usize) -> Result<Self> {
        let header = gguf::Header::read(source, file).await;
        header.map(Self::Gguf).map_err(|error| error.context(&source.files()[file].name))
    }

    async fn open_folder(source: &impl ByteSource, config: usize) -> Result<Self> {
        let json = JsonFiles {
            config: read_file(source, config).await?,
            generation_config: read_named(source, "generation_config.json").await?,
            tokenizer: read_named(source, "tokenizer.json").await?,
            tokenizer_config: read_named(source, "tokenizer_config.json").await?,
            chat_template: read_named(source, "chat_template.jinja").await?,
        };
        let mut tensors = BTreeMap::new();
        for file in weight_files(source).await? {
            safetensors::read_header(source, file, &mut tensors).await?;
        }
        Ok(Self::Folder { json, tensors })
    }
}

async fn read_named(source: &impl ByteSource, name: &str) -> Result<Option<Vec<u8>>> {
    match source.files().iter().position(|file| file.base_name() == name) {
        Some(file) => read_file(source, file).await.map(Some),
        None => Ok(None),
    }
}

#[derive(Deserialize)]
struct WeightIndex {
    weight_map: BTreeMap<String, String>,
}

/// The safetensors files that make up the model: those of the index, else `model.safetensors`, else all there are, since
/// a folder may hold other weights (draft heads, adapters, a second copy) beside a model in one file.
pub(super) async fn weight_files(source: &impl ByteSource) -> Result<BTreeSet<usize>> {
    const INDEX: &str = "model.safetensors.index.json";
    let named = |name: &str| source.files().iter().position(|file| file.base_name() == name);
    if let Some(bytes) = read_named(source, INDEX).await? {
        let index: WeightIndex = serde_json::from_slice(&bytes)
            .map_err(|error| Error::new(ErrorCode::BadModelFile, format!("reading {INDEX}: {error}")))?;
        let names: BTreeSet<_> = index.weight_map.into_values().collect();
        let found = names.iter().map(|name| {
            named(name)
                .ok_or_else(|| Error::new(ErrorCode::LoadFailed, format!("{INDEX} names {name}, which is not there")))
        });
        return found.collect();
    }
    if let Some(file) = named("model.safetensors") {
        return Ok([file].into());
    }
    let is_model = |name: &str| name.ends_with(".safetensors") && !is_head_file(name);
    Ok((0..source.files().len()).filter(|&file| is_model(source.files()[file].base_name())).collect())
}

fn no_model(message: String) -> Error {
    Error::new(ErrorCode::BadModelFile, message)
}
