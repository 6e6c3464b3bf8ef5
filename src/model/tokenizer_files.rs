//! What a checkpoint says about its tokenizer, as plain data.
//!
//! The fields are left as the file has them (numbers not interpreted, lists not checked): giving them a meaning belongs to
//! the tokenizer, so that every rule about tokenizers, and every error message about one, is in one place.
/// The tokenizer of a checkpoint, in one of the two forms that checkpoints come in.
#[derive(Debug, Clone)]
pub enum TokenizerFiles {
    /// A Hugging Face folder: `tokenizer.json` and what `tokenizer_config.json` adds to it.
    Json(JsonTokenizer),
    /// The `tokenizer.ggml.*` metadata of a GGUF file.
    Gguf(GgufTokenizer),
}

/// The tokenizer files of a Hugging Face folder.
#[derive(Debug, Clone, Default)]
pub struct JsonTokenizer {
    /// The bytes of `tokenizer.json`.
    pub tokenizer_json: Vec<u8>,
    /// `add_bos_token` of `tokenizer_config.json`; without it the post-processor of `tokenizer.json` decides.
    pub add_bos: Option<bool>,
    /// `bos_token` of `tokenizer_config.json` (its `content`, where it is an object).
    pub bos_token: Option<String>,
    /// `eos_token` of `tokenizer_config.json` (its `content`, where it is an object).
    pub eos_token: Option<String>,
}

/// The `tokenizer.ggml.*` metadata of a GGUF file; an absent key is `None` or an empty list.
#[derive(Debug, Clone, Default)]
pub struct GgufTokenizer {
    /// `model`: `"gpt2"` (byte-level BPE) or `"llama"` (sentencepiece BPE).
    pub model: String,
    /// `pre`: the name of the pre-tokenizer of a byte-level BPE.
    pub pre: Option<String>,
    /// `tokens`: the text of every id, `[V]`.
    pub tokens: Vec<String>,
    /// `scores`, `[V]`: sentencepiece merges the pair with the highest score first.
    pub scores: Vec<f32>,
    /// `token_type`, `[V]`: 1 normal, 2 unknown, 3 control, 4 user-defined, 5 unused, 6 byte.
    pub token_types: Vec<i32>,
    /// `merges`: the pairs of a byte-level BPE, `"left right"`, the first merged first.
    pub merges: Vec<String>,
    /// `bos_token_id`.
    pub bos_token_id: Option<u32>,
    /// `eos_token_id`.
    pub eos_token_id: Option<u32>,
    /// `eot_token_id`: the token that ends a turn, where it is not the end of the text.
    pub eot_token_id: Option<u32>,
    /// `eom_token_id`: the token that ends a message which a tool answers.
    pub eom_token_id: Option<u32>,
    /// `unknown_token_id`.
    pub unknown_token_id: Option<u32>,
    /// `padding_token_id`.
    pub padding_token_id: Option<u32>,
    /// `add_bos_token`: by default true for `"llama"` and false for `"gpt2"`.
    pub add_bos: Option<bool>,
    /// `add_space_prefix`: sentencepiece puts a space before the text (default true).
    pub add_space_prefix: Option<bool>,
    /// `remove_extra_whitespaces`: sentencepiece folds runs of spaces (default false).
    pub remove_extra_whitespaces: Option<bool>,
}
