//! How many steps to keep in flight, found while generating.
//!
//! A result that is read back takes its time (about 100 ms in Firefox, under 1 ms in Chromium), and a deeper pipeline hides it up to the
//! point where the device is busy all the time. So the depth doubles as long as records come faster for it. This costs
//! nothing at load, needs no knowledge of browsers, and is remembered from one generation to the next.

use super::MAX_STEPS_IN_FLIGHT;

/// Where the search begins: one step runs while another is read back.
pub const FIRST_DEPTH: usize = 2;
/// A deeper pipeline must be faster by this factor, or it only makes stopping slower.
const WORTH: f64 = 1.15;

/// Looks for the depth.
#[derive(Debug, Clone)]
pub struct Pacer {
    depth: usize,
    /// Records per millisecond of the depth before.
    rate_before: f64,
    settled: bool,
    window_began_ms: Option<f64>,
    records: usize,
}

impl Default for Pacer {
    fn default() -> Self {
        Self { depth: FIRST_DEPTH, rate_before: 0.0, settled: false, window_began_ms: None, records: 0 }
    }
}

impl Pacer {
    /// Steps to keep in flight now.
    pub fn depth(&self) -> usize {
        self.depth
    }

    /// A generation begins: the time since the last record says nothing.
    pub fn begin(&mut self) {
        self.window_began_ms = None;
        self.records = 0;
    }

    /// A record came.
    pub fn record(&mut self, now_ms: f64) {
        if self.settled {
            return;
        }
        let Some(began_ms) = self.window_began_ms else {
            self.window_began_ms = Some(now_ms);
            return;
        };
        self.records += 1;
        // Two rounds of the pipeline: the first fills it.
        if self.records < 2 * self.depth {
            return;
        }
        let rate = self.records as f64 / (now_ms - began_ms).max(1e-3);
        if rate < WORTH * self.rate_before {
            self.depth /= 2;
            self.settled = true;
        } else if self.depth == MAX_STEPS_IN_FLIGHT {
            self.settled = true;
        } else {
            self.rate_before = rate;
            self.depth *= 2;
        }
        self.begin();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Depth found when a pass takes `pass_ms` and its record comes back `latency_ms` later, in bursts of that rhythm.
    fn settle(pass_ms: f64, latency_ms: f64) -> usize {
        let mut pacer = Pacer::default();
        let mut now = 0.0;
        for _ in 0..2000 {
            now += pass_ms.max((pass_ms + latency_ms) / pacer.depth() as f64);
            pacer.record(now);
        }
        assert!(pacer.settled);
        pacer.depth()
    }

    #[test]
    fn a_slow_read_back_gets_a_deep_pipeline_and_a_fast_one_does_not() {
        assert_eq!(settle(1.0, 100.0), MAX_STEPS_IN_FLIGHT);
        assert!(settle(25.0, 100.0) >= 4);
        assert_eq!(settle(100.0, 0.5), FIRST_DEPTH);
        assert_eq!(settle(5.0, 5.0), FIRST_DEPTH);
    }
}
