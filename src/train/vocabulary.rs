//! The draft vocabulary: the tokens that heads can predict, chosen by how often the target writes them.

use crate::error::{Error, ErrorCode, Result};

/// In place of a draft id: the token is none that heads predict.
pub const NOT_DRAFTED: u32 = u32::MAX;

/// Some tokens of a vocabulary, and the draft id of each.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DraftVocabulary {
    /// The token of every draft id, ascending.
    pub tokens: Vec<u32>,
    drafts: Vec<u32>,
}

impl DraftVocabulary {
    /// These tokens, ascending, of a vocabulary of `vocab_size`.
    ///
    /// # Errors
    /// `InvalidOption` when there are none, one is no token, or they do not ascend.
    pub fn new(tokens: Vec<u32>, vocab_size: usize) -> Result<Self> {
        let ascending = tokens.windows(2).all(|pair| pair[0] < pair[1]);
        match tokens.last() {
            Some(&last) if ascending && (last as usize) < vocab_size => {}
            _ => {
                return Err(Error::new(
                    ErrorCode::InvalidOption,
                    format!("a draft vocabulary has one token or more, ascending, all below {vocab_size}"),
                ));
            }
        }
        let mut drafts = vec![NOT_DRAFTED; vocab_size];
        for (draft, &token) in tokens.iter().enumerate() {
            drafts[token as usize] = draft as u32;
        }
        Ok(Self { tokens, drafts })
    }

    /// The `size` most frequent tokens of a text, those of `always` among them whether they occur or not; of equally frequent ones the
    /// lower. A size of 0, or one that is not below `vocab_size`, takes all tokens.
    ///
    /// # Errors
    /// `InvalidOption` for tokens that are none.
    pub fn choose(text: impl Iterator<Item = u32>, size: usize, always: &[u32], vocab_size: usize) -> Result<Self> {
        if size == 0 || size >= vocab_size {
            return Self::new((0..vocab_size as u32).collect(), vocab_size);
        }
        let mut counts = vec![0u64; vocab_size];
        for token in text {
            let count = counts.get_mut(token as usize).ok_or_else(|| {
                Error::new(
                    ErrorCode::InvalidOption,
                    format!(
                        "the answers have token {token}, expected ids below {vocab_size}; they are of another model"
                    ),
                )
            })?;
            *count += 1;
        }
        for &token in always.iter().filter(|&&token| (token as usize) < vocab_size) {
            counts[token as usize] = u64::MAX;
        }
        let mut tokens: Vec<u32> = (0..vocab_size as u32).collect();
        tokens.sort_by_key(|&token| std::cmp::Reverse(counts[token as usize]));
        tokens.truncate(size);
        tokens.sort_unstable();
        Self::new(tokens, vocab_size)
    }

    /// Number of draft ids.
    pub fn len(&self) -> usize {
        self.tokens.len()
    }

    /// Whether it is empty, which it never is.
    pub fn is_empty(&self) -> bool {
        self.tokens.is_empty()
    }

    /// Whether it is the whole vocabulary.
    pub fn is_whole(&self) -> bool {
        self.tokens.len() == self.drafts.len()
    }

    /// The draft id of a token, or [`NOT_DRAFTED`].
    pub fn draft(&self, token: u32) -> u32 {
        self.drafts.get(token as usize).copied().unwrap_or(NOT_DRAFTED)
    }

    /// The share of a text's tokens that are in it.
    pub fn coverage(&self, text: impl Iterator<Item = u32>) -> f64 {
        let (mut all, mut covered) = (0u64, 0u64);
        for token in text {
            all += 1;
            covered += u64::from(self.draft(token) != NOT_DRAFTED);
        }
        covered as f64 / all.max(1) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_most_frequent_tokens_and_the_end_tokens_are_taken() {
        let text = [5, 5, 5, 2, 2, 7, 1, 9];
        let chosen = DraftVocabulary::choose(text.into_iter(), 4, &[8], 10).unwrap();
        assert_eq!(chosen.tokens, [1, 2, 5, 8], "of 1, 7 and 9, which occur once, the lowest");
        assert_eq!((chosen.draft(5), chosen.draft(7), chosen.draft(99)), (2, NOT_DRAFTED, NOT_DRAFTED));
        assert_eq!(chosen.coverage([5, 2, 7, 9].into_iter()), 0.5);
        assert_eq!(chosen.coverage(std::iter::empty()), 0.0);
        assert!(!chosen.is_whole());
        for size in [0, 10, 11] {
            let whole = DraftVocabulary::choose(text.into_iter(), size, &[], 10).unwrap();
            assert!(whole.is_whole() && whole.len() == 10 && whole.draft(9) == 9);
        }
        let foreign = DraftVocabulary::choose([10].into_iter(), 3, &[], 10).unwrap_err();
        assert!(foreign.to_string().contains("token 10"), "{foreign}");
    }

    #[test]
    fn tokens_ascend() {
        for tokens in [vec![], vec![2, 1], vec![1, 1], vec![3]] {
            assert_eq!(DraftVocabulary::new(tokens, 3).unwrap_err().code(), ErrorCode::InvalidOption);
        }
    }
}
