//! Stop strings in text that arrives in pieces.
//!
//! What may be the beginning of a stop string is held back until it is decided, so no part of one is ever shown.

/// Watches a text for stop strings.
#[derive(Debug, Clone, Default)]
pub struct StopStrings {
    stops: Vec<String>,
    held: String,
    found: bool,
}

impl StopStrings {
    /// Watches for these; none may be empty.
    pub fn new(stops: &[String]) -> Self {
        Self { stops: stops.to_vec(), held: String::new(), found: false }
    }

    /// Whether one was found. Text after it is swallowed.
    pub fn found(&self) -> bool {
        self.found
    }

    /// The text that is final now that `piece` has come.
    pub fn push(&mut self, piece: &str) -> String {
        if self.found {
            return String::new();
        }
        self.held += piece;
        // The one that is complete first ends the text, so that it does not matter where pieces are cut.
        let matches =
            self.stops.iter().filter_map(|stop| self.held.find(stop.as_str()).map(|at| (at + stop.len(), at)));
        if let Some((_, at)) = matches.min() {
            self.found = true;
            self.held.truncate(at);
            return std::mem::take(&mut self.held);
        }
        let keep = self.stops.iter().map(|stop| overlap(&self.held, stop)).max().unwrap_or(0);
        let rest = self.held.split_off(self.held.len() - keep);
        std::mem::replace(&mut self.held, rest)
    }

    /// What was held back, once it is known that no more text comes.
    pub fn finish(&mut self) -> String {
        std::mem::take(&mut self.held)
    }
}

/// Length of the longest end of `text` that is a proper beginning of `stop`.
fn overlap(text: &str, stop: &str) -> usize {
    stop.char_indices().map(|(at, _)| at).filter(|&at| text.ends_with(&stop[..at])).max().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(stops: &[&str], pieces: &[&str], expected: &str, found: bool) {
        let stops: Vec<String> = stops.iter().map(|&s| s.to_owned()).collect();
        let mut watch = StopStrings::new(&stops);
        let mut text: String = pieces.iter().map(|piece| watch.push(piece)).collect();
        text += &watch.finish();
        assert_eq!((text.as_str(), watch.found()), (expected, found), "{stops:?} in {pieces:?}");
    }

    #[test]
    fn a_stop_string_ends_the_text_wherever_pieces_are_cut() {
        check(&["END"], &["one EN", "D two"], "one ", true);
        check(&["END"], &["one E", "N", "D", " two"], "one ", true);
        check(&["END"], &["EEEND"], "EE", true);
        check(&["\n\n"], &["a\n", "b\n", "\nc"], "a\nb", true);
        check(&["bc", "abcd"], &["xab", "cd"], "xa", true);
        check(&["é!"], &["caf", "é", "!"], "caf", true);
    }

    #[test]
    fn a_beginning_that_is_not_completed_is_given_back() {
        check(&["END"], &["one EN", "T"], "one ENT", false);
        check(&["END"], &["one EN"], "one EN", false);
        check(&["aab"], &["aa", "ab"], "a", true);
        check(&[], &["any", "thing"], "anything", false);
    }
}
