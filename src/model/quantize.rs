//! The values that stored blocks stand for: the dequantisation that everything else is measured against.
//!
//! Each function below follows ggml's `dequantize_row_*` (`ggml-quants.c`) value by value, in its order of operations, and
//! is written to be compared with it line by line. It is the oracle of [`packing`](super::packing), which is where the
//! speed is; at run time only vectors (norms, biases) and matrices widened to F32 pass through here.

use half::{bf16, f16};

use super::tensor_type::TensorType;
use crate::error::{Error, ErrorCode, Result};

/// Writes the float32 values of `bytes`, whole blocks of type `ty`, to `out`.
///
/// # Errors
/// `UnsupportedModel` for a type that cannot be run; `ShapeMismatch` when `bytes` are not the blocks of `out.len()` values.
pub fn dequantize(ty: TensorType, bytes: &[u8], out: &mut [f32]) -> Result<()> {
    ty.require_supported()?;
    if ty.bytes_for(out.len() as u64) != Some(bytes.len() as u64) {
        return Err(Error::new(
            ErrorCode::ShapeMismatch,
            format!("dequantising {ty}: {} bytes are not the blocks of {} values", bytes.len(), out.len()),
        ));
    }
    let (block_values, block_bytes) = ty.block().unwrap_or((1, 1));
    let dequantize_block: fn(&[u8], &mut [f32]) = match ty {
        TensorType::F32 => |b: &[u8], y: &mut [f32]| y[0] = f32::from_le_bytes([b[0], b[1], b[2], b[3]]),
        TensorType::F16 => |b: &[u8], y: &mut [f32]| y[0] = half_at(b, 0),
        TensorType::Bf16 => |b: &[u8], y: &mut [f32]| y[0] = bf16::from_le_bytes([b[0], b[1]]).to_f32(),
        TensorType::Q4_0 => q4_0,
        TensorType::Q4_1 => q4_1,
        TensorType::Q5_0 => q5_0,
        TensorType::Q5_1 => q5_1,
        TensorType::Q8_0 => q8_0,
        TensorType::Q2K => q2_k,
        TensorType::Q3K => q3_k,
        TensorType::Q4K => q4_k,
        TensorType::Q5K => q5_k,
        TensorType::Q6K => q6_k,
        TensorType::Other(_) => return ty.require_supported(),
    };
    for (block, values) in bytes.chunks_exact(block_bytes).zip(out.chunks_exact_mut(block_values)) {
        dequantize_block(block, values);
    }
    Ok(())
}

/// The half-precision number at byte `at`, as float32.
pub(super) fn half_at(block: &[u8], at: usize) -> f32 {
    f16::from_le_bytes([block[at], block[at + 1]]).to_f32()
}

/// Scale and minimum number `j` of the 12 bytes in which Q4_K and Q5_K keep eight six-bit pairs.
pub(super) fn k_scale_min(scales: &[u8], j: usize) -> (u8, u8) {
    if j < 4 {
        (scales[j] & 63, scales[j + 4] & 63)
    } else {
        let scale = (scales[j + 4] & 15) | ((scales[j - 4] >> 6) << 4);
        let min = (scales[j + 4] >> 4) | ((scales[j] >> 6) << 4);
        (scale, min)
    }
}

/// Scale number `j` (of 16) of the 12 bytes in which Q3_K keeps six-bit scales, still 32 too large.
pub(super) fn q3_k_scale(scales: &[u8], j: usize) -> u8 {
    let low = (scales[j % 8] >> (4 * (j / 8))) & 15;
    let high = (scales[8 + j % 4] >> (2 * (j / 4))) & 3;
    low | (high << 4)
}

/// d f16, 16 bytes of nibbles: value j in the low half of byte j, value j + 16 in the high half.
fn q4_0(b: &[u8], y: &mut [f32]) {
    let d = half_at(b, 0);
    for j in 0..16 {
        y[j] = (i32::from(b[2 + j] & 15) - 8) as f32 * d;
        y[j + 16] = (i32::from(b[2 + j] >> 4) - 8) as f32 * d;
    }
}

/// d f16, m f16, nibbles as in Q4_0.
fn q4_1(b: &[u8], y: &mut [f32]) {
    let (d, m) = (half_at(b, 0), half_at(b, 2));
    for j in 0..16 {
        y[j] = f32::from(b[4 + j] & 15) * d + m;
        y[j + 16] = f32::from(b[4 + j] >> 4) * d + m;
    }
}

