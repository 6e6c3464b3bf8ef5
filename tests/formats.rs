//! Model files end to end: golden dequantisation, every file of the small model, and the packed layout against its oracle.

mod model_files;

use draftree::model::pack_rows::pack_row;
use draftree::model::packing::GROUP_ROWS;
use draftree::model::quantize::dequantize;
use draftree::model::{
    Architecture, Matrix, ModelConfig, PackedFormat, PackedLayout, RopeScaling, TensorType, TokenizerFiles, Vector,
};
use model_files::{load_shared, shared};
use serde::Deserialize;

const QUANTISED: [&str; 5] = ["f16", "q8_0", "q5_0", "q4_1", "q4_0"];

#[derive(Deserialize)]
struct GoldenBlocks {
    blocks: Vec<GoldenBlock>,
}

#[derive(Deserialize)]
struct GoldenBlock {
    ggml_type: u32,
    source: String,
    hex: String,
    values: Vec<f32>,
}

fn golden_blocks() -> Vec<(TensorType, GoldenBlock, Vec<u8>)> {
    let text = std::fs::read(shared("golden/dequant_blocks.json")).expect("the golden blocks are there");
    let golden: GoldenBlocks = serde_json::from_slice(&text).expect("the golden blocks are JSON");
    let with_bytes = |block: GoldenBlock| {
        let byte = |at: usize| u8::from_str_radix(&block.hex[at..at + 2], 16).expect("pairs of hex digits");
        let bytes = (0..block.hex.len()).step_by(2).map(byte).collect();
        (TensorType::from_ggml(block.ggml_type), block, bytes)
    };
    golden.blocks.into_iter().map(with_bytes).collect()
}

#[test]
fn dequantised_blocks_equal_the_reference() {
    let blocks = golden_blocks();
    assert!(blocks.len() >= 20);
    for (ty, golden, bytes) in blocks {
        let mut values = vec![0.0; golden.values.len()];
        dequantize(ty, &bytes, &mut values).unwrap();
        assert_eq!(values, golden.values, "{ty} of {}", golden.source);
    }
}

#[test]
fn packed_golden_blocks_equal_the_reference_in_every_format_that_holds_them() {
    for (ty, golden, bytes) in golden_blocks() {
        for format in PackedFormat::ALL.into_iter().filter(|format| format.holds(ty)) {
            let layout = PackedLayout { format, rows: 1, cols: golden.values.len() };
            let mut group = vec![0; layout.group_words()];
            pack_row(&layout, ty, &bytes, 0, &mut group).unwrap();
            assert_eq!(layout.unpack(&group), golden.values, "{ty} of {} as {format:?}", golden.source);
        }
    }
}

/// A small generator of repeatable bytes (SplitMix64).
struct Bytes(u64);

impl Bytes {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }
}

/// Blocks of arbitrary quants whose scales are ordinary numbers, as in a real file.
fn arbitrary_row(ty: TensorType, cols: usize, random: &mut Bytes) -> Vec<u8> {
    let (block_values, block_bytes) = ty.block().expect("a supported type");
    let mut row: Vec<u8> = (0..cols / block_values * block_bytes).map(|_| random.next() as u8).collect();
    let halves: &[usize] = match ty {
        TensorType::F16 | TensorType::Q4_0 | TensorType::Q5_0 | TensorType::Q8_0 => &[0],
        TensorType::Q4_1 | TensorType::Q5_1 | TensorType::Q4K | TensorType::Q5K => &[0, 2],
        TensorType::Q2K => &[80, 82],
        TensorType::Q3K => &[108],
        TensorType::Q6K => &[208],
        _ => &[],
    };
    for block in row.chunks_exact_mut(block_bytes) {
        for &at in halves {
            block[at + 1] = block[at + 1] & 0x80 | 0x20 | block[at + 1] & 0x0f; // exponent of about 2^-6
        }
        if matches!(ty, TensorType::F32 | TensorType::Bf16) {
            let high = block_bytes - 1;
            block[high] = block[high] & 0x80 | 0x3c;
        }
    }
    row
}

#[test]
fn packing_changes_no_value_of_any_type_on_ragged_shapes() {
    let mut random = Bytes(1);
    for ty in TensorType::SUPPORTED {
        let block = ty.block().unwrap().0;
        let widths = if block == 1 { vec![1, 7, 64, 172, 300] } else { vec![block, 3 * block, 7 * block] };
        for format in PackedFormat::ALL.into_iter().filter(|format| format.holds(ty)) {
            for (rows, &cols) in
                [1, 3, 64, 65, 130].into_iter().flat_map(|rows| widths.iter().map(move |cols| (rows, cols)))
            {
                let layout = PackedLayout { format, rows, cols };
                let mut words = vec![0; layout.groups() * layout.group_words()];
                let mut expected = vec![0.0; rows * cols];
                for row in 0..rows {
                    let bytes = arbitrary_row(ty, cols, &mut random);
                    dequantize(ty, &bytes, &mut expected[row * cols..][..cols]).unwrap();
                    let group = &mut words[row / GROUP_ROWS * layout.group_words()..][..layout.group_words()];
                    pack_row(&layout, ty, &bytes, row % GROUP_ROWS, group).unwrap();
                }
                assert!(expected.iter().all(|value| value.is_finite()), "{ty}: the test's own numbers");
                assert_eq!(layout.unpack(&words), expected, "{ty} as {format:?}, {rows} x {cols}");
            }
        }
    }
}

