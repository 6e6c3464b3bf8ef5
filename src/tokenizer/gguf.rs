//! The `tokenizer.ggml.*` metadata of a GGUF file, read into [`Parts`].
//!
//! A GGUF names how text is split before merging (`pre`) where a `tokenizer.json` spells it out, and has scores where it has
//! merges. The regular expressions here are those of the published tokenizers; llama.cpp's `llama-vocab.cpp` keeps the list
//! of names. Two models differ from llama.cpp on purpose, both as published: text for `qwen2` is normalised to NFC, and
//! what a file does not say about beginning and end tokens is not made up for byte-level models.

use std::collections::HashMap;

use tokenizers::models::bpe::{Merges, Vocab};
use tokenizers::normalizers::replace::ReplacePattern;
use tokenizers::normalizers::{NFC, NormalizerWrapper, Prepend, Replace, Sequence as Normalizers};
use tokenizers::pre_tokenizers::PreTokenizerWrapper;
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::pre_tokenizers::digits::Digits;
use tokenizers::pre_tokenizers::sequence::Sequence as PreTokenizers;
use tokenizers::pre_tokenizers::split::{Split, SplitPattern};
use tokenizers::{AddedToken, SplitDelimiterBehavior};

use super::bpe::{Added, Parts, bad, unsupported};
use super::pieces::Decoding;
use crate::error::{Error, Result};
use crate::model::GgufTokenizer;
use crate::model::end_tokens::is_end_name;

/// Sentencepiece's visible space.
const SPACE: &str = "\u{2581}";

/// `tokenizer.ggml.token_type`.
#[derive(Clone, Copy, PartialEq, Eq)]
enum TokenType {
    Normal,
    Unknown,
    Control,
    UserDefined,
    Unused,
    Byte,
}

impl TokenType {
    fn new(number: i32) -> Self {
        match number {
            2 => Self::Unknown,
            3 => Self::Control,
            4 => Self::UserDefined,
            5 => Self::Unused,
            6 => Self::Byte,
            _ => Self::Normal,
        }
    }
}

/// Reads the parts out of the metadata.
pub(super) fn parts(gguf: &GgufTokenizer) -> Result<Parts> {
    let (tokens, types) = (gguf.tokens.len(), gguf.token_types.len());
    if tokens == 0 {
        return Err(bad("the file has no tokenizer: tokenizer.ggml.tokens is missing or empty"));
    }
    if types != 0 && types != tokens {
        return Err(bad(format!("tokenizer.ggml.token_type has {types} entries for {tokens} tokens")));
    }
    match gguf.model.as_str() {
        "gpt2" => byte_level(gguf),
        "llama" => sentencepiece(gguf),
        "" => Err(bad("the file has no tokenizer: tokenizer.ggml.model is missing")),
        other => Err(unsupported(format!(
            "the tokenizer is of the kind {other:?} (tokenizer.ggml.model); supported are \"gpt2\" and \"llama\""
        ))),
    }
}

/// A byte-level BPE: Llama 3, Qwen, SmolLM, GPT-2.
fn byte_level(gguf: &GgufTokenizer) -> Result<Parts> {
    if gguf.merges.is_empty() {
        return Err(bad("the tokenizer has no merges (tokenizer.ggml.merges)"));
    }
    let merges = gguf.merges.iter().map(|merge| split_merge(merge)).collect::<Result<Merges>>()?;
    let pre = Pre::named(gguf.pre.as_deref().unwrap_or("default"))?;
    let (vocab, added) = vocabulary(gguf)?;
    Ok(Parts {
        vocab,
        merges,
        unk_token: None,
        fuse_unk: false,
        byte_fallback: false,
        ignore_merges: pre.ignore_merges,
        added,
        normalizer: pre.nfc.then_some(NormalizerWrapper::NFC(NFC)),
        pre_tokenizer: Some(pre.pre_tokenizer()?),
        decoding: Decoding::ByteLevel,
        bos_id: gguf.bos_token_id,
        adds_bos: gguf.add_bos.unwrap_or(pre.adds_bos),
        end_ids: end_ids(gguf, gguf.eos_token_id),
    })
}

