//! From the blocks of a file to the packed layout, one row at a time and without changing a value.
//!
//! [`pack_row`] is the loop that loading spends its time in. Blocks are taken apart a word at a time: four quants sit in
//! the bytes of one `u32`, so shifts and masks work on four at once. There is one function per stored type that yields 32
//! weights as integers with their scales, and one loop per packed format that writes them; a type and a format meet only
//! in the dispatch. Values are never computed here, except in the fallback to F32.

use half::f16;

use super::packing::{GROUP_ROWS, PackedFormat, PackedLayout, Q8_ZERO};
use super::quantize::{dequantize, half_at, k_scale_min, q3_k_scale};
use super::tensor_type::TensorType;
use crate::error::{Error, ErrorCode, Result};

/// Writes one row to its place in a group.
///
/// `bytes` are the blocks of the row as the file has them, `row` counts from the start of the group, and `group` are its
/// [`group_words`](PackedLayout::group_words) words. Words of other rows are not touched.
///
/// # Errors
/// `ShapeMismatch` when `bytes` are not one row; `UnsupportedModel` when the format does not hold the type;
/// `BadModelFile` when a scale is not a number this format can hold (the file is damaged).
pub fn pack_row(layout: &PackedLayout, ty: TensorType, bytes: &[u8], row: usize, group: &mut [u32]) -> Result<()> {
    assert!(group.len() == layout.group_words() && row < GROUP_ROWS, "a row of this layout");
    ty.require_supported()?;
    if ty.bytes_for(layout.cols as u64) != Some(bytes.len() as u64) {
        return Err(Error::new(
            ErrorCode::ShapeMismatch,
            format!("packing a row of {} {ty} values: {} bytes are not its blocks", layout.cols, bytes.len()),
        ));
    }
    let (quants, scales) = group.split_at_mut(layout.row_quant_words() * GROUP_ROWS);
    let (quants, scales) = (&mut quants[row..], scales.get_mut(row..).unwrap_or_default());
    match layout.format {
        _ if !layout.format.holds(ty) => Err(Error::new(
            ErrorCode::UnsupportedModel,
            format!("packing {ty} values as {:?}, which cannot hold them", layout.format),
        )),
        PackedFormat::F32 => pack_f32(ty, bytes, quants),
        PackedFormat::F16 | PackedFormat::Bf16 => {
            pack_16_bit(bytes, quants);
            Ok(())
        }
        PackedFormat::Q4 => match ty {
            TensorType::Q4_0 => pack_q4::<Q4_0>(bytes, quants, scales),
            _ => pack_q4::<Q4_1>(bytes, quants, scales),
        },
        PackedFormat::Q4Wide => {
            match ty {
                TensorType::Q4_0 => pack_q4_wide::<Q4_0>(bytes, quants, scales),
                TensorType::Q4_1 => pack_q4_wide::<Q4_1>(bytes, quants, scales),
                _ => pack_q4_wide::<Q4K>(bytes, quants, scales),
            }
            Ok(())
        }
        PackedFormat::Q8 => {
            match ty {
                TensorType::Q4_0 => pack_q8::<Q4_0>(bytes, quants, scales),
                TensorType::Q5_0 => pack_q8::<Q5_0>(bytes, quants, scales),
                _ => pack_q8::<Q8_0>(bytes, quants, scales),
            }
            Ok(())
        }
        PackedFormat::Q8Wide => {
            match ty {
                TensorType::Q4_0 => pack_q8_wide::<Q4_0>(bytes, quants, scales),
                TensorType::Q4_1 => pack_q8_wide::<Q4_1>(bytes, quants, scales),
                TensorType::Q5_0 => pack_q8_wide::<Q5_0>(bytes, quants, scales),
                TensorType::Q5_1 => pack_q8_wide::<Q5_1>(bytes, quants, scales),
                TensorType::Q2K => pack_q8_wide::<Q2K>(bytes, quants, scales),
                TensorType::Q3K => pack_q8_wide::<Q3K>(bytes, quants, scales),
                TensorType::Q4K => pack_q8_wide::<Q4K>(bytes, quants, scales),
                TensorType::Q5K => pack_q8_wide::<Q5K>(bytes, quants, scales),
                TensorType::Q6K => pack_q8_wide::<Q6K>(bytes, quants, scales),
                _ => pack_q8_wide::<Q8_0>(bytes, quants, scales),
            }
            Ok(())
        }
    }
}

/// Writes `values` at steps of one group row.
fn scatter(into: &mut [u32], values: impl Iterator<Item = u32>) {
    for (slot, value) in into.iter_mut().step_by(GROUP_ROWS).zip(values) {
        *slot = value;
    }
}

