//! Which answers are held out: decided by their ids, so that every stage leaves out the same ones.

use super::random::mix;

/// The share of answers that are held out, unless told otherwise.
pub const HELD_OUT: f64 = 0.03;

/// Whether the answer of this id is held out, where `share` of all are.
pub fn is_held_out(id: &str, share: f64) -> bool {
    let hash = id
        .bytes()
        .fold(0xcbf2_9ce4_8422_2325u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3));
    ((mix(hash) >> 11) as f64) < share * (1u64 << 53) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_share_is_kept_and_more_hold_out_the_same_ones() {
        let ids: Vec<String> = (0..20_000).map(|i| format!("prompt-{i}")).collect();
        let held_out = |share: f64| ids.iter().filter(|id| is_held_out(id, share)).count();
        assert!((500..700).contains(&held_out(HELD_OUT)), "{}", held_out(HELD_OUT));
        assert_eq!((held_out(0.0), held_out(1.0)), (0, ids.len()));
        assert!(ids.iter().all(|id| !is_held_out(id, 0.03) || is_held_out(id, 0.1)));
    }
}
