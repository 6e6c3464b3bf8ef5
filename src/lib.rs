//! draftree

pub mod error;
pub mod tokenizer;
