//! Draft heads: small networks that guess the tokens after the next one from a hidden row of the target model.
//!
//! Two forms. *Parallel* heads (Medusa, Cai et al. 2024): head d reads the hidden row through residual blocks
//! `x + silu(W x + b)` and predicts the token d + 1 places after the root, whatever stands between. *Recurrent* heads (the kind of
//! Hydra, Ankner et al. 2024, and of MLPSpeculator): a state, at first the hidden row, takes up each drafted token,
//! `s + silu(W [s; e(x)] + b)` with `e(x)` the target's embedding, and one output matrix reads it. Either may read a row that was fused
//! from the hidden row and what other layers say, instead of the hidden row alone, and may look back at the context, by the keys and values
//! that a layer of the target has kept. `docs/heads.md` has the file format of our own and the names of the published ones.
//!
//! [`HeadFile`] is what a file holds, [`DraftHeads`] what it is for one target. The matrices go the way of the model's own
//! ([`WeightSink`](super::weights::WeightSink)), so a sink that can hold a model can hold its heads.

mod calibration;
mod file;
mod fit;
mod identity;
mod names;
mod stored;
mod taps;

pub use calibration::DepthCalibration;
pub use file::{FORMAT, HeadFile, VERSION, is_head_file};
pub use fit::{DraftHeads, head_layouts, stream_heads};
pub use identity::model_identity;
pub use names::Naming;
pub(super) use names::is_head_tensor;
pub use stored::type_key;
pub use taps::{MAX_TAPS, Taps};

/// Depths that heads draft at most.
pub const MAX_DEPTHS: usize = 16;

/// The hidden size of a model whose context heads look at is a multiple of this: row and attention then lie behind one another, each
/// where WebGPU lets a buffer be bound (`minStorageBufferOffsetAlignment`, 256 bytes).
pub const CONTEXT_ALIGNMENT: usize = 64;

/// What heads read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HeadForm {
    /// The hidden row alone: all depths can be computed at once.
    Parallel,
    /// The hidden row and every token drafted since: one depth after the other.
    Recurrent,
}

impl HeadForm {
    /// The name in the metadata of a file.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Parallel => "parallel",
            Self::Recurrent => "recurrent",
        }
    }
}

/// Which matrix turns the last row of a head into logits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HeadOutput {
    /// The target's own output matrix, whole and where it already is.
    Target,
    /// [`HeadMatrix::Output`] 0 for every head.
    Shared,
    /// One matrix per head.
    Own,
}

/// A matrix of draft heads. *drafts* is the draft vocabulary, *depths* the number of heads.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum HeadMatrix {
    /// The first blocks of all parallel heads, one after the other, `[depths * hidden, hidden]`: they read the same row.
    Trunk,
    /// A later block of a parallel head, `[hidden, hidden]`; or the update of the recurrent state at a level, layer 0,
    /// `[hidden, 2 hidden]`, state first.
    Block {
        /// The head, or the level.
        head: usize,
        /// The layer.
        layer: usize,
    },
    /// Output matrix of a head, `[drafts, hidden]`.
    Output(usize),
    /// The block that fuses the hidden row `h` with the output of other layers, `[hidden, (1 + taps) hidden]`, `h` first.
    Fusion,
    /// Queries to the keys of a layer of the model, `[q_size, hidden]`; rows 2i and 2i + 1 of a head rotate together.
    ContextQuery,
    /// The block that takes up what attention finds, `[hidden, hidden + q_size]`, the row first.
    Context,
    /// What a token before contributes, `[vocab_size, rank]`, and behind it what each draft id makes of that, `[drafts, rank]`.
    Correction,
}

/// A vector of draft heads.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum HeadVector {
    /// Bias of [`HeadMatrix::Fusion`], `[hidden]`.
    FusionBias,
    /// Bias of [`HeadMatrix::Context`], `[hidden]`.
    ContextBias,
    /// Bias of [`HeadMatrix::Trunk`], `[depths * hidden]`; absent where the blocks have none.
    TrunkBias,
    /// Bias of [`HeadMatrix::Block`], `[hidden]`; absent where the blocks have none.
    BlockBias {
        /// The head, or the level.
        head: usize,
        /// The layer.
        layer: usize,
    },
}
