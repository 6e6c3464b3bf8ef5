//! Answers of the target: the file they are kept in, and those that were made elsewhere.

use std::collections::HashMap;
use std::fs::{self, File, OpenOptions};
use std::io::Write as _;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::prompts::{Fields, text_id};
use crate::engine::TextParts;
use crate::error::{Error, ErrorCode, Result};

/// One answer of the target to a prompt.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Answer {
    /// Of the prompt; of its second turn `id.1`, and so on.
    pub id: String,
    /// Of the prompt.
    #[serde(default)]
    pub category: String,
    /// What the target read: everything before the answer, through the chat template.
    #[serde(rename = "prompt_ids")]
    pub prompt: Vec<u32>,
    /// What it wrote, the token that ended it included.
    #[serde(rename = "ids")]
    pub tokens: Vec<u32>,
    /// Whether it came to its end, rather than to the most tokens it could have.
    #[serde(default)]
    pub ended: bool,
}

/// A file of answers that grows: a line each, written when it is complete.
#[derive(Debug)]
pub struct AnswerFile {
    path: PathBuf,
    file: File,
    answers: Vec<Answer>,
    by_id: HashMap<String, usize>,
}

impl AnswerFile {
    /// Opens or makes a file. A last line that a stopped run left half written is cut off.
    ///
    /// # Errors
    /// `LoadFailed`; `BadModelFile` names a line that holds no answer.
    pub fn open(path: &Path) -> Result<Self> {
        let failed = |error: std::io::Error| failed(path, &error);
        let text = match fs::read_to_string(path) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => String::new(),
            Err(error) => return Err(failed(error)),
        };
        let whole = text.rfind('\n').map_or(0, |end| end + 1);
        let file = OpenOptions::new().create(true).append(true).open(path).map_err(failed)?;
        if whole < text.len() {
            file.set_len(whole as u64).map_err(failed)?;
        }
        let mut answers = Self { path: path.to_owned(), file, answers: Vec::new(), by_id: HashMap::new() };
        for (number, line) in (1..).zip(text[..whole].lines()) {
            let answer: Answer = serde_json::from_str(line).map_err(|error| bad_line(path, number, &error))?;
            answers.keep(answer);
        }
        Ok(answers)
    }

    /// The answer with this id.
    pub fn get(&self, id: &str) -> Option<&Answer> {
        self.by_id.get(id).map(|&place| &self.answers[place])
    }

    /// All answers, in the order of the file.
    pub fn answers(&self) -> &[Answer] {
        &self.answers
    }

    /// Adds an answer.
    ///
    /// # Errors
    /// `LoadFailed` when the disk is full.
    pub fn append(&mut self, answer: Answer) -> Result<()> {
        let mut line = serde_json::to_string(&answer).map_err(|error| failed(&self.path, &error))?;
        line.push('\n');
        self.file.write_all(line.as_bytes()).map_err(|error| failed(&self.path, &error))?;
        self.keep(answer);
        Ok(())
    }

    fn keep(&mut self, answer: Answer) {
        self.by_id.insert(answer.id.clone(), self.answers.len());
        self.answers.push(answer);
    }
}

/// A line of answers, by token ids or as text.
#[derive(Debug, Deserialize)]
struct Line {
    prompt_ids: Option<Vec<u32>>,
    ids: Option<Vec<u32>>,
    answer: Option<String>,
    ended: Option<bool>,
    finish_reason: Option<String>,
    #[serde(flatten)]
    fields: Fields,
}

const EXPECTED: &str = "an answer: {\"id\", \"prompt_ids\": [...], \"ids\": [...]}, or {\"id\", \"prompt\": \"...\", \"answer\": \"...\"} \
                        (\"turns\", \"messages\" or \"text\" in place of \"prompt\")";

/// Reads answers that were made elsewhere: token ids of this model, or texts, which are tokenised. A text that ended (nothing says
/// otherwise by `ended` or `finish_reason`) is given the token that ends a turn.
///
/// # Errors
/// `LoadFailed`; `BadModelFile` names file and line of what is no answer, or holds ids that the model has not.
pub fn read_answers(path: &Path, text: &TextParts, vocab_size: usize) -> Result<Vec<Answer>> {
    let lines = fs::read_to_string(path).map_err(|error| failed(path, &error))?;
    let mut answers = Vec::new();
    for (number, line) in (1..).zip(lines.lines()).filter(|(_, line)| !line.trim().is_empty()) {
        let line: Line = serde_json::from_str(line).map_err(|error| bad_line(path, number, &error))?;
        let answer = line.answer(number, text).map_err(|error| error.context(place(path, number)))?;
        let mut ids = answer.prompt.iter().chain(&answer.tokens);
        if let Some(id) = ids.find(|&&id| id as usize >= vocab_size) {
            return Err(bad_line(path, number, &format!("token {id} is outside the vocabulary of {vocab_size}")));
        }
        if answer.prompt.is_empty() || answer.tokens.is_empty() {
            return Err(bad_line(path, number, &"the prompt or the answer has no tokens"));
        }
        answers.push(answer);
    }
    Ok(answers)
}

impl Line {
    fn answer(self, number: usize, text: &TextParts) -> Result<Answer> {
        let Self { prompt_ids, ids, answer, ended, finish_reason, mut fields } = self;
        let id = text_id(fields.id.as_ref(), number);
        let category = fields.category.take().unwrap_or_default();
        if let (Some(prompt), Some(tokens)) = (prompt_ids, ids) {
            let ends = |token: &u32| text.tokenizer.end_ids().contains(token);
            let ended = ended.unwrap_or_else(|| tokens.last().is_some_and(ends));
            return Ok(Answer { id, category, prompt, tokens, ended });
        }
        let Some(answer) = answer else {
            return Err(Error::new(ErrorCode::BadModelFile, format!("expected {EXPECTED}")));
        };
        let prompt = fields.prompt(number, text)?.ids(text)?;
        let ended = ended.unwrap_or_else(|| finish_reason.is_none_or(|reason| reason == "stop"));
        Ok(Answer { id, category, prompt, tokens: tokenize_answer(&answer, ended, text)?, ended })
    }
}

/// The tokens of a text that the model is said to have written, with the token that ends its turn where it ended.
///
/// # Errors
/// `BadTokenizer`.
pub fn tokenize_answer(answer: &str, ended: bool, text: &TextParts) -> Result<Vec<u32>> {
    let mut tokens = text.tokenizer.encode(answer, false)?;
    tokens.extend(ended.then(|| super::prompts::end_of_turn(text)).flatten());
    Ok(tokens)
}

pub(super) fn place(path: &Path, line: usize) -> String {
    format!("{}, line {line}", path.display())
}

pub(super) fn bad_line(path: &Path, line: usize, error: &impl std::fmt::Display) -> Error {
    Error::new(ErrorCode::BadModelFile, format!("{}: {error}; expected {EXPECTED}", place(path, line)))
}

pub(super) fn failed(path: &Path, error: &impl std::fmt::Display) -> Error {
    Error::new(ErrorCode::LoadFailed, format!("{}: {error}", path.display()))
}
