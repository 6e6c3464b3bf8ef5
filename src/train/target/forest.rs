//! Many trees on one text: what evaluation asks when several drafts of the same text are looked at together.

/// Rows that depart from a committed text at places of their own choice. A row sees the text up to where its tree stands, and its own
/// ancestors.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Forest {
    pub(super) tokens: Vec<u32>,
    /// The row before each; none where it follows the text.
    pub(super) parents: Vec<Option<usize>>,
    /// Positions of the text that each row sees.
    pub(super) starts: Vec<usize>,
    pub(super) depths: Vec<usize>,
}

impl Forest {
    /// Adds a token that follows the first `start` positions of the text. Returns its row.
    pub fn plant(&mut self, start: usize, token: u32) -> usize {
        self.push(token, None, start, 0)
    }

    /// Adds a token that follows a row. Returns its row.
    ///
    /// # Panics
    /// When there is no such row.
    pub fn grow(&mut self, parent: usize, token: u32) -> usize {
        self.push(token, Some(parent), self.starts[parent], self.depths[parent] + 1)
    }

    fn push(&mut self, token: u32, parent: Option<usize>, start: usize, depth: usize) -> usize {
        self.tokens.push(token);
        self.parents.push(parent);
        self.starts.push(start);
        self.depths.push(depth);
        self.tokens.len() - 1
    }

    /// Number of rows.
    pub fn len(&self) -> usize {
        self.tokens.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.tokens.is_empty()
    }
}
