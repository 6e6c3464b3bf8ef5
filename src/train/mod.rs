//! Making draft heads for a model: its own answers, its hidden rows, training, calibration, and evaluation by replay. Native only.
//!
//! ```text
//! prompts ─► answers (the target's own text) ─► states (hidden rows, the target's best tokens) ─► heads ─► calibration
//!                                                  └───────────────────────────────► evaluation by replay
//! ```

pub mod answers;
pub mod calibrate;
pub mod context;
pub mod distill;
pub mod endpoint;
pub mod extract;
pub mod fit;
pub mod joint;
pub mod loss;
pub mod matrices;
pub mod overlap;
pub mod progress;
pub mod prompts;
pub mod random;
pub mod replay;
pub mod sampler;
pub mod save;
pub mod shapes;
pub mod softmax;
pub mod split;
pub mod states;
pub mod target;
pub mod tensor_file;
#[cfg(test)]
mod toy;
pub mod trained;
pub mod trees;
pub mod vocabulary;

use crate::error::{Error, ErrorCode};

/// Shapes are checked before tensors are made, so what candle finds wrong is a fault of this package.
pub(crate) fn from_candle(error: candle_core::Error) -> Error {
    Error::new(ErrorCode::Internal, error.to_string())
}

/// FNV-1a, 64 bits.
pub(crate) fn hash(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, &byte| (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3))
}
