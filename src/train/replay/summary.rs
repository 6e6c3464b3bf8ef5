//! What a way of drafting came to over many texts: tokens per pass by category, and apart for texts that go round in circles.

use super::{Steps, Text};

/// The categories of MT-bench, which Spec-Bench counts as one.
const MT_BENCH: [&str; 8] = ["writing", "roleplay", "reasoning", "math", "coding", "extraction", "stem", "humanities"];

/// The category that texts of a category are counted in: those of MT-bench are `mt_bench`.
pub fn category(name: &str) -> &str {
    match name {
        "" => "text",
        name if MT_BENCH.contains(&name) => "mt_bench",
        name => name,
    }
}

/// Some texts together.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Tally {
    /// How many.
    pub texts: usize,
    /// All their steps.
    pub steps: Steps,
}

impl Tally {
    fn add(&mut self, steps: &Steps) {
        self.texts += 1;
        self.steps.add(steps);
    }

    /// Tokens of all texts by target passes for all texts, those of prompts not counted; none where there is no text.
    pub fn tokens_per_pass(&self) -> Option<f64> {
        let passes = self.steps.passes();
        (passes > 0).then(|| f64::from(self.steps.tokens()) / f64::from(passes))
    }

    /// How many times as fast as passes of one row that take `plain_ms`; none where no costs were given.
    pub fn speed_up(&self, plain_ms: f64) -> Option<f64> {
        let ms = self.steps.ms;
        (ms > 0.0).then(|| f64::from(self.steps.tokens()) * plain_ms / ms)
    }

    /// `[n]`: the share of passes in which at least n drafted tokens were accepted.
    pub fn reached(&self) -> Vec<f64> {
        let passes = f64::from(self.steps.passes().max(1));
        let mut shares: Vec<f64> = Vec::new();
        let mut sum = 0.0;
        for &count in self.steps.emitted.iter().skip(1).rev() {
            sum += f64::from(count) / passes;
            shares.push(sum);
        }
        shares.reverse();
        shares
    }
}

/// All texts under one way of drafting.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Summary {
    /// All of them.
    pub all: Tally,
    /// By category, in the order of the texts.
    pub categories: Vec<(String, Tally)>,
    /// Those that go round in circles.
    pub looping: Tally,
    /// And those that do not.
    pub steady: Tally,
}

impl Summary {
    /// Of texts and what each came to.
    pub fn of<'a>(texts: &[Text], steps: impl IntoIterator<Item = &'a Steps>) -> Self {
        let mut summary = Self::default();
        for (text, steps) in texts.iter().zip(steps) {
            let name = category(&text.answer.category);
            let place = summary.categories.iter().position(|(known, _)| known == name).unwrap_or_else(|| {
                summary.categories.push((name.to_owned(), Tally::default()));
                summary.categories.len() - 1
            });
            summary.categories[place].1.add(steps);
            summary.all.add(steps);
            if text.loops() { summary.looping.add(steps) } else { summary.steady.add(steps) }
        }
        summary
    }

    /// The mean of a figure of the categories, each counted once.
    pub fn mean(&self, of: impl Fn(&Tally) -> Option<f64>) -> Option<f64> {
        let rates: Option<Vec<f64>> = self.categories.iter().map(|(_, tally)| of(tally)).collect();
        let rates = rates.filter(|rates| !rates.is_empty())?;
        Some(rates.iter().sum::<f64>() / rates.len() as f64)
    }
}

/// The numbers of up to `count` of `categories`' items, for each category as far apart as they can be, in ascending order.
pub fn spread<'a>(categories: impl IntoIterator<Item = &'a str>, count: usize) -> Vec<usize> {
    let mut members: Vec<(&str, Vec<usize>)> = Vec::new();
    for (number, name) in categories.into_iter().enumerate() {
        let name = category(name);
        match members.iter_mut().find(|(known, _)| *known == name) {
            Some((_, numbers)) => numbers.push(number),
            None => members.push((name, vec![number])),
        }
    }
    let mut chosen: Vec<usize> = Vec::new();
    for (_, numbers) in members {
        let count = count.min(numbers.len());
        chosen.extend((0..count).map(|i| numbers[i * numbers.len() / count]));
    }
    chosen.sort_unstable();
    chosen
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::train::answers::Answer;

    fn text(category: &str, tokens: &[u32]) -> Text {
        let answer = Answer {
            id: String::new(),
            category: category.to_owned(),
            prompt: vec![1],
            tokens: tokens.to_vec(),
            ended: false,
        };
        Text { answer, rows: Vec::new() }
    }

    fn steps(emitted: &[u32]) -> Steps {
        let mut steps = Steps { emitted: emitted.to_vec(), ..Steps::default() };
        steps.stats.tokens[0] = (0..).zip(emitted).map(|(tokens, passes)| tokens * passes).sum();
        steps
    }

    #[test]
    fn categories_are_pooled_and_then_averaged() {
        let texts = [text("stem", &[1; 30]), text("qa", &[1, 2]), text("coding", &[1, 2, 3])];
        // 4 tokens in 4 passes, 6 in 2, 8 in 4.
        let steps = [steps(&[0, 4]), steps(&[0, 0, 0, 2]), steps(&[0, 2, 0, 2])];
        let summary = Summary::of(&texts, &steps);
        let rates: Vec<(&str, Option<f64>)> =
            summary.categories.iter().map(|(name, tally)| (&name[..], tally.tokens_per_pass())).collect();
        assert_eq!(rates, [("mt_bench", Some(12.0 / 8.0)), ("qa", Some(3.0))]);
        assert_eq!((summary.mean(Tally::tokens_per_pass), summary.all.tokens_per_pass()), (Some(2.25), Some(1.8)));
        assert_eq!((summary.looping.texts, summary.steady.tokens_per_pass()), (1, Some(14.0 / 6.0)));
        let expected = [1.0, 0.4, 0.4];
        assert!(summary.all.reached().iter().zip(expected).all(|(found, expected)| (found - expected).abs() < 1e-9));
        assert_eq!(Summary::of(&[], &[]).mean(Tally::tokens_per_pass), None);
    }

    #[test]
    fn a_few_of_each_category_stand_far_apart() {
        let names = ["stem", "math", "qa", "math", "qa", "coding", "qa"];
        assert_eq!(spread(names, 2), [0, 2, 3, 4]);
        assert_eq!(spread(names, 100), [0, 1, 2, 3, 4, 5, 6]);
        assert!(spread(names, 0).is_empty());
    }
}
