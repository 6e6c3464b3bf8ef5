//! The tokenizers that the tests run on, read from the files without the crate's own parsers: a small reader of GGUF
//! metadata stands in for them, so that a fault there cannot hide one here.

#![allow(dead_code)] // each test program uses a part of this

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use draftree::model::{GgufTokenizer, JsonTokenizer, TokenizerFiles};
use draftree::tokenizer::{ModelTokens, Tokenizer};
use serde_json::Value;

/// The folder with the small models and the golden files.
pub fn shared(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../shared").join(path)
}

/// A downloaded model; says loudly that the test was skipped if it is not there.
pub fn downloaded(name: &str) -> Option<PathBuf> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(".cache/models").join(name);
    if !path.exists() {
        eprintln!("SKIPPED: {} is not there; fetch the test models first", path.display());
        return None;
    }
    Some(path)
}

/// A JSON file.
pub fn json(path: &Path) -> Value {
    let bytes = std::fs::read(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    serde_json::from_slice(&bytes).unwrap()
}

/// One string and its ids by model.
pub struct Vector {
    pub text: String,
    pub ids: Vec<u32>,
}

/// The golden strings of a model.
pub fn vectors(model: &str) -> Vec<Vector> {
    let golden = json(&shared("golden/tokenizers.json"));
    let cases = golden["cases"].as_array().unwrap();
    assert_eq!(cases.len(), 195);
    let vector = |case: &Value| Vector {
        text: case["text"].as_str().unwrap().to_owned(),
        ids: serde_json::from_value(case["ids"][model].clone()).unwrap(),
    };
    cases.iter().map(vector).collect()
}

/// The files of a folder in `shared/models`.
pub fn folder(name: &str) -> TokenizerFiles {
    let config = json(&shared(&format!("models/{name}/tokenizer_config.json")));
    let text = |key: &str| config[key].as_str().map(str::to_owned);
    TokenizerFiles::Json(JsonTokenizer {
        tokenizer_json: std::fs::read(shared(&format!("models/{name}/tokenizer.json"))).unwrap(),
        add_bos: config["add_bos_token"].as_bool(),
        bos_token: text("bos_token"),
        eos_token: text("eos_token"),
    })
}

/// A model whose tokenizer can be had: by name, rows of the embedding, and files.
pub struct Case {
    pub name: &'static str,
    pub golden: &'static str,
    pub vocab_size: usize,
    pub files: TokenizerFiles,
}

impl Case {
    pub fn build(&self) -> Tokenizer {
        Tokenizer::from_files(&self.files, self.model()).unwrap_or_else(|error| panic!("{}: {error}", self.name))
    }

    pub fn model(&self) -> ModelTokens<'static> {
        ModelTokens { vocab_size: self.vocab_size, bos_token_id: None, eos_token_ids: &[] }
    }
}

/// All tokenizers that are there.
pub fn cases() -> Vec<Case> {
    let gguf = |path: &Path| TokenizerFiles::Gguf(read_gguf(path).0);
    let (stories, smollm2, qwen) = ("stories260K", "SmolLM2-135M-Instruct", "Qwen2.5-Coder-0.5B-Instruct");
    let stories_gguf = shared("models/stories260K/stories260K-q8_0.gguf");
    let mut cases = vec![
        Case { name: "stories260K", golden: stories, vocab_size: 512, files: folder(stories) },
        Case { name: "stories260K.gguf", golden: stories, vocab_size: 512, files: gguf(&stories_gguf) },
        Case { name: "SmolLM2", golden: smollm2, vocab_size: 49_152, files: folder(smollm2) },
    ];
    if let Some(path) = downloaded("smollm2-135m-instruct.gguf") {
        cases.push(Case { name: "SmolLM2.gguf", golden: smollm2, vocab_size: 49_152, files: gguf(&path) });
    }
    if let Some(path) = downloaded("qwen2.5-coder-0.5b-instruct.gguf") {
        cases.push(Case { name: "Qwen2.5.gguf", golden: qwen, vocab_size: 151_936, files: gguf(&path) });
    }
    cases
}

/// A metadata value of the kinds that tokenizers use.
enum Meta {
    Number(f64),
    Text(String),
    List(Vec<Meta>),
}

