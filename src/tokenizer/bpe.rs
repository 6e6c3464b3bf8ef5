//! A tokenizer of the `tokenizers` crate, made from checked parts.
//!
//! Both kinds of checkpoint end up here: [`super::json`] and [`super::gguf`] read their files into [`Parts`]. The crate's own
//! loader of `tokenizer.json` is not used: it copies the model through two intermediate JSON trees (most of its time), and
//! some files make it panic, which in a browser ends the whole module. So everything it takes for granted is checked here.

use tokenizers::models::bpe::{BPE, Merges, Vocab};
use tokenizers::normalizers::NormalizerWrapper;
use tokenizers::pre_tokenizers::PreTokenizerWrapper;
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::{AddedToken, NormalizedString, Normalizer, TokenizerBuilder, TokenizerImpl};

use super::pieces::Decoding;
use crate::error::{Error, ErrorCode, Result};

/// The crate's tokenizer, with this crate's own decoding ([`super::pieces`]) and no post-processor: `ByteLevel` only names a
/// type for the two places that stay empty.
pub(super) type Bpe = TokenizerImpl<BPE, Steps, PreTokenizerWrapper, ByteLevel, ByteLevel>;

/// Normalisers that run one after the other, each on a text without a past.
///
/// The crate keeps for each byte where it came from, and some of its normalisers leave that table in a state that others panic
/// on. Nobody here asks where a token was in the text, so each step begins with a fresh table.
#[derive(Debug)]
pub(super) struct Steps(Vec<NormalizerWrapper>);

impl From<NormalizerWrapper> for Steps {
    fn from(normalizer: NormalizerWrapper) -> Self {
        fn flatten(normalizer: NormalizerWrapper, steps: &mut Vec<NormalizerWrapper>) {
            match normalizer {
                NormalizerWrapper::Sequence(sequence) => sequence.into_iter().for_each(|inner| flatten(inner, steps)),
                step => steps.push(step),
            }
        }
        let mut steps = Vec::new();
        flatten(normalizer, &mut steps);
        Self(steps)
    }
}

impl Normalizer for Steps {
    fn normalize(&self, text: &mut NormalizedString) -> tokenizers::Result<()> {
        for step in &self.0 {
            step.normalize(text)?;
            *text = NormalizedString::from(text.get());
        }
        Ok(())
    }
}

/// Ids stay below this: it bounds what a file can make the id tables allocate. The largest vocabularies in use have 2^18.
const MAX_IDS: usize = 1 << 22;

/// A token that is looked for in the text before anything else, with its id.
#[derive(Debug)]
pub(super) struct Added {
    pub(super) id: u32,
    pub(super) token: AddedToken,
}

/// A byte-pair encoding as a file describes it.
#[derive(Debug)]
pub(super) struct Parts {
    /// Text to id, without the added tokens.
    pub(super) vocab: Vocab,
    /// The pairs to merge, first ones first.
    pub(super) merges: Merges,
    /// What stands for a character that the vocabulary lacks.
    pub(super) unk_token: Option<String>,
    /// One unknown token for a run of such characters.
    pub(super) fuse_unk: bool,
    /// Such a character becomes its bytes, `<0xE4>`, instead.
    pub(super) byte_fallback: bool,
    /// A word that is in the vocabulary is not merged together but taken as it is.
    pub(super) ignore_merges: bool,
    pub(super) added: Vec<Added>,
    pub(super) normalizer: Option<NormalizerWrapper>,
    pub(super) pre_tokenizer: Option<PreTokenizerWrapper>,
    pub(super) decoding: Decoding,
    /// The token that begins a text.
    pub(super) bos_id: Option<u32>,
    /// Whether a text that is no chat begins with it.
    pub(super) adds_bos: bool,
    /// The tokens that end a generation.
    pub(super) end_ids: Vec<u32>,
}

