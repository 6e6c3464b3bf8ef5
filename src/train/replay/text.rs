//! A text to be replayed: what the model made of a prompt, and, where they are known, the rows that decided it.

use std::collections::HashMap;

use crate::error::{Error, ErrorCode, Result};
use crate::train::answers::Answer;
use crate::train::states::States;

/// A plain greedy answer.
#[derive(Debug, Clone, PartialEq)]
pub struct Text {
    /// What the model read and wrote.
    pub answer: Answer,
    /// The row that decided each token, `[tokens, hidden]`, normed; empty where the model is to compute them.
    pub rows: Vec<f32>,
}

impl Text {
    /// Answers with their rows among states, as far as they are there.
    ///
    /// # Errors
    /// `InvalidOption` where the states of an answer are of another text, or the text is not what the model finds most probable.
    pub fn with_states(answers: Vec<Answer>, states: &States) -> Result<Vec<Self>> {
        let numbers: HashMap<&str, usize> = (0..).zip(&states.sequences).map(|(i, own)| (&own.id[..], i)).collect();
        let (width, hidden, best) = (states.header.width(), states.header.hidden_size, states.header.best);
        let (mut best_of_all, mut of_all) = (0, 0);
        let mut text = |answer: Answer| {
            let Some(&number) = numbers.get(&answer.id[..]) else { return Ok(Self { answer, rows: Vec::new() }) };
            let rows = states.rows(states.range(number));
            if rows.tokens != answer.tokens {
                let message = format!("the states of {} are of another text; make the states anew", answer.id);
                return Err(Error::new(ErrorCode::InvalidOption, message));
            }
            if best > 0 {
                let firsts = rows.best_tokens.iter().step_by(best);
                best_of_all += firsts.zip(rows.tokens).filter(|(best, token)| best == token).count();
                of_all += rows.tokens.len();
            }
            let finals = rows.hidden.chunks_exact(width).flat_map(|row| &row[..hidden]);
            Ok(Self { rows: finals.map(|value| value.to_f32()).collect(), answer })
        };
        let texts: Vec<Self> = answers.into_iter().map(&mut text).collect::<Result<_>>()?;
        check_greedy(best_of_all, of_all)?;
        Ok(texts)
    }

    /// Its first tokens.
    #[must_use]
    pub fn first(&self, max_tokens: usize) -> Self {
        let Self { answer, rows } = self;
        let count = answer.tokens.len().min(max_tokens);
        let size = rows.len() / answer.tokens.len().max(1);
        let answer = Answer {
            tokens: answer.tokens[..count].to_vec(),
            ended: answer.ended && count == answer.tokens.len(),
            id: answer.id.clone(),
            category: answer.category.clone(),
            prompt: answer.prompt.clone(),
        };
        Self { answer, rows: rows[..count * size].to_vec() }
    }

    /// Checks that it has tokens and ends where end tokens say.
    ///
    /// # Errors
    /// `InvalidOption`.
    pub fn check(&self, end_tokens: &[u32]) -> Result<()> {
        let invalid = |what: String| {
            let message = format!("answer {}: {what}; make the answers anew with this model", self.answer.id);
            Err(Error::new(ErrorCode::InvalidOption, message))
        };
        let Some((last, before)) = self.answer.tokens.split_last() else {
            return invalid("it has no token".to_owned());
        };
        if let Some(token) = before.iter().find(|token| end_tokens.contains(token)) {
            return invalid(format!("it goes on behind the end token {token}"));
        }
        if self.answer.ended != end_tokens.contains(last) {
            return invalid(format!(
                "its last token is {last}, and it is said to have {}",
                match self.answer.ended {
                    true => "ended",
                    false => "been cut off",
                }
            ));
        }
        Ok(())
    }

    /// Whether it goes round in circles: some eight tokens stand at least three times among the last 64.
    pub fn loops(&self) -> bool {
        const WINDOW: usize = 64;
        const GRAM: usize = 8;
        const TIMES: usize = 3;
        let last = &self.answer.tokens[self.answer.tokens.len().saturating_sub(WINDOW)..];
        let grams: Vec<&[u32]> = last.windows(GRAM).collect();
        grams.iter().any(|gram| grams.iter().filter(|other| *other == gram).count() >= TIMES)
    }
}

