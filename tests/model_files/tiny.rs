//! A tiny model made by hand, written as GGUF or as a folder: small enough to damage at every byte.

use std::collections::BTreeMap;

use draftree::model::MemorySource;
use serde_json::{Value, json};

pub const HIDDEN: usize = 32;
pub const FFN: usize = 96;
pub const HEADS: usize = 2;
pub const HEAD_DIM: usize = 16;
pub const VOCAB: usize = 6;

/// A GGUF file in the making. Metadata values are kept as they will lie in the file: type, then bytes.
#[derive(Clone)]
pub struct Gguf {
    pub version: u32,
    pub metadata: Vec<(String, Vec<u8>)>,
    pub tensors: Vec<GgufTensor>,
}

#[derive(Clone)]
pub struct GgufTensor {
    pub name: String,
    /// Slowest axis first.
    pub shape: Vec<usize>,
    pub type_id: u32,
    pub data: Vec<u8>,
}

pub fn text(value: &str) -> Vec<u8> {
    [&8u32.to_le_bytes()[..], &string(value)].concat()
}

pub fn number(value: u32) -> Vec<u8> {
    [4u32.to_le_bytes(), value.to_le_bytes()].concat()
}

pub fn float(value: f32) -> Vec<u8> {
    [6u32.to_le_bytes(), value.to_le_bytes()].concat()
}

/// An array value: type of the elements, their number, their bytes.
pub fn array(element_type: u32, count: u64, elements: &[u8]) -> Vec<u8> {
    [&9u32.to_le_bytes()[..], &element_type.to_le_bytes(), &count.to_le_bytes(), elements].concat()
}

pub fn string(value: &str) -> Vec<u8> {
    [&(value.len() as u64).to_le_bytes()[..], value.as_bytes()].concat()
}

impl Gguf {
    /// A whole model of the family `llama` or `qwen2`, its norms F32 and its matrices F32.
    pub fn tiny(family: &str) -> Self {
        let key = |name: &str| format!("{family}.{name}");
        let tokens = ["<unk>", "<s>", "</s>", "a", "b", "<|im_end|>"];
        let listed: Vec<u8> = tokens.iter().flat_map(|token| string(token)).collect();
        let types: Vec<u8> = [2u32, 3, 3, 1, 1, 3].iter().flat_map(|ty| ty.to_le_bytes()).collect();
        let metadata = vec![
            ("general.architecture".to_owned(), text(family)),
            (key("context_length"), number(64)),
            (key("embedding_length"), number(HIDDEN as u32)),
            (key("block_count"), number(1)),
            (key("feed_forward_length"), number(FFN as u32)),
            (key("attention.head_count"), number(HEADS as u32)),
            (key("attention.head_count_kv"), number(1)),
            (key("attention.layer_norm_rms_epsilon"), float(1e-5)),
            ("tokenizer.ggml.model".to_owned(), text("llama")),
            ("tokenizer.ggml.tokens".to_owned(), array(8, tokens.len() as u64, &listed)),
            ("tokenizer.ggml.token_type".to_owned(), array(5, tokens.len() as u64, &types)),
            ("tokenizer.ggml.bos_token_id".to_owned(), number(1)),
            ("tokenizer.ggml.eos_token_id".to_owned(), number(2)),
        ];
        let pairs = family == "llama";
        let tensors = weights(family).into_iter().map(|(name, (shape, values))| {
            let rotated = name.contains("q_proj") || name.contains("k_proj");
            let values = if pairs && rotated { halves_to_pairs(&values, &shape) } else { values };
            let data = values.iter().flat_map(|value| value.to_le_bytes()).collect();
            GgufTensor { name: gguf_name(&name), shape, type_id: 0, data }
        });
        Self { version: 3, metadata, tensors: tensors.collect() }
    }

    pub fn set(mut self, key: &str, value: Vec<u8>) -> Self {
        self.metadata.retain(|(name, _)| name != key);
        self.metadata.push((key.to_owned(), value));
        self
    }

