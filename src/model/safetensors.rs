//! Safetensors files: where each tensor lies, read from the headers alone.
//!
//! The header format is the `safetensors` crate's business, offsets and sizes included; this file fetches the header
//! without the data behind it and brings the tensors of several files together.

use std::collections::BTreeMap;

use ::safetensors::Dtype;
use ::safetensors::tensor::Metadata;

use super::checkpoint::TensorEntry;
use super::source::{ByteSource, allocate, read_exact};
use super::tensor_type::{OtherType, TensorType};
use crate::error::{Error, ErrorCode, Result};

/// The longest header that the format allows, in bytes.
const MAX_HEADER_BYTES: u64 = 100_000_000;
/// Bytes of the header's length, at the start of the file.
const LENGTH_BYTES: u64 = 8;

/// Adds the tensors of file number `file` to `tensors`, and returns what the header says in words (`__metadata__`).
///
/// # Errors
/// `BadModelFile` when the bytes are no safetensors header or a tensor is in two files; `TruncatedFile` when the file is
/// shorter than its header says; and whatever the source reports.
pub async fn read_header(
    source: &impl ByteSource,
    file: usize,
    tensors: &mut BTreeMap<String, TensorEntry>,
) -> Result<BTreeMap<String, String>> {
    let entry = &source.files()[file];
    let bad =
        |what: String| Error::new(ErrorCode::BadModelFile, format!("{}: {what}; the file is damaged", entry.name));
    let mut length = [0; LENGTH_BYTES as usize];
    read_exact(source, file, 0, &mut length).await?;
    let length = u64::from_le_bytes(length);
    if length > MAX_HEADER_BYTES {
        return Err(bad(format!("a safetensors header of {length} bytes, expected at most {MAX_HEADER_BYTES}")));
    }
    let data_start = LENGTH_BYTES + length;
    require_size(&entry.name, entry.size, data_start)?;
    let mut header = allocate(length, &entry.name)?;
    read_exact(source, file, LENGTH_BYTES, &mut header).await?;
    let metadata: Metadata =
        serde_json::from_slice(&header).map_err(|error| bad(format!("no safetensors header: {error}")))?;

    let end = data_start + metadata.data_len() as u64;
    require_size(&entry.name, entry.size, end)?;
    if entry.size > end {
        return Err(bad(format!("{} bytes, expected {end} by its header", entry.size)));
    }
    for (name, info) in metadata.tensors() {
        let (start, end) = info.data_offsets;
        let tensor = TensorEntry {
            tensor_type: tensor_type(info.dtype),
            shape: info.shape.clone(),
            file,
            offset: data_start + start as u64,
            bytes: (end - start) as u64,
        };
        if tensors.insert(name.clone(), tensor).is_some() {
            return Err(bad(format!("the tensor {name:?} is also in another file")));
        }
    }
    Ok(metadata.metadata().clone().into_iter().flatten().collect())
}

fn require_size(name: &str, size: u64, expected: u64) -> Result<()> {
    if size >= expected {
        return Ok(());
    }
    Err(Error::new(
        ErrorCode::TruncatedFile,
        format!("{name}: {size} bytes, expected {expected} by its header; download it again"),
    ))
}

fn tensor_type(dtype: Dtype) -> TensorType {
    let name = match dtype {
        Dtype::F32 => return TensorType::F32,
        Dtype::F16 => return TensorType::F16,
        Dtype::BF16 => return TensorType::Bf16,
        Dtype::BOOL => "BOOL",
        Dtype::U8 => "U8",
        Dtype::I8 => "I8",
        Dtype::U16 => "U16",
        Dtype::I16 => "I16",
        Dtype::U32 => "U32",
        Dtype::I32 => "I32",
        Dtype::U64 => "U64",
        Dtype::I64 => "I64",
        Dtype::F64 => "F64",
        Dtype::C64 => "C64",
        Dtype::F8_E4M3 => "F8_E4M3",
        Dtype::F8_E5M2 => "F8_E5M2",
        _ => "of another kind",
    };
    let bits = dtype.bitsize() as u32;
    TensorType::Other(OtherType { id: 0, name, block_values: 8, block_bytes: bits })
}
