//! A GGUF file: the metadata byte by byte as they were, tensors in the same order, with new values.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::path::PathBuf;

use pollster::block_on;

use super::{Saved, encode, failed, stored_type};
use crate::error::Result;
use crate::model::gguf::Header;
use crate::model::source::read_exact;
use crate::model::{ByteSource, Checkpoint, TensorEntry, TensorType};
use crate::train::joint::backbone::Backbone;

/// Where a file does not say how its tensors are aligned.
const DEFAULT_ALIGNMENT: u64 = 32;

/// A tensor on its way.
struct Outgoing<'h> {
    name: &'h str,
    entry: &'h TensorEntry,
    /// The canonical name of a weight of the model; others are taken over as they are.
    weight: Option<String>,
    ty: TensorType,
    bytes: u64,
}

pub(super) fn save(
    source: &impl ByteSource,
    backbone: &Backbone,
    (checkpoint, store): (&Checkpoint, Option<TensorType>),
    model: PathBuf,
) -> Result<Saved> {
    let file = checkpoint.tensors.values().next().map_or(0, |entry| entry.file);
    let header = block_on(Header::read(source, file))?;
    let tensors = outgoing(&header, checkpoint, store);
    let beside = model.with_extension("part");
    let head = head(source, &header, &tensors)?;
    let alignment = alignment(&header)?;
    let write = |error: std::io::Error| failed(&beside, &error);
    let mut writer = BufWriter::new(File::create(&beside).map_err(write)?);
    writer.write_all(&head).map_err(write)?;
    for Outgoing { entry, weight, ty, .. } in &tensors {
        let mut data = match weight {
            Some(weight) => encode(&backbone.merged(weight)?, *ty)?,
            None => raw(source, entry)?,
        };
        data.resize((data.len() as u64).next_multiple_of(alignment) as usize, 0);
        writer.write_all(&data).map_err(write)?;
    }
    writer.flush().map_err(write)?;
    fs::rename(&beside, &model).map_err(|error| failed(&model, &error))?;
    Ok(Saved { heads: model.with_extension("heads.safetensors"), model })
}

/// The tensors of the file in the order of their data.
fn outgoing<'h>(header: &'h Header, checkpoint: &Checkpoint, store: Option<TensorType>) -> Vec<Outgoing<'h>> {
    let config = &checkpoint.config;
    let mut names = BTreeMap::new();
    for rule in config.architecture.traits().tensors.iter().filter(|rule| rule.role.is_in(config)) {
        let layers = 0..rule.count(config.num_hidden_layers);
        names.extend(layers.map(|layer| (rule.gguf_name_in(layer), rule.name_in(layer))));
    }
    let mut tensors: Vec<Outgoing<'h>> = header
        .tensors
        .iter()
        .map(|(name, entry)| {
            let weight = names.remove(name);
            let ty = if weight.is_some() { stored_type(entry, store) } else { entry.tensor_type };
            let bytes = ty.bytes_for(entry.values()).unwrap_or(entry.bytes);
            Outgoing { name, entry, weight, ty, bytes }
        })
        .collect();
    tensors.sort_by_key(|tensor| tensor.entry.offset);
    tensors
}

fn alignment(header: &Header) -> Result<u64> {
    Ok(header.metadata.unsigned("general.alignment")?.unwrap_or(DEFAULT_ALIGNMENT))
}

fn raw(source: &impl ByteSource, entry: &TensorEntry) -> Result<Vec<u8>> {
    let mut bytes = vec![0; entry.bytes as usize];
    block_on(read_exact(source, entry.file, entry.offset, &mut bytes))?;
    Ok(bytes)
}

/// Everything before the data.
fn head(source: &impl ByteSource, header: &Header, tensors: &[Outgoing<'_>]) -> Result<Vec<u8>> {
    let range = &header.metadata_range;
    let mut metadata = vec![0; (range.end - range.start) as usize];
    block_on(read_exact(source, header.file, range.start, &mut metadata))?;
    let matrices = tensors.iter().filter(|tensor| tensor.weight.is_some() && tensor.entry.shape.len() > 1);
    if let Some(ty) = most(matrices.map(|tensor| (tensor.ty, tensor.entry.values()))) {
        set_file_type(&mut metadata, ty);
    }
    let mut head = b"GGUF".to_vec();
    head.extend(header.version.to_le_bytes());
    head.extend((tensors.len() as u64).to_le_bytes());
    head.extend((header.metadata.entries().len() as u64).to_le_bytes());
    head.extend(metadata);
    let (alignment, mut offset) = (alignment(header)?, 0u64);
    for Outgoing { name, entry, ty, bytes, .. } in tensors {
        head.extend((name.len() as u64).to_le_bytes());
        head.extend(name.as_bytes());
        head.extend((entry.shape.len() as u32).to_le_bytes());
        head.extend(entry.shape.iter().rev().flat_map(|&size| (size as u64).to_le_bytes()));
        head.extend(ty.ggml_id().to_le_bytes());
        head.extend(offset.to_le_bytes());
        offset += bytes.next_multiple_of(alignment);
    }
    head.resize((head.len() as u64).next_multiple_of(alignment) as usize, 0);
    Ok(head)
}

/// The type that most values have.
fn most(tensors: impl Iterator<Item = (TensorType, u64)>) -> Option<TensorType> {
    let mut counts = BTreeMap::new();
    tensors.for_each(|(ty, values)| *counts.entry(ty).or_insert(0) += values);
    counts.into_iter().max_by_key(|&(_, values)| values).map(|(ty, _)| ty)
}

/// Makes the metadata name the type that most weights have now, where they name one (`llama_ftype` of llama.cpp).
fn set_file_type(metadata: &mut [u8], ty: TensorType) {
    const KEY: &[u8] = b"general.file_type";
    const U32: u32 = 4;
    let number: u32 = match ty {
        TensorType::F32 => 0,
        TensorType::F16 => 1,
        TensorType::Q4_0 => 2,
        TensorType::Q4_1 => 3,
        TensorType::Q8_0 => 7,
        TensorType::Bf16 => 32,
        _ => return,
    };
    let entry = [&(KEY.len() as u64).to_le_bytes()[..], KEY, &U32.to_le_bytes()].concat();
    if let Some(at) = metadata.windows(entry.len()).position(|window| window == entry)
        && let Some(value) = metadata.get_mut(at + entry.len()..at + entry.len() + 4)
    {
        value.copy_from_slice(&number.to_le_bytes());
    }
}