    pub fn without(mut self, name: &str) -> Self {
        self.metadata.retain(|(key, _)| key != name);
        self.tensors.retain(|tensor| tensor.name != name);
        self
    }

    pub fn tensor(mut self, name: &str, change: impl FnOnce(&mut GgufTensor)) -> Self {
        change(self.tensors.iter_mut().find(|tensor| tensor.name == name).expect("a tensor of the tiny model"));
        self
    }

    pub fn with(mut self, tensor: GgufTensor) -> Self {
        self.tensors.push(tensor);
        self
    }

    pub fn bytes(&self) -> Vec<u8> {
        const ALIGNMENT: usize = 32;
        let mut file = b"GGUF".to_vec();
        file.extend(self.version.to_le_bytes());
        file.extend((self.tensors.len() as u64).to_le_bytes());
        file.extend((self.metadata.len() as u64).to_le_bytes());
        for (key, value) in &self.metadata {
            file.extend(string(key));
            file.extend(value);
        }
        let mut data = Vec::new();
        for tensor in &self.tensors {
            file.extend(string(&tensor.name));
            file.extend((tensor.shape.len() as u32).to_le_bytes());
            file.extend(tensor.shape.iter().rev().flat_map(|&size| (size as u64).to_le_bytes()));
            file.extend(tensor.type_id.to_le_bytes());
            file.extend((data.len() as u64).to_le_bytes());
            data.extend(&tensor.data);
            data.resize(data.len().next_multiple_of(ALIGNMENT), 0);
        }
        file.resize(file.len().next_multiple_of(ALIGNMENT), 0);
        file.extend(data);
        file
    }

    pub fn source(&self) -> MemorySource {
        MemorySource::new([("tiny.gguf", self.bytes())])
    }
}

/// The weights by Hugging Face name: shape and values, every value different.
pub fn weights(family: &str) -> BTreeMap<String, (Vec<usize>, Vec<f32>)> {
    let (q, kv) = (HEADS * HEAD_DIM, HEAD_DIM);
    let layer = |name: &str| format!("model.layers.0.{name}");
    let mut shapes = vec![
        ("model.embed_tokens.weight".to_owned(), vec![VOCAB, HIDDEN]),
        ("model.norm.weight".to_owned(), vec![HIDDEN]),
        (layer("input_layernorm.weight"), vec![HIDDEN]),
        (layer("post_attention_layernorm.weight"), vec![HIDDEN]),
        (layer("self_attn.q_proj.weight"), vec![q, HIDDEN]),
        (layer("self_attn.k_proj.weight"), vec![kv, HIDDEN]),
        (layer("self_attn.v_proj.weight"), vec![kv, HIDDEN]),
        (layer("self_attn.o_proj.weight"), vec![HIDDEN, q]),
        (layer("mlp.gate_proj.weight"), vec![FFN, HIDDEN]),
        (layer("mlp.up_proj.weight"), vec![FFN, HIDDEN]),
        (layer("mlp.down_proj.weight"), vec![HIDDEN, FFN]),
    ];
    if family == "qwen2" {
        shapes.push(("lm_head.weight".to_owned(), vec![VOCAB, HIDDEN]));
        shapes.push((layer("self_attn.q_proj.bias"), vec![q]));
        shapes.push((layer("self_attn.k_proj.bias"), vec![kv]));
        shapes.push((layer("self_attn.v_proj.bias"), vec![kv]));
    }
    let mut next = 0.0;
    let named = shapes.into_iter().map(|(name, shape)| {
        let values = (0..shape.iter().product()).map(|_| {
            next += 0.125;
            next
        });
        let values = values.collect();
        (name, (shape, values))
    });
    named.collect()
}

