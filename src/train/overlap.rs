//! Honesty: what a model is measured on must not be among what its heads learn from.
//!
//! A text overlaps with an evaluation prompt where it is equal to one of its messages, or shares [`WORDS`] words in a row with one. Words
//! are runs of letters and digits in lower case; everything between them counts as one space.

use std::collections::HashSet;

use super::answers::Answer;
use super::prompts::Prompt;
use crate::tokenizer::Tokenizer;

/// Words in a row that no text for training may share with a prompt for evaluation.
pub const WORDS: usize = 13;

/// Evaluation prompts that texts are compared with.
#[derive(Debug, Clone, Default)]
pub struct Evaluation {
    /// Whole messages.
    messages: HashSet<String>,
    /// All their runs of [`WORDS`] words.
    runs: HashSet<String>,
}

/// How a text overlaps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Overlap {
    /// It is equal to a message.
    Equal,
    /// It shares a run of words.
    Words,
}

/// How many overlaps of each kind were found.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Overlaps {
    /// Equal texts.
    pub equal: usize,
    /// Texts that share a run of words.
    pub words: usize,
}

impl Overlaps {
    /// Overlaps of both kinds.
    pub fn total(&self) -> usize {
        self.equal + self.words
    }

    fn count(&mut self, overlap: Overlap) {
        match overlap {
            Overlap::Equal => self.equal += 1,
            Overlap::Words => self.words += 1,
        }
    }
}

impl std::fmt::Display for Overlaps {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} ({} equal, {} by {WORDS} words in a row)", self.total(), self.equal, self.words)
    }
}

/// A text as its words.
struct Words {
    /// The words, a space between them.
    text: String,
    /// Where each begins and ends.
    places: Vec<(usize, usize)>,
}

impl Words {
    fn new(text: &str) -> Self {
        let (mut joined, mut places) = (String::with_capacity(text.len()), Vec::new());
        let words = text.split(|c: char| !c.is_alphanumeric()).filter(|word| !word.is_empty());
        for word in words {
            if !joined.is_empty() {
                joined.push(' ');
            }
            let begin = joined.len();
            joined.extend(word.chars().flat_map(char::to_lowercase));
            places.push((begin, joined.len()));
        }
        Self { text: joined, places }
    }

    fn runs(&self) -> impl Iterator<Item = &str> {
        self.places.windows(WORDS).map(|run| &self.text[run[0].0..run[WORDS - 1].1])
    }

    /// The text behind its first word.
    fn tail(&self) -> Option<&str> {
        self.places.get(1).map(|&(begin, _)| &self.text[begin..])
    }
}

impl Evaluation {
    /// Adds prompts for evaluation.
    pub fn add(&mut self, prompts: &[Prompt]) {
        for message in prompts.iter().flat_map(Prompt::sent) {
            let words = Words::new(message);
            self.runs.extend(words.runs().map(str::to_owned));
            if !words.text.is_empty() {
                self.messages.insert(words.text);
            }
        }
    }

    /// Whether there is nothing to compare with.
    pub fn is_empty(&self) -> bool {
        self.messages.is_empty()
    }

    /// Whether a text overlaps.
    pub fn overlap(&self, text: &str) -> Option<Overlap> {
        let words = Words::new(text);
        self.compare(&words, self.messages.contains(&words.text))
    }

    fn compare(&self, words: &Words, equal: bool) -> Option<Overlap> {
        let shares = || words.runs().any(|run| self.runs.contains(run));
        if equal { Some(Overlap::Equal) } else { shares().then_some(Overlap::Words) }
    }

    /// Whether a message of a prompt overlaps.
    pub fn prompt_overlap(&self, prompt: &Prompt) -> Option<Overlap> {
        prompt.sent().into_iter().find_map(|message| self.overlap(message))
    }

