//! The key-value metadata of a GGUF file: its values and checked access to them.
//!
//! The format's thirteen types are read into four kinds, without loss, since writers disagree on widths and signs; arrays
//! keep one kind for all elements, because a vocabulary of 150,000 individually tagged values would take several times its
//! size. Access is by kind and never silent: a value out of range or of another kind is an error that names the key.

use std::collections::HashSet;
use std::fmt;

use super::reader::HeaderReader;
use crate::error::{Error, ErrorCode, Result};
use crate::model::source::ByteSource;

/// Arrays inside arrays are allowed to this depth; no writer is known to nest them at all.
const MAX_ARRAY_DEPTH: usize = 4;
/// The longest key that the format allows, in bytes.
const MAX_KEY_BYTES: usize = 65_535;
/// Elements that an array has room for before any was read; more room comes with the elements.
const FIRST_CAPACITY: usize = 1 << 16;
/// The shortest entry: length of the key, type, one byte of value.
const MIN_ENTRY_BYTES: u64 = 8 + 4 + 1;

const U8: u32 = 0;
const I8: u32 = 1;
const U16: u32 = 2;
const I16: u32 = 3;
const U32: u32 = 4;
const I32: u32 = 5;
const F32: u32 = 6;
const BOOL: u32 = 7;
const STRING: u32 = 8;
const ARRAY: u32 = 9;
const U64: u32 = 10;
const I64: u32 = 11;
const F64: u32 = 12;

/// One metadata value.
#[derive(Debug, Clone, PartialEq)]
pub enum Value {
    /// An unsigned integer of any width.
    Unsigned(u64),
    /// A signed integer of any width.
    Signed(i64),
    /// A float of either width.
    Float(f64),
    /// A truth value.
    Bool(bool),
    /// A text.
    String(String),
    /// A list.
    Array(Array),
}

/// A metadata array; all elements are of one kind.
#[derive(Debug, Clone, PartialEq)]
pub enum Array {
    /// Bytes, signed bytes or truth values, as they lie in the file.
    Bytes(Vec<u8>),
    /// Unsigned integers of 16 to 64 bits.
    Unsigned(Vec<u64>),
    /// Signed integers of 16 to 64 bits.
    Signed(Vec<i64>),
    /// Floats of either width.
    Floats(Vec<f64>),
    /// Texts.
    Strings(Vec<String>),
    /// Further arrays.
    Arrays(Vec<Array>),
}

impl fmt::Display for Value {
    /// The value on one line; long texts are cut and arrays counted.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const SHOWN_CHARS: usize = 60;
        match self {
            Self::Unsigned(value) => write!(f, "{value}"),
            Self::Signed(value) => write!(f, "{value}"),
            Self::Float(value) => write!(f, "{}", *value as f32),
            Self::Bool(value) => write!(f, "{value}"),
            Self::String(text) => {
                let shown: String = text.chars().take(SHOWN_CHARS).collect();
                let cut = if shown.len() < text.len() { "…" } else { "" };
                write!(f, "{shown:?}{cut}")
            }
            Self::Array(array) => match array {
                Array::Bytes(items) => write!(f, "[{} bytes]", items.len()),
                Array::Unsigned(items) => write!(f, "[{} integers]", items.len()),
                Array::Signed(items) => write!(f, "[{} integers]", items.len()),
                Array::Floats(items) => write!(f, "[{} floats]", items.len()),
                Array::Strings(items) => write!(f, "[{} texts]", items.len()),
                Array::Arrays(items) => write!(f, "[{} arrays]", items.len()),
            },
        }
    }
}

/// The metadata of a file, in its order.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Metadata {
    entries: Vec<(String, Value)>,
}

impl Metadata {
    /// Reads `count` entries.
    pub(super) async fn read<S: ByteSource>(reader: &mut HeaderReader<'_, S>, count: u64) -> Result<Self> {
        let count = reader.check_count(count, MIN_ENTRY_BYTES, "metadata entries")?;
        let mut entries = Vec::new();
        let mut keys = HashSet::new();
        for _ in 0..count {
            let key = reader.string().await?;
            if key.len() > MAX_KEY_BYTES {
                return Err(bad(format!("a metadata key has {} bytes, expected at most {MAX_KEY_BYTES}", key.len())));
            }
            let value = read_value(reader).await.map_err(|error| error.context(format!("metadata key {key:?}")))?;
            if !keys.insert(key.clone()) {
                return Err(bad(format!("the metadata key {key:?} appears twice")));
            }
            entries.push((key, value));
        }
        Ok(Self { entries })
    }

