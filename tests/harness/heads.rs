//! Draft heads for tests, as safetensors files in memory: made from a model's own output matrix, exact or with noise.

use std::collections::BTreeMap;

use draftree::backend::cpu::heads::CpuHeads;
use draftree::backend::cpu::{CpuBackend, CpuWeights};
use draftree::backend::gpu::{GpuBackend, GpuWeights};
use draftree::model::heads::{DraftHeads, HeadForm, model_identity, stream_heads, type_key};
use draftree::model::quantize::quantize;
use draftree::model::weights::WeightSink;
use draftree::model::{ByteSource, HeadFile, Matrix, MemorySource, TensorType};
use half::{bf16, f16};
use pollster::block_on;
use serde_json::json;

use super::model_files::load;
use super::random::Random;

/// Heads to be made from a model. The default is three exact parallel heads: blocks of zeros, so that every head predicts from
/// the hidden row what the model's own output matrix does.
#[derive(Debug, Clone, Copy)]
pub struct Heads {
    pub form: HeadForm,
    /// Parallel heads; levels of the recurrent form, which share one matrix.
    pub count: usize,
    /// Blocks of a parallel head.
    pub layers: usize,
    /// How far the blocks, the output matrix and the correction are from those of exact heads; 1 leaves little of them.
    pub noise: f32,
    /// With an output matrix in the file, instead of the model's.
    pub own: bool,
    /// With so many random tokens as draft vocabulary.
    pub draft_vocab: Option<usize>,
    /// With a correction by the previous token.
    pub rank: Option<usize>,
    /// Fused with the output of these layers.
    pub taps: &'static [usize],
    /// Looking at the context by the keys and values of this layer.
    pub context: Option<usize>,
    pub seed: u64,
}

impl Default for Heads {
    fn default() -> Self {
        Self {
            form: HeadForm::Parallel,
            count: 3,
            layers: 1,
            noise: 0.0,
            own: false,
            draft_vocab: None,
            rank: None,
            taps: &[],
            context: None,
            seed: 1,
        }
    }
}

/// The file of these heads for a model.
pub fn from_model(source: &impl ByteSource, heads: Heads) -> MemorySource {
    file(source, heads).source()
}

