//! Chat templates against the golden prompts, and templates that fail.

#![allow(clippy::unwrap_used)] // also in the helpers of tests

mod tokenizer_files;

use draftree::error::ErrorCode;
use draftree::tokenizer::{ChatTemplate, Message};
use tokenizer_files::{downloaded, json, read_gguf, shared};

fn message(role: &str, content: &str) -> Message {
    Message { role: role.to_owned(), content: content.to_owned() }
}

fn render(source: &str, messages: &[Message]) -> String {
    ChatTemplate::new(source, Some("<s>"), Some("</s>")).unwrap().render(messages, true).unwrap()
}

/// The message of the error that `source` ends in, on one message of a user.
fn failure(source: &str) -> String {
    let error = ChatTemplate::new(source, None, None)
        .and_then(|template| template.render(&[message("user", "Hello")], true))
        .expect_err(source);
    assert_eq!(error.code(), ErrorCode::BadChatTemplate);
    error.to_string()
}

/// Renders the golden conversations of a model.
fn check_golden(file: &str, source: &str) {
    let golden = json(&shared(&format!("golden/{file}.json")));
    let template = ChatTemplate::new(source, None, None).unwrap();
    for prompt in golden["prompts"].as_array().unwrap() {
        let messages: Vec<Message> = (prompt["messages"].as_array().unwrap().iter())
            .map(|turn| message(turn["role"].as_str().unwrap(), turn["content"].as_str().unwrap()))
            .collect();
        assert_eq!(template.render(&messages, true).unwrap(), prompt["text"].as_str().unwrap(), "{file}");
    }
}

#[test]
fn smollm2_prompts_are_the_golden_ones() {
    let config = json(&shared("models/SmolLM2-135M-Instruct/tokenizer_config.json"));
    check_golden("SmolLM2-135M-Instruct.Q4_1", config["chat_template"].as_str().unwrap());
    if let Some(path) = downloaded("smollm2-135m-instruct.gguf") {
        check_golden("SmolLM2-135M-Instruct.Q4_1", &read_gguf(&path).1.unwrap());
    }
}

#[test]
fn qwen_prompts_are_the_golden_ones() {
    if let Some(path) = downloaded("qwen2.5-coder-0.5b-instruct.gguf") {
        check_golden("Qwen2.5-Coder-0.5B-Instruct.Q4_K_M", &read_gguf(&path).1.unwrap());
    }
}

#[test]
fn templates_see_what_transformers_gives_them() {
    let turns = [message("user", "Hi")];
    assert_eq!(render("{{ bos_token }}{{ messages[0]['content'] }}{{ eos_token }}", &turns), "<s>Hi</s>");
    assert_eq!(render("{{ tools is none }} {{ documents is none }} {{ undefined_thing }}|", &turns), "True True |");
    assert_eq!(render("{% if tools %}no{% endif %}{% if add_generation_prompt %}yes{% endif %}", &turns), "yes");
    assert_eq!(render("{{ strftime_now is defined }}", &turns), "False");
    let without = ChatTemplate::new("[{{ bos_token }}]", None, None).unwrap();
    assert_eq!(without.render(&turns, false).unwrap(), "[]");
}

#[test]
fn blocks_leave_no_lines_behind() {
    let source =
        "{% for message in messages %}\n    {% if true %}\n{{ message.role }}\n    {% endif %}\n{% endfor %}\n";
    assert_eq!(render(source, &[message("user", ""), message("assistant", "")]), "user\nassistant\n");
}

#[test]
fn the_methods_and_filters_of_python_templates_are_there() {
    let turns = [message("system", " Be <kind>. \n"), message("user", "a</think>b"), message("assistant", "x")];
    for (source, expected) in [
        ("{{ messages[0].content.strip() }}", "Be <kind>."),
        ("{{ messages[0]['content'] | trim }}", "Be <kind>."),
        ("{{ messages[1].content.split('</think>')[-1].rstrip('b') }}|", "|"),
        ("{{ messages[1].content.startswith('a') }}", "True"),
        ("{{ messages[1:] | length }}{{ messages[::-1][0].role }}", "2assistant"),
        ("{% for k, v in messages[1].items() %}{{ k }}={{ v }};{% endfor %}", "role=user;content=a</think>b;"),
        ("{{ messages[1].get('name', 'none') }}", "none"),
        ("{{ messages[0].content | tojson }}", "\" Be <kind>. \\n\""),
        ("{{ {'a': [1, '<é>'], 'b': {}} | tojson }}", "{\"a\": [1, \"<é>\"], \"b\": {}}"),
        ("{{ {'a': [1], 'b': []} | tojson(indent=1) }}", "{\n \"a\": [\n  1\n ],\n \"b\": []\n}"),
        ("{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}{% endfor %}{{ ns.n }}", "3"),
        ("{{ messages | selectattr('role', 'equalto', 'user') | map(attribute='content') | first }}", "a</think>b"),
        ("{% macro turn(m) %}<{{ m.role }}>{% endmacro %}{{ turn(messages[2]) }}", "<assistant>"),
        ("{% for m in messages %}{% if loop.last %}{{ loop.index0 }}{% endif %}{% endfor %}", "2"),
        ("{% for m in messages %}{% if m.role == 'user' %}{% break %}{% endif %}{{ m.role }}{% endfor %}", "system"),
        ("{{ 'content' in messages[0] and messages[0].content is string }}", "True"),
    ] {
        assert_eq!(render(source, &turns), expected, "{source}");
    }
}

