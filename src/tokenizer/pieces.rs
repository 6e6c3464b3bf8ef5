//! What each id decodes to: one arena of bytes for the whole vocabulary, made once when the tokenizer is built.
//!
//! Decoding a token is then a slice of that arena, which is what makes streaming cost the same for every token. The
//! `tokenizers` crate has decoders too; they turn a whole list of tokens into a whole text, so a stream would have to
//! decode its answer again and again, and the crate would spend several allocations on each token.
//!
//! Where the bytes of byte-fallback tokens are no UTF-8, this follows sentencepiece (one U+FFFD for each wrong byte, the
//! valid characters around it kept); the `tokenizers` crate gives up the whole run of byte tokens.

use tokenizers::models::bpe::Vocab;

/// How the text of a vocabulary entry stands for bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Decoding {
    /// GPT-2's alphabet: each character of an entry is one byte.
    ByteLevel,
    /// Sentencepiece: an entry is text, with some characters standing for others, or one byte written `<0xE4>`.
    Sentencepiece {
        /// Replaced in every entry, in this order: `("▁", " ")`.
        replace: Vec<(String, String)>,
        /// Whether `<0xE4>` is a byte.
        byte_fallback: bool,
        /// So many spaces are dropped from the beginning of a text.
        strip_left: usize,
    },
}

const SPECIAL: u8 = 1;
const BYTE: u8 = 2;

/// The bytes of every id, `[V]`.
#[derive(Debug)]
pub(super) struct Pieces {
    bytes: Vec<u8>,
    /// Where the piece of an id ends in `bytes`; it begins where the one before ends.
    ends: Vec<u32>,
    flags: Vec<u8>,
    /// How the pieces were read.
    pub(super) decoding: Decoding,
}

/// What one id decodes to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Piece<'a> {
    /// The bytes, in byte-level vocabularies possibly a part of a character.
    pub(super) bytes: &'a [u8],
    /// A control token, which is not part of the text.
    pub(super) special: bool,
    /// One byte of a character that the vocabulary lacks.
    pub(super) byte_fallback: bool,
}

impl Pieces {
    /// The pieces of ids below `len`, from the texts in `vocab`. `added` gives the ids that are taken as plain text, whatever
    /// the decoding, and whether each is a control token.
    pub(super) fn new(vocab: &Vocab, len: usize, added: &[(u32, bool)], decoding: Decoding) -> Self {
        let mut texts = vec![""; len];
        for (text, &id) in vocab {
            if let Some(slot) = texts.get_mut(id as usize) {
                *slot = text;
            }
        }
        let mut flags = vec![0; len];
        let mut plain = vec![false; len];
        for &(id, special) in added {
            if let (Some(flag), Some(plain)) = (flags.get_mut(id as usize), plain.get_mut(id as usize)) {
                *flag |= if special { SPECIAL } else { 0 };
                *plain = true;
            }
        }
        let mut bytes = Vec::with_capacity(texts.iter().map(|text| text.len()).sum());
        let mut ends = Vec::with_capacity(len);
        for (id, text) in texts.into_iter().enumerate() {
            if plain[id] {
                bytes.extend_from_slice(text.as_bytes());
            } else if push_piece(&decoding, text, &mut bytes) {
                flags[id] |= BYTE;
            }
            ends.push(u32::try_from(bytes.len()).unwrap_or(u32::MAX));
        }
        Self { bytes, ends, flags, decoding }
    }

    /// How many ids there are.
    pub(super) fn len(&self) -> usize {
        self.ends.len()
    }

    /// What `id` decodes to; nothing for an id beyond the vocabulary.
    pub(super) fn get(&self, id: u32) -> Option<Piece<'_>> {
        let id = id as usize;
        let end = *self.ends.get(id)? as usize;
        let start = if id == 0 { 0 } else { self.ends[id - 1] as usize };
        let flags = self.flags[id];
        Some(Piece {
            bytes: self.bytes.get(start..end)?,
            special: flags & SPECIAL != 0,
            byte_fallback: flags & BYTE != 0,
        })
    }
}