fn pack_f32(ty: TensorType, bytes: &[u8], quants: &mut [u32]) -> Result<()> {
    const CHUNK: usize = 256; // values: a whole number of blocks of every type
    let (block_values, block_bytes) = ty.block().unwrap_or((1, 4));
    let mut values = [0.0; CHUNK];
    for (chunk, bytes) in bytes.chunks(CHUNK / block_values * block_bytes).enumerate() {
        let values = &mut values[..bytes.len() / block_bytes * block_values];
        dequantize(ty, bytes, values)?;
        scatter(&mut quants[chunk * CHUNK * GROUP_ROWS..], values.iter().map(|value| value.to_bits()));
    }
    Ok(())
}

fn pack_16_bit(bytes: &[u8], quants: &mut [u32]) {
    let word = |pair: &[u8]| match *pair {
        [a, b, c, d] => u32::from_le_bytes([a, b, c, d]),
        [a, b, ..] => u32::from_le_bytes([a, b, 0, 0]),
        _ => 0,
    };
    scatter(quants, bytes.chunks(4).map(word));
}

fn pack_q4<B: NibbleBlock>(bytes: &[u8], quants: &mut [u32], scales: &mut [u32]) -> Result<()> {
    for (i, block) in bytes.chunks_exact(B::BYTES).enumerate() {
        let (scale, min) = B::nibble_scale(block, 0);
        let (scale, min) = (f16::from_f32(scale), f16::from_f32(min));
        if !scale.is_finite() || !min.is_finite() {
            return Err(Error::new(
                ErrorCode::BadModelFile,
                "a 4-bit block has a scale that is no finite half-precision number; the file is damaged",
            ));
        }
        scatter(&mut quants[i * 4 * GROUP_ROWS..], B::nibbles(block, 0).into_iter());
        scales[i * GROUP_ROWS] = u32::from(scale.to_bits()) | (u32::from(min.to_bits()) << 16);
    }
    Ok(())
}

fn pack_q4_wide<B: NibbleBlock>(bytes: &[u8], quants: &mut [u32], scales: &mut [u32]) {
    let mut unit = 0;
    for block in bytes.chunks_exact(B::BYTES) {
        for i in 0..B::UNITS {
            let (scale, min) = B::nibble_scale(block, i);
            scatter(&mut quants[unit * 4 * GROUP_ROWS..], B::nibbles(block, i).into_iter());
            scatter(&mut scales[unit * 2 * GROUP_ROWS..], [scale.to_bits(), min.to_bits()].into_iter());
            unit += 1;
        }
    }
}

fn pack_q8<B: ByteBlock>(bytes: &[u8], quants: &mut [u32], scales: &mut [u32]) {
    let raise = u32::from(Q8_ZERO - B::ZERO) * 0x0101_0101;
    for (i, block) in bytes.chunks_exact(B::BYTES).enumerate() {
        let unit = B::unit(block, 0);
        scatter(&mut quants[i * 8 * GROUP_ROWS..], unit.quants.into_iter().map(|word| word + raise));
        scales[i * GROUP_ROWS] = unit.scale_min[0].0.to_bits();
    }
}

fn pack_q8_wide<B: ByteBlock>(bytes: &[u8], quants: &mut [u32], scales: &mut [u32]) {
    let mut at = 0;
    for block in bytes.chunks_exact(B::BYTES) {
        for i in 0..B::UNITS {
            let unit = B::unit(block, i);
            let pairs = unit.scale_min.map(|(scale, min)| [scale, min - f32::from(B::ZERO) * scale].map(f32::to_bits));
            scatter(&mut quants[at * 8 * GROUP_ROWS..], unit.quants.into_iter());
            scatter(&mut scales[at * 4 * GROUP_ROWS..], pairs.into_iter().flatten());
            at += 1;
        }
    }
}

/// 32 consecutive weights: weight `k` is (byte `k` of `quants`, minus the block's zero) times the scale, plus the minimum, of its 16.
struct Unit {
    quants: [u32; 8],
    scale_min: [(f32, f32); 2],
}

/// A stored block of `UNITS` times 32 weights.
trait Block {
    const BYTES: usize;
    const UNITS: usize = 1;
}

/// A block whose quants fit in bytes: every quantised type.
trait ByteBlock: Block {
    /// The quant that stands for zero, where the type counts from the middle of its range.
    const ZERO: u8 = 0;
    /// The quants as unsigned bytes; minimums are those of `quant - ZERO`.
    fn unit(block: &[u8], i: usize) -> Unit;
}

