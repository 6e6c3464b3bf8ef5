//! Answers as they are learnt from: prompt and answer in one text, of which the answer alone teaches.

use crate::error::{Error, ErrorCode, Result};
use crate::train::answers::Answer;
use crate::train::random::Random;
use crate::train::split::is_held_out;

/// What the random choice of held-out texts is for.
const HELD_OUT_TEXTS: u64 = 4;

/// A prompt with its answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Text {
    prompt: Vec<u32>,
    answer: Vec<u32>,
}

impl Text {
    /// An answer behind its prompt, of at most `longest` tokens together; none where nothing of the answer is left.
    pub fn new(answer: &Answer, longest: usize) -> Option<Self> {
        let room = longest.saturating_sub(answer.prompt.len());
        let kept = &answer.tokens[..answer.tokens.len().min(room)];
        (!kept.is_empty() && !answer.prompt.is_empty())
            .then(|| Self { prompt: answer.prompt.clone(), answer: kept.to_vec() })
    }

    /// The tokens that teach.
    pub fn answer(&self) -> &[u32] {
        &self.answer
    }
}

/// All texts, in two parts.
#[derive(Debug, Clone)]
pub struct Texts {
    /// Those that are learnt from.
    pub train: Vec<Text>,
    /// Those that tell how much was learnt.
    pub held_out: Vec<Text>,
    /// Answers that are none, since nothing of them was left.
    pub left_out: usize,
}

impl Texts {
    /// Holds out a share of the answers, of which at most `most` are kept, drawn evenly.
    ///
    /// # Errors
    /// `InvalidOption` when either part is empty, or the answers are of another model.
    pub fn new(answers: &[Answer], vocab_size: usize, longest: usize, (share, most): (f64, usize)) -> Result<Self> {
        let mut texts = Self { train: Vec::new(), held_out: Vec::new(), left_out: 0 };
        for answer in answers {
            if let Some(id) = answer.prompt.iter().chain(&answer.tokens).find(|&&id| id as usize >= vocab_size) {
                return Err(Error::new(
                    ErrorCode::InvalidOption,
                    format!(
                        "answer {} has token {id}, expected ids below {vocab_size}; it is of another model",
                        answer.id
                    ),
                ));
            }
            match Text::new(answer, longest) {
                Some(text) if is_held_out(&answer.id, share) => texts.held_out.push(text),
                Some(text) => texts.train.push(text),
                None => texts.left_out += 1,
            }
        }
        if texts.held_out.len() > most {
            Random::new(0, HELD_OUT_TEXTS).shuffle(&mut texts.held_out);
            texts.held_out.truncate(most.max(1));
        }
        for (part, purpose) in [(&texts.train, "learn from"), (&texts.held_out, "check with")] {
            if part.is_empty() {
                return Err(Error::new(
                    ErrorCode::InvalidOption,
                    format!(
                        "of {} answers none is left to {purpose}; make more of them, or hold out another share than {share}",
                        answers.len()
                    ),
                ));
            }
        }
        Ok(texts)
    }

    /// The tokens that teach, of some texts.
    pub fn tokens(texts: &[Text]) -> impl Iterator<Item = u32> {
        texts.iter().flat_map(|text| text.answer.iter().copied())
    }
}

/// Texts behind one another, as the model reads them, with what it is to say.
#[derive(Debug, Clone, Default)]
pub struct Packed {
    /// What is read: a row each. The last token of an answer is not read.
    pub tokens: Vec<u32>,
    /// Tokens of each text.
    pub lengths: Vec<usize>,
    /// The rows that decide a token of an answer, `[labels]`.
    pub rows: Vec<u32>,
    /// The tokens of all answers.
    pub labels: Vec<u32>,
    /// For every label, where its answer ends among the labels.
    pub ends: Vec<u32>,
    /// The labels that are not the last of their answer: heads learn from their rows.
    pub roots: Vec<u32>,
}

impl Packed {
    /// These texts.
    pub fn new<'a>(texts: impl IntoIterator<Item = &'a Text>) -> Self {
        let mut packed = Self::default();
        for Text { prompt, answer } in texts {
            let (first, label) = (packed.tokens.len() + prompt.len() - 1, packed.labels.len());
            let end = label + answer.len();
            packed.tokens.extend(prompt.iter().chain(&answer[..answer.len() - 1]));
            packed.lengths.push(prompt.len() + answer.len() - 1);
            packed.rows.extend((first..first + answer.len()).map(|row| row as u32));
            packed.labels.extend(answer);
            packed.ends.resize(end, end as u32);
            packed.roots.extend((label..end - 1).map(|label| label as u32));
        }
        packed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(id: &str, prompt: &[u32], tokens: &[u32]) -> Answer {
        let category = String::new();
        Answer { id: id.to_owned(), category, prompt: prompt.to_vec(), tokens: tokens.to_vec(), ended: true }
    }

    #[test]
    fn answers_alone_teach() {
        let texts = [answer("a", &[1, 2], &[3, 4, 5]), answer("b", &[6], &[7])];
        let texts: Vec<Text> = texts.iter().filter_map(|answer| Text::new(answer, 100)).collect();
        let packed = Packed::new(&texts);
        assert_eq!(packed.tokens, [1, 2, 3, 4, 6]);
        assert_eq!(packed.lengths, [4, 1]);
        assert_eq!((&packed.rows[..], &packed.labels[..]), (&[1, 2, 3, 4][..], &[3, 4, 5, 7][..]));
        assert_eq!((&packed.ends[..], &packed.roots[..]), (&[3, 3, 3, 4][..], &[0, 1][..]));
    }

    #[test]
    fn long_texts_are_cut_and_foreign_ones_refused() {
        let answers: Vec<Answer> = (0..40).map(|i| answer(&i.to_string(), &vec![1; 1 + i % 4], &[2, 3, 4])).collect();
        let texts = Texts::new(&answers, 5, 4, (0.3, 2)).unwrap();
        assert_eq!((texts.held_out.len(), texts.left_out), (2, 10));
        assert!(texts.train.iter().all(|text| text.prompt.len() + text.answer.len() <= 4));
        assert!(texts.train.iter().any(|text| text.answer == [2]));
        for (vocab, share) in [(4, 0.3), (5, 0.0), (5, 1.0)] {
            let error = Texts::new(&answers, vocab, 4, (share, 2)).unwrap_err();
            assert_eq!(error.code(), ErrorCode::InvalidOption, "{error}");
        }
    }
}
