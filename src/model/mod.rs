//! Model files: from a GGUF file or a Hugging Face folder to a checked configuration and packed weights.
//!
//! Reading order: [`source`] (bytes by range) → [`gguf`] or [`safetensors`] and `hf_config` (headers) → [`checkpoint`]
//! (one model, names and shapes checked against [`config`] by the tables of [`architecture`]) → [`weights`] (tensors
//! streamed through [`pack_rows`] into the layout of [`packing`]); [`heads`] beside it, for the draft heads of a model. Nothing here knows a GPU, a browser or an operating
//! system, except [`files`], which is absent in the browser; nothing holds a whole tensor.

pub mod architecture;
pub mod checkpoint;
pub mod config;
mod container;
pub(crate) mod end_tokens;
#[cfg(not(target_arch = "wasm32"))]
pub mod files;
pub mod gguf;
pub mod heads;
mod hf_config;
pub mod inspect;
pub mod pack_rows;
pub mod packing;
pub mod quantize;
pub mod safetensors;
pub mod source;
mod stream;
pub mod tensor_type;
pub mod tokenizer_files;
pub mod weights;

pub use architecture::Architecture;
pub use checkpoint::{Checkpoint, TensorEntry};
pub use config::{ModelConfig, RopeScaling};
pub use heads::{DraftHeads, HeadFile};
pub use packing::{PackedFormat, PackedLayout};
pub use source::{ByteSource, FileEntry, MemorySource};
pub use tensor_type::TensorType;
pub use tokenizer_files::{GgufTokenizer, JsonTokenizer, TokenizerFiles};
pub use weights::{Matrix, Vector, WeightSink, stream_weights};