/// d f16, a fifth bit for each value in one u32, nibbles as in Q4_0.
fn q5_0(b: &[u8], y: &mut [f32]) {
    let d = half_at(b, 0);
    let fifth = u32::from_le_bytes([b[2], b[3], b[4], b[5]]);
    for j in 0..16 {
        let low = u32::from(b[6 + j] & 15) | (((fifth >> j) & 1) << 4);
        let high = u32::from(b[6 + j] >> 4) | (((fifth >> (j + 16)) & 1) << 4);
        y[j] = (low as i32 - 16) as f32 * d;
        y[j + 16] = (high as i32 - 16) as f32 * d;
    }
}

/// d f16, m f16, then as Q5_0.
fn q5_1(b: &[u8], y: &mut [f32]) {
    let (d, m) = (half_at(b, 0), half_at(b, 2));
    let fifth = u32::from_le_bytes([b[4], b[5], b[6], b[7]]);
    for j in 0..16 {
        let low = u32::from(b[8 + j] & 15) | (((fifth >> j) & 1) << 4);
        let high = u32::from(b[8 + j] >> 4) | (((fifth >> (j + 16)) & 1) << 4);
        y[j] = low as f32 * d + m;
        y[j + 16] = high as f32 * d + m;
    }
}

/// d f16, 32 signed bytes.
fn q8_0(b: &[u8], y: &mut [f32]) {
    let d = half_at(b, 0);
    for j in 0..32 {
        y[j] = f32::from(b[2 + j] as i8) * d;
    }
}

/// 16 bytes of scale (low) and minimum (high) nibbles, 64 bytes of 2-bit values, d f16, dmin f16.
fn q2_k(b: &[u8], y: &mut [f32]) {
    let (scales, quants, d, dmin) = (&b[..16], &b[16..80], half_at(b, 80), half_at(b, 82));
    for (sub, values) in y.chunks_exact_mut(16).enumerate() {
        let (scale, min) = (d * f32::from(scales[sub] & 15), dmin * f32::from(scales[sub] >> 4));
        let (bytes, shift) = (&quants[sub / 8 * 32 + sub % 2 * 16..], sub % 8 / 2 * 2);
        for (value, byte) in values.iter_mut().zip(bytes) {
            *value = scale * f32::from((byte >> shift) & 3) - min;
        }
    }
}

/// A third bit for each value in 32 bytes, 64 bytes of the 2 low bits, 12 bytes of 16 scales, d f16.
fn q3_k(b: &[u8], y: &mut [f32]) {
    let (third, quants, scales, d) = (&b[..32], &b[32..96], &b[96..108], half_at(b, 108));
    for (sub, values) in y.chunks_exact_mut(16).enumerate() {
        let scale = d * (i32::from(q3_k_scale(scales, sub)) - 32) as f32;
        let half = sub % 2 * 16;
        let (bytes, shift) = (&quants[sub / 8 * 32 + half..], sub % 8 / 2 * 2);
        for (j, value) in values.iter_mut().enumerate() {
            let high = (third[half + j] >> (sub / 2)) & 1;
            let quant = i32::from((bytes[j] >> shift) & 3) - if high == 1 { 0 } else { 4 };
            *value = scale * quant as f32;
        }
    }
}

/// d f16, dmin f16, 12 bytes of 8 scales and minima, 128 bytes of nibbles.
fn q4_k(b: &[u8], y: &mut [f32]) {
    let (d, dmin, scales, quants) = (half_at(b, 0), half_at(b, 2), &b[4..16], &b[16..144]);
    for (sub, values) in y.chunks_exact_mut(32).enumerate() {
        let (scale, min) = k_scale_min(scales, sub);
        let (scale, min) = (d * f32::from(scale), dmin * f32::from(min));
        let (bytes, shift) = (&quants[sub / 2 * 32..], sub % 2 * 4);
        for (value, byte) in values.iter_mut().zip(bytes) {
            *value = scale * f32::from((byte >> shift) & 15) - min;
        }
    }
}