/// A block of unsigned 4-bit quants.
trait NibbleBlock: Block {
    /// 32 quants in order, low bits first.
    fn nibbles(block: &[u8], i: usize) -> [u32; 4];
    /// Their scale and minimum.
    fn nibble_scale(block: &[u8], i: usize) -> (f32, f32);
}

/// Four bytes of the block, from byte `at`.
fn word(block: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([block[at], block[at + 1], block[at + 2], block[at + 3]])
}

/// The low nibbles of the bytes of `a`, then of `b`, as one word of eight nibbles.
fn join_nibbles(a: u32, b: u32) -> u32 {
    let bytes = (u64::from(b) << 32 | u64::from(a)) & 0x0f0f_0f0f_0f0f_0f0f;
    let pairs = (bytes | bytes >> 4) & 0x00ff_00ff_00ff_00ff;
    let quads = (pairs | pairs >> 8) & 0x0000_ffff_0000_ffff;
    (quads | quads >> 16) as u32
}

/// 32 nibbles, the first 16 in the low halves of 16 bytes, the others in the high halves.
fn split_nibbles(bytes: &[u8]) -> [u32; 4] {
    let [a, b, c, d] = [0, 4, 8, 12].map(|at| word(bytes, at));
    [join_nibbles(a, b), join_nibbles(c, d), join_nibbles(a >> 4, b >> 4), join_nibbles(c >> 4, d >> 4)]
}

/// The same 32 nibbles, one to a byte.
fn split_nibble_bytes(bytes: &[u8]) -> [u32; 8] {
    std::array::from_fn(|w| (word(bytes, w % 4 * 4) >> (w / 4 * 4)) & 0x0f0f_0f0f)
}

/// The low four bits of `bits` to the lowest bit of one byte each.
fn spread_bits(bits: u32) -> u32 {
    ((bits & 15) * 0x0020_4081) & 0x0101_0101
}

struct Q4_0;

impl Block for Q4_0 {
    const BYTES: usize = 18;
}

impl NibbleBlock for Q4_0 {
    fn nibbles(block: &[u8], _: usize) -> [u32; 4] {
        split_nibbles(&block[2..])
    }

    fn nibble_scale(block: &[u8], _: usize) -> (f32, f32) {
        let d = half_at(block, 0);
        (d, -8.0 * d)
    }
}

impl ByteBlock for Q4_0 {
    const ZERO: u8 = 8;

    fn unit(block: &[u8], _: usize) -> Unit {
        let d = half_at(block, 0);
        Unit { quants: split_nibble_bytes(&block[2..]), scale_min: [(d, 0.0); 2] }
    }
}

struct Q4_1;

impl Block for Q4_1 {
    const BYTES: usize = 20;
}

impl NibbleBlock for Q4_1 {
    fn nibbles(block: &[u8], _: usize) -> [u32; 4] {
        split_nibbles(&block[4..])
    }

    fn nibble_scale(block: &[u8], _: usize) -> (f32, f32) {
        (half_at(block, 0), half_at(block, 2))
    }
}

impl ByteBlock for Q4_1 {
    fn unit(block: &[u8], i: usize) -> Unit {
        Unit { quants: split_nibble_bytes(&block[4..]), scale_min: [Self::nibble_scale(block, i); 2] }
    }
}

/// The nibbles of Q5_0 and Q5_1 with their fifth bits from `fifth`, one quant to a byte.
fn five_bit_bytes(fifth: u32, nibbles: &[u8]) -> [u32; 8] {
    let mut quants = split_nibble_bytes(nibbles);
    for (w, quants) in quants.iter_mut().enumerate() {
        *quants |= spread_bits(fifth >> (4 * w)) << 4;
    }
    quants
}

struct Q5_0;

impl Block for Q5_0 {
    const BYTES: usize = 22;
}

impl ByteBlock for Q5_0 {
    const ZERO: u8 = 16;

    fn unit(block: &[u8], _: usize) -> Unit {
        let quants = five_bit_bytes(word(block, 2), &block[6..]);
        Unit { quants, scale_min: [(half_at(block, 0), 0.0); 2] }
    }
}

struct Q5_1;

impl Block for Q5_1 {
    const BYTES: usize = 24;
}

impl ByteBlock for Q5_1 {
    fn unit(block: &[u8], _: usize) -> Unit {
        let quants = five_bit_bytes(word(block, 4), &block[8..]);
        Unit { quants, scale_min: [(half_at(block, 0), half_at(block, 2)); 2] }
    }
}

struct Q8_0;

impl Block for Q8_0 {
    const BYTES: usize = 34;
}

impl ByteBlock for Q8_0 {
    const ZERO: u8 = 128;

