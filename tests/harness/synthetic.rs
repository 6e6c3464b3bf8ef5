//! Models of random weights, as GGUF files in memory: every packed format, and sizes that fill no tile, group or chunk.

use draftree::model::{MemorySource, TensorType};
use half::{bf16, f16};

use super::model_files::tiny::{Gguf, GgufTensor, array, float, number, string, text};
use super::random::Random;

/// What a model is like. The default is a small ragged Llama in F32, its head tied to the embedding.
#[derive(Debug, Clone, Copy)]
pub struct Model {
    pub family: &'static str,
    pub matrices: TensorType,
    pub hidden: usize,
    pub ffn: usize,
    pub layers: usize,
    pub heads: usize,
    pub kv_heads: usize,
    pub head_dim: usize,
    pub vocab: usize,
    pub context: usize,
    pub tied: bool,
    /// Factor on the weights of the head, where it is not tied; 0 makes all logits equal.
    pub head_scale: f32,
}

impl Model {
    pub const RAGGED: Self = Self {
        family: "llama",
        matrices: TensorType::F32,
        hidden: 96,
        ffn: 172,
        layers: 2,
        heads: 6,
        kv_heads: 2,
        head_dim: 16,
        vocab: 509,
        context: 2048,
        tied: true,
        head_scale: 1.0,
    };

    /// Sizes of which a K-quant's block of 256 fills a row.
    pub const WIDE: Self = Self { hidden: 256, ffn: 256, heads: 8, head_dim: 32, ..Self::RAGGED };

    /// Its file.
    pub fn source(&self) -> MemorySource {
        MemorySource::new([("synthetic.gguf", self.gguf().bytes())])
    }

    /// Its file, still open to changes.
    pub fn gguf(&self) -> Gguf {
        Gguf { version: 3, metadata: self.metadata(), tensors: self.tensors() }
    }

    fn metadata(&self) -> Vec<(String, Vec<u8>)> {
        let named = ["<unk>", "<s>", "</s>"].map(str::to_owned).into_iter();
        let tokens: Vec<String> = named.chain((3..self.vocab).map(|id| format!("t{id}"))).collect();
        let listed: Vec<u8> = tokens.iter().flat_map(|token| string(token)).collect();
        let kinds: Vec<u8> = (0..self.vocab).flat_map(|id| [2u32, 3, 3, 1][id.min(3)].to_le_bytes()).collect();
        let size = |key: &str, size: usize| (format!("{}.{key}", self.family), number(size as u32));
        vec![
            ("general.architecture".to_owned(), text(self.family)),
            size("context_length", self.context),
            size("embedding_length", self.hidden),
            size("block_count", self.layers),
            size("feed_forward_length", self.ffn),
            size("attention.head_count", self.heads),
            size("attention.head_count_kv", self.kv_heads),
            size("attention.key_length", self.head_dim),
            size("attention.value_length", self.head_dim),
            (format!("{}.attention.layer_norm_rms_epsilon", self.family), float(1e-5)),
            ("tokenizer.ggml.model".to_owned(), text("llama")),
            ("tokenizer.ggml.tokens".to_owned(), array(8, self.vocab as u64, &listed)),
            ("tokenizer.ggml.token_type".to_owned(), array(5, self.vocab as u64, &kinds)),
            ("tokenizer.ggml.bos_token_id".to_owned(), number(1)),
            ("tokenizer.ggml.eos_token_id".to_owned(), number(2)),
        ]
    }

