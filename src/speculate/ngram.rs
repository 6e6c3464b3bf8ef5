//! n-gram lookup: what followed the last tokens the last time they stood in the text, prompt and output alike.
//!
//! Prompt lookup decoding (Saxena 2023, `apoorvumang/prompt-lookup-decoding`), which takes the first match of at most 3 tokens; here the longest
//! match wins, and the latest of equally long ones. A continuation that reaches the end of the text goes on with itself, so a
//! text that repeats itself is drafted to any length. The device does the same in shaders/lib/ngram.wgsl.

/// Tokens compared at most; `MAX_MATCH` in shaders/lib/ngram.wgsl.
pub const MAX_MATCH: usize = 16;

/// Classes of match lengths that acceptance is estimated for.
pub const CLASSES: usize = 6;

/// The class of a match of `length` tokens, at least 1.
pub const fn class(length: usize) -> usize {
    match length {
        0 | 1 => 0,
        2 => 1,
        3 => 2,
        4..=6 => 3,
        7..=11 => 4,
        _ => 5,
    }
}

/// An earlier place in a text whose last tokens are the text's own last tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Match {
    /// Tokens that are the same, at most [`MAX_MATCH`].
    pub length: usize,
    /// Where the last of them stands.
    pub position: usize,
}

impl Match {
    /// Token `index` of the continuation of `text`, the text that was searched.
    pub fn token(&self, text: &[u32], index: usize) -> u32 {
        let period = text.len() - 1 - self.position;
        text[self.position + 1 + index % period]
    }
}

/// The longest and, among those, latest match. Oracle of shaders/lib/ngram.wgsl.
pub fn longest_match(text: &[u32]) -> Option<Match> {
    let end = text.len().checked_sub(1)?;
    let length_at = |position: usize| {
        (0..MAX_MATCH.min(position + 1)).take_while(|&back| text[position - back] == text[end - back]).count()
    };
    let matches = (0..end).map(|position| Match { length: length_at(position), position });
    matches.filter(|found| found.length > 0).max_by_key(|found| (found.length, found.position))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn continuation(text: &[u32], count: usize) -> Vec<u32> {
        let found = longest_match(text).unwrap();
        (0..count).map(|index| found.token(text, index)).collect()
    }

    #[test]
    fn the_longest_match_wins_and_then_the_latest() {
        // "2 3" stands twice before the end, "1 2 3" once.
        let text = [1, 2, 3, 4, 9, 2, 3, 5, 1, 2, 3];
        assert_eq!(longest_match(&text), Some(Match { length: 3, position: 2 }));
        assert_eq!(continuation(&text, 3), [4, 9, 2]);
        let text = [2, 3, 4, 9, 2, 3, 5, 7, 2, 3];
        assert_eq!(longest_match(&text), Some(Match { length: 2, position: 5 }));
        assert_eq!(continuation(&text, 2), [5, 7]);
    }

    #[test]
    fn a_loop_goes_on_with_itself() {
        assert_eq!(continuation(&[8, 1, 2, 3, 1, 2, 3], 7), [1, 2, 3, 1, 2, 3, 1]);
        assert_eq!(continuation(&[4, 4, 4], 3), [4, 4, 4]);
    }

    #[test]
    fn a_text_that_repeats_nothing_has_no_match() {
        assert_eq!(longest_match(&[]), None);
        assert_eq!(longest_match(&[5]), None);
        assert_eq!(longest_match(&[5, 6, 7]), None);
    }

    #[test]
    fn no_more_than_the_limit_is_compared() {
        let text = [7; 40];
        assert_eq!(longest_match(&text), Some(Match { length: MAX_MATCH, position: 38 }));
    }
}
