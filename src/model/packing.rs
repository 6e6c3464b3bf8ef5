//! The layout that weights have in GPU memory, and the way back from it to float32.
//!
//! Rows (outputs) come in groups of [`GROUP_ROWS`] = [`LANES`] x [`OUTPUTS`]: row `g * 64 + lane * 4 + o` is output `o` of
//! lane `lane`. A group is contiguous, its words ordered so that the row is the fastest axis: neighbouring lanes, which
//! compute neighbouring rows, read neighbouring words. First come the quants, then the scales:
//!
//! ```text
//! quants  word (j * 16 + lane) * 4 + o             j: word along k, `values_per_word` consecutive k each, low bits first
//! scales  word ((b * S + s) * 16 + lane) * 4 + o   b: block along k, s: word of the S scale words of one block and row
//! ```
//!
//! The last group is padded with zero rows. Blocks of the file are taken apart into this order when they are loaded
//! ([`pack_rows`](super::pack_rows)), which changes no value; the kernels never see a file's own block format, so seven
//! packed formats serve thirteen stored ones. That costs some memory for the types whose scales are themselves packed
//! (Q4_K grows from 4.5 to 6 bits a weight) and buys kernels with one load per scale.

use half::{bf16, f16};

use super::tensor_type::TensorType;
use crate::error::Result;

/// Invocations along the output axis that share one group.
pub const LANES: usize = 16;
/// Consecutive rows that one invocation computes.
pub const OUTPUTS: usize = 4;
/// Rows of one group.
pub const GROUP_ROWS: usize = LANES * OUTPUTS;

/// The byte that stands for zero in [`PackedFormat::Q8`]. Bytes are unsigned, because kernels convert them where they stand.
pub const Q8_ZERO: u8 = 128;

/// Consecutive weights of a row that a kernel takes at once; rows are padded to a multiple of it.
pub const STEP_VALUES: usize = 8;

/// How the weights of one matrix lie in GPU memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PackedFormat {
    /// One float32 a word.
    F32,
    /// Two half-precision floats a word.
    F16,
    /// Two bfloat16 a word.
    Bf16,
    /// Eight 4-bit unsigned quants a word; per 32: one word of f16 scale (low half) and f16 minimum: `q * scale + min`.
    Q4,
    /// Eight 4-bit unsigned quants a word; per 32: f32 scale, f32 minimum: `q * scale + min`.
    Q4Wide,
    /// Four unsigned bytes a word; per 32: f32 scale: `(q - 128) * scale`.
    Q8,
    /// Four unsigned bytes a word; per 16: f32 scale, f32 minimum: `q * scale + min`.
    Q8Wide,
}

impl PackedFormat {
    /// Every format.
    pub const ALL: [Self; 7] = [Self::F32, Self::F16, Self::Bf16, Self::Q4, Self::Q4Wide, Self::Q8, Self::Q8Wide];

    /// Consecutive weights of a row in one word.
    pub const fn values_per_word(self) -> usize {
        match self {
            Self::F32 => 1,
            Self::F16 | Self::Bf16 => 2,
            Self::Q4 | Self::Q4Wide => 8,
            Self::Q8 | Self::Q8Wide => 4,
        }
    }

    /// Consecutive weights of a row that share scales; `None` for floats.
    pub const fn block_values(self) -> Option<usize> {
        match self {
            Self::F32 | Self::F16 | Self::Bf16 => None,
            Self::Q4 | Self::Q4Wide | Self::Q8 => Some(32),
            Self::Q8Wide => Some(16),
        }
    }

    /// Scale words per block and row.
    pub const fn scale_words(self) -> usize {
        match self {
            Self::F32 | Self::F16 | Self::Bf16 => 0,
            Self::Q4 | Self::Q8 => 1,
            Self::Q4Wide | Self::Q8Wide => 2,
        }
    }

