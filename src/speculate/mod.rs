//! Drafting and verifying: the vocabulary of one step, and the reference of what the device does in it.
//!
//! [`tree`] is what a pass verifies. Drafters ([`heads`] with [`head_slots`], [`ngram`], [`recycling`]) each propose what may follow a node; [`grow`] is the one
//! builder that merges their proposals into the next tree, best first or in a fixed [`shape`]; [`accept`] walks the verified
//! tree, by the exact rule or those of [`lenient`] and [`rejection`]. [`controller`] decides how many nodes a pass is worth, by what it
//! [`costs`]. Plain decoding is the tree of one node.

pub mod accept;
pub mod controller;
pub mod costs;
pub mod grow;
pub mod head_slots;
pub mod heads;
pub mod lenient;
pub mod ngram;
pub mod recycling;
pub mod rejection;
pub mod shape;
pub mod tree;

use self::accept::AcceptRule;
use self::shape::Shape;
use crate::model::heads::{DepthCalibration, DraftHeads, MAX_DEPTHS};

/// Where a token came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Source {
    /// The model's own choice after the last accepted node: what plain decoding gets from every pass.
    Model = 0,
    /// A draft head.
    Heads = 1,
    /// What followed the same n-gram before.
    NGram = 2,
    /// A successor learnt from an earlier pass.
    Recycling = 3,
}

impl Source {
    /// Every source, by its number.
    pub const ALL: [Self; 4] = [Self::Model, Self::Heads, Self::NGram, Self::Recycling];
    /// The drafters.
    pub const DRAFTERS: [Self; 3] = [Self::Heads, Self::NGram, Self::Recycling];

    /// The name that options, stats and the command line use.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Model => "plain",
            Self::Heads => "medusa",
            Self::NGram => "ngram",
            Self::Recycling => "recycling",
        }
    }

    /// Its bit in [`Sources`].
    pub const fn bit(self) -> u32 {
        1 << self as u32 >> 1
    }
}

/// A set of drafters.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Sources(u32);

impl Sources {
    /// No drafter: plain decoding.
    pub const NONE: Self = Self(0);

    /// The set with one more.
    #[must_use]
    pub const fn with(self, source: Source) -> Self {
        Self(self.0 | source.bit())
    }

    /// The set with one less.
    #[must_use]
    pub const fn without(self, source: Source) -> Self {
        Self(self.0 & !source.bit())
    }

    /// Whether a drafter is among them.
    pub const fn contains(self, source: Source) -> bool {
        self.0 & source.bit() != 0
    }

    /// Whether there is none.
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// The set of these bits, as the device writes them.
    pub const fn from_bits(bits: u32) -> Self {
        Self(bits & 7)
    }

    /// As bits, for the device.
    pub const fn bits(self) -> u32 {
        self.0
    }

    /// Its drafters.
    pub fn iter(self) -> impl Iterator<Item = Source> {
        Source::DRAFTERS.into_iter().filter(move |&source| self.contains(source))
    }
}

/// How a generation drafts and verifies. The default is plain decoding.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct DraftPlan {
    /// Who proposes.
    pub sources: Sources,
    /// The shape of the tree.
    pub shape: Shape,
    /// Nodes of a drafted tree at most, the root included; 0 and 1 draft nothing.
    pub max_nodes: usize,
    /// Which drafted tokens pass.
    pub accept: AcceptRule,
}

impl DraftPlan {
    /// Nodes that a drafted tree has at most, the root included.
    pub fn nodes(&self) -> usize {
        if self.sources.is_empty() {
            return 1;
        }
        match &self.shape {
            Shape::Grown => self.max_nodes.max(1),
            Shape::Fixed(tree) => tree.len(),
        }
    }
}

/// How likely a drafter's proposals are to be accepted: what puts nodes of different drafters in one order. Estimates are enough;
/// they decide which nodes are verified, never what is written.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Calibration {
    /// Probability that the next token of an n-gram match is right, by [`ngram::class`]. Where it was, the match is a token longer.
    pub ngram: [f32; ngram::CLASSES],
    /// Probability that one of a token's recycled successors is right.
    pub recycling: f32,
    /// What the probabilities that draft heads give are worth, by the depth of the node they are below.
    pub heads: [DepthCalibration; MAX_DEPTHS],
}

impl Default for Calibration {
    fn default() -> Self {
        Self {
            ngram: [0.1, 0.25, 0.4, 0.6, 0.75, 0.85],
            recycling: 0.4,
            heads: [DepthCalibration::IDENTITY; MAX_DEPTHS],
        }
    }
}

impl Calibration {
    /// The default for a model with these draft heads.
    pub fn of(heads: Option<&DraftHeads>) -> Self {
        let mut calibration = Self::default();
        for (place, known) in calibration.heads.iter_mut().zip(heads.iter().flat_map(|heads| &heads.calibration)) {
            *place = *known;
        }
        calibration
    }
}
