//! `tokenizer.json`, the format of the `tokenizers` library, read into [`Parts`].
//!
//! The vocabulary and the merges, which are nearly all of the file, are read straight into the maps that the model is built
//! from. The small stages around them (normaliser, pre-tokenizer) go through the crate's own types, after a check that only
//! known ones are there. Truncation, padding and the post-processor are not used: what they would add to a prompt is the
//! beginning-of-text token, and [`super::Tokenizer::encode`] puts that where the caller wants it.

use std::fmt;

use serde::Deserialize;
use serde::de::{self, DeserializeOwned, SeqAccess, Visitor};
use serde_json::Value;
use tokenizers::AddedToken;
use tokenizers::models::bpe::Vocab;

use super::bpe::{Added, Parts, bad, unsupported};
use super::pieces::Decoding;
use crate::error::Result;
use crate::model::JsonTokenizer;

/// Stages may hold stages; real files go two deep.
const MAX_STAGE_DEPTH: usize = 8;

const NORMALIZERS: &[&str] =
    &["Sequence", "NFC", "NFD", "NFKC", "NFKD", "Lowercase", "StripAccents", "Strip", "Replace", "Prepend"];
const PRE_TOKENIZERS: &[&str] = &[
    "Sequence",
    "ByteLevel",
    "Split",
    "Digits",
    "Metaspace",
    "Punctuation",
    "Whitespace",
    "WhitespaceSplit",
    "CharDelimiterSplit",
    "UnicodeScripts",
];

#[derive(Deserialize)]
struct TokenizerJson {
    #[serde(default)]
    added_tokens: Vec<AddedTokenJson>,
    #[serde(default)]
    normalizer: Value,
    #[serde(default)]
    pre_tokenizer: Value,
    #[serde(default)]
    post_processor: Value,
    #[serde(default)]
    decoder: Value,
    model: ModelJson,
}

#[derive(Deserialize)]
struct AddedTokenJson {
    id: u32,
    content: String,
    #[serde(default)]
    single_word: bool,
    #[serde(default)]
    lstrip: bool,
    #[serde(default)]
    rstrip: bool,
    #[serde(default)]
    normalized: bool,
    #[serde(default)]
    special: bool,
}

#[derive(Deserialize)]
struct ModelJson {
    #[serde(rename = "type")]
    kind: Option<String>,
    vocab: Vocab,
    merges: Vec<MergeJson>,
    #[serde(default)]
    unk_token: Option<String>,
    #[serde(default)]
    continuing_subword_prefix: Option<String>,
    #[serde(default)]
    end_of_word_suffix: Option<String>,
    #[serde(default)]
    fuse_unk: bool,
    #[serde(default)]
    byte_fallback: bool,
    #[serde(default)]
    ignore_merges: bool,
}

/// A merge, `["a", "b"]` or, in files of before 2024, `"a b"`.
struct MergeJson(String, String);

impl<'de> Deserialize<'de> for MergeJson {
    fn deserialize<D: de::Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        struct MergeVisitor;

        impl<'de> Visitor<'de> for MergeVisitor {
            type Value = MergeJson;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a merge: [\"a\", \"b\"] or \"a b\"")
            }

            fn visit_str<E: de::Error>(self, pair: &str) -> std::result::Result<MergeJson, E> {
                match pair.split_once(' ') {
                    Some((left, right)) if !right.contains(' ') => Ok(MergeJson(left.to_owned(), right.to_owned())),
                    _ => Err(E::invalid_value(de::Unexpected::Str(pair), &self)),
                }
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut pair: A) -> std::result::Result<MergeJson, A::Error> {
                match (pair.next_element()?, pair.next_element()?, pair.next_element::<de::IgnoredAny>()?) {
                    (Some(left), Some(right), None) => Ok(MergeJson(left, right)),
                    _ => Err(de::Error::invalid_length(0, &self)),
                }
            }
        }

        deserializer.deserialize_any(MergeVisitor)
    }
}

/// Reads the parts out of `tokenizer.json` and what belongs to it.
pub(super) fn parts(files: &JsonTokenizer) -> Result<Parts> {
    let json: TokenizerJson = serde_json::from_slice(&files.tokenizer_json).map_err(|error| {
        match model_kind(&files.tokenizer_json).filter(|kind| kind != "BPE") {
            Some(kind) => unsupported(format!("tokenizer.json has a {kind} model; only BPE models are supported")),
            None => bad(format!("tokenizer.json cannot be read: {error}")),
        }
    })?;
    let model = json.model;
    if let Some(kind) = model.kind.filter(|kind| kind != "BPE") {
        return Err(unsupported(format!("tokenizer.json has a {kind} model; only BPE models are supported")));
    }
    for (name, affix) in [
        ("continuing_subword_prefix", model.continuing_subword_prefix),
        ("end_of_word_suffix", model.end_of_word_suffix),
    ] {
        if let Some(affix) = affix.filter(|affix| !affix.is_empty()) {
            return Err(unsupported(format!("tokenizer.json sets {name} to {affix:?}; it has to be empty")));
        }
    }
    let added: Vec<Added> = json.added_tokens.into_iter().map(added_token).collect();
    let id_of = |text: &str| {
        let added = added.iter().find(|added| added.token.content == text).map(|added| added.id);
        model.vocab.get(text).copied().or(added)
    };
    let template_bos = template_bos(&json.post_processor);
    let named_bos = files.bos_token.as_deref().and_then(id_of);
    let end_ids = files.eos_token.as_deref().and_then(id_of).into_iter().collect();
    Ok(Parts {
        normalizer: stage("normalizer", &json.normalizer, NORMALIZERS)?,
        pre_tokenizer: stage("pre_tokenizer", &json.pre_tokenizer, PRE_TOKENIZERS)?,
        decoding: decoding(&json.decoder)?,
        bos_id: template_bos.or(named_bos),
        adds_bos: files.add_bos.unwrap_or(template_bos.is_some()),
        end_ids,
        merges: model.merges.into_iter().map(|MergeJson(left, right)| (left, right)).collect(),
        vocab: model.vocab,
        unk_token: model.unk_token,
        fuse_unk: model.fuse_unk,
        byte_fallback: model.byte_fallback,
        ignore_merges: model.ignore_merges,
        added,
    })
}

