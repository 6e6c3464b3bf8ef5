//! draftree runs a small language model on WebGPU and makes it fast with draft trees.
//!
//! Imports point one way, down this list: [`error`], [`model`], [`tokenizer`], [`sampling`], [`speculate`], [`backend`], [`engine`],
//! `train`, and last the web bindings and the command line.
//!
//! Shapes in documentation use these letters and words: *rows* of a pass (nodes of a tree, or tokens of a prompt), *hidden* width of
//! the residual stream, *q* and *kv* widths of all query and all key heads, *ffn* width of the feed-forward layer, *vocab*.
//! The slowest axis comes first.

pub mod backend;
pub mod engine;
pub mod error;
pub mod model;
pub mod sampling;
pub mod speculate;
pub mod tokenizer;
#[cfg(feature = "cli")]
pub mod train;
#[cfg(target_arch = "wasm32")]
pub mod web;