    /// Whether an answer overlaps, or a message of what was read before it. Messages are what stands between control tokens, with or
    /// without the word that names their writer.
    pub fn answer_overlap(&self, answer: &Answer, tokenizer: &Tokenizer) -> Option<Overlap> {
        let messages = answer.prompt.split(|&id| tokenizer.is_special(id)).chain([&answer.tokens[..]]);
        messages.filter(|ids| !ids.is_empty()).find_map(|ids| {
            let words = Words::new(&tokenizer.decode(ids, true));
            let equal =
                [Some(&*words.text), words.tail()].into_iter().flatten().any(|text| self.messages.contains(text));
            self.compare(&words, equal)
        })
    }

    /// Takes out what overlaps, and counts it.
    pub fn exclude<T>(&self, texts: &mut Vec<T>, overlap: impl Fn(&T) -> Option<Overlap>) -> Overlaps {
        let mut found = Overlaps::default();
        if !self.is_empty() {
            texts.retain(|text| {
                let overlap = overlap(text);
                overlap.into_iter().for_each(|overlap| found.count(overlap));
                overlap.is_none()
            });
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::TextParts;
    use crate::model::Checkpoint;
    use crate::model::files::FileSource;
    use crate::train::prompts::Content;

    const LONG: &str = "One two three four five six seven eight nine ten eleven twelve thirteen fourteen.";

    fn asked(turns: &[&str]) -> Prompt {
        let turns = turns.iter().map(|&turn| turn.to_owned()).collect();
        Prompt { id: "1".into(), category: String::new(), content: Content::Turns { before: Vec::new(), turns } }
    }

    fn evaluation() -> Evaluation {
        let mut evaluation = Evaluation::default();
        evaluation.add(&[asked(&["Who is Tim?", LONG])]);
        evaluation
    }

    #[test]
    fn equal_messages_and_thirteen_words_in_a_row_overlap() {
        let evaluation = evaluation();
        assert_eq!(evaluation.overlap("  who is TIM "), Some(Overlap::Equal));
        assert_eq!(evaluation.overlap("Who is Tim's dog?"), None);
        let words: Vec<&str> = LONG.split(' ').collect();
        assert_eq!(evaluation.overlap(&format!("so: {}!", words[1..14].join(" - "))), Some(Overlap::Words));
        assert_eq!(evaluation.overlap(&format!("so: {} and", words[1..13].join(" "))), None, "twelve are too few");
        assert_eq!(evaluation.overlap(LONG), Some(Overlap::Equal));
        assert_eq!(evaluation.overlap("?!"), None);
        assert_eq!(Evaluation::default().overlap(""), None);
    }

    #[test]
    fn prompts_and_answers_that_overlap_are_taken_out_and_counted() {
        let evaluation = evaluation();
        let mut prompts = vec![asked(&["A", "who is tim"]), asked(&["B"]), asked(&[&format!("C {LONG}")])];
        let found = evaluation.exclude(&mut prompts, |prompt| evaluation.prompt_overlap(prompt));
        assert_eq!((found, prompts), (Overlaps { equal: 1, words: 1 }, vec![asked(&["B"])]));
        assert_eq!(found.to_string(), "2 (1 equal, 1 by 13 words in a row)");

        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/models/stories260K/stories260K-q8_0.gguf");
        let checkpoint = pollster::block_on(Checkpoint::open(&FileSource::open(path).unwrap())).unwrap();
        let tokenizer = TextParts::new(&checkpoint, || 0).unwrap().tokenizer;
        let ids = |text: &str| tokenizer.encode(text, false).unwrap();
        let answer = |prompt: &str, text: &str| Answer {
            id: String::new(),
            category: String::new(),
            prompt: ids(prompt),
            tokens: ids(text),
            ended: true,
        };
        let mut answers = vec![
            answer("<s>user Hi</s><s>user: Who is Tim?</s><s>assistant:", "A boy."),
            answer("<s>user Who is Tim and who is Lily?</s><s>assistant:", "A boy."),
            answer("<s>user Hi</s><s>assistant:", &format!("I count: {LONG}")),
            answer("<s>user Hi</s><s>assistant:", "Who is Tim?</s>"),
        ];
        let found = evaluation.exclude(&mut answers, |answer| evaluation.answer_overlap(answer, &tokenizer));
        assert_eq!((found, answers.len()), (Overlaps { equal: 2, words: 1 }, 1));
    }
}