/// The kind of model in a file that is no [`TokenizerJson`], for the error message.
fn model_kind(bytes: &[u8]) -> Option<String> {
    #[derive(Deserialize)]
    struct Head {
        model: Model,
    }
    #[derive(Deserialize)]
    struct Model {
        #[serde(rename = "type")]
        kind: String,
    }
    serde_json::from_slice(bytes).ok().map(|head: Head| head.model.kind)
}

fn added_token(json: AddedTokenJson) -> Added {
    let token = AddedToken::from(json.content, json.special)
        .single_word(json.single_word)
        .lstrip(json.lstrip)
        .rstrip(json.rstrip)
        .normalized(json.normalized);
    Added { id: json.id, token }
}

/// The token that a `TemplateProcessing` puts before a text: `"<s>"` in `<s> $A`.
fn template_bos(processor: &Value) -> Option<u32> {
    if let Some(processors) = processor.get("processors").and_then(Value::as_array) {
        return processors.iter().find_map(template_bos);
    }
    let name = processor.get("single")?.get(0)?.get("SpecialToken")?.get("id")?.as_str()?;
    let id = processor.get("special_tokens")?.get(name)?.get("ids")?.get(0)?.as_u64()?;
    u32::try_from(id).ok()
}

/// Reads a normaliser or a pre-tokenizer with the crate's own types, if all of it is of the `known` kinds.
fn stage<T: DeserializeOwned>(name: &str, value: &Value, known: &[&str]) -> Result<Option<T>> {
    if value.is_null() {
        return Ok(None);
    }
    check_stage(name, value, known, MAX_STAGE_DEPTH)?;
    T::deserialize(value)
        .map(Some)
        .map_err(|error| bad(format!("the {name} of tokenizer.json cannot be used: {error}")))
}

fn check_stage(name: &str, value: &Value, known: &[&str], depth: usize) -> Result<()> {
    let kind = kind_of(name, value)?;
    if !known.contains(&kind) {
        return Err(unsupported(format!(
            "tokenizer.json has a {name} of the kind {kind:?}; supported are {}",
            known.join(", ")
        )));
    }
    if depth == 0 {
        return Err(bad(format!("the {name} of tokenizer.json is nested more than {MAX_STAGE_DEPTH} deep")));
    }
    let lists = ["normalizers", "pretokenizers"].iter().filter_map(|list| value.get(*list)?.as_array());
    lists.flatten().try_for_each(|inner| check_stage(name, inner, known, depth - 1))
}

fn kind_of<'a>(name: &str, value: &'a Value) -> Result<&'a str> {
    value
        .get("type")
        .and_then(Value::as_str)
        .ok_or_else(|| bad(format!("the {name} of tokenizer.json has no \"type\", so it is not known what it does")))
}

/// What the `decoder` says about the texts of the vocabulary. All byte-level models have one form, and all converted from
/// sentencepiece another (with or without its last step); nothing else is accepted.
fn decoding(decoder: &Value) -> Result<Decoding> {
    if decoder.is_null() {
        return Err(unsupported("tokenizer.json has no decoder, so its tokens cannot be made into text"));
    }
    let (mut replace, mut byte_fallback, mut fused, mut strip_left) = (Vec::new(), false, false, 0);
    let steps = match decoder.get("decoders").and_then(Value::as_array) {
        Some(steps) => steps.as_slice(),
        None => std::slice::from_ref(decoder),
    };
    for step in steps {
        let text = |key: &str| step.get(key).and_then(Value::as_str).map(str::to_owned);
        match kind_of("decoder", step)? {
            "ByteLevel" if steps.len() == 1 => return Ok(Decoding::ByteLevel),
            "Replace" if !byte_fallback && !fused => {
                let from = step.get("pattern").and_then(|pattern| pattern.get("String")).and_then(Value::as_str);
                match (from, text("content")) {
                    (Some(from), Some(to)) if !from.is_empty() => replace.push((from.to_owned(), to)),
                    _ => return Err(unsupported(format!("tokenizer.json has a decoder step {step}"))),
                }
            }
            "ByteFallback" if !fused => byte_fallback = true,
            "Fuse" => fused = true,
            "Strip" if fused && text("content").as_deref() == Some(" ") && count(step, "stop") == Some(0) => {
                let start =
                    count(step, "start").ok_or_else(|| bad(format!("tokenizer.json has a decoder step {step}")))?;
                strip_left += start;
            }
            kind => {
                return Err(unsupported(format!(
                    "tokenizer.json has a decoder step {kind:?} where it is not supported; supported are ByteLevel, and \
                     the sequence Replace, ByteFallback, Fuse, Strip"
                )));
            }
        }
    }
    Ok(Decoding::Sentencepiece { replace, byte_fallback, strip_left })
}

/// A small number in a decoder step.
fn count(step: &Value, key: &str) -> Option<usize> {
    step.get(key).and_then(Value::as_u64).filter(|&count| count <= 16).and_then(|count| usize::try_from(count).ok())
}
