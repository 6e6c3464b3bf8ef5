//! The types that a tensor's values are stored in, as GGUF and safetensors name them, and their block sizes.
//!
//! Only the types of [`TensorType::SUPPORTED`] can be run. The others are known by name and size all the same: an error
//! can then say what the file holds, the header can be checked, and `inspect` can report it.

use std::fmt;

use crate::error::{Error, ErrorCode, Result};

/// How the values of a tensor are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[allow(missing_docs, reason = "the names are ggml's own")]
pub enum TensorType {
    F32,
    F16,
    Bf16,
    Q4_0,
    Q4_1,
    Q5_0,
    Q5_1,
    Q8_0,
    Q2K,
    Q3K,
    Q4K,
    Q5K,
    Q6K,
    /// A type that can be named but not run.
    Other(OtherType),
}

/// A type that can be named but not run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct OtherType {
    /// The number that the GGUF file gives it; 0 when the file is no GGUF.
    pub id: u32,
    /// The name, empty for a number this version does not know.
    pub name: &'static str,
    /// Values per block; 0 when not known.
    pub block_values: u32,
    /// Bytes per block; 0 when not known.
    pub block_bytes: u32,
}

/// Types of ggml that cannot be run: id, name, values and bytes per block (`ggml-common.h`).
const OTHER_GGML_TYPES: &[(u32, &str, u32, u32)] = &[
    (9, "Q8_1", 32, 36),
    (15, "Q8_K", 256, 292),
    (16, "IQ2_XXS", 256, 66),
    (17, "IQ2_XS", 256, 74),
    (18, "IQ3_XXS", 256, 98),
    (19, "IQ1_S", 256, 50),
    (20, "IQ4_NL", 32, 18),
    (21, "IQ3_S", 256, 110),
    (22, "IQ2_S", 256, 82),
    (23, "IQ4_XS", 256, 136),
    (24, "I8", 1, 1),
    (25, "I16", 1, 2),
    (26, "I32", 1, 4),
    (27, "I64", 1, 8),
    (28, "F64", 1, 8),
    (29, "IQ1_M", 256, 56),
    (34, "TQ1_0", 256, 54),
    (35, "TQ2_0", 256, 66),
    (39, "MXFP4", 32, 17),
];

impl TensorType {
    /// Every type that can be run.
    pub const SUPPORTED: [Self; 13] = [
        Self::F32,
        Self::F16,
        Self::Bf16,
        Self::Q4_0,
        Self::Q4_1,
        Self::Q5_0,
        Self::Q5_1,
        Self::Q8_0,
        Self::Q2K,
        Self::Q3K,
        Self::Q4K,
        Self::Q5K,
        Self::Q6K,
    ];

    /// The type with this number in a GGUF file.
    pub fn from_ggml(id: u32) -> Self {
        match id {
            0 => Self::F32,
            1 => Self::F16,
            2 => Self::Q4_0,
            3 => Self::Q4_1,
            6 => Self::Q5_0,
            7 => Self::Q5_1,
            8 => Self::Q8_0,
            10 => Self::Q2K,
            11 => Self::Q3K,
            12 => Self::Q4K,
            13 => Self::Q5K,
            14 => Self::Q6K,
            30 => Self::Bf16,
            _ => {
                let known = OTHER_GGML_TYPES.iter().find(|other| other.0 == id);
                let &(_, name, block_values, block_bytes) = known.unwrap_or(&(id, "", 0, 0));
                Self::Other(OtherType { id, name, block_values, block_bytes })
            }
        }
    }

    /// The number of the type in a GGUF file.
    pub fn ggml_id(self) -> u32 {
        match self {
            Self::Other(other) => other.id,
            known => (0..=30).find(|&id| Self::from_ggml(id) == known).unwrap_or(0),
        }
    }

    /// Values and bytes of one block; `None` for a type this version does not know. A float is a block of one value.
    pub const fn block(self) -> Option<(usize, usize)> {
        Some(match self {
            Self::F32 => (1, 4),
            Self::F16 | Self::Bf16 => (1, 2),
            Self::Q4_0 => (32, 18),
            Self::Q4_1 => (32, 20),
            Self::Q5_0 => (32, 22),
            Self::Q5_1 => (32, 24),
            Self::Q8_0 => (32, 34),
            Self::Q2K => (256, 84),
            Self::Q3K => (256, 110),
            Self::Q4K => (256, 144),
            Self::Q5K => (256, 176),
            Self::Q6K => (256, 210),
            Self::Other(other) if other.block_values > 0 => (other.block_values as usize, other.block_bytes as usize),
            Self::Other(_) => return None,
        })
    }

    /// Whether values of this type can be run.
    pub const fn is_supported(self) -> bool {
        !matches!(self, Self::Other(_))
    }

    /// Whether the values are plain floats, without blocks.
    pub const fn is_float(self) -> bool {
        matches!(self, Self::F32 | Self::F16 | Self::Bf16)
    }

    /// Bytes of `values` consecutive values; `None` when they are no whole number of blocks, the type is not known, or the
    /// number overflows.
    pub fn bytes_for(self, values: u64) -> Option<u64> {
        let (block_values, block_bytes) = self.block()?;
        if !values.is_multiple_of(block_values as u64) {
            return None;
        }
        (values / block_values as u64).checked_mul(block_bytes as u64)
    }

    /// Refuses a type that cannot be run.
    ///
    /// # Errors
    /// `UnsupportedModel`, naming the type and the supported ones.
    pub fn require_supported(self) -> Result<()> {
        if self.is_supported() {
            return Ok(());
        }
        let supported = Self::SUPPORTED.map(|supported| supported.to_string()).join(", ");
        Err(Error::new(
            ErrorCode::UnsupportedModel,
            format!("values of type {self} cannot be run; use a file quantised as one of {supported}"),
        ))
    }
}

impl fmt::Display for TensorType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = match self {
            Self::F32 => "F32",
            Self::F16 => "F16",
            Self::Bf16 => "BF16",
            Self::Q4_0 => "Q4_0",
            Self::Q4_1 => "Q4_1",
            Self::Q5_0 => "Q5_0",
            Self::Q5_1 => "Q5_1",
            Self::Q8_0 => "Q8_0",
            Self::Q2K => "Q2_K",
            Self::Q3K => "Q3_K",
            Self::Q4K => "Q4_K",
            Self::Q5K => "Q5_K",
            Self::Q6K => "Q6_K",
            Self::Other(OtherType { name: "", id, .. }) => return f.pad(&format!("ggml type {id}")),
            Self::Other(other) => other.name,
        };
        f.pad(name)
    }
}
