//! The one owner of positions: which tokens the cache holds, in which order, and how many there can be.
//!
//! Storage belongs to the backend; this is the ledger. The device decides how far a step gets, so the ledger follows its
//! records ([`commit`](KvSlots::commit)) and goes back only between generations ([`roll_back`](KvSlots::roll_back)).

/// The tokens whose keys and values are in the cache; a token's position is its index.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct KvSlots {
    tokens: Vec<u32>,
}

impl KvSlots {
    /// Committed positions.
    pub fn len(&self) -> usize {
        self.tokens.len()
    }

    /// Whether nothing is committed.
    pub fn is_empty(&self) -> bool {
        self.tokens.is_empty()
    }

    /// The position after the committed ones: where the next token goes.
    pub fn next_position(&self) -> usize {
        self.tokens.len()
    }

    /// Appends tokens whose keys and values the backend keeps.
    pub fn commit(&mut self, tokens: &[u32]) {
        self.tokens.extend_from_slice(tokens);
    }

    /// Forgets every position from `length` on.
    pub fn roll_back(&mut self, length: usize) {
        self.tokens.truncate(length);
    }

    /// How many of the first tokens of `prompt` are already in the cache.
    pub fn common_prefix(&self, prompt: &[u32]) -> usize {
        self.tokens.iter().zip(prompt).take_while(|(cached, wanted)| cached == wanted).count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions_follow_commits_and_roll_backs() {
        let mut slots = KvSlots::default();
        slots.commit(&[5, 6, 7]);
        assert_eq!(slots.next_position(), 3);
        slots.roll_back(1);
        slots.commit(&[9]);
        assert_eq!(slots.common_prefix(&[5, 9, 1]), 2);
        assert_eq!(slots.common_prefix(&[4, 9]), 0);
        assert_eq!(slots.common_prefix(&[5]), 1);
        assert_eq!(slots.len(), 2);
    }
}
