//! A model's chat template: Jinja, as published with the model, rendered the way the `transformers` library does.
//!
//! A template is a small program from a file that nobody has vetted. `minijinja` runs it with no access to anything, on a
//! budget of fuel that bounds both its time and its memory; whatever goes wrong is an error with the template's own words.
//!
//! A template can ask for today's date (`strftime_now`). There is no clock here, since it would be a different one in the
//! browser; the caller lends one ([`ChatTemplate::with_clock`]), and without it the function is not defined, which
//! templates allow for.

use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Kwargs, Value};
use minijinja::{AutoEscape, Environment, ErrorKind, UndefinedBehavior, context};

use crate::error::{Error, ErrorCode, Result};

/// One turn of a conversation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Message {
    /// `system`, `user`, `assistant`, or whatever else the template knows.
    pub role: String,
    /// The text.
    pub content: String,
}

/// Fuel for one rendering: about that many instructions, or 64 bytes of memory each (128 MB). A conversation of a thousand
/// turns takes some 50,000.
const FUEL: u64 = 2_000_000;
/// Nested macros, loops and blocks.
const RECURSION_LIMIT: usize = 128;
/// Words and signs in one tag, as many as a stack of 256 kB takes when each of them nests.
const MAX_TAG_TOKENS: usize = 500;
/// `elif` in one template.
const MAX_ELIFS: usize = 200;
/// The longest source that is compiled.
const MAX_SOURCE_BYTES: usize = 1 << 20;
const NAME: &str = "chat_template";

/// A compiled chat template; see the module.
#[derive(Debug)]
pub struct ChatTemplate {
    environment: Environment<'static>,
    bos: Option<String>,
    eos: Option<String>,
}

impl ChatTemplate {
    /// Compiles `source`. `bos` and `eos` are the texts of the model's special tokens, for templates that write them.
    ///
    /// # Errors
    /// [`ErrorCode::BadChatTemplate`] if the source is no Jinja template.
    pub fn new(source: &str, bos: Option<&str>, eos: Option<&str>) -> Result<Self> {
        if source.len() > MAX_SOURCE_BYTES {
            let bytes = source.len();
            return Err(bad(format!("the chat template has {bytes} bytes; at most {MAX_SOURCE_BYTES} are supported")));
        }
        check_nesting(source)?;
        let mut environment = Environment::new();
        let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build();
        environment.set_syntax(syntax.map_err(|error| describe("cannot be compiled", &error))?);
        environment.set_undefined_behavior(UndefinedBehavior::Lenient);
        environment.set_auto_escape_callback(|_| AutoEscape::None);
        environment.set_recursion_limit(RECURSION_LIMIT);
        environment.set_fuel(Some(FUEL));
        environment.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
        environment.add_function("raise_exception", raise_exception);
        environment.add_filter("tojson", to_json);
        environment
            .add_template_owned(NAME, source.to_owned())
            .map_err(|error| describe("cannot be compiled", &error))?;
        Ok(Self { environment, bos: bos.map(str::to_owned), eos: eos.map(str::to_owned) })
    }

    /// Defines `strftime_now` in the template by a clock: seconds since 1970, in the time zone the date shall be of.
    #[must_use]
    pub fn with_clock(mut self, clock: fn() -> i64) -> Self {
        self.environment.add_function("strftime_now", move |format: &str| strftime(format, clock()));
        self
    }

    /// The prompt for a conversation, with the beginning of the assistant's turn if `add_generation_prompt`.
    ///
    /// # Errors
    /// [`ErrorCode::BadChatTemplate`] if the template fails on these messages, refuses them (`raise_exception`), or does not
    /// come to an end within its budget.
    pub fn render(&self, messages: &[Message], add_generation_prompt: bool) -> Result<String> {
        let messages: Vec<Value> = messages
            .iter()
            .map(|Message { role, content }| context! { role => role.as_str(), content => content.as_str() })
            .collect();
        let mut variables = context! {
            messages => messages,
            add_generation_prompt => add_generation_prompt,
            tools => (),
            documents => (),
        };
        // A token that the model lacks stays undefined, which prints as nothing.
        if let Some(bos) = &self.bos {
            variables = context! { bos_token => bos.as_str(), ..variables };
        }
        if let Some(eos) = &self.eos {
            variables = context! { eos_token => eos.as_str(), ..variables };
        }
        let template = self.environment.get_template(NAME).map_err(|error| describe("cannot be used", &error))?;
        template.render(variables).map_err(|error| describe("failed on these messages", &error))
    }
}

