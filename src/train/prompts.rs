//! What the target is asked: prompts from JSONL, as conversations or plain text, and what it invents itself.

use std::fs;
use std::path::Path;

use serde::Deserialize;
use serde_json::Value;

use super::answers::{Answer, failed, place};
use crate::engine::TextParts;
use crate::error::{Error, ErrorCode, Result};
use crate::tokenizer::{Message, Tokenizer};

/// One prompt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Prompt {
    /// Its name in the file, or the number of its line.
    pub id: String,
    /// Its category, or nothing.
    pub category: String,
    /// What is asked.
    pub content: Content,
}

/// What is asked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Content {
    /// A text to go on from, without a template.
    Text(String),
    /// Messages of a user, each answered before the next is sent; the conversation before the first.
    Turns {
        /// What was said before, by whomever.
        before: Vec<Message>,
        /// The messages.
        turns: Vec<String>,
    },
    /// The model invents the message of a user, then answers it; without a template it begins a text.
    Invented,
}

/// The fields of a line that say what is asked.
#[derive(Debug, Default, Deserialize)]
pub(super) struct Fields {
    pub id: Option<Value>,
    pub category: Option<String>,
    turns: Option<Vec<String>>,
    messages: Option<Vec<JsonMessage>>,
    prompt: Option<String>,
    text: Option<String>,
}

#[derive(Debug, Deserialize)]
struct JsonMessage {
    role: String,
    content: String,
}

const EXPECTED: &str = "a prompt: {\"turns\": [\"...\"]}, {\"messages\": [{\"role\", \"content\"}]}, {\"prompt\": \"...\"} or \
                        {\"text\": \"...\"}, with \"id\" and \"category\" if wanted";

/// Reads prompts, a JSON object a line. `prompt` is a user's message where the model has a chat template.
///
/// # Errors
/// `LoadFailed` when the file cannot be read; `BadModelFile` names file and line of what is no prompt.
pub fn read_prompts(path: &Path, text: &TextParts) -> Result<Vec<Prompt>> {
    let lines = fs::read_to_string(path).map_err(|error| failed(path, &error))?;
    let mut prompts = Vec::new();
    for (number, line) in (1..).zip(lines.lines()).filter(|(_, line)| !line.trim().is_empty()) {
        let fields: Fields = serde_json::from_str(line).map_err(|error| {
            let message = format!("{}: {error}; expected {EXPECTED}", place(path, number));
            Error::new(ErrorCode::BadModelFile, message)
        })?;
        prompts.push(fields.prompt(number, text).map_err(|error| error.context(place(path, number)))?);
    }
    Ok(prompts)
}

/// The id of a line: a string or a number, or the line's own number.
pub(super) fn text_id(id: Option<&Value>, line: usize) -> String {
    match id {
        Some(Value::String(id)) => id.clone(),
        Some(id) if !id.is_null() => id.to_string(),
        _ => line.to_string(),
    }
}

impl Fields {
    /// The prompt of a line.
    ///
    /// # Errors
    /// `BadModelFile` when there is none.
    pub fn prompt(self, line: usize, text: &TextParts) -> Result<Prompt> {
        let nothing = || Error::new(ErrorCode::BadModelFile, format!("expected {EXPECTED}"));
        let turns = |turns| Content::Turns { before: Vec::new(), turns };
        let content = match (self.turns, self.messages, self.prompt, self.text) {
            (Some(messages), ..) if !messages.is_empty() => turns(messages),
            (_, Some(messages), ..) => conversation(messages).ok_or_else(nothing)?,
            (_, _, Some(prompt), _) if text.template.is_ok() => turns(vec![prompt]),
            (_, _, Some(text), _) | (_, _, _, Some(text)) => Content::Text(text),
            _ => return Err(nothing()),
        };
        let category = self.category.unwrap_or_default();
        Ok(Prompt { id: text_id(self.id.as_ref(), line), category, content })
    }
}

/// The last message of the user, and what came before it; an answer to it is dropped.
fn conversation(mut messages: Vec<JsonMessage>) -> Option<Content> {
    let last = messages.iter().rposition(|message| message.role == "user")?;
    messages.truncate(last + 1);
    let turns = messages.pop().map(|message| message.content).into_iter().collect();
    let before = messages.into_iter().map(|message| Message { role: message.role, content: message.content });
    Some(Content::Turns { before: before.collect(), turns })
}

/// The category of what the model invents.
const OWN: &str = "own";

/// Texts to go on from, for a model that only continues: the first sentence of each text that it invented, and the fifth. A sentence has
/// more than 20 characters and less than 200.
pub fn openings(answers: &[Answer], tokenizer: &Tokenizer) -> Vec<Prompt> {
    let invented = answers.iter().filter(|answer| answer.category == OWN);
    let of_one = invented.flat_map(|answer| {
        let text = tokenizer.decode(&answer.tokens, true);
        let sentences: Vec<&str> = text.split_inclusive('.').map(str::trim).collect();
        let fit = |place: usize| {
            let sentence = *sentences.get(place)?;
            let content = Content::Text(sentence.to_owned());
            let fits = sentence.ends_with('.') && (21..200).contains(&sentence.chars().count());
            fits.then(|| Prompt { id: format!("{}-go-{place}", answer.id), category: "openings".to_owned(), content })
        };
        [0, 4].into_iter().filter_map(fit).collect::<Vec<_>>()
    });
    of_one.collect()
}