/// Appends the bytes that `text` stands for; true if it is a byte-fallback token.
fn push_piece(decoding: &Decoding, text: &str, out: &mut Vec<u8>) -> bool {
    match decoding {
        Decoding::ByteLevel => {
            let start = out.len();
            for c in text.chars() {
                match byte_of(c) {
                    Some(byte) => out.push(byte),
                    None => {
                        // Not of the alphabet: an entry that was put in as plain text.
                        out.truncate(start);
                        out.extend_from_slice(text.as_bytes());
                        break;
                    }
                }
            }
            false
        }
        Decoding::Sentencepiece { replace, byte_fallback, .. } => {
            if *byte_fallback && let Some(byte) = fallback_byte(text) {
                out.push(byte);
                return true;
            }
            match replace.as_slice() {
                [] => out.extend_from_slice(text.as_bytes()),
                [(from, to)] if !text.contains(from.as_str()) || from == to => out.extend_from_slice(text.as_bytes()),
                all => {
                    let text = all.iter().fold(text.to_owned(), |text, (from, to)| text.replace(from.as_str(), to));
                    out.extend_from_slice(text.as_bytes());
                }
            }
            false
        }
    }
}

/// The byte of a sentencepiece byte token, `<0xE4>`.
fn fallback_byte(text: &str) -> Option<u8> {
    let digits = text.strip_prefix("<0x")?.strip_suffix('>')?;
    if digits.len() == 2 && digits.bytes().all(|digit| digit.is_ascii_hexdigit()) {
        u8::from_str_radix(digits, 16).ok()
    } else {
        None
    }
}

/// The byte that a character stands for in GPT-2's byte-level alphabet (`bytes_to_unicode` in its `encoder.py`): printable
/// Latin-1 characters stand for themselves, and the 68 other bytes, in ascending order, for U+0100 and up.
fn byte_of(c: char) -> Option<u8> {
    match c as u32 {
        code @ (0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff) => Some(code as u8),
        code @ 0x100..=0x120 => Some((code - 0x100) as u8),
        code @ 0x121..=0x142 => Some((code - 0x121 + 0x7f) as u8),
        0x143 => Some(0xad),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_byte_level_alphabet_is_a_bijection_on_all_bytes() {
        let mut seen = [false; 256];
        for code in 0..0x200 {
            if let Some(byte) = char::from_u32(code).and_then(byte_of) {
                assert!(!seen[byte as usize], "byte {byte} twice");
                seen[byte as usize] = true;
            }
        }
        assert!(seen.iter().all(|&seen| seen));
        assert_eq!((byte_of('Ġ'), byte_of('Ċ'), byte_of('ĉ')), (Some(b' '), Some(b'\n'), Some(b'\t')));
    }

    #[test]
    fn only_well_formed_byte_tokens_are_bytes() {
        assert_eq!(fallback_byte("<0xE4>"), Some(0xe4));
        for other in ["<0xE>", "<0xE45>", "<0x+4>", "<0xG0>", "0xE4", "<0xé>", "<unk>"] {
            assert_eq!(fallback_byte(other), None, "{other}");
        }
    }

    #[test]
    fn ids_beyond_the_vocabulary_have_no_piece() {
        let vocab: Vocab = [("a".to_owned(), 0), ("b".to_owned(), 2), ("far".to_owned(), 9)].into_iter().collect();
        let pieces = Pieces::new(&vocab, 3, &[(7, true)], Decoding::ByteLevel);
        assert_eq!(pieces.get(0).unwrap().bytes, b"a");
        assert_eq!(pieces.get(1).unwrap().bytes, b"");
        assert_eq!(pieces.get(2).unwrap().bytes, b"b");
        assert_eq!(pieces.get(3), None);
        assert_eq!(pieces.get(u32::MAX), None);
    }
}