/// The same, still open to changes.
pub fn file(source: &impl ByteSource, heads: Heads) -> File {
    let (checkpoint, weights) = load(source).expect("the model is sound");
    let (hidden, vocab) = (checkpoint.config.hidden_size, checkpoint.config.vocab_size);
    let mut random = Random::new(heads.seed);
    let mut noise =
        |count: usize, scale: f32| -> Vec<f32> { (0..count).map(|_| heads.noise * scale * random.unit()).collect() };
    let mut file = File::default()
        .word("format", "draftree-heads")
        .word("version", "1")
        .word("form", heads.form.as_str())
        .word("model", &model_identity(&checkpoint));
    let (blocks, layers, width) = match heads.form {
        HeadForm::Parallel => (heads.count, heads.layers, hidden),
        HeadForm::Recurrent => (1, 1, 2 * hidden),
    };
    if heads.form == HeadForm::Recurrent {
        file = file.word("depths", &heads.count.to_string());
    }
    for (head, layer) in (0..blocks).flat_map(|head| (0..layers).map(move |layer| (head, layer))) {
        let weight = noise(hidden * width, 2.0 / (width as f32).sqrt());
        file = file
            .with(&format!("blocks.{head}.{layer}.weight"), Tensor::f32(&[hidden, width], &weight))
            .with(&format!("blocks.{head}.{layer}.bias"), Tensor::f32(&[hidden], &noise(hidden, 0.1)));
    }
    let map = heads.draft_vocab.map(|drafts| token_map(vocab, drafts, heads.seed));
    let drafts = map.as_ref().map_or(vocab, Vec::len);
    if heads.own {
        let matrix = if checkpoint.config.tie_word_embeddings { Matrix::Embedding } else { Matrix::LmHead };
        let rows = weights.unpack(matrix);
        let ids: Vec<u32> = map.clone().unwrap_or_else(|| (0..vocab as u32).collect());
        let mut taken: Vec<f32> =
            ids.iter().flat_map(|&id| rows[id as usize * hidden..][..hidden].iter().copied()).collect();
        for (value, noise) in taken.iter_mut().zip(noise(drafts * hidden, 0.1)) {
            *value *= 1.0 + noise;
        }
        file = file.with("head.weight", Tensor::f32(&[drafts, hidden], &taken));
    }
    if let Some(map) = map {
        file = file.with("token_map", Tensor::ids("I32", &map));
    }
    if let Some(rank) = heads.rank {
        file = file
            .with("previous.weight", Tensor::f32(&[vocab, rank], &noise(vocab * rank, 1.0)))
            .with("correction.weight", Tensor::f32(&[drafts, rank], &noise(drafts * rank, 1.0)));
    }
    if !heads.taps.is_empty() {
        let width = (1 + heads.taps.len()) * hidden;
        // What is fused stays near the hidden row, however noisy the blocks are.
        let scale = 1.0 / heads.noise.max(1.0);
        let weight = noise(hidden * width, scale / (width as f32).sqrt());
        file = file
            .word("taps", &json!(heads.taps).to_string())
            .with("fusion.weight", Tensor::f32(&[hidden, width], &weight))
            .with("fusion.bias", Tensor::f32(&[hidden], &noise(hidden, 0.1 * scale)));
    }
    if let Some(layer) = heads.context {
        let query = checkpoint.config.q_size();
        let width = hidden + query;
        let scale = 1.0 / heads.noise.max(1.0);
        let queries = noise(query * hidden, 4.0 / (hidden as f32).sqrt());
        let weight = noise(hidden * width, scale / (width as f32).sqrt());
        file = file
            .word("context_layer", &layer.to_string())
            .with("context.query.weight", Tensor::f32(&[query, hidden], &queries))
            .with("context.weight", Tensor::f32(&[hidden, width], &weight))
            .with("context.bias", Tensor::f32(&[hidden], &noise(hidden, 0.1 * scale)));
    }
    file
}

/// Random tokens, ascending.
fn token_map(vocab: usize, drafts: usize, seed: u64) -> Vec<u32> {
    let mut random = Random::new(seed ^ 0x6d6170);
    let mut ids: Vec<u32> = (0..vocab as u32).collect();
    for place in 0..drafts {
        ids.swap(place, place + random.below(vocab - place));
    }
    ids.truncate(drafts);
    ids.sort_unstable();
    ids
}

/// Heads of a file, for a model, into a sink.
fn stream(heads: &impl ByteSource, model: &impl ByteSource, weights: &mut impl WeightSink) -> DraftHeads {
    let checkpoint = super::open(model);
    let file = block_on(HeadFile::open(heads)).expect("the heads are sound");
    let fitted = file.fit(&checkpoint).expect("the heads fit the model");
    block_on(stream_heads((&file, &fitted, heads), (&checkpoint, model), weights, &mut |_, _| {}))
        .expect("the weights are sound");
    fitted
}

/// Heads of a file, for a model, in the reference backend.
pub fn cpu(heads: &impl ByteSource, model: &impl ByteSource) -> CpuHeads {
    let mut weights = CpuWeights::default();
    let fitted = stream(heads, model, &mut weights);
    CpuHeads::new(fitted, weights).expect("every matrix came")
}

/// Has the reference backend of a model draft with the heads of a file.
pub fn give_cpu(backend: &mut CpuBackend, heads: &impl ByteSource, model: &impl ByteSource) {
    backend.set_heads(cpu(heads, model));
}

/// Has a device draft with the heads of a file.
pub fn give_gpu(backend: &mut GpuBackend, heads: &impl ByteSource, model: &impl ByteSource) {
    let mut weights = GpuWeights::new(backend.gpu().clone());
    let fitted = stream(heads, model, &mut weights);
    block_on(backend.set_heads(fitted, weights)).expect("the heads fit the device");
}

/// A safetensors file in the making.
#[derive(Debug, Clone, Default)]
pub struct File {
    pub tensors: BTreeMap<String, Tensor>,
    pub metadata: BTreeMap<String, String>,
}

