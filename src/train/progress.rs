//! A line about how far long work has come, now and then.

use std::fmt;
use std::time::{Duration, Instant};

/// How far work has come.
pub struct Progress<'a> {
    what: &'static str,
    total: usize,
    done: usize,
    tokens: usize,
    /// Tokens of what is done: the rest belongs to what is not.
    tokens_done: usize,
    began: Instant,
    told: Instant,
    tell: &'a mut dyn FnMut(&str),
}

/// Between two lines.
const PAUSE: Duration = Duration::from_secs(10);

impl fmt::Debug for Progress<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.line())
    }
}

impl<'a> Progress<'a> {
    /// Work that begins now, of `total` things; `tell` takes a line.
    pub fn new(what: &'static str, total: usize, tell: &'a mut dyn FnMut(&str)) -> Self {
        let now = Instant::now();
        Self { what, total, done: 0, tokens: 0, tokens_done: 0, began: now, told: now, tell }
    }

    /// One more thing is done, of so many tokens.
    pub fn finish_one(&mut self, tokens: usize) {
        self.done += 1;
        self.tokens_done += tokens;
    }

    /// One thing less is to be done.
    pub fn drop_one(&mut self) {
        self.total -= 1;
    }

    /// Tokens were made. Tells when it was silent for long.
    pub fn advance(&mut self, tokens: usize) {
        self.tokens += tokens;
        if self.told.elapsed() >= PAUSE {
            self.report();
        }
    }

    /// Tells now.
    pub fn report(&mut self) {
        self.told = Instant::now();
        let line = self.line();
        (self.tell)(&line);
    }

    fn line(&self) -> String {
        let seconds = self.began.elapsed().as_secs_f64().max(1e-3);
        let rate = self.tokens as f64 / seconds;
        let Self { what, total, done, tokens, .. } = self;
        let mut line = format!("{what}: {done} of {total}, {tokens} tokens, {rate:.0} tokens/s");
        if self.done > 0 && self.done < self.total {
            let each = self.tokens_done as f64 / self.done as f64;
            let begun = self.tokens.saturating_sub(self.tokens_done) as f64;
            let left = (((self.total - self.done) as f64 * each - begun) / rate).max(0.0) as u64;
            line += &format!(", {} h {:02} min left", left / 3600, left / 60 % 60);
        }
        line
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_says_what_is_done_and_how_long_the_rest_takes() {
        let mut lines = Vec::new();
        let mut tell = |line: &str| lines.push(line.to_owned());
        let mut progress = Progress::new("answers", 4, &mut tell);
        progress.began -= Duration::from_secs(100);
        progress.advance(1000);
        progress.finish_one(900);
        progress.drop_one();
        progress.report();
        // 2 more of 900, less the 100 that are there, at 10 a second.
        assert_eq!(lines, ["answers: 1 of 3, 1000 tokens, 10 tokens/s, 0 h 02 min left"]);
    }
}