/// Refuses templates that nest too deep for the stack. The parser of minijinja limits parentheses and blocks, but calls itself
/// without a limit for each `not`, `-`, `else` and `elif` of a row, and its trees of long sums are as deep as the sum is long.
/// Each of these is a token, so the number of tokens in a tag bounds them.
fn check_nesting(source: &str) -> Result<()> {
    let (mut rest, mut elifs) = (source, 0);
    while let Some(brace) = rest.find('{') {
        rest = &rest[brace + 1..];
        if let Some(comment) = rest.strip_prefix('#') {
            rest = comment.split_once("#}").map_or("", |(_, after)| after);
        } else if let Some(tag) = rest.strip_prefix(['{', '%']) {
            let (tokens, after) = skip_tag(tag);
            elifs += usize::from(tag.trim_start_matches(['-', '+', ' ', '\t', '\r', '\n']).starts_with("elif"));
            if tokens > MAX_TAG_TOKENS || elifs > MAX_ELIFS {
                let line = source[..source.len() - rest.len()].lines().count();
                return Err(bad(format!(
                    "the chat template is too deep (line {line}): at most {MAX_TAG_TOKENS} words and signs in a tag and \
                     {MAX_ELIFS} elifs are supported"
                )));
            }
            rest = after;
        }
    }
    Ok(())
}

/// The number of words and signs up to the end of a tag, strings counting as one, and what follows the tag. As in the lexer,
/// a tag does not end inside brackets.
fn skip_tag(tag: &str) -> (usize, &str) {
    let (mut tokens, mut balance, mut in_word) = (0, 0_usize, false);
    let mut chars = tag.char_indices().peekable();
    while let Some((at, c)) = chars.next() {
        let closes = matches!(c, '}' | '%') && chars.peek().is_some_and(|&(_, next)| next == '}');
        if balance == 0 && closes {
            return (tokens, &tag[at + 2..]);
        }
        match c {
            '(' | '[' | '{' => balance += 1,
            ')' | ']' | '}' => balance = balance.saturating_sub(1),
            '"' | '\'' => {
                while let Some((_, inner)) = chars.next().filter(|&(_, inner)| inner != c) {
                    if inner == '\\' {
                        chars.next();
                    }
                }
            }
            _ => {}
        }
        let word = c.is_alphanumeric() || c == '_';
        tokens += usize::from(!(c.is_whitespace() || word && in_word));
        in_word = word;
    }
    (tokens, "")
}

/// What templates call to refuse a conversation ("roles must alternate").
fn raise_exception(message: &str) -> std::result::Result<Value, minijinja::Error> {
    Err(minijinja::Error::new(ErrorKind::InvalidOperation, message.to_owned()))
}

/// `json.dumps(value, ensure_ascii=False, indent=indent)`; minijinja's own filter escapes for HTML.
fn to_json(value: &Value, options: Kwargs) -> std::result::Result<String, minijinja::Error> {
    let indent: Option<usize> = options.get("indent")?;
    let mut out = Vec::new();
    let written = match indent {
        None => {
            serde::Serialize::serialize(value, &mut serde_json::Serializer::with_formatter(&mut out, PythonSpacing))
        }
        Some(indent) => {
            let indent = vec![b' '; indent.min(16)];
            let formatter = serde_json::ser::PrettyFormatter::with_indent(&indent);
            serde::Serialize::serialize(value, &mut serde_json::Serializer::with_formatter(&mut out, formatter))
        }
    };
    let failed = |error: &dyn std::fmt::Display| {
        minijinja::Error::new(ErrorKind::BadSerialization, format!("tojson cannot write this value: {error}"))
    };
    written.map_err(|error| failed(&error))?;
    String::from_utf8(out).map_err(|error| failed(&error))
}

/// Python's separators, `", "` and `": "`.
struct PythonSpacing;

impl serde_json::ser::Formatter for PythonSpacing {
    fn begin_array_value<W: ?Sized + std::io::Write>(&mut self, writer: &mut W, first: bool) -> std::io::Result<()> {
        if first { Ok(()) } else { writer.write_all(b", ") }
    }

    fn begin_object_key<W: ?Sized + std::io::Write>(&mut self, writer: &mut W, first: bool) -> std::io::Result<()> {
        if first { Ok(()) } else { writer.write_all(b", ") }
    }

    fn begin_object_value<W: ?Sized + std::io::Write>(&mut self, writer: &mut W) -> std::io::Result<()> {
        writer.write_all(b": ")
    }
}