    /// The entries, in the file's order.
    pub fn entries(&self) -> &[(String, Value)] {
        &self.entries
    }

    /// The value of a key.
    pub fn get(&self, key: &str) -> Option<&Value> {
        self.entries.iter().find(|(name, _)| name == key).map(|(_, value)| value)
    }

    /// An unsigned integer.
    ///
    /// # Errors
    /// `BadModelFile` when the value is of another kind or negative; so for the methods below.
    pub fn unsigned(&self, key: &str) -> Result<Option<u64>> {
        self.convert(key, "an unsigned integer", |value| match *value {
            Value::Unsigned(number) => Some(number),
            Value::Signed(number) => u64::try_from(number).ok(),
            _ => None,
        })
    }

    /// A size.
    pub fn size(&self, key: &str) -> Result<Option<usize>> {
        let size = self.unsigned(key)?.map(usize::try_from).transpose();
        size.map_err(|_| bad(format!("the metadata key {key:?} is too large a size")))
    }

    /// A token id; negative numbers, which some writers use for "none", and the largest u32 count as absent.
    pub fn token_id(&self, key: &str) -> Result<Option<u32>> {
        if let Some(Value::Signed(..0)) = self.get(key) {
            return Ok(None);
        }
        let id = self.unsigned(key)?.map(u32::try_from).transpose();
        let id = id.map_err(|_| bad(format!("the metadata key {key:?} is too large a token id")))?;
        Ok(id.filter(|&id| id != u32::MAX))
    }

    /// A float.
    pub fn float(&self, key: &str) -> Result<Option<f32>> {
        self.convert(key, "a number", |value| match *value {
            Value::Float(number) => Some(number as f32),
            Value::Unsigned(number) => Some(number as f32),
            Value::Signed(number) => Some(number as f32),
            _ => None,
        })
    }

    /// A truth value.
    pub fn bool(&self, key: &str) -> Result<Option<bool>> {
        self.convert(key, "true or false", |value| match value {
            Value::Bool(value) => Some(*value),
            _ => None,
        })
    }

    /// A text.
    pub fn string(&self, key: &str) -> Result<Option<String>> {
        self.convert(key, "a text", |value| match value {
            Value::String(text) => Some(text.clone()),
            _ => None,
        })
    }

    /// Moves a list of texts out, since a vocabulary is large; empty when the key is absent.
    pub fn take_strings(&mut self, key: &str) -> Result<Vec<String>> {
        let entry = self.entries.iter_mut().find(|(name, _)| name == key);
        match entry.map(|(_, value)| value) {
            None => Ok(Vec::new()),
            Some(Value::Array(Array::Strings(texts))) => Ok(std::mem::take(texts)),
            Some(Value::Array(array)) if array.is_empty() => Ok(Vec::new()),
            Some(value) => Err(bad(format!("the metadata key {key:?} is {value}, expected a list of texts"))),
        }
    }

    /// A list of floats; empty when the key is absent.
    pub fn floats(&self, key: &str) -> Result<Vec<f32>> {
        let numbers = self.convert(key, "a list of floats", |value| match value {
            Value::Array(Array::Floats(numbers)) => Some(numbers.iter().map(|&number| number as f32).collect()),
            Value::Array(array) if array.is_empty() => Some(Vec::new()),
            _ => None,
        })?;
        Ok(numbers.unwrap_or_default())
    }

    /// A list of 32-bit integers; empty when the key is absent.
    pub fn integers(&self, key: &str) -> Result<Vec<i32>> {
        let numbers = self.convert(key, "a list of integers", |value| match value {
            Value::Array(Array::Signed(numbers)) => numbers.iter().map(|&number| number.try_into().ok()).collect(),
            Value::Array(Array::Unsigned(numbers)) => numbers.iter().map(|&number| number.try_into().ok()).collect(),
            Value::Array(array) if array.is_empty() => Some(Vec::new()),
            _ => None,
        })?;
        Ok(numbers.unwrap_or_default())
    }

    fn convert<T>(&self, key: &str, kind: &str, convert: impl FnOnce(&Value) -> Option<T>) -> Result<Option<T>> {
        let Some(value) = self.get(key) else { return Ok(None) };
        let converted = convert(value);
        if converted.is_none() {
            return Err(bad(format!("the metadata key {key:?} is {value}, expected {kind}")));
        }
        Ok(converted)
    }
}

