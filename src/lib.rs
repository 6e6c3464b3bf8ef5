//! draftree

pub mod error;
pub mod model;