/// A sentencepiece BPE: Llama 1 and 2 and their kin. The ids of its special tokens have defaults (0, 1, 2).
fn sentencepiece(gguf: &GgufTokenizer) -> Result<Parts> {
    let unknown = gguf.unknown_token_id.unwrap_or(0);
    let (vocab, added) = vocabulary(gguf)?;
    let add_space_prefix = gguf.add_space_prefix.unwrap_or(true);
    Ok(Parts {
        merges: merges_from_scores(gguf)?,
        vocab,
        unk_token: gguf.tokens.get(unknown as usize).filter(|text| !text.is_empty()).cloned(),
        fuse_unk: true,
        byte_fallback: true,
        ignore_merges: false,
        added,
        normalizer: Some(sentencepiece_normalizer(add_space_prefix, gguf.remove_extra_whitespaces.unwrap_or(false))?),
        pre_tokenizer: None,
        decoding: Decoding::Sentencepiece {
            replace: vec![(SPACE.to_owned(), " ".to_owned())],
            byte_fallback: true,
            strip_left: usize::from(add_space_prefix),
        },
        bos_id: Some(gguf.bos_token_id.unwrap_or(1)),
        adds_bos: gguf.add_bos.unwrap_or(true),
        end_ids: end_ids(gguf, Some(gguf.eos_token_id.unwrap_or(2))),
    })
}

/// Text to id, and the tokens that are looked for in the text. Unused entries are left out: no text becomes them.
fn vocabulary(gguf: &GgufTokenizer) -> Result<(Vocab, Vec<Added>)> {
    let mut vocab = Vocab::with_capacity(gguf.tokens.len());
    let mut added = Vec::new();
    for (id, text, kind) in entries(gguf) {
        match kind {
            TokenType::Normal | TokenType::Byte => {
                if let Some(other) = vocab.insert(text.clone(), id) {
                    return Err(bad(format!("the token {text:?} is there twice, as {other} and {id}")));
                }
            }
            TokenType::Unknown | TokenType::Control | TokenType::UserDefined => {
                let token = AddedToken::from(text.as_str(), kind != TokenType::UserDefined).normalized(false);
                added.push(Added { id, token });
            }
            TokenType::Unused => {}
        }
    }
    Ok((vocab, added))
}

/// The entries that have a text: id, text, type.
fn entries(gguf: &GgufTokenizer) -> impl Iterator<Item = (u32, &String, TokenType)> {
    let kind = |id: usize| TokenType::new(gguf.token_types.get(id).copied().unwrap_or(1));
    let ids = 0..u32::MAX;
    ids.zip(&gguf.tokens).map(move |(id, text)| (id, text, kind(id as usize))).filter(|(_, text, _)| !text.is_empty())
}

/// The end tokens: the one the file names, the end of a turn, and those known by name.
fn end_ids(gguf: &GgufTokenizer, eos: Option<u32>) -> Vec<u32> {
    let by_name =
        entries(gguf).filter(|(_, text, kind)| *kind == TokenType::Control && is_end_name(text)).map(|(id, ..)| id);
    eos.into_iter().chain(gguf.eot_token_id).chain(by_name).collect()
}

/// `"left right"`; the space that separates is never the first character.
fn split_merge(merge: &str) -> Result<(String, String)> {
    let from = merge.chars().next().map_or(0, char::len_utf8);
    match merge[from..].find(' ') {
        Some(space) if from + space + 1 < merge.len() => {
            Ok((merge[..from + space].to_owned(), merge[from + space + 1..].to_owned()))
        }
        _ => Err(bad(format!("the merge {merge:?} is no pair of tokens"))),
    }
}

/// The merges that give what sentencepiece gives. It joins, as long as it can, the two neighbours whose joined text is the
/// entry with the highest score; so every way to cut an entry into two entries is a merge, in the order of the scores. Equal
/// scores (files without scores) go by id, lowest first.
fn merges_from_scores(gguf: &GgufTokenizer) -> Result<Merges> {
    let scores = &gguf.scores;
    if !scores.is_empty() && scores.len() != gguf.tokens.len() {
        let (scores, tokens) = (scores.len(), gguf.tokens.len());
        return Err(bad(format!("tokenizer.ggml.scores has {scores} entries for {tokens} tokens")));
    }
    let mergeable: HashMap<&str, u32> = entries(gguf)
        .filter(|(.., kind)| matches!(kind, TokenType::Normal | TokenType::UserDefined))
        .map(|(id, text, _)| (text.as_str(), id))
        .collect();
    let mut pairs = Vec::new();
    for (&text, &id) in &mergeable {
        for (cut, _) in text.char_indices().skip(1) {
            if let (Some(&left), Some(&right)) = (mergeable.get(&text[..cut]), mergeable.get(&text[cut..])) {
                pairs.push((id, left, right));
            }
        }
    }
    let score = |id: u32| scores.get(id as usize).copied().unwrap_or(0.0);
    pairs.sort_unstable_by(|a, b| score(b.0).total_cmp(&score(a.0)).then(a.cmp(b)));
    let text = |id: u32| gguf.tokens[id as usize].clone();
    Ok(pairs.into_iter().map(|(_, left, right)| (text(left), text(right))).collect())
}