impl Parts {
    /// Checks the ids against the rows of the embedding, and gives the added tokens their places in the vocabulary.
    ///
    /// Added tokens beyond `vocab_size` are dropped: fine-tuned models carry some that they have no row for. The ordinary
    /// vocabulary has to fit.
    pub(super) fn settle(&mut self, vocab_size: usize) -> Result<()> {
        if vocab_size == 0 || vocab_size > MAX_IDS {
            return Err(bad(format!("the model has {vocab_size} rows for tokens; 1 to {MAX_IDS} are supported")));
        }
        let fits = |id: u32| (id as usize) < vocab_size;
        if let Some((text, id)) = self.vocab.iter().filter(|&(_, &id)| !fits(id)).min_by_key(|&(_, &id)| id) {
            return Err(Error::new(
                ErrorCode::ShapeMismatch,
                format!(
                    "the tokenizer gives {text:?} the id {id}, but the model has only {vocab_size} rows; is the \
                     tokenizer of another model?"
                ),
            ));
        }
        self.added.retain(|added| fits(added.id) && !added.token.content.is_empty());
        for added in &mut self.added {
            added.id = *self.vocab.entry(added.token.content.clone()).or_insert(added.id);
        }
        let mut taken = vec![false; vocab_size];
        for (text, &id) in &self.vocab {
            if std::mem::replace(&mut taken[id as usize], true) {
                return Err(bad(format!("two tokens have the id {id}, one of them {text:?}")));
            }
        }
        self.bos_id = self.bos_id.filter(|&id| fits(id));
        self.adds_bos &= self.bos_id.is_some();
        self.end_ids.retain(|&id| fits(id));
        self.end_ids.sort_unstable();
        self.end_ids.dedup();
        Ok(())
    }

    /// The crate's tokenizer; takes the vocabulary, merges and stages.
    pub(super) fn into_bpe(mut self) -> Result<Bpe> {
        self.check()?;
        let normalizer = self.normalizer.map(Steps::from);
        if let Some(normalizer) = &normalizer {
            self.added.iter_mut().try_for_each(|added| keep_findable(&mut added.token, normalizer))?;
        }
        let mut builder = BPE::builder()
            .vocab_and_merges(self.vocab, self.merges)
            .fuse_unk(self.fuse_unk)
            .byte_fallback(self.byte_fallback)
            .ignore_merges(self.ignore_merges)
            // The crate's cache of words lives in a thread-local that outlasts the tokenizer, so each load would leak one.
            .cache_capacity(0);
        if let Some(unk_token) = self.unk_token {
            builder = builder.unk_token(unk_token);
        }
        let model = builder.build().map_err(|error| bad(format!("the merges do not fit the vocabulary: {error}")))?;
        let mut bpe: Bpe = TokenizerBuilder::new()
            .with_model(model)
            .with_normalizer(normalizer)
            .with_pre_tokenizer(self.pre_tokenizer)
            .build()
            .map_err(|error| bad(error.to_string()))?;
        bpe.add_tokens(self.added.into_iter().map(|added| added.token))
            .map_err(|error| bad(format!("the added tokens cannot be searched for: {error}")))?;
        Ok(bpe)
    }

    /// What the crate would meet with a panic, or only when text is encoded.
    fn check(&self) -> Result<()> {
        if let Some(unk_token) = self.unk_token.as_ref().filter(|unk_token| !self.vocab.contains_key(*unk_token)) {
            return Err(bad(format!("the unknown token {unk_token:?} is not in the vocabulary")));
        }
        let longest = self.vocab.keys().map(String::len).max().unwrap_or(0);
        match self.merges.iter().find(|(left, right)| left.len() + right.len() > longest) {
            Some((left, right)) => {
                Err(bad(format!("{left:?} and {right:?} are to be merged, but {left}{right} is not in the vocabulary")))
            }
            None => Ok(()),
        }
    }
}

/// An added token of which the normaliser leaves nothing would be found everywhere, also inside characters; it is looked for as
/// it is written instead.
fn keep_findable(token: &mut AddedToken, normalizer: &Steps) -> Result<()> {
    if token.normalized {
        let mut text = NormalizedString::from(token.content.as_str());
        normalizer.normalize(&mut text).map_err(|error| bad(format!("the normaliser fails: {error}")))?;
        token.normalized = !text.is_empty();
    }
    Ok(())
}

/// An [`ErrorCode::BadTokenizer`].
pub(super) fn bad(message: impl Into<String>) -> Error {
    Error::new(ErrorCode::BadTokenizer, message)
}

/// A sound tokenizer of a kind that is not supported.
pub(super) fn unsupported(message: impl Into<String>) -> Error {
    Error::new(ErrorCode::UnsupportedModel, message)
}
