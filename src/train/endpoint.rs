//! Answers by an endpoint that speaks OpenAI's protocol (vLLM, llama.cpp's server, and others): for those whom one machine is too slow.
//!
//! Threads send requests and wait; everything else is done by the caller's thread, so answers are written down one after the other.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, mpsc};
use std::thread;
use std::time::Duration;

use serde::Deserialize;
use serde_json::{Value, json};

use super::answers::{Answer, AnswerFile, tokenize_answer};
use super::distill::{DistillOptions, Distilled, Job, unanswered};
use super::hash;
use super::progress::Progress;
use super::prompts::{Content, Prompt};
use crate::engine::TextParts;
use crate::error::{Error, ErrorCode, Result};

/// How often a request is sent before its failure is an error.
const ATTEMPTS: u32 = 6;
/// No answer takes longer.
const TIMEOUT: Duration = Duration::from_secs(600);
/// Longest wait that a server can ask for.
const MOST_PAUSE: Duration = Duration::from_secs(60);

/// Where answers come from.
#[derive(Debug, Clone)]
pub struct Endpoint {
    /// The part of the address before `/chat/completions`.
    pub url: String,
    /// The name of the model there.
    pub model: String,
    /// The key, where one is asked for.
    pub key: Option<String>,
    /// Requests at once.
    pub requests: usize,
    /// Pause before a request is sent a second time; it doubles each further time.
    pub pause: Duration,
}

/// One question on its way.
struct Request {
    job: Job,
    prompt: Vec<u32>,
    path: &'static str,
    body: String,
}

/// What came back.
#[derive(Debug, Deserialize)]
struct Reply {
    choices: Vec<Choice>,
}

#[derive(Debug, Deserialize)]
struct Choice {
    message: Option<ReplyMessage>,
    text: Option<String>,
    finish_reason: Option<String>,
}

#[derive(Debug, Deserialize)]
struct ReplyMessage {
    content: Option<String>,
}

/// Has what of `prompts` the file has no answer to yet answered by an endpoint, which should run the target. Texts are tokenised by the
/// target's tokenizer; `context` is its context.
///
/// # Errors
/// `LoadFailed` when the endpoint refuses, or cannot be reached again and again; `InvalidOption`; those of a template.
pub fn answer_by_endpoint(
    endpoint: &Endpoint,
    text: &TextParts,
    context: usize,
    prompts: &[Prompt],
    options: &DistillOptions,
    answers: &mut AnswerFile,
    tell: &mut dyn FnMut(&str),
) -> Result<Distilled> {
    check(endpoint, prompts)?;
    let (queue, kept) = unanswered(prompts, answers, text);
    let left = queue.iter().map(Job::left).sum();
    let mut run = Run {
        endpoint,
        text,
        options,
        context,
        queue: queue.into_iter().collect(),
        answers,
        done: Distilled { kept, ..Distilled::default() },
        progress: Progress::new("answers", left, tell),
    };
    run.queue.reverse();
    run.all()?;
    run.progress.report();
    Ok(run.done)
}

fn check(endpoint: &Endpoint, prompts: &[Prompt]) -> Result<()> {
    let invalid = |message: &str| Err(Error::new(ErrorCode::InvalidOption, message));
    if endpoint.requests == 0 {
        return invalid("an endpoint is sent at least one request at once; found 0");
    }
    if endpoint.url.starts_with("https://") && !cfg!(feature = "https") {
        return invalid(
            "this program was built without https; build it with --features https, or use an http endpoint",
        );
    }
    if prompts.iter().any(|prompt| prompt.content == Content::Invented) {
        return invalid("an endpoint cannot be asked for prompts; give a file of prompts");
    }
    Ok(())
}

struct Run<'a> {
    endpoint: &'a Endpoint,
    text: &'a TextParts,
    options: &'a DistillOptions,
    context: usize,
    /// The next is the last.
    queue: Vec<Job>,
    answers: &'a mut AnswerFile,
    done: Distilled,
    progress: Progress<'a>,
}