    fn unit(block: &[u8], _: usize) -> Unit {
        Unit {
            quants: std::array::from_fn(|w| word(block, 2 + 4 * w) ^ 0x8080_8080),
            scale_min: [(half_at(block, 0), 0.0); 2],
        }
    }
}

struct Q2K;

impl Block for Q2K {
    const BYTES: usize = 84;
    const UNITS: usize = 8;
}

impl ByteBlock for Q2K {
    fn unit(block: &[u8], i: usize) -> Unit {
        let (d, dmin) = (half_at(block, 80), half_at(block, 82));
        let bytes = &block[16 + i / 4 * 32..];
        Unit {
            quants: std::array::from_fn(|w| (word(bytes, 4 * w) >> (i % 4 * 2)) & 0x0303_0303),
            scale_min: [2 * i, 2 * i + 1].map(|j| (d * f32::from(block[j] & 15), -(dmin * f32::from(block[j] >> 4)))),
        }
    }
}

struct Q3K;

impl Block for Q3K {
    const BYTES: usize = 110;
    const UNITS: usize = 8;
}

impl ByteBlock for Q3K {
    const ZERO: u8 = 4;

    fn unit(block: &[u8], i: usize) -> Unit {
        let d = half_at(block, 108);
        let bytes = &block[32 + i / 4 * 32..];
        let quant = |w: usize| {
            let low = (word(bytes, 4 * w) >> (i % 4 * 2)) & 0x0303_0303;
            let third = (word(block, 4 * w) >> i) & 0x0101_0101;
            low | third << 2
        };
        let scale = |j: usize| (d * (i32::from(q3_k_scale(&block[96..108], j)) - 32) as f32, 0.0);
        Unit { quants: std::array::from_fn(quant), scale_min: [scale(2 * i), scale(2 * i + 1)] }
    }
}

struct Q4K;

impl Block for Q4K {
    const BYTES: usize = 144;
    const UNITS: usize = 8;
}

impl NibbleBlock for Q4K {
    fn nibbles(block: &[u8], i: usize) -> [u32; 4] {
        let bytes = &block[16 + i / 2 * 32..];
        let shift = i % 2 * 4;
        std::array::from_fn(|w| join_nibbles(word(bytes, 8 * w) >> shift, word(bytes, 8 * w + 4) >> shift))
    }

    fn nibble_scale(block: &[u8], i: usize) -> (f32, f32) {
        let (scale, min) = k_scale_min(&block[4..16], i);
        (half_at(block, 0) * f32::from(scale), -(half_at(block, 2) * f32::from(min)))
    }
}

impl ByteBlock for Q4K {
    fn unit(block: &[u8], i: usize) -> Unit {
        let bytes = &block[16 + i / 2 * 32..];
        Unit {
            quants: std::array::from_fn(|w| (word(bytes, 4 * w) >> (i % 2 * 4)) & 0x0f0f_0f0f),
            scale_min: [Self::nibble_scale(block, i); 2],
        }
    }
}

struct Q5K;

impl Block for Q5K {
    const BYTES: usize = 176;
    const UNITS: usize = 8;
}

impl ByteBlock for Q5K {
    fn unit(block: &[u8], i: usize) -> Unit {
        let (fifth, nibbles) = (&block[16..48], &block[48 + i / 2 * 32..]);
        let quant = |w: usize| {
            let low = (word(nibbles, 4 * w) >> (i % 2 * 4)) & 0x0f0f_0f0f;
            low | ((word(fifth, 4 * w) >> i) & 0x0101_0101) << 4
        };
        // The header (d, dmin, scales) is that of Q4_K.
        Unit { quants: std::array::from_fn(quant), scale_min: [Q4K::nibble_scale(block, i); 2] }
    }
}

struct Q6K;

impl Block for Q6K {
    const BYTES: usize = 210;
    const UNITS: usize = 8;
}

impl ByteBlock for Q6K {
    const ZERO: u8 = 32;

    fn unit(block: &[u8], i: usize) -> Unit {
        let d = half_at(block, 208);
        let (half, quarter) = (i / 4, i % 4);
        let (low, high) = (&block[half * 64 + quarter % 2 * 32..], &block[128 + half * 32..]);
        let quant = |w: usize| {
            let low = (word(low, 4 * w) >> (quarter / 2 * 4)) & 0x0f0f_0f0f;
            let high = (word(high, 4 * w) >> (quarter * 2)) & 0x0303_0303;
            low | high << 4
        };
        let scale = |j: usize| (d * f32::from(block[192 + j] as i8), 0.0);
        Unit { quants: std::array::from_fn(quant), scale_min: [scale(2 * i), scale(2 * i + 1)] }
    }
}
