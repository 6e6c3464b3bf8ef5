//! When drafting rests. What drafts a tree takes its share of a step, a tenth where passes take a millisecond or two; where no pass of
//! several rows has paid for a while, drafting pauses, and comes back now and then to see whether the text has changed.

/// Steps in a row that verify nothing before drafting pauses.
const PATIENCE: u32 = 32;
/// The same after a pause.
const SECOND_PATIENCE: u32 = 16;
/// Steps of the first pause, and of later ones.
const PAUSE: [u32; 2] = [64, 128];

/// Watches whether anything pays.
#[derive(Debug, Clone)]
pub struct Pause {
    plain_steps: u32,
    patience: u32,
    left: u32,
}

impl Default for Pause {
    fn default() -> Self {
        Self { plain_steps: 0, patience: PATIENCE, left: 0 }
    }
}

impl Pause {
    /// A step of `rows` rows is submitted. Returns whether the next tree should be drafted behind it.
    pub fn submit(&mut self, rows: usize) -> bool {
        if self.left > 0 {
            self.left -= 1;
        } else if rows > 1 {
            *self = Self::default();
        } else {
            self.plain_steps += 1;
            if self.plain_steps >= self.patience {
                self.left = PAUSE[usize::from(self.patience < PATIENCE)];
                self.patience = SECOND_PATIENCE;
                self.plain_steps = 0;
            }
        }
        self.left == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drafting_rests_while_nothing_pays_and_comes_back() {
        let mut pause = Pause::default();
        let drafts: Vec<bool> = (0..1000).map(|_| pause.submit(1)).collect();
        assert!(drafts[..PATIENCE as usize - 1].iter().all(|&drafts| drafts));
        let share = drafts.iter().filter(|&&drafts| drafts).count() as f64 / 1000.0;
        assert!((0.1..0.2).contains(&share), "{share}");
    }

    #[test]
    fn what_pays_is_kept_up() {
        let mut pause = Pause::default();
        assert!((0..1000).all(|step| pause.submit(if step % 20 == 0 { 4 } else { 1 })));
        while pause.submit(1) {}
        while !pause.submit(1) {}
        assert!(pause.submit(4), "the text has changed");
        assert!((0..PATIENCE - 1).all(|_| pause.submit(1)), "and is believed again");
    }
}
