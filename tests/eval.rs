//! `draftree eval` from the command line to what it prints.

#![cfg(feature = "cli")]
#![allow(clippy::unwrap_used)] // also in the helpers of tests

mod harness;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use harness::heads::{Heads, file};
use serde_json::Value;

const MODEL: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/models/stories260K/stories260K-q8_0.gguf");
const PROMPTS: &str = r#"{"id": 1, "category": "writing", "text": "Once upon a time"}
{"id": 2, "category": "stem", "text": "The dog was sad. The cat was sad. The bird was"}
{"id": 3, "category": "qa", "text": "Lily and Tom went to the park. Lily and Tom"}
"#;

/// A folder with prompts and draft heads.
fn folder(name: &str) -> PathBuf {
    let folder = std::env::temp_dir().join(format!("draftree-eval-{name}-{}", std::process::id()));
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder).unwrap();
    fs::write(folder.join("prompts.jsonl"), PROMPTS).unwrap();
    let heads = file(&harness::embedded(), Heads { count: 3, ..Heads::default() });
    let heads = heads.word("trees", "[[0], [1], [0, 0], [2]]");
    fs::write(folder.join("heads.safetensors"), heads.bytes()).unwrap();
    folder
}

/// What it prints, and whether it went well.
fn eval(folder: &Path, options: &[&str]) -> (String, bool) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_draftree"));
    command.args(["eval", "--model", MODEL, "--heads"]).arg(folder.join("heads.safetensors"));
    if !options.contains(&"--max-tokens") {
        command.args(["--max-tokens", "48"]);
    }
    command.arg("--prompts").arg(folder.join("prompts.jsonl")).arg("--work").arg(folder.join("work")).args(options);
    let output = command.output().unwrap();
    (String::from_utf8(output.stdout).unwrap(), output.status.success())
}

fn json(folder: &Path, options: &[&str]) -> Value {
    let (printed, good) = eval(folder, &[options, &["--json"]].concat());
    assert!(good, "{printed}");
    serde_json::from_str(&printed).unwrap()
}

fn pooled(run: &Value) -> f64 {
    run["tokens_per_pass"]["pooled"].as_f64().unwrap()
}