#[test]
fn words_lie_where_the_layout_says() {
    // Row 5 = lane 1, output 1; quant word j = 2 of 8 nibbles; then the scale word of block 1.
    let layout = PackedLayout { format: PackedFormat::Q4, rows: 6, cols: 64 };
    let mut row = [0; 36];
    row[..2].copy_from_slice(&half::f16::from_f32(0.5).to_le_bytes());
    row[2..18].copy_from_slice(&[0x80, 0x81, 0x82, 0x83, 0x84, 0x85, 0x86, 0x87, 8, 8, 8, 8, 8, 8, 8, 8]);
    row[18..20].copy_from_slice(&half::f16::from_f32(0.25).to_le_bytes());
    let mut group = vec![0; layout.group_words()];
    pack_row(&layout, TensorType::Q4_0, &row, 5, &mut group).unwrap();
    assert_eq!(layout.group_words(), (8 + 2) * 64);
    assert_eq!(group[(16 + 1) * 4 + 1], 0x8888_8888, "k 8..16 are the low nibbles of bytes 8..16");
    assert_eq!(group[4 + 1], 0x7654_3210);
    assert_eq!(group[(2 * 16 + 1) * 4 + 1], 0x8888_8888);
    let scales = &group[8 * 64..];
    let half_bits = |value: f32| u32::from(half::f16::from_f32(value).to_bits());
    assert_eq!(scales[5], half_bits(0.5) | half_bits(-4.0) << 16);
    assert_eq!(scales[64 + 5], half_bits(0.25) | half_bits(-2.0) << 16);
}

#[test]
fn fused_matrices_take_the_smallest_format_that_holds_every_part() {
    use PackedFormat as P;
    use TensorType as T;
    let cases: [(&[T], P); 13] = [
        (&[T::Q4_0, T::Q4_1], P::Q4),
        (&[T::Q4_1, T::Q4K], P::Q4Wide),
        (&[T::Q5_0, T::Q5_0, T::Q8_0], P::Q8),
        (&[T::Q4_0, T::Q8_0], P::Q8),
        (&[T::Q4_1, T::Q8_0], P::Q8Wide),
        (&[T::Q4K, T::Q4K, T::Q6K], P::Q8Wide),
        (&[T::Q2K, T::Q3K], P::Q8Wide),
        (&[T::F16, T::F16], P::F16),
        (&[T::F16, T::Bf16], P::F32),
        (&[T::F16, T::Q4_0], P::F32),
        (&[T::F32, T::F16], P::F32),
        (&[T::Bf16], P::Bf16),
        (&[T::Q5_1], P::Q8Wide),
    ];
    for (types, format) in cases {
        assert_eq!(PackedFormat::for_types(types).unwrap(), format, "{types:?}");
    }
}

#[test]
fn gguf_and_safetensors_of_one_model_give_identical_bits() {
    let (gguf, from_gguf) = load_shared("models/stories260K/stories260K-f32.gguf");
    let (folder, from_folder) = load_shared("models/stories260K");
    assert_eq!(from_gguf, from_folder);
    assert_eq!(gguf.config, folder.config);
    assert_eq!(from_gguf.matrices.len(), 1 + 4 * 5);
    assert_eq!(from_gguf.vectors.len(), 2 * 5 + 1);
    assert_eq!((gguf.name.as_str(), gguf.format.as_str()), ("stories260K", "GGUF v3"));
    assert_eq!((gguf.parameters(), folder.parameters()), (260_032, 260_032));
    assert!(matches!(folder.tokenizer, TokenizerFiles::Json(_)) && matches!(gguf.tokenizer, TokenizerFiles::Gguf(_)));
    assert_eq!(folder.bos_text.as_deref(), Some("<s>"));
    assert_eq!(gguf.bos_text.as_deref(), Some("<s>"));
    let expected = ModelConfig {
        architecture: Architecture::Llama,
        hidden_size: 64,
        intermediate_size: 172,
        num_hidden_layers: 5,
        num_attention_heads: 8,
        num_key_value_heads: 4,
        head_dim: 8,
        vocab_size: 512,
        max_position_embeddings: 512,
        rms_norm_eps: 1e-5,
        rope_theta: 10_000.0,
        rope_scaling: None,
        tie_word_embeddings: true,
        attention_bias: false,
        eos_token_ids: vec![1, 2],
        bos_token_id: Some(1),
    };
    assert_eq!(gguf.config, expected);
}