/// As Q4_K, with a fifth bit for each value in 32 bytes before the nibbles.
fn q5_k(b: &[u8], y: &mut [f32]) {
    let (d, dmin, scales) = (half_at(b, 0), half_at(b, 2), &b[4..16]);
    let (fifth, quants) = (&b[16..48], &b[48..176]);
    for (sub, values) in y.chunks_exact_mut(32).enumerate() {
        let (scale, min) = k_scale_min(scales, sub);
        let (scale, min) = (d * f32::from(scale), dmin * f32::from(min));
        let (bytes, shift) = (&quants[sub / 2 * 32..], sub % 2 * 4);
        for (j, value) in values.iter_mut().enumerate() {
            let quant = ((bytes[j] >> shift) & 15) | (((fifth[j] >> sub) & 1) << 4);
            *value = scale * f32::from(quant) - min;
        }
    }
}

/// 128 bytes of the 4 low bits, 64 bytes of the 2 high bits, 16 signed scales, d f16.
fn q6_k(b: &[u8], y: &mut [f32]) {
    let (low, high, scales, d) = (&b[..128], &b[128..192], &b[192..208], half_at(b, 208));
    for (sub, values) in y.chunks_exact_mut(16).enumerate() {
        let scale = d * f32::from(scales[sub] as i8);
        let (half, quarter, offset) = (sub / 8, sub % 8 / 2, sub % 2 * 16);
        let low = &low[half * 64 + quarter % 2 * 32 + offset..];
        let high = &high[half * 32 + offset..];
        for (j, value) in values.iter_mut().enumerate() {
            let quant = ((low[j] >> (quarter / 2 * 4)) & 15) | (((high[j] >> (quarter * 2)) & 3) << 4);
            *value = scale * (i32::from(quant) - 32) as f32;
        }
    }
}

/// Writes `values`, whole blocks, as stored type `ty` to `out`: the way back from [`dequantize`], for F32, F16, Q8_0, Q4_0 and Q4_1.
///
/// # Errors
/// `UnsupportedModel` for another type; `ShapeMismatch` when `out` does not have the bytes of `values.len()` values.
pub fn quantize(ty: TensorType, values: &[f32], out: &mut [u8]) -> Result<()> {
    let quantize_block: fn(&[f32], &mut [u8]) = match ty {
        TensorType::F32 => |x: &[f32], b: &mut [u8]| b.copy_from_slice(&x[0].to_le_bytes()),
        TensorType::F16 => |x: &[f32], b: &mut [u8]| b.copy_from_slice(&f16::from_f32(x[0]).to_le_bytes()),
        TensorType::Q8_0 => to_q8_0,
        TensorType::Q4_0 => to_q4_0,
        TensorType::Q4_1 => to_q4_1,
        _ => {
            return Err(Error::new(
                ErrorCode::UnsupportedModel,
                format!("values cannot be written as {ty}; expected F32, F16, Q8_0, Q4_0 or Q4_1"),
            ));
        }
    };
    if ty.bytes_for(values.len() as u64) != Some(out.len() as u64) {
        return Err(Error::new(
            ErrorCode::ShapeMismatch,
            format!("quantising to {ty}: {} values are not the blocks of {} bytes", values.len(), out.len()),
        ));
    }
    let (block_values, block_bytes) = ty.block().unwrap_or((1, 1));
    for (values, block) in values.chunks_exact(block_values).zip(out.chunks_exact_mut(block_bytes)) {
        quantize_block(values, block);
    }
    Ok(())
}

/// Writes a half-precision scale to the start of a block; gives what it stands for, and the factor that undoes it.
fn write_scale(scale: f32, block: &mut [u8]) -> f32 {
    let rounded = f16::from_f32(scale);
    block[..2].copy_from_slice(&rounded.to_le_bytes());
    if rounded.to_f32() == 0.0 { 0.0 } else { 1.0 / rounded.to_f32() }
}

/// The quant, from 0 to `most`, that lies closest.
fn nearest(quant: f32, most: f32) -> u8 {
    quant.round().clamp(0.0, most) as u8
}

fn to_q8_0(x: &[f32], b: &mut [u8]) {
    let largest = x.iter().fold(0.0f32, |largest, x| largest.max(x.abs()));
    let inverse = write_scale(largest / 127.0, b);
    for (quant, x) in b[2..].iter_mut().zip(x) {
        *quant = (x * inverse).round().clamp(-127.0, 127.0) as i8 as u8;
    }
}

