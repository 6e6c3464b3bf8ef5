//! Trained heads as a file of our own format (`docs/heads.md`).

use std::collections::BTreeMap;

use safetensors::Dtype;

use super::from_candle;
use super::shapes::{Part, TrainHeads};
use super::tensor_file::{Stored, TensorFile};
use crate::error::Result;
use crate::model::TensorType;
use crate::model::heads::{FORMAT, HeadForm, VERSION, type_key};
use crate::model::quantize::quantize;

/// What matrices of heads are stored as: F32, F16, Q8_0, Q4_0 or Q4_1. Rows that are no whole blocks are stored as F16.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StoredTypes {
    /// The output matrix, mostly half of a file and more.
    pub output: TensorType,
    /// All others.
    pub others: TensorType,
}

impl StoredTypes {
    /// One type for all.
    pub fn all(ty: TensorType) -> Self {
        Self { output: ty, others: ty }
    }
}

/// The file of heads; their vectors are stored as F32. `model` is the hash of the target; `words` are kept beside what the format asks for.
///
/// # Errors
/// `UnsupportedModel` for a type that cannot be written.
pub fn head_file(
    heads: &TrainHeads,
    stored: StoredTypes,
    model: &str,
    words: &BTreeMap<String, String>,
) -> Result<TensorFile> {
    for ty in [stored.output, stored.others] {
        quantize(ty, &[], &mut [])?; // refuses types that cannot be written
    }
    let mut file = TensorFile { metadata: words.clone(), ..TensorFile::default() };
    let mut word = |key: &str, value: &str| file.metadata.insert(key.to_owned(), value.to_owned());
    word("format", FORMAT);
    word("version", VERSION);
    word("form", heads.shape.form.as_str());
    word("model", model);
    if heads.shape.form == HeadForm::Recurrent {
        word("depths", &heads.shape.depths.to_string());
    }
    if !heads.shape.taps.is_empty() {
        word("taps", &heads.shape.taps.to_string());
    }
    if let Some(layer) = heads.shape.context_layer {
        word("context_layer", &layer.to_string());
    }
    for parameter in &heads.parameters {
        let (name, shape) = (&parameter.name, parameter.var.dims());
        let values: Vec<f32> = parameter.var.flatten_all().and_then(|flat| flat.to_vec1()).map_err(from_candle)?;
        let is_vector = parameter.part == Part::Blocks && shape.len() == 1;
        let ty = match parameter.part {
            _ if is_vector => TensorType::F32,
            Part::Head => stored.output,
            _ => stored.others,
        };
        let (ty, tensor) = matrix(ty, shape, &values)?;
        if !ty.is_float() {
            file.metadata.insert(type_key(name), ty.to_string());
        }
        file.tensors.insert(name.clone(), tensor);
    }
    if !heads.vocabulary.is_whole() {
        let tokens = &heads.vocabulary.tokens;
        let data = tokens.iter().flat_map(|token| token.to_le_bytes()).collect();
        file.tensors.insert("token_map".to_owned(), Stored { dtype: Dtype::I32, shape: vec![tokens.len()], data });
    }
    Ok(file)
}

/// Values of a tensor in a type, or in F16 where its rows are no whole blocks; gives the type.
fn matrix(ty: TensorType, shape: &[usize], values: &[f32]) -> Result<(TensorType, Stored)> {
    let columns = shape.last().copied().unwrap_or(1);
    let fits = ty.bytes_for(columns as u64).is_some();
    let ty = if fits { ty } else { TensorType::F16 };
    let mut data = vec![0; ty.bytes_for(values.len() as u64).unwrap_or(0) as usize];
    quantize(ty, values, &mut data)?;
    let (dtype, shape) = match ty {
        TensorType::F32 => (Dtype::F32, shape.to_vec()),
        TensorType::F16 => (Dtype::F16, shape.to_vec()),
        _ => (Dtype::U8, vec![shape[0], data.len() / shape[0].max(1)]),
    };
    Ok((ty, Stored { dtype, shape, data }))
}
