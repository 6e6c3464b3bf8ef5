//! Which tokens end a text: a union, because no one place of a file can be trusted to name them all.
//!
//! Configurations name one end token where chat models have two, and GGUF writers have three keys of which they fill one
//! or two. A model that is not stopped writes both sides of the conversation, so every token that is known to end a text
//! counts. The token that begins a text is among them: where a model produces it, it has begun another document.

/// The end tokens that model families are known to use, where they are control tokens of the vocabulary.
const END_NAMES: [&str; 9] = [
    "<|im_end|>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<|endoftext|>",
    "<end_of_turn>",
    "</s>",
    "<|end_of_text|>",
    "<|end|>",
    "<EOT>",
];

/// Whether a control token of this text ends a text.
pub(crate) fn is_end_name(token: &str) -> bool {
    END_NAMES.contains(&token)
}

/// Collects end tokens.
#[derive(Debug, Default)]
pub(super) struct EndTokens {
    ids: Vec<u32>,
}

impl EndTokens {
    /// Adds the ids that are there.
    pub(super) fn extend(&mut self, ids: impl IntoIterator<Item = Option<u32>>) {
        self.ids.extend(ids.into_iter().flatten());
    }

    /// Every id once, ascending.
    pub(super) fn into_sorted(mut self) -> Vec<u32> {
        self.ids.sort_unstable();
        self.ids.dedup();
        self.ids
    }
}