fn sentencepiece_normalizer(add_space_prefix: bool, remove_extra_whitespaces: bool) -> Result<NormalizerWrapper> {
    let replace = |pattern, with: &str| Replace::new::<ReplacePattern, _>(pattern, with).map_err(stage_error);
    let mut steps = Vec::new();
    if remove_extra_whitespaces {
        steps.push(replace(ReplacePattern::Regex(r"\A +| +\z| +(?= )".to_owned()), "")?.into());
    }
    if add_space_prefix {
        steps.push(Prepend::new(SPACE.to_owned()).into());
    }
    steps.push(replace(ReplacePattern::String(" ".to_owned()), SPACE)?.into());
    Ok(Normalizers::new(steps).into())
}

fn stage_error(error: tokenizers::Error) -> Error {
    bad(format!("a stage of the tokenizer cannot be built: {error}"))
}

/// How text is split before the merges: a name in `tokenizer.ggml.pre`.
struct Pre {
    /// Each splits what the ones before left; empty: only GPT-2's own split.
    patterns: &'static [&'static str],
    /// Digits stand alone, and GPT-2's split follows.
    gpt2: Gpt2Split,
    nfc: bool,
    ignore_merges: bool,
    adds_bos: bool,
}

/// Whether GPT-2's regular expression comes after the patterns.
#[derive(PartialEq, Eq)]
enum Gpt2Split {
    No,
    Yes,
    AfterDigits,
}

const LLAMA3: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const QWEN2: &str =
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const GPT2: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)";

impl Pre {
    const PLAIN: Self = Self { patterns: &[], gpt2: Gpt2Split::No, nfc: false, ignore_merges: false, adds_bos: false };

    fn named(name: &str) -> Result<Self> {
        Ok(match name {
            "llama3" | "llama-v3" | "llama-bpe" | "falcon3" => {
                Self { patterns: &[LLAMA3], ignore_merges: true, adds_bos: true, ..Self::PLAIN }
            }
            "smaug-bpe" | "dbrx" => Self { patterns: &[LLAMA3], ..Self::PLAIN },
            "qwen2" | "deepseek-r1-qwen" => Self { patterns: &[QWEN2], nfc: true, ..Self::PLAIN },
            "stablelm2" => Self { patterns: &[QWEN2], ..Self::PLAIN },
            "smollm" | "starcoder" | "refact" | "command-r" | "codeshell" => {
                Self { gpt2: Gpt2Split::AfterDigits, ..Self::PLAIN }
            }
            "gpt-2" | "phi-2" | "mpt" | "olmo" => Self { gpt2: Gpt2Split::Yes, ..Self::PLAIN },
            "default" => {
                Self { patterns: &[r"[\p{P}\$\+<=>\^~\|]+", GPT2, r"\p{N}+", "[0-9][0-9][0-9]"], ..Self::PLAIN }
            }
            other => {
                return Err(unsupported(format!(
                    "the tokenizer splits text in a way named {other:?} (tokenizer.ggml.pre); supported are llama-bpe, \
                     llama3, falcon3, smaug-bpe, dbrx, qwen2, deepseek-r1-qwen, stablelm2, smollm, starcoder, refact, \
                     command-r, codeshell, gpt-2, phi-2, mpt, olmo, default"
                )));
            }
        })
    }

    fn pre_tokenizer(&self) -> Result<PreTokenizerWrapper> {
        let mut steps: Vec<PreTokenizerWrapper> = Vec::new();
        for &pattern in self.patterns {
            let pattern = SplitPattern::Regex(pattern.to_owned());
            steps.push(Split::new(pattern, SplitDelimiterBehavior::Isolated, false).map_err(stage_error)?.into());
        }
        if self.gpt2 == Gpt2Split::AfterDigits {
            steps.push(Digits::new(true).into());
        }
        steps.push(ByteLevel::new(false, false, self.gpt2 != Gpt2Split::No).into());
        Ok(PreTokenizers::new(steps).into())
    }
}
