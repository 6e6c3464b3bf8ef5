//! Gumbel noise as a pure function of (seed, position, token). Oracle of shaders/lib/noise.wgsl.
//!
//! A counter-based generator, Threefry-2x32 with 20 rounds (Salmon, Moraes, Dror, Shaw 2011, "Parallel random numbers: as easy
//! as 1, 2, 3"), rather than one with a state: any draw can be made alone, in any order, on any machine.

const ROTATIONS: [u32; 8] = [13, 15, 26, 6, 17, 29, 16, 24];

/// Two words of noise from a key and a counter.
pub fn threefry(key: [u32; 2], counter: [u32; 2]) -> [u32; 2] {
    let keys = [key[0], key[1], 0x1bd1_1bda ^ key[0] ^ key[1]];
    let mut x = [counter[0].wrapping_add(key[0]), counter[1].wrapping_add(key[1])];
    for group in 0..5 {
        for i in 0..4 {
            x[0] = x[0].wrapping_add(x[1]);
            x[1] = x[1].rotate_left(ROTATIONS[group % 2 * 4 + i]) ^ x[0];
        }
        x[0] = x[0].wrapping_add(keys[(group + 1) % 3]);
        x[1] = x[1].wrapping_add(keys[(group + 2) % 3]).wrapping_add(group as u32 + 1);
    }
    x
}

/// A draw from the standard Gumbel distribution.
///
/// It is minus the log of an exponential variate -log(1 - u), whose uniform u keeps its full precision near zero, where the
/// winners of the race are; a series stands in for the logarithm there.
pub fn gumbel(seed: u64, position: u32, token: u32) -> f32 {
    let bits = threefry([seed as u32, (seed >> 32) as u32], [position, token])[0];
    let u = (bits as f32 + 0.5) * 2f32.powi(-32);
    let exponential = if u < 2f32.powi(-7) {
        u * (1.0 + u * (0.5 + u * (1.0 / 3.0 + u * 0.25)))
    } else {
        -(1.0 - u).max(2f32.powi(-25)).ln()
    };
    -exponential.ln()
}

/// What turns a seed into that of the uniforms by which drafted tokens pass or are rejected. It changes bits that no seed given in
/// JavaScript has, as the others do.
pub const ACCEPTANCE: u64 = 0xa1ce_0000_0000_0000;
/// Into that of the draw from what rejected tokens leave.
pub const RESIDUAL: u64 = 0xb2de_0000_0000_0000;
/// Into that of drafting, where it must not share the noise of the choice.
pub const DRAFTING: u64 = 0xc3ee_0000_0000_0000;

/// A draw from the 2^24 multiples of 2^-24 in [0, 1).
pub fn uniform(seed: u64, position: u32, index: u32) -> f32 {
    let bits = threefry([seed as u32, (seed >> 32) as u32], [position, index])[0];
    (bits >> 8) as f32 * 2f32.powi(-24)
}

/// The seed of what is drawn when a tree is drafted behind a root at `position`: one of its own for every step, since a later step drafts
/// for the same places again.
pub fn drafting_seed(seed: u64, position: u32) -> u64 {
    let seed = seed ^ DRAFTING;
    let [low, high] = threefry([seed as u32, (seed >> 32) as u32], [position, 0]);
    u64::from(high) << 32 | u64::from(low)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Known answers of Random123 1.14 (kat_vectors, threefry2x32-20).
    #[test]
    fn threefry_gives_the_published_answers() {
        assert_eq!(threefry([0, 0], [0, 0]), [0x6b20_0159, 0x99ba_4efe]);
        assert_eq!(threefry([u32::MAX; 2], [u32::MAX; 2]), [0x1cb9_96fc, 0xbb00_2be7]);
        assert_eq!(threefry([0x1319_8a2e, 0x0370_7344], [0x243f_6a88, 0x85a3_08d3]), [0xc492_3a9c, 0x483d_f7a0]);
    }

    #[test]
    fn noise_has_the_moments_of_a_gumbel() {
        let n = 200_000;
        let draws: Vec<f64> = (0..n).map(|i| f64::from(gumbel(7, i / 500, i % 500))).collect();
        let mean = draws.iter().sum::<f64>() / f64::from(n);
        let variance = draws.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / f64::from(n);
        assert!((mean - 0.577_215_66).abs() < 0.01, "mean {mean}");
        assert!((variance - 1.644_934).abs() < 0.02, "variance {variance}");
        assert!(draws.iter().all(|x| x.is_finite()));
    }
}
