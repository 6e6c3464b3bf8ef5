//! Drafting and verifying: the vocabulary of one step.
//!
//! [`tree`] is what a pass verifies. Plain decoding is the tree of one node, a prompt is a chain; drafters make the rest: [`heads`] ranks
//! what draft heads propose.

pub mod heads;
pub mod tree;