fn halves_to_pairs(values: &[f32], shape: &[usize]) -> Vec<f32> {
    let width = shape.get(1).copied().unwrap_or(1);
    let row = |row: usize| {
        let (head, i) = (row / HEAD_DIM, row % HEAD_DIM);
        let stored = head * HEAD_DIM + i / 2 + i % 2 * (HEAD_DIM / 2);
        &values[stored * width..][..width]
    };
    (0..shape[0]).flat_map(row).copied().collect()
}

fn gguf_name(name: &str) -> String {
    [
        ("model.embed_tokens", "token_embd"),
        ("model.norm", "output_norm"),
        ("lm_head", "output"),
        ("model.layers", "blk"),
        ("input_layernorm", "attn_norm"),
        ("post_attention_layernorm", "ffn_norm"),
        ("self_attn.o_proj", "attn_output"),
        ("self_attn.q_proj", "attn_q"),
        ("self_attn.k_proj", "attn_k"),
        ("self_attn.v_proj", "attn_v"),
        ("mlp.gate_proj", "ffn_gate"),
        ("mlp.up_proj", "ffn_up"),
        ("mlp.down_proj", "ffn_down"),
    ]
    .iter()
    .fold(name.to_owned(), |name, (from, to)| name.replace(from, to))
}

/// The same model as the files of a folder.
#[derive(Clone)]
pub struct Folder {
    pub config: Value,
    pub files: BTreeMap<String, Vec<u8>>,
}

impl Folder {
    pub fn tiny(family: &str) -> Self {
        let class = if family == "qwen2" { "Qwen2ForCausalLM" } else { "LlamaForCausalLM" };
        let config = json!({
            "model_type": family, "architectures": [class], "hidden_size": HIDDEN, "intermediate_size": FFN,
            "num_hidden_layers": 1, "num_attention_heads": HEADS, "num_key_value_heads": 1, "vocab_size": VOCAB,
            "max_position_embeddings": 64, "rms_norm_eps": 1e-5, "tie_word_embeddings": family == "llama",
            "bos_token_id": 1, "eos_token_id": 2, "hidden_act": "silu",
        });
        let special = |id: u32, content: &str| json!({ "id": id, "content": content, "special": true });
        let added = [special(0, "<unk>"), special(1, "<s>"), special(2, "</s>"), special(5, "<|im_end|>")];
        let tokenizer = json!({ "added_tokens": added, "model": { "type": "BPE", "vocab": { "a": 3, "b": 4 } } });
        let mut files = BTreeMap::new();
        files.insert("tokenizer.json".to_owned(), tokenizer.to_string().into_bytes());
        files.insert("model.safetensors".to_owned(), safetensors(&weights(family)));
        Self { config, files }
    }

    pub fn set(mut self, key: &str, value: Value) -> Self {
        self.config[key] = value;
        self
    }

    pub fn file(mut self, name: &str, content: impl Into<Vec<u8>>) -> Self {
        self.files.insert(name.to_owned(), content.into());
        self
    }

    pub fn without(mut self, name: &str) -> Self {
        self.files.remove(name);
        self
    }

    pub fn source(&self) -> MemorySource {
        let config = ("config.json".to_owned(), self.config.to_string().into_bytes());
        MemorySource::new(self.files.clone().into_iter().chain([config]))
    }
}

/// A safetensors file of float32 tensors.
pub fn safetensors(tensors: &BTreeMap<String, (Vec<usize>, Vec<f32>)>) -> Vec<u8> {
    let (mut header, mut data) = (serde_json::Map::new(), Vec::new());
    for (name, (shape, values)) in tensors {
        let start = data.len();
        data.extend(values.iter().flat_map(|value| value.to_le_bytes()));
        header.insert(name.clone(), json!({ "dtype": "F32", "shape": shape, "data_offsets": [start, data.len()] }));
    }
    let header = serde_json::to_vec(&header).expect("a map of plain values");
    [&(header.len() as u64).to_le_bytes()[..], &header, &data].concat()
}