    /// The formats that hold the values of a stored type exactly, the smallest first.
    const fn holding(ty: TensorType) -> &'static [Self] {
        match ty {
            TensorType::F32 => &[Self::F32],
            TensorType::F16 => &[Self::F16, Self::F32],
            TensorType::Bf16 => &[Self::Bf16, Self::F32],
            TensorType::Q4_0 => &[Self::Q4, Self::Q4Wide, Self::Q8, Self::Q8Wide, Self::F32],
            TensorType::Q4_1 => &[Self::Q4, Self::Q4Wide, Self::Q8Wide, Self::F32],
            TensorType::Q4K => &[Self::Q4Wide, Self::Q8Wide, Self::F32],
            TensorType::Q8_0 | TensorType::Q5_0 => &[Self::Q8, Self::Q8Wide, Self::F32],
            TensorType::Q5_1 | TensorType::Q2K | TensorType::Q3K | TensorType::Q5K | TensorType::Q6K => {
                &[Self::Q8Wide, Self::F32]
            }
            TensorType::Other(_) => &[],
        }
    }

    /// Whether the values of a stored type fit this format exactly.
    pub fn holds(self, ty: TensorType) -> bool {
        Self::holding(ty).contains(&self)
    }

    /// The smallest format that holds every one of these types exactly: the format of a matrix whose rows come from
    /// several tensors. Floats of two kinds, and a float beside a quantised type, meet in F32.
    ///
    /// # Errors
    /// `UnsupportedModel` when one of the types cannot be run.
    pub fn for_types(types: &[TensorType]) -> Result<Self> {
        for ty in types {
            ty.require_supported()?;
        }
        let mut candidates = types.first().map_or(&[Self::F32][..], |&ty| Self::holding(ty)).iter().copied();
        Ok(candidates.find(|format| types.iter().all(|&ty| format.holds(ty))).unwrap_or(Self::F32))
    }
}

/// Shape and format of one packed matrix.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PackedLayout {
    /// How the weights are stored.
    pub format: PackedFormat,
    /// Outputs.
    pub rows: usize,
    /// Inputs (k).
    pub cols: usize,
}

impl PackedLayout {
    /// Groups of [`GROUP_ROWS`] rows, the last one padded.
    pub const fn groups(&self) -> usize {
        self.rows.div_ceil(GROUP_ROWS)
    }

    /// Quant words of one row: whole steps of [`STEP_VALUES`] weights, the last one padded with zeros.
    pub const fn row_quant_words(&self) -> usize {
        self.cols.next_multiple_of(STEP_VALUES) / self.format.values_per_word()
    }

    /// Scale words of one row.
    pub const fn row_scale_words(&self) -> usize {
        match self.format.block_values() {
            Some(values) => self.cols.div_ceil(values) * self.format.scale_words(),
            None => 0,
        }
    }

    /// Words of one group.
    pub const fn group_words(&self) -> usize {
        (self.row_quant_words() + self.row_scale_words()) * GROUP_ROWS
    }

    /// Bytes of the whole matrix.
    pub const fn bytes(&self) -> u64 {
        self.groups() as u64 * self.group_words() as u64 * 4
    }

    /// Exchanges weights within each four consecutive k, `k` with `k ^ t` for rows of tile `t` (of 16 rows) of a group: the order in
    /// which shaders/lib/lanes_quad.wgsl hands inputs round. Done twice it changes nothing. `words` are whole groups.
    pub fn reorder_for_quads(&self, words: &mut [u32]) {
        const TILE_ROWS: usize = 16;
        // Exchanges the lower and the upper `bits` of every 2 * `bits`.
        let exchange = |word: u32, bits: u32, lower: u32| (word & lower) << bits | word >> bits & lower;
        let per_word = self.format.values_per_word();
        // k ^ 1 and k ^ 2, as far as they lie within a word.
        let [one, two] = match per_word {
            8 => [Some((4, 0x0f0f_0f0f)), Some((8, 0x00ff_00ff))],
            4 => [Some((8, 0x00ff_00ff)), Some((16, 0xffff))],
            2 => [Some((16, 0xffff)), None],
            _ => [None, None],
        };
        for group in words.chunks_exact_mut(self.group_words()) {
            let quants = &mut group[..self.row_quant_words() * GROUP_ROWS];
            for (i, word) in quants.iter_mut().enumerate() {
                let tile = i % GROUP_ROWS / TILE_ROWS;
                for (bit, step) in [(1, one), (2, two)] {
                    if let (true, Some((bits, lower))) = (tile & bit != 0, step) {
                        *word = exchange(*word, bits, lower);
                    }
                }
            }
            // The rest of the exchange is of whole words, along k.
            for i in 0..if per_word < 4 { quants.len() } else { 0 } {
                let (word, row) = (i / GROUP_ROWS, i % GROUP_ROWS);
                let other = word ^ (row / TILE_ROWS / per_word);
                if other > word {
                    quants.swap(i, other * GROUP_ROWS + row);
                }
            }
        }
    }