#[test]
fn a_clock_gives_the_date() {
    let template =
        ChatTemplate::new("{{ strftime_now('%d %b %Y') }}", None, None).unwrap().with_clock(|| 1_721_995_200);
    assert_eq!(template.render(&[], false).unwrap(), "26 Jul 2024");
}

#[test]
fn a_refusal_is_told_in_the_words_of_the_template() {
    let message = failure("{{ raise_exception('roles must alternate ' ~ messages[0].role) }}");
    assert!(message.contains("roles must alternate user"), "{message}");
}

#[test]
fn a_template_that_fails_says_where() {
    let message = failure("\n\n{{ messages[0].content.no_such_method() }}");
    assert!(message.contains("no_such_method") && message.contains("line 3"), "{message}");
    assert!(failure("{% for %}").contains("line 1"));
    assert!(failure("{% include 'other' %}").contains("chat template"));
    assert!(failure(&" ".repeat(2 << 20)).contains("at most"));
}

#[test]
fn a_template_without_an_end_is_stopped() {
    for source in [
        "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
        "{% set ns = namespace(x='xxxxxxxx') %}{% for i in range(99) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}",
        "{% for i in range(99999) %}{{ 'x' * 90000000 }}{% endfor %}",
        "{% for i in range(99999) %}{{ messages | tojson | replace('e', 'eeeeeeeeeeeeeeee' * 999999) }}{% endfor %}",
        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
        "{% macro f(n) %}{{ f(n) }}{{ f(n) }}{% endmacro %}{{ f(1) }}",
        "{% for i in range(999999999) %}{% endfor %}",
    ] {
        failure(source);
    }
}

#[test]
fn deep_nesting_does_not_exhaust_the_stack() {
    for (open, inner, close) in [
        ("(", "1", ")"),
        ("[", "1", "]"),
        ("{1: ", "1", "}"),
        ("not ", "1", ""),
        ("-", "1", ""),
        ("1 + ", "1", ""),
        ("1 ** ", "1", ""),
        ("1 ~ ", "1", ""),
        ("1 if 1 else ", "1", ""),
        ("", "messages", "[0]"),
        ("", "messages", ".a"),
        ("", "messages", "()"),
        ("", "messages", " | list"),
        ("", "messages", " is defined"),
        ("range(", "1", ")"),
        ("a=", "1", ""),
        ("1 and ", "1", ""),
        ("1 < ", "1", ""),
    ] {
        for depth in [100, 1000, 100_000] {
            let source = format!("{{{{ {}{inner}{} }}}}", open.repeat(depth), close.repeat(depth));
            // Whether it renders depends on the limits of the parser; that it comes back is all there is to check.
            let _ = ChatTemplate::new(&source, None, None).and_then(|template| template.render(&[], true));
        }
    }
    for (open, close) in [
        ("{% if 1 %}", "{% endif %}"),
        ("{% for a in [1] %}", "{% endfor %}"),
        ("{% set a %}", "{% endset %}"),
        ("{% macro a() %}", "{% endmacro %}"),
        ("{% filter upper %}", "{% endfilter %}"),
        ("{% if 0 %}{% else %}", "{% endif %}"),
    ] {
        for depth in [50, 100, 1000, 30_000] {
            let source = format!("{}{}", open.repeat(depth), close.repeat(depth));
            let _ = ChatTemplate::new(&source, None, None).and_then(|template| template.render(&[], true));
        }
        let source = format!("{{% if 1 %}}{}", "{% elif 1 %}".repeat(30_000));
        let _ = ChatTemplate::new(&source, None, None).and_then(|template| template.render(&[], true));
        let source = format!("{{% if 0 %}}{}{{% endif %}}", "{% elif 0 %}".repeat(30_000));
        let _ = ChatTemplate::new(&source, None, None).and_then(|template| template.render(&[], true));
    }
}