#[test]
fn every_quantised_file_of_the_small_model_loads_near_the_original() {
    let (_, original) = load_shared("models/stories260K/stories260K-f32.gguf");
    for (name, tolerance) in QUANTISED.into_iter().zip([0.001, 0.01, 0.07, 0.13, 0.15]) {
        let (checkpoint, quantised) = load_shared(&format!("models/stories260K/stories260K-{name}.gguf"));
        assert_eq!(checkpoint.quantisation().to_string().to_lowercase(), name);
        assert_eq!(quantised.vectors, original.vectors, "{name}: norms stay float32");
        for &matrix in original.matrices.keys() {
            let (found, expected) = (quantised.unpack(matrix), original.unpack(matrix));
            assert_eq!(quantised.matrices[&matrix].0.rows, original.matrices[&matrix].0.rows);
            let difference: f32 = found.iter().zip(&expected).map(|(a, b)| (a - b).powi(2)).sum();
            let size: f32 = expected.iter().map(|value| value * value).sum();
            let error = (difference / size).sqrt();
            assert!(error < tolerance, "{name} {matrix:?}: relative error {error}");
        }
    }
}

#[test]
fn fused_rows_are_the_rows_of_the_tensors() {
    let (checkpoint, collected) = load_shared("models/stories260K");
    let bytes = std::fs::read(shared("models/stories260K/model.safetensors")).unwrap();
    let tensors = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    let row = |name: &str, row: usize| -> Vec<f32> {
        let data = tensors.tensor(name).unwrap().data()[row * 64 * 4..][..64 * 4].to_vec();
        data.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect()
    };
    let config = &checkpoint.config;
    for layer in 0..config.num_hidden_layers {
        let qkv = collected.unpack(Matrix::Qkv(layer));
        let gate_up = collected.unpack(Matrix::GateUp(layer));
        let half = config.head_dim / 2;
        for head in 0..config.num_attention_heads {
            for i in 0..config.head_dim {
                // Rows i and i + half rotate together in the file; packed they are neighbours.
                let packed = head * config.head_dim + if i < half { 2 * i } else { 2 * (i - half) + 1 };
                let name = format!("model.layers.{layer}.self_attn.q_proj.weight");
                assert_eq!(qkv[packed * 64..][..64], row(&name, head * config.head_dim + i));
            }
        }
        let v_start = config.q_size() + config.kv_size();
        for i in 0..config.kv_size() {
            let name = format!("model.layers.{layer}.self_attn.v_proj.weight");
            assert_eq!(qkv[(v_start + i) * 64..][..64], row(&name, i));
        }
        for i in 0..config.intermediate_size {
            for (offset, name) in [(0, "gate"), (1, "up")] {
                let name = format!("model.layers.{layer}.mlp.{name}_proj.weight");
                assert_eq!(gate_up[(2 * i + offset) * 64..][..64], row(&name, i));
            }
        }
    }
    assert!(!collected.vectors.contains_key(&Vector::QkvBias(0)));
}

#[test]
fn rotary_frequencies_follow_the_scaling() {
    let (checkpoint, _) = load_shared("models/stories260K");
    let mut config = checkpoint.config;
    assert_eq!(config.inverse_frequencies(), [1.0, 0.1, 0.01, 0.001]);
    config.rope_scaling = Some(RopeScaling::Linear { factor: 4.0 });
    assert_eq!(config.inverse_frequencies(), [0.25, 0.025, 0.0025, 0.00025]);
    config.rope_scaling = Some(RopeScaling::Factors(vec![1.0, 1.0, 2.0, 8.0]));
    assert_eq!(config.inverse_frequencies(), [1.0, 0.1, 0.005, 0.000_125]);
    // Llama 3.2 1B: the values of transformers' _compute_llama3_parameters.
    config.head_dim = 64;
    config.rope_theta = 500_000.0;
    config.rope_scaling = Some(RopeScaling::Llama3 {
        factor: 32.0,
        low_freq_factor: 1.0,
        high_freq_factor: 4.0,
        original_max_position_embeddings: 8192,
    });
    let frequencies = config.inverse_frequencies();
    assert_eq!(frequencies[0], 1.0);
    assert!((frequencies[31] / (500_000f32.powf(-62.0 / 64.0) / 32.0) - 1.0).abs() < 1e-5);
    assert!(frequencies.windows(2).all(|pair| pair[1] < pair[0]));
}