    fn tensors(&self) -> Vec<GgufTensor> {
        let mut random = Random::new(17);
        let (q, kv) = (self.heads * self.head_dim, self.kv_heads * self.head_dim);
        let mut tensors = vec![self.matrix(&mut random, "token_embd", self.vocab, self.hidden, 1.0)];
        for layer in 0..self.layers {
            let name = |name: &str| format!("blk.{layer}.{name}");
            for norm in ["attn_norm", "ffn_norm"] {
                tensors.push(vector(&mut random, name(norm), "weight", self.hidden, 1.0));
            }
            for (part, rows) in [("attn_q", q), ("attn_k", kv), ("attn_v", kv)] {
                tensors.push(self.projection(&mut random, &name(part), rows, self.hidden));
                if self.family == "qwen2" {
                    tensors.push(vector(&mut random, name(part), "bias", rows, 0.0));
                }
            }
            for (part, rows, cols) in [
                ("attn_output", self.hidden, q),
                ("ffn_gate", self.ffn, self.hidden),
                ("ffn_up", self.ffn, self.hidden),
                ("ffn_down", self.hidden, self.ffn),
            ] {
                tensors.push(self.projection(&mut random, &name(part), rows, cols));
            }
        }
        tensors.push(vector(&mut random, "output_norm".to_owned(), "weight", self.hidden, 1.0));
        if !self.tied {
            let scale = self.head_scale / (self.hidden as f32).sqrt();
            tensors.push(self.matrix(&mut random, "output", self.vocab, self.hidden, 4.0 * scale));
        }
        tensors
    }

    /// A matrix that keeps the size of its inputs.
    fn projection(&self, random: &mut Random, name: &str, rows: usize, cols: usize) -> GgufTensor {
        self.matrix(random, name, rows, cols, 1.0 / (cols as f32).sqrt())
    }

    fn matrix(&self, random: &mut Random, name: &str, rows: usize, cols: usize, deviation: f32) -> GgufTensor {
        let (block_values, _) = self.matrices.block().expect("a supported type");
        assert!(cols.is_multiple_of(block_values), "{name}: rows of {cols} are whole blocks of {}", self.matrices);
        let blocks = rows * cols / block_values;
        let data = (0..blocks).flat_map(|_| block(random, self.matrices, deviation)).collect();
        GgufTensor { name: format!("{name}.weight"), shape: vec![rows, cols], type_id: type_id(self.matrices), data }
    }
}

fn vector(random: &mut Random, name: String, kind: &str, length: usize, around: f32) -> GgufTensor {
    let values = (0..length).flat_map(|_| (around + 0.3 * random.unit()).to_le_bytes()).collect();
    GgufTensor { name: format!("{name}.{kind}"), shape: vec![length], type_id: 0, data: values }
}

fn type_id(ty: TensorType) -> u32 {
    (0..64).find(|&id| TensorType::from_ggml(id) == ty).expect("a type of GGUF files")
}

/// One block whose values spread about zero with this deviation: random quants, and scales that fit the type.
fn block(random: &mut Random, ty: TensorType, deviation: f32) -> Vec<u8> {
    let value = random.unit() * 1.73 * deviation;
    // Where the scale and, behind it, the minimum lie, the deviation of the quants, and the minimum in scales.
    let (at, spread, minimum) = match ty {
        TensorType::F32 => return value.to_le_bytes().to_vec(),
        TensorType::F16 => return f16::from_f32(value).to_le_bytes().to_vec(),
        TensorType::Bf16 => return bf16::from_f32(value).to_le_bytes().to_vec(),
        TensorType::Q4_0 => (0, 4.6, None),
        TensorType::Q4_1 => (0, 4.6, Some(-7.5)),
        TensorType::Q5_0 => (0, 9.2, None),
        TensorType::Q5_1 => (0, 9.2, Some(-15.5)),
        TensorType::Q8_0 => (0, 74.0, None),
        TensorType::Q2K => (80, 12.0, Some(1.5)),
        TensorType::Q3K => (108, 42.0, None),
        TensorType::Q4K => (0, 180.0, Some(7.5)),
        TensorType::Q5K => (0, 360.0, Some(15.5)),
        TensorType::Q6K => (208, 1370.0, None),
        TensorType::Other(_) => unreachable!("a supported type"),
    };
    let (_, bytes) = ty.block().expect("a supported type");
    let mut block = random.bytes(bytes);
    let scale = deviation / spread * (1.0 + 0.3 * random.unit());
    block[at..at + 2].copy_from_slice(&f16::from_f32(scale).to_le_bytes());
    if let Some(minimum) = minimum {
        block[at + 2..at + 4].copy_from_slice(&f16::from_f32(scale * minimum).to_le_bytes());
    }
    block
}
