//! GGUF files: the header, read as it arrives.
//!
//! Owns the container (versions 2 and 3, little-endian): magic, metadata, tensor table, alignment. What the metadata says
//! about the model is read in `describe`; the tensor data is never touched here. The parser is our own and asynchronous
//! because the header's length is unknown until it has been read, and in a browser its bytes arrive over a network.
//!
//! Format: `ggml/docs/gguf.md`.

mod describe;
mod metadata;
mod reader;

use std::collections::BTreeMap;
use std::ops::Range;

use reader::HeaderReader;

pub use describe::{architecture, config, tokenizer};
pub use metadata::{Array, Metadata, Value};

use super::checkpoint::TensorEntry;
use super::source::ByteSource;
use super::tensor_type::TensorType;
use crate::error::{Error, ErrorCode, Result};

const MAGIC: &[u8; 4] = b"GGUF";
const DEFAULT_ALIGNMENT: u64 = 32;
const MAX_DIMENSIONS: u32 = 4;
const MAX_NAME_BYTES: usize = 65_535;
/// The shortest entry of the tensor table: length of the name, number of dimensions, type, offset.
const MIN_TENSOR_BYTES: u64 = 8 + 4 + 4 + 8;

/// The header of a GGUF file.
#[derive(Debug, Clone, PartialEq)]
pub struct Header {
    /// The number of the file in its source.
    pub file: usize,
    /// Format version, 2 or 3.
    pub version: u32,
    /// Key-value metadata.
    pub metadata: Metadata,
    /// The bytes of the file that hold them.
    pub metadata_range: Range<u64>,
    /// The tensors by their names in the file, their data checked to lie inside it.
    pub tensors: BTreeMap<String, TensorEntry>,
}

impl Header {
    /// Reads the header of file number `file`.
    ///
    /// # Errors
    /// `BadModelFile` when the bytes are no GGUF header, `TruncatedFile` when the file is shorter than its header says,
    /// `UnsupportedModel` for other versions and byte orders, and whatever the source reports.
    pub async fn read(source: &impl ByteSource, file: usize) -> Result<Self> {
        let mut reader = HeaderReader::new(source, file);
        check_magic(&mut reader).await?;
        let version = reader.u32().await?;
        check_version(version)?;
        let n_tensors = reader.u64().await?;
        let n_entries = reader.u64().await?;
        let metadata_start = reader.position();
        let metadata = Metadata::read(&mut reader, n_entries).await?;
        let metadata_range = metadata_start..reader.position();
        let alignment = alignment(&metadata)?;

        let n_tensors = reader.check_count(n_tensors, MIN_TENSOR_BYTES, "tensors")?;
        let mut tensors = BTreeMap::new();
        for _ in 0..n_tensors {
            let (name, tensor) = read_tensor(&mut reader, file).await?;
            if tensor.offset % alignment != 0 {
                return Err(bad(format!("tensor {name}: offset {} is no multiple of {alignment}", tensor.offset)));
            }
            if tensors.insert(name.clone(), tensor).is_some() {
                return Err(bad(format!("the tensor {name:?} appears twice")));
            }
        }

        // Offsets count from the first aligned byte after the header.
        let data_start = reader.position().next_multiple_of(alignment);
        let file_size = source.files()[file].size;
        for (name, tensor) in &mut tensors {
            let end = data_start.checked_add(tensor.offset).and_then(|start| start.checked_add(tensor.bytes));
            if end.is_none_or(|end| end > file_size) {
                return Err(Error::new(
                    ErrorCode::TruncatedFile,
                    format!(
                        "tensor {name}: {} bytes at offset {} of the data, but the file has {file_size} bytes in all; \
                         download it again",
                        tensor.bytes, tensor.offset
                    ),
                ));
            }
            tensor.offset += data_start;
        }
        Ok(Self { file, version, metadata, metadata_range, tensors })
    }
}

async fn check_magic<S: ByteSource>(reader: &mut HeaderReader<'_, S>) -> Result<()> {
    let magic = reader.bytes(4).await?;
    if magic == MAGIC {
        return Ok(());
    }
    let hint = match magic {
        b"<!DO" | b"<htm" | b"<HTM" => "it looks like a web page: the address leads to one instead of to the file",
        b"vers" => "it looks like a pointer to a file in large-file storage: fetch the file itself",
        b"PK\x03\x04" => "it is a zip archive, perhaps a PyTorch checkpoint: convert it to GGUF or safetensors",
        b"ggml" | b"lmgg" | b"fmgg" | b"tjgg" => "it is of a format from before GGUF: convert it again",
        _ => "use a .gguf file or a folder with config.json and safetensors",
    };
    Err(Error::new(
        ErrorCode::BadModelFile,
        format!("no GGUF file: it begins with {:?}, expected \"GGUF\"; {hint}", String::from_utf8_lossy(magic)),
    ))
}

fn check_version(version: u32) -> Result<()> {
    if matches!(version, 2 | 3) {
        return Ok(());
    }
    let found =
        if matches!(version.swap_bytes(), 1..=3) { "big-endian".to_owned() } else { format!("version {version}") };
    Err(Error::new(
        ErrorCode::UnsupportedModel,
        format!("the GGUF file is {found}; this version reads little-endian versions 2 and 3: convert the model again"),
    ))
}

fn alignment(metadata: &Metadata) -> Result<u64> {
    const KEY: &str = "general.alignment";
    let alignment = metadata.unsigned(KEY)?.unwrap_or(DEFAULT_ALIGNMENT);
    if alignment.is_power_of_two() && alignment <= 1 << 20 {
        return Ok(alignment);
    }
    Err(bad(format!("{KEY} is {alignment}, expected a power of two up to 2^20")))
}

/// One entry of the tensor table; its offset still counts from the start of the data.
async fn read_tensor<S: ByteSource>(reader: &mut HeaderReader<'_, S>, file: usize) -> Result<(String, TensorEntry)> {
    let name = reader.string().await?;
    if name.len() > MAX_NAME_BYTES {
        return Err(bad(format!("a tensor's name has {} bytes, expected at most {MAX_NAME_BYTES}", name.len())));
    }
    let n_dimensions = reader.u32().await?;
    if n_dimensions > MAX_DIMENSIONS {
        return Err(bad(format!("tensor {name}: {n_dimensions} dimensions, expected at most {MAX_DIMENSIONS}")));
    }
    let mut shape = Vec::new();
    let mut values = 1u64;
    for _ in 0..n_dimensions {
        let size = reader.u64().await?;
        let product = values.checked_mul(size).filter(|&values| values < 1 << 48);
        values = product.ok_or_else(|| bad(format!("tensor {name}: too many values")))?;
        shape.push(usize::try_from(size).map_err(|_| bad(format!("tensor {name}: a dimension of {size}")))?);
    }
    let tensor_type = TensorType::from_ggml(reader.u32().await?);
    let offset = reader.u64().await?;
    // The file lists the fastest axis first; rows are made of whole blocks.
    let row = shape.first().copied().unwrap_or(1);
    if let Some((block, _)) = tensor_type.block()
        && !row.is_multiple_of(block)
    {
        return Err(bad(format!(
            "tensor {name}: rows of {row} values are no whole blocks of {tensor_type} ({block} values)"
        )));
    }
    shape.reverse();
    let bytes = tensor_type.bytes_for(values).unwrap_or(0);
    Ok((name, TensorEntry { tensor_type, shape, file, offset, bytes }))
}

fn bad(message: String) -> Error {
    Error::new(ErrorCode::BadModelFile, format!("{message}; the file is damaged"))
}