    /// The float32 weights of one row of a group: the oracle of the kernels' unpacking.
    ///
    /// `group` are the [`group_words`](Self::group_words) words of the group, `row` counts from its start, and `out` takes
    /// the row, `[cols]`.
    pub fn unpack_row(&self, group: &[u32], row: usize, out: &mut [f32]) {
        assert!(
            group.len() == self.group_words() && row < GROUP_ROWS && out.len() == self.cols,
            "a row of this layout"
        );
        let (quants, scales) = group.split_at(self.row_quant_words() * GROUP_ROWS);
        let scale = |word: usize| scales[word * GROUP_ROWS + row];
        let scale_min = |block: usize| (f32::from_bits(scale(2 * block)), f32::from_bits(scale(2 * block + 1)));
        for (k, value) in out.iter_mut().enumerate() {
            let word = quants[k / self.format.values_per_word() * GROUP_ROWS + row];
            let nibble = || (word >> (k % 8 * 4) & 15) as f32;
            let byte = || f32::from((word >> (k % 4 * 8)) as u8);
            *value = match self.format {
                PackedFormat::F32 => f32::from_bits(word),
                PackedFormat::F16 => f16::from_bits((word >> (k % 2 * 16)) as u16).to_f32(),
                PackedFormat::Bf16 => bf16::from_bits((word >> (k % 2 * 16)) as u16).to_f32(),
                PackedFormat::Q4 => {
                    let pair = scale(k / 32);
                    nibble() * f16::from_bits(pair as u16).to_f32() + f16::from_bits((pair >> 16) as u16).to_f32()
                }
                PackedFormat::Q4Wide => {
                    let (scale, min) = scale_min(k / 32);
                    nibble() * scale + min
                }
                PackedFormat::Q8 => (byte() - f32::from(Q8_ZERO)) * f32::from_bits(scale(k / 32)),
                PackedFormat::Q8Wide => {
                    let (scale, min) = scale_min(k / 16);
                    byte() * scale + min
                }
            };
        }
    }

    /// The float32 weights of a packed matrix, `[rows, cols]`, from its words.
    pub fn unpack(&self, words: &[u32]) -> Vec<f32> {
        assert!(words.len() as u64 * 4 == self.bytes(), "the words of a whole matrix");
        let mut out = vec![0.0; self.rows * self.cols];
        for (row, values) in out.chunks_exact_mut(self.cols).enumerate() {
            let group = row / GROUP_ROWS * self.group_words();
            self.unpack_row(&words[group..group + self.group_words()], row % GROUP_ROWS, values);
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quads_exchange_k_with_k_xor_tile_and_twice_change_nothing() {
        for format in PackedFormat::ALL {
            let layout = PackedLayout { format, rows: 2 * GROUP_ROWS, cols: 40 };
            let mut state = 1u32;
            let words: Vec<u32> = (0..layout.bytes() / 4)
                .map(|_| {
                    state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                    // Scales are small numbers, so that they compare equal to themselves.
                    state >> 16 & 0x3bff | 0x3c00_0000
                })
                .collect();
            let mut reordered = words.clone();
            layout.reorder_for_quads(&mut reordered);
            let scales = layout.row_quant_words() * GROUP_ROWS;
            assert_eq!(reordered[scales..layout.group_words()], words[scales..layout.group_words()], "{format:?}");
            let (plain, quads) = (layout.unpack(&words), layout.unpack(&reordered));
            for row in 0..layout.rows {
                // Scales change from block to block, never within four k.
                for k in 0..layout.cols {
                    let other = k ^ (row % GROUP_ROWS / 16);
                    assert_eq!(
                        quads[row * layout.cols + k],
                        plain[row * layout.cols + other],
                        "{format:?}, {row}, {k}"
                    );
                }
            }
            layout.reorder_for_quads(&mut reordered);
            assert_eq!(reordered, words, "{format:?}");
        }
    }
}
