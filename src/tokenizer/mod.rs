//! Text to token ids and back, for the byte-pair encodings that language models come with.
//!
//! A [`Tokenizer`] is built from the plain data a checkpoint has read ([`TokenizerFiles`]), and knows nothing of models or
//! devices. Splitting and merging are done by the `tokenizers` crate, so ids are the published ones; reading the files and
//! decoding are done here (why: `bpe` and `pieces`). [`StreamDecoder`] turns ids into text while they are produced, and
//! [`ChatTemplate`] turns a conversation into a prompt.

mod bpe;
mod chat_template;
mod gguf;
mod json;
mod pieces;
mod stream_decoder;

pub use chat_template::{ChatTemplate, Message};
pub use stream_decoder::StreamDecoder;

use crate::error::{Error, ErrorCode, Result};
use crate::model::TokenizerFiles;
use bpe::Bpe;
use pieces::Pieces;

/// What a model's configuration adds to its tokenizer files.
#[derive(Debug, Clone, Copy)]
pub struct ModelTokens<'a> {
    /// Rows of the embedding, V: every id is below it.
    pub vocab_size: usize,
    /// The token that begins a text, if the tokenizer files do not name one.
    pub bos_token_id: Option<u32>,
    /// Tokens that end a generation, besides those the tokenizer files name.
    pub eos_token_ids: &'a [u32],
}

/// A model's tokenizer; see the [module](self).
#[derive(Debug)]
pub struct Tokenizer {
    bpe: Bpe,
    pieces: Pieces,
    bos_id: Option<u32>,
    adds_bos: bool,
    end_ids: Vec<u32>,
}

impl Tokenizer {
    /// Builds the tokenizer of a checkpoint.
    ///
    /// # Errors
    /// [`ErrorCode::BadTokenizer`] for files that are damaged or contradict themselves, [`ErrorCode::UnsupportedModel`] for
    /// sound ones of a kind that is not supported, [`ErrorCode::ShapeMismatch`] when the vocabulary has ids that the model
    /// has no rows for.
    pub fn from_files(files: &TokenizerFiles, model: ModelTokens<'_>) -> Result<Self> {
        let mut parts = match files {
            TokenizerFiles::Json(files) => json::parts(files)?,
            TokenizerFiles::Gguf(metadata) => gguf::parts(metadata)?,
        };
        parts.bos_id = parts.bos_id.or(model.bos_token_id);
        parts.end_ids.extend(model.eos_token_ids);
        parts.settle(model.vocab_size)?;
        let added: Vec<_> = parts.added.iter().map(|added| (added.id, added.token.special)).collect();
        let len = parts.vocab.values().max().map_or(0, |&id| id as usize + 1);
        let pieces = Pieces::new(&parts.vocab, len, &added, parts.decoding.clone());
        let (bos_id, adds_bos) = (parts.bos_id, parts.adds_bos);
        let end_ids = std::mem::take(&mut parts.end_ids);
        Ok(Self { bpe: parts.into_bpe()?, pieces, bos_id, adds_bos, end_ids })
    }

    /// The ids of `text`, after the token that begins a text if `add_bos`. Special tokens written in the text count as such.
    ///
    /// # Errors
    /// [`ErrorCode::InvalidOption`] if `add_bos` is set and the model has no such token.
    pub fn encode(&self, text: &str, add_bos: bool) -> Result<Vec<u32>> {
        let encoding = self.bpe.encode_fast(text, false).map_err(|error| {
            Error::new(ErrorCode::BadTokenizer, format!("the tokenizer cannot encode this text: {error}"))
        })?;
        if !add_bos {
            return Ok(encoding.get_ids().to_vec());
        }
        let bos = self.bos_id.ok_or_else(|| {
            Error::new(
                ErrorCode::InvalidOption,
                "a beginning-of-text token was asked for, but the model has none; encode without it",
            )
        })?;
        Ok(std::iter::once(bos).chain(encoding.get_ids().iter().copied()).collect())
    }

    /// The text of `ids`, without special tokens if `skip_special`. Ids beyond the vocabulary stand for nothing, bytes that
    /// are no UTF-8 for U+FFFD.
    pub fn decode(&self, ids: &[u32], skip_special: bool) -> String {
        let mut decoder = StreamDecoder::new(skip_special);
        let mut text = decoder.push(self, ids);
        text.push_str(&decoder.finish());
        text
    }

    /// The bytes of one token, wherever in a text it stands: perhaps a part of a character. None for an id beyond the vocabulary.
    pub fn token_bytes(&self, id: u32) -> &[u8] {
        self.pieces.get(id).map_or(&[], |piece| piece.bytes)
    }

    /// The id of a vocabulary entry, as it is written in the vocabulary (`"Ġthe"`, `"▁the"`, `"<|im_end|>"`).
    pub fn token_to_id(&self, token: &str) -> Option<u32> {
        self.bpe.token_to_id(token)
    }

    /// The vocabulary entry of an id.
    pub fn id_to_token(&self, id: u32) -> Option<String> {
        self.bpe.id_to_token(id)
    }

    /// Whether an id is a control token, which is no part of a text.
    pub fn is_special(&self, id: u32) -> bool {
        self.pieces.get(id).is_some_and(|piece| piece.special)
    }

    /// Whether the model expects a text (not a chat, whose template writes its own) to begin with [`Self::bos_id`].
    pub fn adds_bos(&self) -> bool {
        self.adds_bos
    }

    /// The token that begins a text.
    pub fn bos_id(&self) -> Option<u32> {
        self.bos_id
    }

    /// The tokens that end a generation, ascending.
    pub fn end_ids(&self) -> &[u32] {
        &self.end_ids
    }

    /// One more than the highest id that has a text; at most the rows of the embedding.
    pub fn vocab_len(&self) -> usize {
        self.pieces.len()
    }

    fn pieces(&self) -> &Pieces {
        &self.pieces
    }
}