impl Array {
    /// Whether there are no elements.
    pub fn is_empty(&self) -> bool {
        match self {
            Self::Bytes(items) => items.is_empty(),
            Self::Unsigned(items) => items.is_empty(),
            Self::Signed(items) => items.is_empty(),
            Self::Floats(items) => items.is_empty(),
            Self::Strings(items) => items.is_empty(),
            Self::Arrays(items) => items.is_empty(),
        }
    }
}

async fn read_value<S: ByteSource>(reader: &mut HeaderReader<'_, S>) -> Result<Value> {
    Ok(match reader.u32().await? {
        U8 => Value::Unsigned(reader.u8().await?.into()),
        U16 => Value::Unsigned(reader.u16().await?.into()),
        U32 => Value::Unsigned(reader.u32().await?.into()),
        U64 => Value::Unsigned(reader.u64().await?),
        I8 => Value::Signed(reader.i8().await?.into()),
        I16 => Value::Signed(reader.i16().await?.into()),
        I32 => Value::Signed(reader.i32().await?.into()),
        I64 => Value::Signed(reader.i64().await?),
        F32 => Value::Float(reader.f32().await?.into()),
        F64 => Value::Float(reader.f64().await?),
        BOOL => Value::Bool(reader.u8().await? != 0),
        STRING => Value::String(reader.string().await?),
        ARRAY => Value::Array(read_array(reader, 1).await?),
        other => return Err(unknown_type(other)),
    })
}

/// Reads `$count` numbers of `$bytes` bytes with `$read`, converted by `into`.
macro_rules! numbers {
    ($reader:ident, $count:ident, $bytes:literal, $read:ident) => {{
        let count = $reader.check_count($count, $bytes, "array elements")?;
        let mut items = Vec::with_capacity(count.min(FIRST_CAPACITY));
        for _ in 0..count {
            items.push($reader.$read().await?.into());
        }
        items
    }};
}

async fn read_array<S: ByteSource>(reader: &mut HeaderReader<'_, S>, depth: usize) -> Result<Array> {
    const MIN_STRING_BYTES: u64 = 8;
    const MIN_ARRAY_BYTES: u64 = 4 + 8;
    let element_type = reader.u32().await?;
    let count = reader.u64().await?;
    Ok(match element_type {
        U8 | I8 | BOOL => {
            reader.check_count(count, 1, "array elements")?;
            Array::Bytes(reader.bytes(count).await?.to_vec())
        }
        U16 => Array::Unsigned(numbers!(reader, count, 2, u16)),
        U32 => Array::Unsigned(numbers!(reader, count, 4, u32)),
        U64 => Array::Unsigned(numbers!(reader, count, 8, u64)),
        I16 => Array::Signed(numbers!(reader, count, 2, i16)),
        I32 => Array::Signed(numbers!(reader, count, 4, i32)),
        I64 => Array::Signed(numbers!(reader, count, 8, i64)),
        F32 => Array::Floats(numbers!(reader, count, 4, f32)),
        F64 => Array::Floats(numbers!(reader, count, 8, f64)),
        STRING => {
            let count = reader.check_count(count, MIN_STRING_BYTES, "texts")?;
            let mut texts = Vec::with_capacity(count.min(FIRST_CAPACITY));
            for _ in 0..count {
                texts.push(reader.string().await?);
            }
            Array::Strings(texts)
        }
        ARRAY if depth < MAX_ARRAY_DEPTH => {
            let count = reader.check_count(count, MIN_ARRAY_BYTES, "arrays")?;
            let mut arrays = Vec::with_capacity(count.min(FIRST_CAPACITY));
            for _ in 0..count {
                arrays.push(Box::pin(read_array(reader, depth + 1)).await?);
            }
            Array::Arrays(arrays)
        }
        ARRAY => return Err(bad(format!("arrays are nested more than {MAX_ARRAY_DEPTH} deep"))),
        other => return Err(unknown_type(other)),
    })
}

fn unknown_type(id: u32) -> Error {
    bad(format!("the value type {id} does not exist, expected 0 to {F64}"))
}

fn bad(message: String) -> Error {
    Error::new(ErrorCode::BadModelFile, format!("{message}; the file is damaged"))
}