fn bad(message: String) -> Error {
    Error::new(ErrorCode::BadChatTemplate, message)
}

/// The template's own message, where it has one, and the line it stands in.
fn describe(what: &str, error: &minijinja::Error) -> Error {
    let line = error.line().map_or(String::new(), |line| format!(" (line {line})"));
    let message = match (error.kind(), error.detail()) {
        (ErrorKind::OutOfFuel, _) => "it did not come to an end within its budget of work and memory".to_owned(),
        (_, Some(detail)) => detail.to_owned(),
        (kind, None) => kind.to_string(),
    };
    bad(format!("the chat template {what}: {message}{line}"))
}

/// `time.strftime` for the fields that templates use, in English; `seconds` since 1970.
fn strftime(format: &str, seconds: i64) -> std::result::Result<String, minijinja::Error> {
    const MONTHS: [&str; 12] = [
        "January",
        "February",
        "March",
        "April",
        "May",
        "June",
        "July",
        "August",
        "September",
        "October",
        "November",
        "December",
    ];
    const DAYS: [&str; 7] = ["Thursday", "Friday", "Saturday", "Sunday", "Monday", "Tuesday", "Wednesday"];
    let (day, second) = (seconds.div_euclid(86_400), seconds.rem_euclid(86_400));
    let (year, month, day_of_month) = civil_date(day);
    let (hour, minute) = (second / 3600, second / 60 % 60);
    let (month_name, day_name) = (MONTHS[month as usize - 1], DAYS[day.rem_euclid(7) as usize]);
    let mut out = String::new();
    let mut rest = format.chars();
    while let Some(c) = rest.next() {
        if c != '%' {
            out.push(c);
            continue;
        }
        out.push_str(&match rest.next() {
            Some('Y') => year.to_string(),
            Some('y') => format!("{:02}", year.rem_euclid(100)),
            Some('m') => format!("{month:02}"),
            Some('B') => month_name.to_owned(),
            Some('b' | 'h') => month_name[..3].to_owned(),
            Some('d') => format!("{day_of_month:02}"),
            Some('e') => format!("{day_of_month:2}"),
            Some('A') => day_name.to_owned(),
            Some('a') => day_name[..3].to_owned(),
            Some('H') => format!("{hour:02}"),
            Some('I') => format!("{:02}", (hour + 11) % 12 + 1),
            Some('p') => if hour < 12 { "AM" } else { "PM" }.to_owned(),
            Some('M') => format!("{minute:02}"),
            Some('S') => format!("{:02}", second % 60),
            Some('F') => format!("{year}-{month:02}-{day_of_month:02}"),
            Some('T') => format!("{hour:02}:{minute:02}:{:02}", second % 60),
            Some('%') => "%".to_owned(),
            field => {
                let field = field.map_or(String::new(), String::from);
                let message = format!("strftime_now does not know the field %{field}");
                return Err(minijinja::Error::new(ErrorKind::InvalidOperation, message));
            }
        });
    }
    Ok(out)
}

/// Year, month (1 to 12) and day of a day number since 1970-01-01 in the Gregorian calendar: "days to civil" of Howard
/// Hinnant's date algorithms, which counts years from March so that the leap day is the last.
fn civil_date(day: i64) -> (i64, i64, i64) {
    let shifted = day.saturating_add(719_468);
    let (era, day_of_era) = (shifted.div_euclid(146_097), shifted.rem_euclid(146_097));
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let march_month = (5 * day_of_year + 2) / 153;
    let month = if march_month < 10 { march_month + 3 } else { march_month - 9 };
    (year_of_era + era * 400 + i64::from(month <= 2), month, day_of_year - (153 * march_month + 2) / 5 + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_those_of_the_calendar() {
        let date = |seconds| strftime("%Y-%m-%d %a %H:%M:%S", seconds).unwrap();
        assert_eq!(date(0), "1970-01-01 Thu 00:00:00");
        assert_eq!(date(951_782_400), "2000-02-29 Tue 00:00:00");
        assert_eq!(date(-1), "1969-12-31 Wed 23:59:59");
        assert_eq!(date(1_721_995_200), "2024-07-26 Fri 12:00:00");
        assert_eq!(strftime("%d %b %Y, %-", 0).unwrap_err().kind(), ErrorKind::InvalidOperation);
        assert_eq!(strftime("%d %B %y %I %p %%", 1_721_995_200).unwrap(), "26 July 24 12 PM %");
    }
}
