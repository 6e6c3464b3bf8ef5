//! Token ids to text, piece by piece, as a model produces them.
//!
//! [`StreamDecoder`] holds back what is not final yet: the beginning of a character whose other bytes are in tokens still to
//! come. It keeps at most three bytes, so a token costs the same at the end of a long answer as at its beginning, and it is
//! also what [`Tokenizer::decode`] runs on: the pieces of a stream always add up to the decoded whole.

use super::Tokenizer;
use super::pieces::Decoding;

/// Turns ids into text as they come; see the module.
#[derive(Debug, Clone)]
pub struct StreamDecoder {
    /// The beginning of a character, at most three bytes between calls.
    pending: Vec<u8>,
    /// Whether each wrong byte becomes a U+FFFD (byte fallback), or each wrong sequence (byte-level).
    replace_each_byte: bool,
    skip_special: bool,
    /// How many leading spaces may still be dropped; `None` before the first token.
    strip_left: Option<usize>,
}

impl StreamDecoder {
    /// A decoder for ids that are a text of their own, like [`Tokenizer::decode`]: the space that sentencepiece puts before
    /// a text is dropped. Special tokens are left out if `skip_special`.
    pub fn new(skip_special: bool) -> Self {
        Self { pending: Vec::new(), replace_each_byte: false, skip_special, strip_left: None }
    }

    /// A decoder for ids that go on after another text, such as a model's continuation of a prompt: a leading space is part
    /// of the text.
    pub fn continuing(skip_special: bool) -> Self {
        Self { strip_left: Some(0), ..Self::new(skip_special) }
    }

    /// The text that is final after these ids. Ids beyond the vocabulary stand for nothing.
    pub fn push(&mut self, tokenizer: &Tokenizer, ids: &[u32]) -> String {
        let pieces = tokenizer.pieces();
        if let Decoding::Sentencepiece { strip_left, .. } = pieces.decoding {
            self.replace_each_byte = true;
            self.strip_left.get_or_insert(strip_left);
        }
        let mut text = String::new();
        for piece in ids.iter().filter_map(|&id| pieces.get(id)) {
            if piece.special && self.skip_special {
                continue;
            }
            if self.replace_each_byte && !piece.byte_fallback {
                // A token of text ends a run of byte tokens: what is incomplete now stays so.
                self.take_rest(&mut text);
            }
            self.pending.extend_from_slice(piece.bytes);
            self.take_characters(&mut text);
        }
        self.strip(text)
    }

    /// The rest: U+FFFD for a character whose end never came. The decoder is then ready for text that goes on from here.
    pub fn finish(&mut self) -> String {
        let mut text = String::new();
        self.take_rest(&mut text);
        self.strip(text)
    }

    /// Moves what is decided from `pending` to `text`: whole characters, and U+FFFD for bytes that can be part of none.
    fn take_characters(&mut self, text: &mut String) {
        let mut rest = self.pending.as_slice();
        let incomplete = loop {
            match std::str::from_utf8(rest) {
                Ok(valid) => {
                    text.push_str(valid);
                    break 0;
                }
                Err(error) => {
                    let (valid, after) = rest.split_at(error.valid_up_to());
                    text.push_str(&String::from_utf8_lossy(valid));
                    let Some(wrong) = error.error_len() else { break after.len() };
                    push_replacements(text, if self.replace_each_byte { wrong } else { 1 });
                    rest = &after[wrong..];
                }
            }
        };
        let decided = self.pending.len() - incomplete;
        self.pending.drain(..decided);
    }

    /// Empties `pending`, which holds the beginning of one character or nothing.
    fn take_rest(&mut self, text: &mut String) {
        if !self.pending.is_empty() {
            push_replacements(text, if self.replace_each_byte { self.pending.len() } else { 1 });
            self.pending.clear();
        }
    }

    /// Drops the spaces that a text of its own begins with, as far as they were put there by the tokenizer.
    fn strip(&mut self, mut text: String) -> String {
        if let Some(left) = self.strip_left.filter(|&left| left > 0 && !text.is_empty()) {
            let spaces = text.bytes().take(left).take_while(|&byte| byte == b' ').count();
            self.strip_left = Some(if spaces == text.len() { left - spaces } else { 0 });
            text.drain(..spaces);
        }
        text
    }
}

fn push_replacements(text: &mut String, count: usize) {
    text.extend(std::iter::repeat_n(char::REPLACEMENT_CHARACTER, count));
}