impl Run<'_> {
    fn all(&mut self) -> Result<()> {
        let endpoint = self.endpoint;
        let (ask, questions) = mpsc::channel::<Request>();
        let (reply, replies) = mpsc::channel();
        let (questions, stopped) = (&Mutex::new(questions), &AtomicBool::new(false));
        thread::scope(|scope| {
            for _ in 0..endpoint.requests {
                let reply = reply.clone();
                scope.spawn(move || {
                    let agent = agent();
                    loop {
                        let next = questions.lock().ok().and_then(|questions| questions.recv().ok());
                        let Some(request) = next else { break };
                        let found = send_patiently(&agent, endpoint, &request, stopped);
                        if reply.send((request, found)).is_err() {
                            break;
                        }
                    }
                });
            }
            let result = self.talk(&ask, &replies);
            stopped.store(true, Ordering::Relaxed);
            drop(ask);
            result
        })
    }

    /// Keeps requests on their way until nothing is left.
    fn talk(&mut self, ask: &mpsc::Sender<Request>, replies: &mpsc::Receiver<(Request, Result<Choice>)>) -> Result<()> {
        let lost = || Error::new(ErrorCode::Internal, "the threads that send requests have ended");
        let mut on_their_way = 0;
        loop {
            while on_their_way < self.endpoint.requests {
                let Some(job) = self.queue.pop() else { break };
                if let Some(request) = self.request(job)? {
                    ask.send(request).map_err(|_| lost())?;
                    on_their_way += 1;
                }
            }
            if on_their_way == 0 {
                return Ok(());
            }
            let (request, choice) = replies.recv().map_err(|_| lost())?;
            on_their_way -= 1;
            self.finish(request, choice?)?;
        }
    }

    /// What is sent for a job; nothing when its prompt is too long.
    fn request(&mut self, job: Job) -> Result<Option<Request>> {
        let options = self.options;
        let prompt = job.prompt.ids_after(&job.answered, self.text)?;
        if prompt.len() > options.max_prompt || prompt.len() >= self.context {
            for _ in 0..job.left() {
                self.done.too_long += 1;
                self.progress.drop_one();
            }
            return Ok(None);
        }
        let seed = (options.sampling.seed ^ hash(job.answer_id().as_bytes())) & 0x7fff_ffff;
        let mut body = json!({
            "model": self.endpoint.model,
            "max_tokens": options.max_tokens.min(self.context - prompt.len()),
            "temperature": options.sampling.temperature,
            "top_p": options.sampling.top_p,
            "seed": seed,
        });
        let path = match (job.prompt.messages(&job.answered), &job.prompt.content) {
            (None, Content::Text(text)) => {
                body["prompt"] = Value::from(&**text);
                "completions"
            }
            (messages, _) => {
                let messages = messages.unwrap_or_default().into_iter();
                let messages: Vec<Value> =
                    messages.map(|message| json!({ "role": message.role, "content": message.content })).collect();
                body["messages"] = Value::from(messages);
                "chat/completions"
            }
        };
        Ok(Some(Request { job, prompt, path, body: body.to_string() }))
    }

    fn finish(&mut self, request: Request, choice: Choice) -> Result<()> {
        let Request { mut job, prompt, .. } = request;
        let ended = choice.finish_reason.as_deref() == Some("stop");
        let content = choice.message.and_then(|message| message.content).or(choice.text).unwrap_or_default();
        let mut tokens = tokenize_answer(&content, ended, self.text)?;
        tokens.truncate(self.context - prompt.len());
        if tokens.is_empty() {
            for _ in 0..job.left() {
                self.done.empty += 1;
                self.progress.drop_one();
            }
            return Ok(());
        }
        self.done.made += 1;
        self.done.tokens += tokens.len();
        self.progress.finish_one(tokens.len());
        self.progress.advance(tokens.len());
        let id = job.answer_id();
        self.answers.append(Answer { id, category: job.prompt.category.clone(), prompt, tokens, ended })?;
        job.answered.push(content);
        if job.left() > 0 {
            self.queue.push(job);
        }
        Ok(())
    }
}

fn agent() -> ureq::Agent {
    ureq::Agent::config_builder().http_status_as_error(false).timeout_global(Some(TIMEOUT)).build().into()
}

/// Why a request failed.
struct Failure {
    error: Error,
    /// Whether it may go better the next time.
    passes: bool,
    /// The pause that the server asks for.
    pause: Option<Duration>,
}

/// Sends a request until it is answered, with longer and longer pauses.
fn send_patiently(agent: &ureq::Agent, endpoint: &Endpoint, request: &Request, stopped: &AtomicBool) -> Result<Choice> {
    let mut attempt = 1;
    loop {
        let failure = match send(agent, endpoint, request) {
            Ok(choice) => return Ok(choice),
            Err(failure) => failure,
        };
        if !failure.passes || attempt == ATTEMPTS || stopped.load(Ordering::Relaxed) {
            return Err(failure.error.context(format!("prompt {}, attempt {attempt}", request.job.answer_id())));
        }
        let pause = failure.pause.unwrap_or(endpoint.pause * 2u32.pow(attempt - 1));
        thread::sleep(pause.min(MOST_PAUSE));
        attempt += 1;
    }
}

fn send(agent: &ureq::Agent, endpoint: &Endpoint, request: &Request) -> std::result::Result<Choice, Failure> {
    let url = format!("{}/{}", endpoint.url.trim_end_matches('/'), request.path);
    let fails = |message: String, passes: bool, pause: Option<Duration>| Failure {
        error: Error::new(ErrorCode::LoadFailed, format!("{url}: {message}")),
        passes,
        pause,
    };
    let mut post = agent.post(&url).header("content-type", "application/json");
    if let Some(key) = &endpoint.key {
        post = post.header("authorization", format!("Bearer {key}"));
    }
    let mut response = post.send(&request.body).map_err(|error| fails(error.to_string(), true, None))?;
    let status = response.status().as_u16();
    let asked = response.headers().get("retry-after").and_then(|value| value.to_str().ok()?.parse().ok());
    let body = response.body_mut().read_to_string().map_err(|error| fails(error.to_string(), true, None))?;
    if status != 200 {
        let passes = status == 408 || status == 429 || status >= 500;
        let said: String = body.chars().take(300).collect();
        return Err(fails(format!("status {status}: {said}"), passes, asked.map(Duration::from_secs)));
    }
    let reply: Reply =
        serde_json::from_str(&body).map_err(|error| fails(format!("no completion: {error}"), false, None))?;
    let choice = reply.choices.into_iter().next();
    choice.ok_or_else(|| fails("the completion has no choices".to_owned(), false, None))
}

#[cfg(test)]
mod tests;
