use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

use super::*;
use crate::model::Checkpoint;
use crate::model::files::FileSource;
use crate::sampling::SamplingParams;
use crate::tokenizer::ChatTemplate;

const TEMPLATE: &str = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n</s>{% endfor %}";

fn stories() -> TextParts {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/models/stories260K/stories260K-q8_0.gguf");
    let checkpoint = pollster::block_on(Checkpoint::open(&FileSource::open(path).unwrap())).unwrap();
    let mut text = TextParts::new(&checkpoint, || 0).unwrap();
    text.template = ChatTemplate::new(TEMPLATE, Some("<s>"), Some("</s>"));
    text
}

/// A question as the server sees it.
struct Asked {
    path: String,
    key: Option<String>,
    body: Value,
}

/// Serves every connection with what `answer` makes of the question and its number: a status and a body.
fn serve(answer: impl Fn(usize, Asked) -> (u16, String) + Send + Sync + 'static) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/v1/", listener.local_addr().unwrap());
    let (answer, count) = (Arc::new(answer), Arc::new(AtomicUsize::new(0)));
    thread::spawn(move || {
        for stream in listener.incoming() {
            let (answer, count) = (answer.clone(), count.clone());
            thread::spawn(move || serve_connection(stream.unwrap(), &count, &*answer));
        }
    });
    url
}

fn serve_connection(stream: TcpStream, count: &AtomicUsize, answer: &dyn Fn(usize, Asked) -> (u16, String)) {
    let mut reader = BufReader::new(stream);
    loop {
        let mut lines = Vec::new();
        loop {
            let mut line = String::new();
            if reader.read_line(&mut line).unwrap_or(0) == 0 {
                return;
            }
            if line.trim().is_empty() {
                break;
            }
            lines.push(line.trim().to_owned());
        }
        let header = |name: &str| {
            let line = lines.iter().find(|line| line.to_ascii_lowercase().starts_with(&format!("{name}: ")))?;
            Some(line[name.len() + 2..].to_owned())
        };
        let mut body = vec![0; header("content-length").unwrap().parse().unwrap()];
        reader.read_exact(&mut body).unwrap();
        let path = lines[0].split(' ').nth(1).unwrap().to_owned();
        let asked = Asked { path, key: header("authorization"), body: serde_json::from_slice(&body).unwrap() };
        let (status, body) = answer(count.fetch_add(1, Ordering::SeqCst), asked);
        let length = body.len();
        write!(reader.get_mut(), "HTTP/1.1 {status} Some\r\nContent-Length: {length}\r\n\r\n{body}").unwrap();
    }
}

fn chat(content: &str, finish: &str) -> (u16, String) {
    (200, json!({ "choices": [{ "message": { "content": content }, "finish_reason": finish }] }).to_string())
}

fn asked(id: &str, turns: &[&str]) -> Prompt {
    let turns = turns.iter().map(|&turn| turn.to_owned()).collect();
    Prompt { id: id.into(), category: "c".into(), content: Content::Turns { before: Vec::new(), turns } }
}

fn file(name: &str) -> PathBuf {
    let path = std::env::temp_dir().join(format!("draftree-endpoint-{name}-{}", std::process::id()));
    let _ = std::fs::remove_file(&path);
    path
}

fn run(url: String, prompts: &[Prompt], path: &Path) -> Result<(Distilled, Vec<Answer>)> {
    let endpoint = Endpoint {
        url,
        model: "m".to_owned(),
        key: Some("secret".to_owned()),
        requests: 3,
        pause: Duration::from_millis(1),
    };
    let sampling = SamplingParams { temperature: 0.5, ..Default::default() };
    let options = DistillOptions { sampling, max_tokens: 24, batch: 1, max_prompt: 200 };
    let mut answers = AnswerFile::open(path)?;
    let done = answer_by_endpoint(&endpoint, &stories(), 512, prompts, &options, &mut answers, &mut |_| {})?;
    let mut answers = answers.answers().to_vec();
    answers.sort_by(|a, b| a.id.cmp(&b.id));
    Ok((done, answers))
}

