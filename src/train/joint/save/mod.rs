//! A trained model in files, in the format that it was read from: a GGUF file, or a folder with safetensors.

mod folder;
mod gguf_file;

use std::fs;
use std::path::{Path, PathBuf};

use candle_core::{Device, Tensor};
use half::bf16;

use super::backbone::Backbone;
use crate::error::{Error, ErrorCode, Result};
use crate::model::quantize::quantize;
use crate::model::{ByteSource, Checkpoint, TensorEntry, TensorType, TokenizerFiles};
use crate::train::from_candle;

/// Types that values can be written as.
const WRITTEN: [TensorType; 6] =
    [TensorType::F32, TensorType::F16, TensorType::Bf16, TensorType::Q8_0, TensorType::Q4_0, TensorType::Q4_1];

/// Files that were written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Saved {
    /// The GGUF file, or the folder.
    pub model: PathBuf,
    /// Where its draft heads are looked for.
    pub heads: PathBuf,
}

/// Writes a model, read from `source` and then trained, to a folder, or to the GGUF file that `out` names. Without `store` every tensor keeps its type, or becomes F16 where
/// nothing is written as that.
///
/// # Errors
/// `InvalidOption` when nothing is written as `store`; `LoadFailed` when the disk is full.
pub fn save(
    (checkpoint, source): (&Checkpoint, &impl ByteSource),
    backbone: &Backbone,
    store: Option<TensorType>,
    out: &Path,
) -> Result<Saved> {
    let of_folder = matches!(checkpoint.tokenizer, TokenizerFiles::Json(_));
    let fits = |store: &TensorType| WRITTEN.contains(store) && (store.is_float() || !of_folder);
    if let Some(store) = store.filter(|store| !fits(store)) {
        let place = if of_folder { "a folder with safetensors" } else { "a GGUF file" };
        return Err(Error::new(
            ErrorCode::InvalidOption,
            format!("weights of {place} cannot be written as {store}; use F16"),
        ));
    }
    let is_file = out.extension().is_some_and(|extension| extension == "gguf");
    if of_folder && is_file {
        return Err(Error::new(
            ErrorCode::InvalidOption,
            format!(
                "{}: a folder with safetensors is written as one, not as a GGUF file; name a folder",
                out.display()
            ),
        ));
    }
    let folder = if is_file { out.parent().unwrap_or(out) } else { out };
    fs::create_dir_all(folder).map_err(|error| failed(folder, &error))?;
    if of_folder {
        folder::save(source, backbone, (checkpoint, store), out)
    } else {
        let file = checkpoint.tensors.values().next().map_or(0, |entry| entry.file);
        let same_name = || out.join(source.files()[file].base_name()).with_extension("gguf");
        let model = if is_file { out.to_owned() } else { same_name() };
        gguf_file::save(source, backbone, (checkpoint, store), model)
    }
}

/// The type in which a tensor is written: vectors keep theirs where that is plain, since they are small.
fn stored_type(entry: &TensorEntry, store: Option<TensorType>) -> TensorType {
    if entry.shape.len() == 1 && entry.tensor_type.is_float() {
        return entry.tensor_type;
    }
    let wanted = store.unwrap_or(entry.tensor_type);
    let row = entry.shape.last().copied().unwrap_or(1);
    let fits = WRITTEN.contains(&wanted) && wanted.bytes_for(row as u64).is_some();
    if fits { wanted } else { TensorType::F16 }
}

/// The bytes of a tensor.
fn encode(tensor: &Tensor, ty: TensorType) -> Result<Vec<u8>> {
    let values = || tensor.to_device(&Device::Cpu)?.flatten_all()?.to_vec1::<f32>();
    let values = values().map_err(from_candle)?;
    if ty == TensorType::Bf16 {
        return Ok(values.iter().flat_map(|&value| bf16::from_f32(value).to_le_bytes()).collect());
    }
    let mut bytes = vec![0; ty.bytes_for(values.len() as u64).unwrap_or(0) as usize];
    quantize(ty, &values, &mut bytes)?;
    Ok(bytes)
}

fn entry<'c>(checkpoint: &'c Checkpoint, name: &str) -> Result<&'c TensorEntry> {
    let missing = || Error::new(ErrorCode::Internal, format!("{name} was trained, but not read"));
    checkpoint.tensors.get(name).ok_or_else(missing)
}

fn failed(path: &Path, error: &std::io::Error) -> Error {
    Error::new(ErrorCode::LoadFailed, format!("writing {}: {error}", path.display()))
}
