//! The one error type of the crate, and the closed list of codes that JavaScript and the command line see.
//!
//! A message says what was being done, what was expected, what was found, and what to do about it. Code that can fail on
//! bad input or a bad device returns [`Error`]; a broken internal invariant is an `assert!` with a sentence.

use std::fmt;

/// What went wrong, as a stable string shared with JavaScript. A code is never renamed; new ones may be added.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorCode {
    /// The browser has no `navigator.gpu`.
    WebGpuUnavailable,
    /// WebGPU exists, but no adapter was given.
    NoAdapter,
    /// The device was lost while the model was in use; load it again.
    DeviceLost,
    /// The device computed a known pass wrongly, so it is not used.
    DeviceMiscomputes,
    /// A buffer could not be allocated, on the GPU or in wasm memory.
    OutOfMemory,
    /// The bytes are no model file, or a damaged one.
    BadModelFile,
    /// The file ends before the data its header promises.
    TruncatedFile,
    /// The file is sound but holds something this version cannot run (architecture, quantisation, scaling kind).
    UnsupportedModel,
    /// A tensor that the architecture needs is not there.
    MissingTensor,
    /// A tensor or setting contradicts the configuration.
    ShapeMismatch,
    /// No tokenizer was found, or it cannot be built.
    BadTokenizer,
    /// The chat template is missing, does not parse, or fails on these messages.
    BadChatTemplate,
    /// The prompt does not fit the model's context.
    PromptTooLong,
    /// The prompt is empty and the model has no token to begin with.
    EmptyPrompt,
    /// An option is unknown, of the wrong type, or out of range.
    InvalidOption,
    /// A file could not be read from the network, the cache or the disk.
    LoadFailed,
    /// A second call while the model is generating.
    Busy,
    /// The caller's `AbortSignal` fired.
    Aborted,
    /// The model or generation was already disposed.
    Disposed,
    /// A fault of this package. Please report it.
    Internal,
}

impl ErrorCode {
    /// The string JavaScript sees.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::WebGpuUnavailable => "webgpu_unavailable",
            Self::NoAdapter => "no_adapter",
            Self::DeviceLost => "device_lost",
            Self::DeviceMiscomputes => "device_miscomputes",
            Self::OutOfMemory => "out_of_memory",
            Self::BadModelFile => "bad_model_file",
            Self::TruncatedFile => "truncated_file",
            Self::UnsupportedModel => "unsupported_model",
            Self::MissingTensor => "missing_tensor",
            Self::ShapeMismatch => "shape_mismatch",
            Self::BadTokenizer => "bad_tokenizer",
            Self::BadChatTemplate => "bad_chat_template",
            Self::PromptTooLong => "prompt_too_long",
            Self::EmptyPrompt => "empty_prompt",
            Self::InvalidOption => "invalid_option",
            Self::LoadFailed => "load_failed",
            Self::Busy => "busy",
            Self::Aborted => "aborted",
            Self::Disposed => "disposed",
            Self::Internal => "internal",
        }
    }
}

impl fmt::Display for ErrorCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// An error with a stable [`ErrorCode`] and a message written for the person who has to act on it.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{message}")]
pub struct Error {
    code: ErrorCode,
    message: String,
}

impl Error {
    /// An error of this kind.
    pub fn new(code: ErrorCode, message: impl Into<String>) -> Self {
        Self { code, message: message.into() }
    }

    /// The kind of error.
    pub fn code(&self) -> ErrorCode {
        self.code
    }

    /// The same error, its message preceded by where it happened (`"blk.3.attn_q.weight: …"`).
    #[must_use]
    pub fn context(self, place: impl fmt::Display) -> Self {
        Self { code: self.code, message: format!("{place}: {}", self.message) }
    }
}

/// `Result` with the crate's [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;