/// One tensor, as it will lie in the file.
#[derive(Debug, Clone)]
pub struct Tensor {
    pub dtype: &'static str,
    pub shape: Vec<usize>,
    pub data: Vec<u8>,
}

impl Tensor {
    fn new(dtype: &'static str, shape: &[usize], data: Vec<u8>) -> Self {
        Self { dtype, shape: shape.to_vec(), data }
    }

    pub fn f32(shape: &[usize], values: &[f32]) -> Self {
        Self::new("F32", shape, values.iter().flat_map(|value| value.to_le_bytes()).collect())
    }

    pub fn f16(shape: &[usize], values: &[f32]) -> Self {
        Self::new("F16", shape, values.iter().flat_map(|&value| f16::from_f32(value).to_le_bytes()).collect())
    }

    pub fn bf16(shape: &[usize], values: &[f32]) -> Self {
        Self::new("BF16", shape, values.iter().flat_map(|&value| bf16::from_f32(value).to_le_bytes()).collect())
    }

    /// Blocks of a quantised matrix, as the bytes that they are.
    pub fn quantised(ty: TensorType, shape: &[usize], values: &[f32]) -> Self {
        let mut data = vec![0; ty.bytes_for(values.len() as u64).expect("rows are whole blocks") as usize];
        quantize(ty, values, &mut data).expect("a type that can be written");
        Self::new("U8", &[shape[0], data.len() / shape[0]], data)
    }

    /// Integers of the type `I32` or `I64`.
    pub fn ids(dtype: &'static str, ids: &[u32]) -> Self {
        let width = if dtype == "I64" { 8 } else { 4 };
        let data = ids.iter().flat_map(|&id| u64::from(id).to_le_bytes()[..width].to_vec());
        Self::new(dtype, &[ids.len()], data.collect())
    }
}

impl File {
    pub fn with(mut self, name: &str, tensor: Tensor) -> Self {
        self.tensors.insert(name.to_owned(), tensor);
        self
    }

    pub fn without(mut self, name: &str) -> Self {
        assert!(self.tensors.remove(name).is_some(), "{name} was there");
        self
    }

    /// An entry of the metadata.
    pub fn word(mut self, key: &str, value: &str) -> Self {
        self.metadata.insert(key.to_owned(), value.to_owned());
        self
    }

    pub fn bytes(&self) -> Vec<u8> {
        let (mut header, mut data) = (serde_json::Map::new(), Vec::new());
        if !self.metadata.is_empty() {
            header.insert("__metadata__".to_owned(), json!(self.metadata));
        }
        for (name, Tensor { dtype, shape, data: bytes }) in &self.tensors {
            let start = data.len();
            data.extend(bytes);
            let place = [start, data.len()];
            header.insert(name.clone(), json!({ "dtype": dtype, "shape": shape, "data_offsets": place }));
        }
        let header = serde_json::to_vec(&header).expect("a map of plain values");
        [&(header.len() as u64).to_le_bytes()[..], &header, &data].concat()
    }

    /// The same with its numbers in half precision.
    pub fn in_half(mut self) -> Self {
        for tensor in self.tensors.values_mut().filter(|tensor| tensor.dtype == "F32") {
            let values: Vec<f32> = tensor.data.chunks_exact(4).map(bytemuck::pod_read_unaligned).collect();
            *tensor = Tensor::f16(&tensor.shape, &values);
        }
        self
    }

    /// The same with those matrices quantised whose rows are whole blocks.
    pub fn quantised(mut self, ty: TensorType) -> Self {
        let whole = |shape: &[usize]| shape.len() == 2 && ty.bytes_for(shape[1] as u64).is_some();
        for (name, tensor) in self.tensors.iter_mut().filter(|(_, it)| it.dtype == "F32" && whole(&it.shape)) {
            let values: Vec<f32> = tensor.data.chunks_exact(4).map(bytemuck::pod_read_unaligned).collect();
            *tensor = Tensor::quantised(ty, &tensor.shape, &values);
            self.metadata.insert(type_key(name), ty.to_string());
        }
        self
    }

    pub fn source(&self) -> MemorySource {
        MemorySource::new([("heads.safetensors", self.bytes())])
    }
}
