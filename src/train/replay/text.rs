//! A text to be replayed: a prompt, what the model made of it, and, where they are known, the rows that decided it.

use crate::error::{Error, ErrorCode, Result};

/// A plain greedy answer.
#[derive(Debug, Clone, PartialEq)]
pub struct Text {
    /// Of the prompt.
    pub id: String,
    /// Of the prompt.
    pub category: String,
    /// Its ids.
    pub prompt: Vec<u32>,
    /// The answer, with the end token where it came to one.
    pub tokens: Vec<u32>,
    /// Whether it came to one.
    pub ended: bool,
    /// The row that decided each token, `[tokens, hidden]`, normed; empty where the model is to compute them.
    pub rows: Vec<f32>,
}

impl Text {
    /// Its first tokens.
    #[must_use]
    pub fn first(&self, max_tokens: usize) -> Self {
        let count = self.tokens.len().min(max_tokens);
        let size = self.rows.len() / self.tokens.len().max(1);
        Self {
            tokens: self.tokens[..count].to_vec(),
            ended: self.ended && count == self.tokens.len(),
            rows: self.rows[..count * size].to_vec(),
            id: self.id.clone(),
            category: self.category.clone(),
            prompt: self.prompt.clone(),
        }
    }

    /// Checks that it has tokens and ends where end tokens say.
    ///
    /// # Errors
    /// `InvalidOption`.
    pub fn check(&self, end_tokens: &[u32]) -> Result<()> {
        let invalid = |what: String| {
            let message = format!("answer {}: {what}; make the answers anew with this model", self.id);
            Err(Error::new(ErrorCode::InvalidOption, message))
        };
        let Some((last, before)) = self.tokens.split_last() else { return invalid("it has no token".to_owned()) };
        if let Some(token) = before.iter().find(|token| end_tokens.contains(token)) {
            return invalid(format!("it goes on behind the end token {token}"));
        }
        if self.ended != end_tokens.contains(last) {
            return invalid(format!(
                "its last token is {last}, and it is said to have {}",
                match self.ended {
                    true => "ended",
                    false => "been cut off",
                }
            ));
        }
        Ok(())
    }

    /// Whether it goes round in circles: some eight tokens stand at least three times among the last 64.
    pub fn loops(&self) -> bool {
        const WINDOW: usize = 64;
        const GRAM: usize = 8;
        const TIMES: usize = 3;
        let last = &self.tokens[self.tokens.len().saturating_sub(WINDOW)..];
        let grams: Vec<&[u32]> = last.windows(GRAM).collect();
        grams.iter().any(|gram| grams.iter().filter(|other| *other == gram).count() >= TIMES)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(tokens: &[u32], ended: bool) -> Text {
        let rows = tokens.iter().flat_map(|&token| [token as f32; 2]).collect();
        let text = String::new;
        Text { id: text(), category: text(), prompt: vec![1], tokens: tokens.to_vec(), ended, rows }
    }

    #[test]
    fn an_answer_that_goes_round_in_circles_is_known() {
        let circle = |length: u32, count: u32| answer(&(0..count).map(|i| i % length).collect::<Vec<_>>(), false);
        assert!(circle(10, 28).loops());
        assert!(!circle(10, 27).loops(), "the third time is not complete");
        assert!(!circle(64, 300).loops());
        let mut left = circle(10, 60);
        left.tokens.extend(100..164);
        assert!(!left.loops(), "it has come out of it");
        assert!(!answer(&[1, 1, 1], false).loops());
        assert!(answer(&[1; 10], false).loops());
    }

    #[test]
    fn a_text_that_is_cut_has_not_ended() {
        let whole = answer(&[3, 4, 2], true);
        whole.check(&[2]).unwrap();
        assert_eq!(whole.first(5), whole);
        let cut = whole.first(2);
        assert_eq!((&cut.tokens[..], cut.ended, &cut.rows[..]), (&[3, 4][..], false, &[3.0, 3.0, 4.0, 4.0][..]));
        cut.check(&[2]).unwrap();
        for wrong in [answer(&[], false), answer(&[3, 2, 4], false), answer(&[3, 2], false), answer(&[3], true)] {
            assert_eq!(wrong.check(&[2]).unwrap_err().code(), ErrorCode::InvalidOption);
        }
    }
}
