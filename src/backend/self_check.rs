//! Does this device compute right? One known pass on the device and on the processor, compared.
//!
//! Drivers miscompile shaders, and a model that writes fluent nonsense looks like a bad model. So before a model is used, a tiny one
//! with the same weight formats runs through the very pipelines that will serve it, and its logits are compared with the
//! reference backend's. It costs a few small passes; the pipelines are needed anyway.

use super::Backend as _;
use super::cpu::{CpuBackend, CpuWeights};
use super::gpu::device::Gpu;
use super::gpu::kernels::Kernels;
use super::gpu::{GpuBackend, GpuWeights};
use crate::error::{Error, ErrorCode, Result};
use crate::model::packing::{GROUP_ROWS, PackedFormat, PackedLayout};
use crate::model::weights::{Matrix, Vector, WeightSink};
use crate::model::{Architecture, ModelConfig};
use crate::sampling::noise::threefry;
use crate::speculate::tree::Tree;

/// Logits of the tiny model are of size 1; single precision is right to five digits, a wrong kernel to none.
const TOLERANCE: f32 = 1e-3;
/// A prompt that fills a register tile with rows to spare, and one token behind it: both tiles that a model starts with.
const TOKENS: [u32; 7] = [3, 14, 15, 92, 65, 35, 89];

/// Weight formats of a layer, and of embedding and head.
type LayerFormats = [PackedFormat; 4];

/// Compares the device with the processor on the formats of `weights`.
///
/// # Errors
/// `DeviceMiscomputes` when the logits differ; `DeviceLost`, `OutOfMemory`.
pub async fn self_check(gpu: &Gpu, kernels: &Kernels, weights: &GpuWeights, config: &ModelConfig) -> Result<()> {
    let mut layers: Vec<LayerFormats> = Vec::new();
    for layer in 0..config.num_hidden_layers {
        let format = |matrix| weights.matrix(matrix).map(|matrix| matrix.format());
        let formats = [
            format(Matrix::Qkv(layer))?,
            format(Matrix::AttentionOut(layer))?,
            format(Matrix::GateUp(layer))?,
            format(Matrix::Down(layer))?,
        ];
        if !layers.contains(&formats) {
            layers.push(formats);
        }
    }
    let tiny = TinyModel {
        config: tiny_config(config.architecture, layers.len()),
        layers,
        ends: [weights.matrix(Matrix::Embedding)?.format(), weights.lm_head()?.format()],
    };
    let mut cpu_weights = CpuWeights::default();
    let mut gpu_weights = GpuWeights::new(gpu.clone());
    tiny.fill(&mut cpu_weights)?;
    tiny.fill(&mut gpu_weights)?;
    let mut cpu = CpuBackend::new(tiny.config.clone(), cpu_weights, None)?;
    let mut device = GpuBackend::new(tiny.config, gpu_weights, kernels.clone(), None).await?;
    let last = Tree::chain(&TOKENS[TOKENS.len() - 1..])?;
    let prompt = &TOKENS[..TOKENS.len() - 1];
    cpu.prefill(0, prompt).await?;
    device.prefill(0, prompt).await?;
    let expected = cpu.evaluate(prompt.len(), &last).await?;
    let found = device.evaluate(prompt.len(), &last).await?;
    let worst = expected.iter().zip(&found).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    // Not `worst > TOLERANCE`: a NaN must fail too, and `max` drops it.
    if !(worst <= TOLERANCE && found.iter().all(|logit| logit.is_finite())) {
        return Err(Error::new(
            ErrorCode::DeviceMiscomputes,
            format!(
                "this graphics device ({}) computed a known pass wrongly (off by {worst}, allowed {TOLERANCE}); update its \
                 driver or the browser, or use another device",
                gpu.caps.description
            ),
        ));
    }
    Ok(())
}

fn tiny_config(architecture: Architecture, layers: usize) -> ModelConfig {
    ModelConfig {
        architecture,
        hidden_size: 64,
        intermediate_size: 96,
        num_hidden_layers: layers,
        num_attention_heads: 6,
        num_key_value_heads: 2,
        head_dim: 16,
        vocab_size: 100,
        max_position_embeddings: 64,
        rms_norm_eps: 1e-5,
        rope_theta: 1e4,
        rope_scaling: None,
        tie_word_embeddings: false,
        attention_bias: true,
        eos_token_ids: Vec::new(),
        bos_token_id: None,
    }
}