impl Prompt {
    /// A prompt that the model invents.
    pub fn invented(number: usize) -> Self {
        Self { id: format!("own-{number}"), category: OWN.to_owned(), content: Content::Invented }
    }

    /// Answers that it asks for.
    pub fn answers(&self) -> usize {
        match &self.content {
            Content::Turns { turns, .. } => turns.len(),
            Content::Text(_) | Content::Invented => 1,
        }
    }

    /// The id of the answer to one of its turns.
    pub fn answer_id(&self, turn: usize) -> String {
        if turn == 0 { self.id.clone() } else { format!("{}.{turn}", self.id) }
    }

    /// The text of every message that is sent, whoever is said to have written it.
    pub fn sent(&self) -> Vec<&str> {
        match &self.content {
            Content::Text(text) => vec![text],
            Content::Turns { before, turns } => {
                let before = before.iter().map(|message| &*message.content);
                before.chain(turns.iter().map(String::as_str)).collect()
            }
            Content::Invented => Vec::new(),
        }
    }

    /// The messages up to turn `answers.len()`, where the turns before it were answered so; none for plain text.
    pub fn messages(&self, answers: &[String]) -> Option<Vec<Message>> {
        let Content::Turns { before, turns } = &self.content else { return None };
        let message = |role: &str, content: &str| Message { role: role.to_owned(), content: content.to_owned() };
        let mut messages = before.clone();
        for (turn, answer) in turns.iter().zip(answers) {
            messages.extend([message("user", turn), message("assistant", answer)]);
        }
        messages.extend(turns.get(answers.len()).map(|turn| message("user", turn)));
        Some(messages)
    }

    /// The ids that come before the answer to the first turn.
    ///
    /// # Errors
    /// As [`ids_after`](Self::ids_after).
    pub fn ids(&self, text: &TextParts) -> Result<Vec<u32>> {
        self.ids_after(&[], text)
    }

    /// The ids that come before the answer to turn `answers.len()`, where the turns before it were answered so. For an invented prompt
    /// those that come before the user's message.
    ///
    /// # Errors
    /// `BadChatTemplate` when the model cannot chat, `EmptyPrompt` when there is nothing to begin with.
    pub fn ids_after(&self, answers: &[String], text: &TextParts) -> Result<Vec<u32>> {
        let tokenizer = &text.tokenizer;
        let ids = match (&self.content, self.messages(answers)) {
            (_, Some(messages)) => {
                let template = text.template.as_ref().map_err(Clone::clone)?;
                tokenizer.encode(&template.render(&messages, true)?, false)?
            }
            (Content::Text(written), None) => tokenizer.encode(written, tokenizer.adds_bos())?,
            (_, None) => match before_user(text) {
                Some(before) => tokenizer.encode(&before, false)?,
                None => tokenizer.bos_id().into_iter().collect(),
            },
        };
        if ids.is_empty() {
            let message = format!("prompt {} is empty and the model has no token to begin a text with", self.id);
            return Err(Error::new(ErrorCode::EmptyPrompt, message));
        }
        Ok(ids)
    }
}

/// Stands for a message where a template is looked at.
const MARK: &str = "\u{1}MESSAGE\u{1}";

fn marked(role: &str) -> Message {
    Message { role: role.to_owned(), content: MARK.to_owned() }
}

/// What the chat template puts before the first message of a user.
fn before_user(text: &TextParts) -> Option<String> {
    let rendered = text.template.as_ref().ok()?.render(&[marked("user")], false).ok()?;
    rendered.split_once(MARK).map(|(before, _)| before.to_owned())
}

/// Whether the model can ask itself: its chat template has a place for a user's message.
pub(super) fn can_ask(text: &TextParts) -> bool {
    before_user(text).is_some()
}

/// The token that ends a turn of the assistant: the one that the chat template puts there, or an end token of the model.
pub fn end_of_turn(text: &TextParts) -> Option<u32> {
    let ends = text.tokenizer.end_ids();
    let by_template = || {
        let conversation = [Message { role: "user".to_owned(), content: "?".to_owned() }, marked("assistant")];
        let rendered = text.template.as_ref().ok()?.render(&conversation, false).ok()?;
        let ids = text.tokenizer.encode(rendered.split_once(MARK)?.1, false).ok()?;
        ids.into_iter().find(|id| ends.contains(id))
    };
    by_template().or_else(|| ends.iter().copied().find(|&end| Some(end) != text.tokenizer.bos_id()))
}
