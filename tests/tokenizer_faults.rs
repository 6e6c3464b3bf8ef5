//! Damaged and hostile tokenizer files and chat templates: whatever they hold, the answer is a tokenizer or an error.

#![allow(clippy::unwrap_used)] // also in the helpers of tests

mod tokenizer_files;

use draftree::error::{Error, ErrorCode};
use draftree::tokenizer::files::{GgufTokenizer, JsonTokenizer, TokenizerFiles};
use draftree::tokenizer::{ChatTemplate, Message, ModelTokens, StreamDecoder, Tokenizer};
use proptest::prelude::*;
use proptest::sample::{Index, select};
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};
use serde_json::{Value, json};
use tokenizer_files::{read_gguf, shared};

const TEXT: &str = "Once upon a time,\tthere   was <s>日本語🎉</s> a 12345 dog's e\u{301}\u{0}\u{2581}|";

/// Builds a tokenizer and puts it to every use; an error has to be one of those that are promised.
fn exercise(files: &TokenizerFiles, vocab_size: usize) {
    let model = ModelTokens { vocab_size, bos_token_id: Some(3), eos_token_ids: &[1, u32::MAX] };
    let tokenizer = match Tokenizer::from_files(files, model) {
        Ok(tokenizer) => tokenizer,
        Err(error) => return check_error(&error),
    };
    assert!(tokenizer.vocab_len() <= vocab_size);
    assert!(tokenizer.end_ids().iter().chain(&tokenizer.bos_id()).all(|&id| (id as usize) < vocab_size));
    match tokenizer.encode(TEXT, tokenizer.adds_bos()) {
        Ok(ids) => {
            assert!(ids.iter().all(|&id| (id as usize) < vocab_size), "ids have rows");
            let mut decoder = StreamDecoder::new(true);
            let text: String = ids.iter().map(|&id| decoder.push(&tokenizer, &[id])).collect();
            assert_eq!(text + &decoder.finish(), tokenizer.decode(&ids, true));
        }
        Err(error) => check_error(&error),
    }
    tokenizer.decode(&(0..vocab_size as u32).collect::<Vec<_>>(), false);
}

fn check_error(error: &Error) {
    let expected = [ErrorCode::BadTokenizer, ErrorCode::UnsupportedModel, ErrorCode::ShapeMismatch];
    assert!(expected.contains(&error.code()), "{error:?}");
    assert!(error.to_string().len() > 20, "says something: {error}");
}

fn exercise_json(tokenizer_json: Vec<u8>) {
    let files = JsonTokenizer { tokenizer_json, bos_token: Some("<s>".to_owned()), ..JsonTokenizer::default() };
    exercise(&TokenizerFiles::Json(files), 512);
}

fn run<S: Strategy>(cases: u32, strategy: S, test: impl Fn(S::Value)) {
    let config = Config { cases, failure_persistence: None, max_shrink_iters: 200, ..Config::default() };
    TestRunner::new_with_rng(config, TestRng::deterministic_rng(RngAlgorithm::ChaCha))
        .run(&strategy, |value| {
            test(value);
            Ok(())
        })
        .unwrap_or_else(|error| panic!("{error}"));
}