impl Meta {
    fn number(&self) -> f64 {
        match self {
            Self::Number(number) => *number,
            _ => panic!("no number"),
        }
    }

    fn text(&self) -> String {
        match self {
            Self::Text(text) => text.clone(),
            _ => panic!("no text"),
        }
    }

    fn list<T>(&self, item: fn(&Self) -> T) -> Vec<T> {
        match self {
            Self::List(items) => items.iter().map(item).collect(),
            _ => panic!("no list"),
        }
    }
}

/// The tokenizer metadata of a GGUF file, and its chat template.
pub fn read_gguf(path: &Path) -> (GgufTokenizer, Option<String>) {
    use std::io::Read as _;
    let mut bytes = Vec::new();
    let file = std::fs::File::open(path).unwrap();
    file.take(32 << 20).read_to_end(&mut bytes).unwrap();
    let mut at = 16;
    let entries = number(&bytes, &mut at, 10) as usize;
    let mut meta: HashMap<String, Meta> = HashMap::new();
    for _ in 0..entries {
        let key = text(&bytes, &mut at);
        let kind = number(&bytes, &mut at, 4) as u32;
        meta.insert(key, value(&bytes, &mut at, kind));
    }
    let get = |key: &str| meta.get(&format!("tokenizer.ggml.{key}"));
    let id = |key: &str| get(key).map(|value| value.number() as u32);
    let flag = |key: &str| get(key).map(|value| value.number() != 0.0);
    let texts = |key: &str| get(key).map_or(Vec::new(), |value| value.list(Meta::text));
    let tokenizer = GgufTokenizer {
        model: get("model").map_or(String::new(), Meta::text),
        pre: get("pre").map(Meta::text),
        tokens: texts("tokens"),
        scores: get("scores").map_or(Vec::new(), |value| value.list(|item| item.number() as f32)),
        token_types: get("token_type").map_or(Vec::new(), |value| value.list(|item| item.number() as i32)),
        merges: texts("merges"),
        bos_token_id: id("bos_token_id"),
        eos_token_id: id("eos_token_id"),
        eot_token_id: id("eot_token_id"),
        unknown_token_id: id("unknown_token_id"),
        padding_token_id: id("padding_token_id"),
        add_bos: flag("add_bos_token"),
        add_space_prefix: flag("add_space_prefix"),
        remove_extra_whitespaces: flag("remove_extra_whitespaces"),
    };
    (tokenizer, meta.get("tokenizer.chat_template").map(Meta::text))
}

fn number(bytes: &[u8], at: &mut usize, kind: u32) -> f64 {
    fn take<const N: usize>(bytes: &[u8], at: &mut usize) -> [u8; N] {
        let value = bytes[*at..*at + N].try_into().unwrap();
        *at += N;
        value
    }
    match kind {
        0 | 7 => f64::from(take::<1>(bytes, at)[0]),
        1 => f64::from(i8::from_le_bytes(take(bytes, at))),
        2 => f64::from(u16::from_le_bytes(take(bytes, at))),
        3 => f64::from(i16::from_le_bytes(take(bytes, at))),
        4 => f64::from(u32::from_le_bytes(take(bytes, at))),
        5 => f64::from(i32::from_le_bytes(take(bytes, at))),
        6 => f64::from(f32::from_le_bytes(take(bytes, at))),
        10 => u64::from_le_bytes(take(bytes, at)) as f64,
        11 => i64::from_le_bytes(take(bytes, at)) as f64,
        12 => f64::from_le_bytes(take(bytes, at)),
        other => panic!("metadata of kind {other}"),
    }
}

fn text(bytes: &[u8], at: &mut usize) -> String {
    let len = number(bytes, at, 10) as usize;
    let text = String::from_utf8_lossy(&bytes[*at..*at + len]).into_owned();
    *at += len;
    text
}

fn value(bytes: &[u8], at: &mut usize, kind: u32) -> Meta {
    match kind {
        8 => Meta::Text(text(bytes, at)),
        9 => {
            let kind = number(bytes, at, 4) as u32;
            let len = number(bytes, at, 10) as usize;
            Meta::List((0..len).map(|_| value(bytes, at, kind)).collect())
        }
        kind => Meta::Number(number(bytes, at, kind)),
    }
}
