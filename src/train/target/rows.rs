//! What happens to rows between matrix products, many rows at once.

use pulp::{Arch, NullaryFnOnce};
use rayon::prelude::*;

use super::cache::LANES;

/// Rows of a task at least.
const MIN_ROWS: usize = 16;

/// Work that is compiled once more for the instructions that the processor may have. No closure, since one need not become part of the
/// function that may use them.
macro_rules! vectorised {
    ($(#[$doc:meta])* $name:ident { $($field:ident: $type:ty),* } -> $output:ty $body:block) => {
        $(#[$doc])*
        pub(in crate::train) struct $name<'a> { $(pub $field: $type),* }

        impl NullaryFnOnce for $name<'_> {
            type Output = $output;

            #[inline(always)]
            fn call(self) -> $output {
                let Self { $($field),* } = self;
                $body
            }
        }
    };
}
pub(in crate::train) use vectorised;

/// `x / rms(x) * gain` of rows `[rows, gain.len()]`.
pub(super) fn norm(rows: &[f32], gain: &[f32], epsilon: f32) -> Vec<f32> {
    let (arch, width) = (Arch::new(), gain.len());
    let mut normed = vec![0.0; rows.len()];
    let pairs = normed.par_chunks_exact_mut(width).zip(rows.par_chunks_exact(width));
    pairs.with_min_len(MIN_ROWS).for_each(|(out, row)| arch.dispatch(NormRow { row, gain, epsilon, out }));
    normed
}

vectorised! {
    NormRow { row: &'a [f32], gain: &'a [f32], epsilon: f32, out: &'a mut [f32] } -> () {
        let (chunks, rest) = row.as_chunks::<LANES>();
        let mut sums = [0.0f32; LANES];
        for chunk in chunks {
            for (sum, x) in sums.iter_mut().zip(chunk) {
                *sum = x.mul_add(*x, *sum);
            }
        }
        let total = sums.iter().sum::<f32>() + rest.iter().map(|x| x * x).sum::<f32>();
        let factor = 1.0 / (total / row.len() as f32 + epsilon).sqrt();
        for ((out, x), gain) in out.iter_mut().zip(row).zip(gain) {
            *out = x * factor * gain;
        }
    }
}

/// `rows += more`.
pub(super) fn add(rows: &mut [f32], more: &[f32]) {
    const TASK: usize = 1 << 14;
    let arch = Arch::new();
    rows.par_chunks_mut(TASK).zip(more.par_chunks(TASK)).for_each(|(rows, more)| arch.dispatch(AddRows { rows, more }));
}

vectorised! {
    AddRows { rows: &'a mut [f32], more: &'a [f32] } -> () {
        for (row, more) in rows.iter_mut().zip(more) {
            *row += more;
        }
    }
}

/// `silu(gate) * up` of rows that hold all gates, then all ups, `[rows, ffn]`.
pub(super) fn swiglu(gate_up: &[f32], ffn: usize) -> Vec<f32> {
    let arch = Arch::new();
    let mut out = vec![0.0; gate_up.len() / 2];
    let pairs = out.par_chunks_exact_mut(ffn).zip(gate_up.par_chunks_exact(2 * ffn));
    pairs.with_min_len(MIN_ROWS / 4).for_each(|(out, row)| {
        let (gates, ups) = row.split_at(ffn);
        arch.dispatch(GateRow { gates, ups, out });
    });
    out
}

vectorised! {
    GateRow { gates: &'a [f32], ups: &'a [f32], out: &'a mut [f32] } -> () {
        for ((out, gate), up) in out.iter_mut().zip(gates).zip(ups) {
            *out = gate / (1.0 + exp(-gate)) * up;
        }
    }
}

/// The exponential function to two units in the last place, without a call, so that loops of it become vector instructions. 0 below the
/// normal range, and the largest power of two above the finite one.
///
/// e^x = 2^n e^r with n the integer next to x / ln 2; e^r by its series up to r^7.
#[inline(always)]
pub(crate) fn exp(x: f32) -> f32 {
    /// 1.5 * 2^23: a sum with it is rounded to a whole number, which stands in its lowest bits.
    const ROUND: f32 = 12_582_912.0;
    const LN2_HIGH: f32 = 0.693_359_4;
    const LN2_LOW: f32 = -2.121_944_4e-4;
    let bounded = x.clamp(-87.0, 88.0);
    let shifted = bounded.mul_add(std::f32::consts::LOG2_E, ROUND);
    let n = shifted - ROUND;
    let r = n.mul_add(-LN2_LOW, n.mul_add(-LN2_HIGH, bounded));
    let mut series = 1.0 / 5040.0;
    for term in [1.0 / 720.0, 1.0 / 120.0, 1.0 / 24.0, 1.0 / 6.0, 0.5, 1.0, 1.0] {
        series = r.mul_add(series, term);
    }
    let power = f32::from_bits(shifted.to_bits().wrapping_add(127) << 23);
    if x < -87.0 { 0.0 } else { series * power }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_exponential_is_that_of_the_library() {
        for i in -8_700..=8_800 {
            let x = i as f32 / 100.0 + 0.001;
            let (found, expected) = (exp(x.min(88.0)), x.min(88.0).exp());
            assert!((found / expected - 1.0).abs() < 3e-7, "exp({x}) is {found:e}, expected {expected:e}");
        }
        assert_eq!((exp(0.0), exp(f32::NEG_INFINITY), exp(-100.0)), (1.0, 0.0, 0.0));
    }

    #[test]
    fn rows_are_normed_added_and_gated_one_by_one() {
        // An odd width has a rest behind the lanes.
        let (width, gain) = (21, [2.0; 21]);
        let rows: Vec<f32> = (0..40 * width).map(|i| (i * 7 % 23) as f32 - 11.0).collect();
        for (row, normed) in rows.chunks(width).zip(norm(&rows, &gain, 1e-5).chunks(width)) {
            let expected = crate::backend::cpu::ops::rms_norm(row, &gain, 1e-5);
            assert!(normed.iter().zip(expected).all(|(a, b)| (a - b).abs() < 1e-5));
        }
        let mut sum = rows.clone();
        add(&mut sum, &rows);
        assert!(sum.iter().zip(&rows).all(|(sum, row)| *sum == 2.0 * row));
        let gated = swiglu(&rows[..4 * width], width);
        assert_eq!(gated.len(), 2 * width);
        let (gate, up) = (rows[2 * width + 3], rows[3 * width + 3]);
        assert!((gated[width + 3] - gate / (1.0 + (-gate).exp()) * up).abs() < 1e-4);
    }
}
