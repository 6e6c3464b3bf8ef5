use std::path::{Path, PathBuf};

use super::*;
use crate::model::Checkpoint;
use crate::model::files::FileSource;
use crate::tokenizer::ChatTemplate;
use crate::train::answers::read_answers;
use crate::train::prompts::{Content, end_of_turn, openings, read_prompts};

/// A template that a tiny model knows nothing of, but follows all the same.
const TEMPLATE: &str = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n</s>{% endfor %}\
                        {% if add_generation_prompt %}assistant:{% endif %}";

struct Model {
    target: Target,
    text: TextParts,
}

fn stories(template: Option<&str>) -> Model {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/models/stories260K/stories260K-q8_0.gguf");
    let source = FileSource::open(path).unwrap();
    let checkpoint = pollster::block_on(Checkpoint::open(&source)).unwrap();
    let mut text = TextParts::new(&checkpoint, || 0).unwrap();
    if let Some(template) = template {
        text.template = ChatTemplate::new(template, Some("<s>"), Some("</s>"));
    }
    Model { target: Target::load(&checkpoint, &source).unwrap(), text }
}

fn folder(name: &str) -> PathBuf {
    let folder = std::env::temp_dir().join(format!("draftree-{name}-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder).unwrap();
    folder
}

fn prompts(folder: &Path, text: &TextParts, lines: &str) -> Vec<Prompt> {
    let path = folder.join("prompts.jsonl");
    std::fs::write(&path, lines).unwrap();
    read_prompts(&path, text).unwrap()
}

fn options(temperature: f32, batch: usize) -> DistillOptions {
    let sampling = SamplingParams { temperature, top_p: 0.95, seed: 3, ..Default::default() };
    DistillOptions { sampling, max_tokens: 24, batch, max_prompt: 200 }
}

impl Model {
    fn run(&self, prompts: &[Prompt], options: &DistillOptions, path: &Path) -> (Distilled, Vec<Answer>) {
        let mut file = AnswerFile::open(path).unwrap();
        let done = distill(&self.target, &self.text, prompts, options, &mut file, &mut |_| {}).unwrap();
        let mut answers = file.answers().to_vec();
        answers.sort_by(|a, b| a.id.cmp(&b.id));
        (done, answers)
    }
}

const TEXTS: &str = r#"{"id": 1, "text": "Once upon a time"}
{"id": "b", "category": "c", "text": "Tim and Lily went to the park."}
{"prompt": "The dog"}
{"id": 4, "text": "One day, a cat"}
{"id": 5, "text": "Mom said"}"#;

#[test]
fn answers_do_not_depend_on_the_batch_and_a_stopped_run_goes_on() {
    let folder = folder("batch");
    let model = stories(None);
    let prompts = prompts(&folder, &model.text, TEXTS);
    for temperature in [0.0, 0.8] {
        let (done, alone) = model.run(&prompts, &options(temperature, 1), &folder.join(format!("alone{temperature}")));
        assert_eq!((done.made, done.kept), (5, 0));
        let path = folder.join(format!("three{temperature}"));
        let (_, together) = model.run(&prompts, &options(temperature, 3), &path);
        assert_eq!(together, alone);
        assert_eq!(together.iter().map(|answer| &*answer.id).collect::<Vec<_>>(), ["1", "3", "4", "5", "b"]);
        assert_eq!(done.tokens, alone.iter().map(|answer| answer.tokens.len()).sum::<usize>());
        // Stopped in the middle of a line.
        let text = std::fs::read_to_string(&path).unwrap();
        std::fs::write(&path, &text[..text.len() - 10]).unwrap();
        let (done, again) = model.run(&prompts, &options(temperature, 2), &path);
        assert_eq!((done.made, done.kept), (1, 4));
        assert_eq!(again, alone);
    }
}

#[test]
fn greedy_answers_are_what_the_engine_writes() {
    use crate::backend::cpu::{CpuBackend, CpuWeights};
    use crate::engine::{Engine, GenerateOptions, Prompt as Request};
    let folder = folder("greedy");
    let model = stories(None);
    let (_, answers) = model.run(&prompts(&folder, &model.text, TEXTS), &options(0.0, 4), &folder.join("answers"));
    let source =
        FileSource::open(concat!(env!("CARGO_MANIFEST_DIR"), "/models/stories260K/stories260K-q8_0.gguf")).unwrap();
    let checkpoint = pollster::block_on(Checkpoint::open(&source)).unwrap();
    let mut weights = CpuWeights::default();
    pollster::block_on(crate::model::stream_weights(&checkpoint, &source, &mut weights, &mut |_, _| {})).unwrap();
    let text = TextParts::new(&checkpoint, || 0).unwrap();
    let backend = CpuBackend::new(checkpoint.config.clone(), weights, None).unwrap();
    let mut engine = Engine::new(backend, text, || 0.0);
    let request = Request::Text("Tim and Lily went to the park.".to_owned());
    let wanted = GenerateOptions { max_tokens: 24, ..GenerateOptions::default() };
    let mut session = engine.start(&request, &wanted).unwrap();
    while pollster::block_on(engine.next(&mut session)).unwrap().is_some() {}
    let answer = answers.iter().find(|answer| answer.id == "b").unwrap();
    assert_eq!((&*answer.category, &answer.prompt[..]), ("c", session.prompt()));
    assert_eq!(answer.tokens, session.tokens());
}

#[test]
fn turns_are_answered_one_after_the_other_through_the_template() {
    let folder = folder("turns");
    let model = stories(Some(TEMPLATE));
    let lines = r#"{"id": 7, "turns": ["Who is Tim?", "And Lily?"]}
{"id": 8, "messages": [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "Hi"}]}"#;
    let prompts = prompts(&folder, &model.text, lines);
    let (done, answers) = model.run(&prompts, &options(0.7, 4), &folder.join("answers"));
    assert_eq!((done.made, answers.len()), (3, 3));
    let text = |ids: &[u32]| model.text.tokenizer.decode(ids, false);
    assert_eq!(answers.iter().map(|answer| &*answer.id).collect::<Vec<_>>(), ["7", "7.1", "8"]);
    let first = model.text.tokenizer.decode(&answers[0].tokens, true);
    let second = text(&answers[1].prompt);
    assert!(second.contains("user: Who is Tim?") && second.ends_with("user: And Lily?\n</s> assistant:"), "{second}");
    assert!(second.contains(&format!("assistant: {first}")), "{second} has {first}");
    assert!(text(&answers[2].prompt).contains("system: Be kind.\n</s> user: Hi\n</s> assistant:"));
    // What is there of a conversation is not written again.
    let all = std::fs::read_to_string(folder.join("answers")).unwrap();
    let without: String = all.lines().filter(|line| !line.contains("7.1")).map(|line| format!("{line}\n")).collect();
    std::fs::write(folder.join("answers"), without).unwrap();
    let (done, again) = model.run(&prompts, &options(0.7, 4), &folder.join("answers"));
    assert_eq!((done.made, done.kept, again), (1, 2, answers));
}

#[test]
fn the_model_asks_itself_where_nobody_does() {
    let folder = folder("own");
    let model = stories(Some(TEMPLATE));
    let own: Vec<Prompt> = (0..6).map(Prompt::invented).collect();
    let long = DistillOptions { max_tokens: 60, ..options(0.0, 4) };
    let (done, answers) = model.run(&own, &long, &folder.join("asked"));
    assert_eq!(done.made + done.empty, 6);
    for answer in &answers {
        let prompt = model.text.tokenizer.decode(&answer.prompt, false);
        assert!(prompt.starts_with("user: ") && prompt.ends_with("\n</s> assistant:"), "{prompt}");
    }
    // Without a template it begins texts.
    let model = stories(None);
    let (done, answers) = model.run(&own, &options(1.0, 4), &folder.join("begun"));
    assert_eq!(done.made, 6);
    assert!(answers.iter().all(|answer| answer.prompt == [1]));
    assert!(answers.iter().any(|answer| answer.tokens != answers[0].tokens));
}

#[test]
fn prompts_that_are_too_long_are_left_out_and_counted() {
    let folder = folder("long");
    let model = stories(Some(TEMPLATE));
    let lines = format!("{{\"turns\": [\"{}\", \"b\"]}}\n{{\"prompt\": \"c\"}}", "a b ".repeat(200));
    let (done, answers) = model.run(&prompts(&folder, &model.text, &lines), &options(0.0, 4), &folder.join("answers"));
    assert_eq!((done.too_long, done.made, &*answers[0].id), (2, 1, "2"));
}

#[test]
fn what_is_no_prompt_or_no_answer_is_named() {
    let folder = folder("bad");
    let Model { text, .. } = stories(None);
    let path = folder.join("some.jsonl");
    let prompt_error = |lines: &str| {
        std::fs::write(&path, lines).unwrap();
        read_prompts(&path, &text).unwrap_err().to_string()
    };
    for bad in
        ["{\"text\": \"a\"}\n\n{\"id\": 3}", "{\"text\": \"a\"}\n\n{", "\n\n{\"turns\": []}", "\n\n{\"messages\": []}"]
    {
        let message = prompt_error(bad);
        assert!(message.contains("some.jsonl, line 3: ") && message.contains("expected a prompt"), "{message}");
    }
    let answer_error = |lines: &str| {
        std::fs::write(&path, lines).unwrap();
        read_answers(&path, &text, 512).unwrap_err().to_string()
    };
    for bad in [
        "{\"id\": 1, \"prompt\": \"a\"}",
        "{\"prompt_ids\": [1], \"ids\": [512]}",
        "{\"prompt_ids\": [1], \"ids\": []}",
        "3",
    ] {
        let message = answer_error(bad);
        assert!(message.contains("some.jsonl, line 1: ") && message.contains("expected an answer"), "{message}");
    }
    std::fs::write(&path, "{\"id\":").unwrap();
    assert!(AnswerFile::open(&path).unwrap().answers().is_empty(), "a half line is cut off");
    assert_eq!(std::fs::metadata(&path).unwrap().len(), 0);
}

#[test]
fn answers_of_others_are_read_by_id_and_by_text() {
    let folder = folder("others");
    let Model { text, .. } = stories(Some(TEMPLATE));
    let path = folder.join("answers.jsonl");
    let lines = r#"{"id": 1, "prompt_ids": [1, 403], "ids": [5, 2]}
{"id": "x", "prompt": "Hi", "answer": "Hello you", "finish_reason": "length"}
{"prompt": "Hi", "answer": "Hello you", "category": "c"}"#;
    std::fs::write(&path, lines).unwrap();
    let answers = read_answers(&path, &text, 512).unwrap();
    assert_eq!(
        answers[0],
        Answer { id: "1".into(), category: String::new(), prompt: vec![1, 403], tokens: vec![5, 2], ended: true }
    );
    assert_eq!(answers[1].tokens, text.tokenizer.encode("Hello you", false).unwrap());
    assert!(text.tokenizer.decode(&answers[1].prompt, false).contains("user: Hi\n</s> assistant:"));
    assert_eq!((&*answers[2].id, &*answers[2].category, answers[2].ended), ("3", "c", true));
    assert_eq!(answers[2].tokens, [&answers[1].tokens[..], &[end_of_turn(&text).unwrap()]].concat());
    assert_eq!(end_of_turn(&text), Some(2));
}

#[test]
fn a_model_goes_on_from_sentences_of_its_own() {
    let Model { text, .. } = stories(None);
    let answer = |id: &str, category: &str, written: &str| Answer {
        id: id.into(),
        category: category.into(),
        prompt: vec![1],
        tokens: text.tokenizer.encode(written, false).unwrap(),
        ended: true,
    };
    let story = "One day a boy saw a dog. It ran. It sat. He smiled. Then they played in the park all day. The end of it is cut o";
    let written = [
        answer("own-0", "own", story),
        answer("own-1", "own", "It ran. A text with one sentence that is not first."),
        answer("p", "stories", story),
    ];
    let found = openings(&written, &text.tokenizer);
    let found: Vec<_> = found.iter().map(|prompt| (&*prompt.id, prompt.content.clone())).collect();
    let sentence = |text: &str| Content::Text(text.to_owned());
    assert_eq!(
        found,
        [
            ("own-0-go-0", sentence("One day a boy saw a dog.")),
            ("own-0-go-4", sentence("Then they played in the park all day.")),
        ]
    );
}
