//! Random numbers that are the same in every run (SplitMix64; Steele, Lea, Flood 2014).

/// A generator.
#[derive(Debug, Clone)]
pub struct Random(u64);

/// One step of SplitMix64's mixing: every bit of the input changes half of the bits.
pub fn mix(word: u64) -> u64 {
    let x = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

impl Random {
    /// The generator of a seed and of what it is for.
    pub fn new(seed: u64, purpose: u64) -> Self {
        Self(mix(seed ^ mix(purpose.wrapping_add(0x9e37_79b9_7f4a_7c15))))
    }

    /// The next 64 bits.
    pub fn word(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.0)
    }

    /// From 0 to 1, 1 left out.
    pub fn fraction(&mut self) -> f32 {
        (self.word() >> 40) as f32 / (1u32 << 24) as f32
    }

    /// Below `end`, which is not 0.
    pub fn below(&mut self, end: usize) -> usize {
        // The high half of the product is even to within end in 2^64.
        ((u128::from(self.word()) * end as u128) >> 64) as usize
    }

    /// Brings a list to a random order.
    pub fn shuffle<T>(&mut self, list: &mut [T]) {
        for end in (1..list.len()).rev() {
            list.swap(end, self.below(end + 1));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shuffled_list_has_every_entry_once_and_another_seed_another_order() {
        let shuffled = |seed| {
            let mut list: Vec<u32> = (0..1000).collect();
            Random::new(seed, 1).shuffle(&mut list);
            list
        };
        let mut one = shuffled(1);
        assert_eq!(one, shuffled(1));
        assert_ne!(one, shuffled(2));
        one.sort_unstable();
        assert!(one.iter().enumerate().all(|(i, &entry)| i == entry as usize));
    }

    #[test]
    fn fractions_are_even() {
        let mut random = Random::new(3, 0);
        let mean = (0..10_000).map(|_| random.fraction()).sum::<f32>() / 10_000.0;
        assert!((mean - 0.5).abs() < 0.01, "{mean}");
        assert!((0..1000).all(|_| random.below(7) < 7));
    }
}
