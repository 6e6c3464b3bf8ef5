//! Quantised matrices of our own format: bytes to safetensors, whose blocks the metadata names.

use std::collections::BTreeMap;

use crate::error::{Error, ErrorCode, Result};
use crate::model::checkpoint::TensorEntry;
use crate::model::tensor_type::TensorType;

/// The key in the metadata of a file that has the type of a tensor's blocks.
pub fn type_key(tensor: &str) -> String {
    format!("type.{tensor}")
}

/// Makes of a matrix of bytes, `[rows, bytes]`, the matrix of values that its blocks hold, `[rows, columns]`, where the metadata says
/// that it is one.
pub(super) fn unfold(name: &str, tensor: &mut TensorEntry, metadata: &BTreeMap<String, String>) -> Result<()> {
    let key = type_key(name);
    let Some(found) = metadata.get(&key) else { return Ok(()) };
    let known = TensorType::SUPPORTED.into_iter().filter(|ty| !ty.is_float());
    let Some(ty) = known.clone().find(|ty| ty.to_string() == *found) else {
        let known = known.map(|ty| ty.to_string()).collect::<Vec<_>>().join(", ");
        return Err(Error::new(
            ErrorCode::UnsupportedModel,
            format!("{key} is {found:?} in the metadata of the heads, expected one of {known}"),
        ));
    };
    let (block_values, block_bytes) = ty.block().unwrap_or((1, 1));
    match tensor.shape[..] {
        [rows, bytes] if tensor.tensor_type.to_string() == "U8" && bytes.is_multiple_of(block_bytes) => {
            tensor.shape = vec![rows, bytes / block_bytes * block_values];
            tensor.tensor_type = ty;
            Ok(())
        }
        _ => Err(Error::new(
            ErrorCode::ShapeMismatch,
            format!(
                "{name}: {} {:?}, expected U8 [rows, a multiple of {block_bytes}], since {key} says {ty}",
                tensor.tensor_type, tensor.shape
            ),
        )),
    }
}