/// The value of largest magnitude gets the quant -8, which has no counterpart: the other sign ends at 7.
fn to_q4_0(x: &[f32], b: &mut [u8]) {
    let extreme = x.iter().fold(0.0f32, |extreme, &x| if x.abs() > extreme.abs() { x } else { extreme });
    let inverse = write_scale(extreme / -8.0, b);
    for j in 0..16 {
        let quant = |x: f32| nearest(x * inverse + 8.0, 15.0);
        b[2 + j] = quant(x[j]) | quant(x[j + 16]) << 4;
    }
}

fn to_q4_1(x: &[f32], b: &mut [u8]) {
    let (least, most) = x.iter().fold((f32::MAX, f32::MIN), |(least, most), &x| (least.min(x), most.max(x)));
    let inverse = write_scale((most - least) / 15.0, b);
    b[2..4].copy_from_slice(&f16::from_f32(least).to_le_bytes());
    let minimum = half_at(b, 2);
    for j in 0..16 {
        let quant = |x: f32| nearest((x - minimum) * inverse, 15.0);
        b[4 + j] = quant(x[j]) | quant(x[j + 16]) << 4;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Stored and read again, with the step of each value's block.
    fn there_and_back(ty: TensorType, values: &[f32]) -> (Vec<f32>, Vec<f32>) {
        let mut bytes = vec![0; ty.bytes_for(values.len() as u64).unwrap() as usize];
        quantize(ty, values, &mut bytes).unwrap();
        let mut read = vec![0.0; values.len()];
        dequantize(ty, &bytes, &mut read).unwrap();
        let (block_values, block_bytes) = ty.block().unwrap();
        let step = |block: &[u8]| if ty.is_float() { 0.0 } else { half_at(block, 0).abs() };
        let steps = bytes.chunks_exact(block_bytes).flat_map(|block| vec![step(block); block_values]);
        (read, steps.collect())
    }

    #[test]
    fn stored_values_are_within_half_a_step() {
        let mut state = 7u32;
        let mut values: Vec<f32> = (0..64 * 32)
            .map(|i| {
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                // Blocks of different sizes, some of one sign.
                let unit = (state >> 8) as f32 / (1 << 23) as f32 - 1.0;
                (unit + (i / 32 % 3) as f32) * 2.0f32.powi(i / 32 % 11 - 8)
            })
            .collect();
        values[..32].fill(0.0);
        for ty in [TensorType::Q8_0, TensorType::Q4_0, TensorType::Q4_1] {
            let (read, steps) = there_and_back(ty, &values);
            for ((value, read), step) in values.iter().zip(&read).zip(&steps) {
                // Half of a step, and what a half-precision scale or minimum is rounded by.
                let clipped = ty == TensorType::Q4_0 && value.abs() > 7.4 * step;
                let bound = if clipped { 1.01 * step } else { 0.51 * step + value.abs() / 2048.0 };
                assert!((value - read).abs() <= bound, "{ty}: {value} became {read}, a step is {step}");
            }
            assert!(read[..32].iter().all(|&value| value == 0.0), "{ty}: zeros stay zeros");
        }
        assert_eq!(there_and_back(TensorType::F32, &values).0, values);
        let halves: Vec<f32> = values.iter().map(|&value| f16::from_f32(value).to_f32()).collect();
        assert_eq!(there_and_back(TensorType::F16, &values).0, halves);
    }

    #[test]
    fn what_was_dequantised_is_stored_unchanged() {
        let bytes: Vec<u8> =
            (0..34u8).map(|i| if i < 2 { [0x00, 0x3c][i as usize] } else { i.wrapping_mul(57) }).collect();
        let mut values = vec![0.0; 32];
        dequantize(TensorType::Q8_0, &bytes, &mut values).unwrap();
        values[0] = 127.0;
        let (read, _) = there_and_back(TensorType::Q8_0, &values);
        assert_eq!(read, values);
    }

    #[test]
    fn half_a_block_and_other_types_are_refused() {
        let refused =
            |ty, values: usize, bytes: usize| quantize(ty, &vec![0.0; values], &mut vec![0; bytes]).unwrap_err();
        assert_eq!(refused(TensorType::Q8_0, 16, 17).code(), ErrorCode::ShapeMismatch);
        assert_eq!(refused(TensorType::Q4_0, 32, 34).code(), ErrorCode::ShapeMismatch);
        assert_eq!(refused(TensorType::Q6K, 256, 210).code(), ErrorCode::UnsupportedModel);
    }
}