struct TinyModel {
    config: ModelConfig,
    layers: Vec<LayerFormats>,
    ends: [PackedFormat; 2],
}

impl TinyModel {
    /// The same weights into any sink.
    fn fill(&self, sink: &mut impl WeightSink) -> Result<()> {
        let c = &self.config;
        let qkv_rows = c.q_size() + 2 * c.kv_size();
        let mut random = Random::default();
        let mut matrix = |matrix, format, rows, cols| {
            let layout = PackedLayout { format, rows, cols };
            sink.begin(matrix, layout)?;
            sink.write(matrix, 0, bytemuck::cast_slice(&random.matrix(layout)))
        };
        matrix(Matrix::Embedding, self.ends[0], c.vocab_size, c.hidden_size)?;
        matrix(Matrix::LmHead, self.ends[1], c.vocab_size, c.hidden_size)?;
        for (i, &[qkv, out, gate_up, down]) in self.layers.iter().enumerate() {
            matrix(Matrix::Qkv(i), qkv, qkv_rows, c.hidden_size)?;
            matrix(Matrix::AttentionOut(i), out, c.hidden_size, c.q_size())?;
            matrix(Matrix::GateUp(i), gate_up, 2 * c.intermediate_size, c.hidden_size)?;
            matrix(Matrix::Down(i), down, c.hidden_size, c.intermediate_size)?;
        }
        let mut vector = |vector, length| sink.vector(vector, &random.vector(length));
        for i in 0..self.layers.len() {
            vector(Vector::AttentionNorm(i), c.hidden_size)?;
            vector(Vector::QkvBias(i), qkv_rows)?;
            vector(Vector::FfnNorm(i), c.hidden_size)?;
        }
        vector(Vector::FinalNorm, c.hidden_size)
    }
}

/// Words from a counter.
#[derive(Default)]
struct Random {
    drawn: u32,
}

impl Random {
    fn word(&mut self) -> u32 {
        self.drawn += 1;
        threefry([0, 0], [self.drawn, 0])[0]
    }

    /// From -1 to 1.
    fn unit(&mut self) -> f32 {
        (self.word() >> 8) as f32 / (1 << 23) as f32 - 1.0
    }

    fn vector(&mut self, length: usize) -> Vec<f32> {
        (0..length).map(|_| 0.5 + 0.5 * self.unit()).collect()
    }

    /// Packed words of a matrix whose weights are of size `1 / sqrt(cols)`.
    fn matrix(&mut self, layout: PackedLayout) -> Vec<u32> {
        let size = 1.0 / (layout.cols as f32).sqrt();
        let half = |value: f32| u32::from(half::f16::from_f32(value).to_bits());
        let brain = |value: f32| u32::from(half::bf16::from_f32(value).to_bits());
        let mut words = Vec::new();
        for _ in 0..layout.groups() {
            for _ in 0..layout.row_quant_words() * GROUP_ROWS {
                words.push(match layout.format {
                    PackedFormat::F32 => (size * self.unit()).to_bits(),
                    PackedFormat::F16 => half(size * self.unit()) | half(size * self.unit()) << 16,
                    PackedFormat::Bf16 => brain(size * self.unit()) | brain(size * self.unit()) << 16,
                    PackedFormat::Q4 | PackedFormat::Q4Wide | PackedFormat::Q8 | PackedFormat::Q8Wide => self.word(),
                });
            }
            for word in 0..layout.row_scale_words() {
                for _ in 0..GROUP_ROWS {
                    // Quants are spread evenly over their range; scale and minimum bring them to -size..size.
                    words.push(match layout.format {
                        PackedFormat::Q4 => half(size / 7.5) | half(-size) << 16,
                        PackedFormat::Q8 => (size / 128.0).to_bits(),
                        _ if word % 2 == 1 => (-size).to_bits(),
                        PackedFormat::Q4Wide => (size / 7.5).to_bits(),
                        _ => (size / 128.0).to_bits(),
                    });
                }
            }
        }
        words
    }
}