#[test]
fn texts_of_an_endpoint_become_answers_and_are_not_asked_for_again() {
    let path = file("answers");
    let prompts = [
        asked("1", &["Who?", "And then?"]),
        asked("2", &["Long"]),
        asked("3", &["Nothing"]),
        Prompt { id: "4".into(), category: String::new(), content: Content::Text("Once".into()) },
    ];
    let url = serve(|number, asked| {
        assert_eq!(asked.key.as_deref(), Some("Bearer secret"));
        assert_eq!((&asked.body["model"], &asked.body["temperature"]), (&json!("m"), &json!(0.5)));
        assert_eq!(asked.body["max_tokens"], 24);
        if number % 3 == 0 {
            return (503, "busy".to_owned());
        }
        if asked.path == "/v1/completions" {
            assert_eq!(asked.body["prompt"], "Once");
            return (200, json!({ "choices": [{ "text": " upon", "finish_reason": "length" }] }).to_string());
        }
        assert_eq!(asked.path, "/v1/chat/completions");
        let messages = asked.body["messages"].as_array().unwrap();
        match messages.last().unwrap()["content"].as_str().unwrap() {
            "Who?" => chat("A cat.", "stop"),
            "And then?" => {
                assert_eq!(messages[1], json!({ "role": "assistant", "content": "A cat." }));
                chat("It ran.", "stop")
            }
            "Long" => chat("One day", "length"),
            _ => chat("", "length"),
        }
    });
    let (done, answers) = run(url, &prompts, &path).unwrap();
    assert_eq!((done.made, done.empty, done.kept), (4, 1, 0));
    let text = stories();
    assert_eq!(answers.iter().map(|answer| &*answer.id).collect::<Vec<_>>(), ["1", "1.1", "2", "4"]);
    assert_eq!(answers.iter().map(|answer| answer.ended).collect::<Vec<_>>(), [true, true, false, false]);
    assert_eq!(answers[0].tokens, [text.tokenizer.encode("A cat.", false).unwrap(), vec![2]].concat());
    assert_eq!(answers[2].tokens, text.tokenizer.encode("One day", false).unwrap());
    assert_eq!(answers[1].prompt, prompts[0].ids_after(&["A cat.".to_owned()], &text).unwrap());
    // Only what had no answer is asked again.
    let url = serve(|_, asked| {
        assert_eq!(asked.body["messages"][0]["content"], "Nothing");
        chat("Now", "stop")
    });
    let (done, again) = run(url, &prompts, &path).unwrap();
    assert_eq!((done.made, done.kept, again.len()), (1, 4, 5));
}

#[test]
fn a_refusal_is_an_error_that_says_who_and_why() {
    let path = file("refused");
    let message = |url: String| run(url, &[asked("7", &["Who?"])], &path).unwrap_err().to_string();
    let refused = message(serve(|_, _| (401, "{\"error\": \"no such key\"}".to_owned())));
    for part in ["prompt 7, attempt 1", "/v1/chat/completions", "status 401", "no such key"] {
        assert!(refused.contains(part), "{refused}");
    }
    let busy = message(serve(|_, _| (500, "busy".to_owned())));
    assert!(busy.contains("attempt 6") && busy.contains("status 500: busy"), "{busy}");
    let strange = message(serve(|_, _| (200, "hello".to_owned())));
    assert!(strange.contains("no completion"), "{strange}");
    let nobody = message("http://127.0.0.1:9".to_owned());
    assert!(nobody.contains("attempt 6"), "{nobody}");
    assert_eq!(run(String::new(), &[Prompt::invented(0)], &path).unwrap_err().code(), ErrorCode::InvalidOption);
    if !cfg!(feature = "https") {
        assert!(message("https://example.com/v1".to_owned()).contains("--features https"));
    }
}
