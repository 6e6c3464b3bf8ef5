//! Making draft heads for a model: its own answers, its hidden rows, training, calibration, and evaluation by replay. Native only.
//!
//! ```text
//! prompts ─► answers (the target's own text) ─► states (hidden rows, the target's best tokens) ─► heads ─► calibration
//!                                                  └───────────────────────────────► evaluation by replay
//! ```

pub mod replay;
pub mod states;
pub mod target;

use crate::error::{Error, ErrorCode};

/// Shapes are checked before tensors are made, so what candle finds wrong is a fault of this package.
pub(crate) fn from_candle(error: candle_core::Error) -> Error {
    Error::new(ErrorCode::Internal, error.to_string())
}