/// A byte-level and a sentencepiece `tokenizer.json`, small enough to be built thousands of times.
fn small_tokenizers() -> Vec<Value> {
    let bytes = std::fs::read(shared("models/stories260K/tokenizer.json")).unwrap();
    let sentencepiece = serde_json::from_slice(&bytes).unwrap();
    let added = |id: u32, content: &str| {
        json!({ "id": id, "content": content, "single_word": false, "lstrip": false, "rstrip": true,
                "normalized": true, "special": true })
    };
    let byte_level = json!({
        "version": "1.0", "truncation": null, "padding": { "strategy": "BatchLongest" },
        "added_tokens": [added(9, "<s>"), added(10, "</s>")],
        "normalizer": { "type": "Sequence", "normalizers": [{ "type": "NFC" }, { "type": "Strip", "strip_left": true, "strip_right": false }] },
        "pre_tokenizer": { "type": "Sequence", "pretokenizers": [
            { "type": "Split", "pattern": { "Regex": "\\p{N}{1,3}|\\s+(?!\\S)" }, "behavior": "Isolated", "invert": false },
            { "type": "Digits", "individual_digits": true },
            { "type": "Punctuation", "behavior": "MergedWithNext" },
            { "type": "Metaspace", "replacement": "_", "prepend_scheme": "first", "split": true },
            { "type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true }] },
        "post_processor": { "type": "Sequence", "processors": [{ "type": "ByteLevel" }, { "type": "TemplateProcessing",
            "single": [{ "SpecialToken": { "id": "<s>", "type_id": 0 } }, { "Sequence": { "id": "A", "type_id": 0 } }],
            "special_tokens": { "<s>": { "id": "<s>", "ids": [9], "tokens": ["<s>"] } } }] },
        "decoder": { "type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true },
        "model": { "type": "BPE", "dropout": 0.5, "unk_token": "u", "continuing_subword_prefix": "", "end_of_word_suffix": null,
            "fuse_unk": false, "byte_fallback": false, "ignore_merges": true,
            "vocab": { "u": 0, "a": 1, "Ġ": 2, "Ġa": 3, "n": 4, "Ã": 5, "1": 6, "an": 7, "Ġan": 8 },
            "merges": [["Ġ", "a"], "a n", ["Ġa", "n"]] }
    });
    vec![sentencepiece, byte_level]
}

#[test]
fn the_small_tokenizers_are_sound() {
    for value in small_tokenizers() {
        let files = JsonTokenizer { tokenizer_json: serde_json::to_vec(&value).unwrap(), ..JsonTokenizer::default() };
        let model = ModelTokens { vocab_size: 512, bos_token_id: None, eos_token_ids: &[] };
        let tokenizer = Tokenizer::from_files(&TokenizerFiles::Json(files), model).unwrap();
        assert!(tokenizer.adds_bos());
        assert!(tokenizer.encode(TEXT, true).unwrap().len() > 5);
    }
}

#[test]
fn damaged_bytes_of_a_tokenizer_json() {
    run(300, proptest::collection::vec(any::<u8>(), 0..200), exercise_json);
    for value in small_tokenizers() {
        let bytes = serde_json::to_vec(&value).unwrap();
        let cut = bytes.clone();
        run(300, any::<Index>(), move |end| exercise_json(cut[..end.index(cut.len())].to_vec()));
        let flips = proptest::collection::vec((any::<Index>(), any::<u8>()), 1..4);
        run(2000, flips, move |flips| {
            let mut damaged = bytes.clone();
            for (at, byte) in flips {
                damaged[at.index(bytes.len())] = byte;
            }
            exercise_json(damaged);
        });
    }
}

/// Values that a field may not expect.
fn odd_value() -> impl Strategy<Value = Value> {
    let kinds =
        ["ByteLevel", "Sequence", "Strip", "Replace", "Fuse", "Split", "FixedLength", "Precompiled", "CTC", "BPE"];
    let kind = select(kinds.to_vec()).prop_map(|kind| {
        json!({ "type": kind, "content": " ", "start": 9, "stop": 9, "pattern": { "String": "" }, "length": 0,
                "decoders": [], "normalizers": [], "pretokenizers": [], "behavior": "Removed", "invert": true })
    });
    let numbers = [0.0_f64, -1.0, 1.0, 3.0, 511.0, 512.0, 4e9, 1e300];
    let texts = ["", "a", "<s>", "▁", " ", "(", "(a+)+$", "\u{0}", "BPE", "Unigram", "WordPiece", "é"];
    prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        select(numbers.to_vec()).prop_map(|n| if n.fract() == 0.0 && n.abs() < 1e10 {
            json!(n as i64)
        } else {
            json!(n)
        }),
        select(texts.to_vec()).prop_map(Value::from),
        Just(json!([])),
        Just(json!({})),
        Just(json!([["a", "b", "c"], "a  b", [1, 2], ["▁", ""]])),
        kind,
    ]
}

/// Replaces, removes or doubles something somewhere in `value`.
fn mutate(value: &mut Value, path: &[Index], odd: &Value, action: u8) {
    let (Some(step), true) = (path.first(), value.is_object() || value.is_array()) else {
        *value = odd.clone();
        return;
    };
    match value {
        Value::Object(map) if !map.is_empty() => {
            let key = map.keys().nth(step.index(map.len())).unwrap().clone();
            match action {
                0 if path.len() == 1 => drop(map.remove(&key)),
                1 if path.len() == 1 => drop(map.insert(format!("{key}x"), odd.clone())),
                _ => mutate(&mut map[&key], &path[1..], odd, action),
            }
        }
        Value::Array(list) if !list.is_empty() => {
            let at = step.index(list.len());
            match action {
                0 if path.len() == 1 => drop(list.remove(at)),
                1 if path.len() == 1 => list.push(list[at].clone()),
                _ => mutate(&mut list[at], &path[1..], odd, action),
            }
        }
        _ => *value = odd.clone(),
    }
}

#[test]
fn odd_values_in_a_tokenizer_json() {
    for value in small_tokenizers() {
        let path = proptest::collection::vec(any::<Index>(), 1..6);
        let mutations = proptest::collection::vec((path, odd_value(), 0_u8..4), 1..4);
        run(4000, mutations, move |mutations| {
            let mut value = value.clone();
            for (path, odd, action) in mutations {
                mutate(&mut value, &path, &odd, action);
            }
            exercise_json(serde_json::to_vec(&value).unwrap());
        });
    }
}

#[test]
fn known_panics_of_the_tokenizers_crate() {
    for (at, odd) in [
        ("/model/merges", json!([["Ġan", "Ġan"]])),
        ("/model/merges", json!([["a", "x"]])),
        ("/model/continuing_subword_prefix", json!("####")),
        ("/model/unk_token", json!("nowhere")),
        (
            "/decoder",
            json!({ "type": "Sequence", "decoders": [{ "type": "Fuse" }, { "type": "Strip", "content": " ", "start": 0, "stop": 99 }] }),
        ),
        ("/decoder", json!({ "type": "BPEDecoder", "suffix": "</w>" })),
        ("/decoder", json!(7)),
        ("/pre_tokenizer", json!({ "type": "FixedLength", "length": 0 })),
        ("/normalizer/normalizers/0", json!({ "type": "Replace", "pattern": { "String": "" }, "content": " " })),
        ("/added_tokens/1/content", json!(" ")),
        ("/added_tokens/0/content", json!("")),
        ("/added_tokens/0/id", json!(u32::MAX)),
    ] {
        let mut value = small_tokenizers().remove(1);
        *value.pointer_mut(at).unwrap() = odd;
        exercise_json(serde_json::to_vec(&value).unwrap());
    }
    exercise_json(br#"{"decoder": {"type": "#.to_vec());
    let deep = 100_000;
    exercise_json(format!(r#"{{"normalizer": {}"#, r#"{"type":"Sequence","normalizers":["#.repeat(deep)).into_bytes());
    let nested = format!("{}{}", r#"{"type":"Sequence","normalizers":["#.repeat(40), "]}".repeat(40));
    let mut value = small_tokenizers().remove(1);
    value["normalizer"] = serde_json::from_str(&nested).unwrap();
    exercise_json(serde_json::to_vec(&value).unwrap());
}

#[test]
fn odd_gguf_metadata() {
    let gguf = read_gguf(&shared("models/stories260K/stories260K-q8_0.gguf")).0;
    let texts = ["", " ", "a", "a b", "é é", "<0xFF>", "▁▁▁", "<|im_end|>", "\u{1f389}", "Ġ", "(", "a  b c"];
    let names = ["gpt2", "llama", "", "bert"];
    let pres = [None, Some("smollm"), Some("qwen2"), Some("llama-bpe"), Some("default"), Some("odd")];
    let edit = (any::<Index>(), select(texts.to_vec()), -3..9_i32, any::<f32>());
    let ids = proptest::collection::vec(proptest::option::of(prop_oneof![0..520_u32, any::<u32>()]), 5);
    let lens = (any::<bool>(), 0..520_usize, 0..520_usize);
    let strategy = (
        select(names.to_vec()),
        select(pres.to_vec()),
        proptest::collection::vec(edit, 0..40),
        ids,
        lens,
        any::<[bool; 3]>(),
    );
    run(2000, strategy, move |(name, pre, edits, ids, (cut, scores, types), [bos, prefix, remove])| {
        let mut odd = GgufTokenizer { model: name.to_owned(), pre: pre.map(str::to_owned), ..gguf.clone() };
        odd.merges = vec!["t h".to_owned(), "th e".to_owned()];
        for (at, text, kind, score) in edits {
            let at = at.index(odd.tokens.len());
            odd.tokens[at] = text.to_owned();
            odd.token_types[at] = kind;
            odd.scores[at] = score;
            if kind == 0 {
                odd.merges.push(text.to_owned());
            }
        }
        if cut {
            odd.scores.truncate(scores);
            odd.token_types.truncate(types);
        }
        (odd.bos_token_id, odd.eos_token_id, odd.eot_token_id) = (ids[0], ids[1], ids[2]);
        (odd.unknown_token_id, odd.padding_token_id) = (ids[3], ids[4]);
        (odd.add_bos, odd.add_space_prefix, odd.remove_extra_whitespaces) = (Some(bos), Some(prefix), Some(remove));
        exercise(&TokenizerFiles::Gguf(odd), 512);
    });
    exercise(&TokenizerFiles::Gguf(GgufTokenizer::default()), 512);
}

#[test]
fn vocabularies_of_any_size() {
    for vocab_size in [0, 1, 511, 513, 1 << 22, usize::MAX] {
        let value = small_tokenizers().remove(0);
        let files = JsonTokenizer { tokenizer_json: serde_json::to_vec(&value).unwrap(), ..JsonTokenizer::default() };
        exercise(&TokenizerFiles::Json(files), vocab_size.min(1 << 23));
    }
}

fn exercise_template(source: &str) {
    let turn = |role: &str, content: &str| Message { role: role.to_owned(), content: content.to_owned() };
    let messages = [turn("system", "s"), turn("user", "Hello {{ x }}"), turn("assistant", "")];
    let rendered = ChatTemplate::new(source, Some("<s>"), None).and_then(|template| template.render(&messages, true));
    if let Err(error) = rendered {
        assert_eq!(error.code(), ErrorCode::BadChatTemplate);
        assert!(error.to_string().starts_with("the chat template"), "{error}");
    }
}

#[test]
fn damaged_chat_templates() {
    let config = tokenizer_files::json(&shared("models/SmolLM2-135M-Instruct/tokenizer_config.json"));
    let source = config["chat_template"].as_str().unwrap().to_owned();
    let edits = proptest::collection::vec((any::<Index>(), any::<char>(), any::<bool>()), 1..5);
    run(3000, edits, move |edits| {
        let mut damaged: Vec<char> = source.chars().collect();
        for (at, with, insert) in edits {
            let at = at.index(damaged.len());
            if insert { damaged.insert(at, with) } else { damaged[at] = with }
        }
        exercise_template(&damaged.into_iter().collect::<String>());
    });
}

#[test]
fn chat_templates_out_of_scraps() {
    let scraps = [
        "{{ ",
        " }}",
        "{% ",
        " %}",
        "{%- ",
        " -%}",
        "{# ",
        " #}",
        "messages",
        "message",
        "[0]",
        "[-1]",
        "[99]",
        "[:-1]",
        ".content",
        "['role']",
        "for message in messages",
        "endfor",
        "if",
        "else",
        "elif",
        "endif",
        "set x = ",
        "endset",
        "macro f(a)",
        "endmacro",
        "f(1)",
        "namespace(a=1)",
        "ns",
        "range(9)",
        " ~ ",
        " + ",
        " * ",
        " ** ",
        " // ",
        " % ",
        " - ",
        "1",
        "0",
        "9999999999999999999",
        "'a'",
        "\"b\\n\"",
        " | ",
        "tojson",
        "trim",
        "join(',')",
        "length",
        "list",
        "sort",
        "reverse",
        "batch(3)",
        "slice(0)",
        "indent(2)",
        "replace('a', 'b')",
        "default('')",
        "map(attribute='role')",
        "selectattr('x')",
        " is ",
        " in ",
        " not ",
        " and ",
        "defined",
        "none",
        "raise_exception('no')",
        ".strip()",
        ".split(',')",
        ".format(1)",
        ".items()",
        "loop.index",
        "loop.previtem",
        "loop(messages)",
        "recursive",
        "break",
        "continue",
        "(",
        ")",
        "[",
        "]",
        "{",
        "}",
        ",",
        ":",
        "=",
        "\n",
        "é",
        "with a = 1",
        "endwith",
        "do f()",
        "filter upper",
        "endfilter",
        "raw",
        "endraw",
        "call f(1)",
        "endcall",
        "import 'a' as b",
        "include 'a'",
        "block c",
        "endblock",
    ];
    run(20_000, proptest::collection::vec(select(scraps.to_vec()), 0..24), |parts| exercise_template(&parts.concat()));
    run(20_000, proptest::collection::vec(select(scraps[8..].to_vec()), 0..8), |parts| {
        exercise_template(&format!("{{{{ {} }}}}", parts.join(" ")));
    });
    run(20_000, proptest::collection::vec(select(scraps[8..].to_vec()), 0..8), |parts| {
        exercise_template(&format!("{{% {} %}}x{{% endfor %}}", parts.join(" ")));
    });
}