#[test]
fn tokens_per_pass_are_found_for_every_set_and_tree() {
    let folder = folder("replay");
    let sets = ["--draft", "ngram", "--draft", "medusa,ngram,recycling"];
    let trees = ["--nodes", "2,4,8", "--tree", "auto", "--tree", "dense:2,1", "--tree", "calibrated"];
    let options = [&sets[..], &trees].concat();
    let found = json(&folder, &options);
    let runs = found["runs"].as_array().unwrap();
    let named = |run: &Value| (run["tree"].as_str().unwrap().to_owned(), run["nodes"].as_u64().unwrap());
    let trees = [("grown", 2), ("grown", 4), ("grown", 8), ("dense:2,1", 5), ("calibrated", 2), ("calibrated", 4)];
    assert_eq!(
        runs.iter().map(named).collect::<Vec<_>>(),
        [trees, trees].concat().into_iter().map(|(tree, n)| (tree.to_owned(), n)).collect::<Vec<_>>()
    );
    assert!(
        pooled(&runs[2]) > pooled(&runs[0]) && pooled(&runs[8]) > pooled(&runs[2]),
        "more nodes, and more drafters"
    );
    for run in runs {
        let sum =
            |key: &str| run["answers"].as_array().unwrap().iter().map(|answer| answer[key].as_u64().unwrap()).sum();
        let (tokens, passes): (u64, u64) = (sum("tokens"), sum("passes"));
        assert_eq!((run["tokens"].as_u64(), run["passes"].as_u64()), (Some(tokens), Some(passes)));
        assert!((pooled(run) - tokens as f64 / passes as f64).abs() < 1e-9);
        let categories = run["tokens_per_pass"]["by_category"].as_object().unwrap();
        assert_eq!(categories.keys().collect::<Vec<_>>(), ["mt_bench", "qa"]);
    }
    assert_eq!(json(&folder, &options)["runs"], found["runs"], "answers that are there give the same");
    let (tables, _) = eval(&folder, &options);
    let line =
        tables.lines().find(|line| line.starts_with("medusa,ngram,recycling") && line.contains("grown")).unwrap();
    assert!(line.contains(&format!("{:.2}", pooled(&runs[6]))), "{line}");
    fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn stored_rows_are_near_enough_and_one_category_may_be_thinned() {
    let folder = folder("states");
    let options = ["--draft", "medusa", "--nodes", "4"];
    let stored = json(&folder, &options);
    assert!(folder.join("work/states/states.json").exists());
    let exact = json(&folder, &[&options[..], &["--exact-rows"]].concat());
    let (stored, exact) = (pooled(&stored["runs"][0]), pooled(&exact["runs"][0]));
    assert!((stored - exact).abs() < 0.02 * exact, "{stored} of half precision, {exact}");
    assert_eq!(json(&folder, &[&options[..], &["--per-category", "1"]].concat())["answers"], 2);
    fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn a_device_is_replayed_by_what_its_passes_cost() {
    let folder = folder("device");
    let speed = |pass_ms: &str, heads_ms: &str| {
        let options =
            ["--draft", "medusa,ngram,recycling", "--nodes", "8", "--pass-ms", pass_ms, "--heads-ms", heads_ms];
        let run = json(&folder, &options)["runs"][0].clone();
        (run["speed_up"]["pooled"].as_f64().unwrap(), pooled(&run))
    };
    // Rows for nothing: what whole trees bring. Rows that are never worth it: plain decoding.
    let (cheap, tokens) = speed("100,100,100,100,100,100,100", "0");
    assert!(tokens > 1.2 && (cheap - tokens).abs() < 1e-6, "{cheap}, {tokens}");
    assert_eq!(speed("100,1000,2000,4000,8000,16000,32000", "0"), (1.0, 1.0));
    // Heads that take as long as ten passes are left alone.
    assert!(speed("100,100,100,100,100,100,100", "1000").0 > 1.0);
    let plain = json(&folder, &["--draft", "ngram"]);
    assert!(plain["runs"][0]["speed_up"].is_null(), "without costs there is no speed");
    for wrong in ["100,200", "0,1,1,1,1,1,1", "100,200,300,400,500,600,NaN"] {
        assert!(!eval(&folder, &["--pass-ms", wrong]).1, "{wrong}");
    }
}

#[test]
fn lossy_rules_are_compared_with_the_exact_text() {
    let folder = folder("lossy");
    let rules = ["--accept", "typical:0.5,0.5", "--accept", "topk:3,2", "--temperature", "0.8", "--seed", "3"];
    let found = json(&folder, &[&rules[..], &["--draft", "medusa,ngram,recycling", "--nodes", "8"]].concat());
    let runs = found["runs"].as_array().unwrap();
    let identical = |run: &Value| run["agreement"]["identical"].as_f64().unwrap();
    assert_eq!((runs.len(), &runs[0]["accept"], identical(&runs[0])), (3, &Value::from("exact"), 1.0));
    assert!(identical(&runs[2]) < 1.0 && pooled(&runs[2]) > pooled(&runs[0]), "{}", runs[2]);
    let (printed, good) = eval(&folder, &["--accept", "typical"]);
    assert!(!good && printed.contains("temperature"), "{printed}");
    fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn answers_that_are_not_the_models_greedy_ones_are_refused() {
    let folder = folder("foreign");
    let options = ["--draft", "medusa,recycling", "--nodes", "4"];
    json(&folder, &options);
    let path = folder.join("work/answers.jsonl");
    let answers = fs::read_to_string(&path).unwrap();
    let lines = answers.lines().map(|line| {
        let mut answer: Value = serde_json::from_str(line).unwrap();
        answer["ids"].as_array_mut().unwrap().reverse();
        format!("{answer}\n")
    });
    fs::write(&path, lines.collect::<String>()).unwrap();
    let (printed, good) = eval(&folder, &options);
    assert!(!good && printed.contains("most probable"), "{printed}");
    fs::write(&path, answers).unwrap();
    let (printed, good) = eval(&folder, &["--max-tokens", "64", "--draft", "ngram"]);
    assert!(!good && printed.contains("was cut at 48 tokens"), "{printed}");
    fs::remove_dir_all(&folder).unwrap();
}