/// Checks that texts are greedy ones: `best` of `all` their tokens are what the model finds most probable. Where two are equally so but
/// for rounding, either will do.
///
/// # Errors
/// `InvalidOption`.
pub(super) fn check_greedy(best: usize, all: usize) -> Result<()> {
    const LEAST: f64 = 0.99;
    if (best as f64) < LEAST * all as f64 {
        let message = format!(
            "{best} of {all} tokens of these answers are the model's most probable, expected all: they were sampled, or another \
             model wrote them; use another folder"
        );
        return Err(Error::new(ErrorCode::InvalidOption, message));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use half::f16;

    use super::*;
    use crate::train::states::{Rows, StatesHeader, StatesWriter};

    fn answer(tokens: &[u32], ended: bool) -> Text {
        let rows = tokens.iter().flat_map(|&token| [token as f32; 2]).collect();
        let (id, category) = ("a".to_owned(), String::new());
        Text { answer: Answer { id, category, prompt: vec![1], tokens: tokens.to_vec(), ended }, rows }
    }

    #[test]
    fn an_answer_that_goes_round_in_circles_is_known() {
        let circle = |length: u32, count: u32| answer(&(0..count).map(|i| i % length).collect::<Vec<_>>(), false);
        assert!(circle(10, 28).loops());
        assert!(!circle(10, 27).loops(), "the third time is not complete");
        assert!(!circle(64, 300).loops());
        let mut left = circle(10, 60);
        left.answer.tokens.extend(100..164);
        assert!(!left.loops(), "it has come out of it");
        assert!(!answer(&[1, 1, 1], false).loops());
        assert!(answer(&[1; 10], false).loops());
    }

    #[test]
    fn a_text_that_is_cut_has_not_ended() {
        let whole = answer(&[3, 4, 2], true);
        whole.check(&[2]).unwrap();
        assert_eq!(whole.first(5), whole);
        let cut = whole.first(2);
        assert_eq!(
            (&cut.answer.tokens[..], cut.answer.ended, &cut.rows[..]),
            (&[3, 4][..], false, &[3.0, 3.0, 4.0, 4.0][..])
        );
        cut.check(&[2]).unwrap();
        for wrong in [answer(&[], false), answer(&[3, 2, 4], false), answer(&[3, 2], false), answer(&[3], true)] {
            assert_eq!(wrong.check(&[2]).unwrap_err().code(), ErrorCode::InvalidOption);
        }
    }
    #[test]
    fn rows_of_states_belong_to_the_greedy_text_that_they_decided() {
        let folder = std::env::temp_dir().join(format!("draftree-texts-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&folder);
        let name = |name: &str| name.to_owned();
        let header = StatesHeader {
            model: name("m"),
            quantisation: name("Q4_1"),
            hidden_size: 2,
            layers: vec![0],
            context: None,
            best: 2,
        };
        let mut writer = StatesWriter::open(&folder, header).unwrap();
        let tokens: Vec<u32> = (5..25).collect();
        let hidden: Vec<f16> =
            tokens.iter().flat_map(|&token| [token as f32, 1.0, 0.5, 0.5].map(f16::from_f32)).collect();
        let best_tokens: Vec<u32> = tokens.iter().flat_map(|&token| [token, 0]).collect();
        let rows = Rows {
            hidden: &hidden,
            tokens: &tokens,
            best_tokens: &best_tokens,
            best_probabilities: &[0.5; 40],
            context: &[],
        };
        writer.append("a", rows).unwrap();
        let (there, mut other) = (answer(&tokens, false).answer, answer(&[7, 8], false).answer);
        other.id = name("b");
        let texts = |answers: &[&Answer]| {
            let states = States::open(&folder).unwrap();
            Text::with_states(answers.iter().map(|&answer| answer.clone()).collect(), &states)
        };
        let found = texts(&[&other, &there]).unwrap();
        assert!(found[0].rows.is_empty());
        assert_eq!((found[1].rows.len(), &found[1].rows[..4]), (40, &[5.0, 1.0, 6.0, 1.0][..]));
        let longer = Answer { tokens: [&tokens[..], &[1]].concat(), ..there.clone() };
        assert_eq!(texts(&[&longer]).unwrap_err().code(), ErrorCode::InvalidOption);
        let sampled = Rows { best_tokens: &[0; 40], ..rows };
        writer.append("b", sampled).unwrap();
        let error = texts(&[&Answer { id: name("b"), ..there }]).unwrap_err();
        assert!(error.to_string().contains("0 of 20"), "{error}");
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
