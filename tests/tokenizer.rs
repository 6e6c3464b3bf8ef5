//! Tokenizers against the golden strings of the reference library, from both kinds of files; and decoding in pieces.

#![allow(clippy::unwrap_used)] // also in the helpers of tests

mod tokenizer_files;

use draftree::error::ErrorCode;
use draftree::model::TokenizerFiles;
use draftree::tokenizer::{ModelTokens, StreamDecoder, Tokenizer};
use proptest::prelude::*;
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};
use tokenizer_files::{Case, cases, folder, json, read_gguf, shared, vectors};

#[test]
fn ids_are_those_of_the_reference_library() {
    for case in cases() {
        let tokenizer = case.build();
        for vector in vectors(case.golden) {
            let ids = tokenizer.encode(&vector.text, false).unwrap();
            assert_eq!(ids, vector.ids, "{}: {:?}", case.name, vector.text);
        }
    }
}

#[test]
fn text_comes_back_from_its_ids() {
    for case in cases() {
        let tokenizer = case.build();
        for vector in vectors(case.golden) {
            // Qwen normalises; stories260K puts a space also behind special tokens, and its space is U+2581. There the
            // reference decodes to another text as well.
            let exact = match case.golden {
                "stories260K" => !vector.text.contains(['<', '\u{2581}']),
                "SmolLM2-135M-Instruct" => true,
                _ => vector.text.is_ascii(),
            };
            if exact {
                assert_eq!(tokenizer.decode(&vector.ids, false), vector.text, "{}", case.name);
            }
        }
    }
}

#[test]
fn decoding_is_that_of_the_reference_library() {
    for case in cases() {
        let TokenizerFiles::Json(files) = &case.files else { continue };
        let reference = tokenizers::Tokenizer::from_bytes(&files.tokenizer_json).unwrap();
        let tokenizer = case.build();
        for vector in vectors(case.golden) {
            for skip_special in [false, true] {
                let expected = reference.decode(&vector.ids, skip_special).unwrap();
                assert_eq!(tokenizer.decode(&vector.ids, skip_special), expected, "{}: {:?}", case.name, vector.text);
            }
        }
    }
}

#[test]
fn a_gguf_and_a_folder_of_one_model_are_one_tokenizer() {
    let cases = cases();
    for pair in cases.iter().zip(&cases[1..]).filter(|(a, b)| a.golden == b.golden) {
        let (a, b) = (pair.0.build(), pair.1.build());
        assert_eq!((a.vocab_len(), a.bos_id(), a.adds_bos()), (b.vocab_len(), b.bos_id(), b.adds_bos()));
        for id in 0..a.vocab_len() as u32 {
            assert_eq!(a.id_to_token(id), b.id_to_token(id), "{}: {id}", pair.0.name);
            assert_eq!(a.is_special(id), b.is_special(id), "{}: {id}", pair.0.name);
            assert_eq!(a.decode(&[id], false), b.decode(&[id], false), "{}: {id}", pair.0.name);
        }
    }
}

#[test]
fn golden_answers_decode_to_their_text() {
    for (file, name) in
        [("SmolLM2-135M-Instruct.Q4_1", "SmolLM2"), ("Qwen2.5-Coder-0.5B-Instruct.Q4_K_M", "Qwen2.5.gguf")]
    {
        let Some(case) = cases().into_iter().find(|case| case.name == name) else { continue };
        let tokenizer = case.build();
        for prompt in json(&shared(&format!("golden/{file}.json")))["prompts"].as_array().unwrap() {
            let ids = |key: &str| serde_json::from_value::<Vec<u32>>(prompt[key].clone()).unwrap();
            assert_eq!(tokenizer.encode(prompt["text"].as_str().unwrap(), false).unwrap(), ids("prompt_ids"));
            assert_eq!(tokenizer.decode(&ids("greedy_ids"), false), prompt["greedy_text"].as_str().unwrap());
            let first_end = ids("greedy_ids").iter().position(|id| tokenizer.end_ids().contains(id));
            assert_eq!(first_end.map(|end| end as u64), prompt["first_eos_index"].as_u64());
        }
    }
}

#[test]
fn a_prompt_begins_with_bos_where_the_model_says_so() {
    let golden = json(&shared("golden/stories260K.json"));
    for case in cases() {
        let tokenizer = case.build();
        assert_eq!(tokenizer.adds_bos(), case.golden == "stories260K", "{}", case.name);
        let (with, without) = (tokenizer.encode("Hello", true).unwrap(), tokenizer.encode("Hello", false).unwrap());
        assert_eq!(with[0], tokenizer.bos_id().unwrap());
        assert_eq!(with[1..], without);
        if case.golden == "stories260K" {
            let prompt = &golden["prompts"][0];
            let ids: Vec<u32> = serde_json::from_value(prompt["prompt_ids"].clone()).unwrap();
            assert_eq!(tokenizer.encode(prompt["text"].as_str().unwrap(), true).unwrap(), ids);
        }
    }
}

#[test]
fn special_tokens_are_known_by_name() {
    for case in cases() {
        let tokenizer = case.build();
        let (token, id) = match case.golden {
            "stories260K" => ("<s>", 1),
            "SmolLM2-135M-Instruct" => ("<|im_end|>", 2),
            _ => ("<|im_end|>", 151_645),
        };
        assert_eq!(tokenizer.token_to_id(token), Some(id));
        assert_eq!(tokenizer.id_to_token(id).as_deref(), Some(token));
        assert!(tokenizer.is_special(id));
        assert_eq!(tokenizer.decode(&[id], true), "");
        assert_eq!(tokenizer.decode(&[id], false), token);
        assert_eq!(tokenizer.end_ids().contains(&id), case.golden != "stories260K", "{}", case.name);
    }
}

#[test]
fn ids_beyond_the_vocabulary_are_nothing() {
    for case in cases() {
        let tokenizer = case.build();
        for id in [tokenizer.vocab_len() as u32, case.vocab_size as u32, u32::MAX] {
            assert_eq!(tokenizer.decode(&[id], false), "");
            assert_eq!(tokenizer.id_to_token(id), None);
            assert!(!tokenizer.is_special(id));
        }
    }
}

/// Decodes `ids` in the pieces that `cuts` make, and checks every piece.
fn stream(tokenizer: &Tokenizer, ids: &[u32], cuts: &[usize], mut decoder: StreamDecoder) -> String {
    let mut text = String::new();
    let mut rest = ids;
    for &cut in cuts {
        let (now, later) = rest.split_at(cut.min(rest.len()));
        text.push_str(&decoder.push(tokenizer, now));
        rest = later;
    }
    text.push_str(&decoder.push(tokenizer, rest));
    text.push_str(&decoder.finish());
    text
}

#[test]
fn a_stream_adds_up_to_the_decoded_whole() {
    for case in cases() {
        let tokenizer = case.build();
        let vectors = vectors(case.golden);
        let any_ids = proptest::collection::vec(0..case.vocab_size as u32 + 8, 0..40);
        let strategy = (0..vectors.len(), any_ids, proptest::collection::vec(0_usize..5, 0..60), any::<[bool; 2]>());
        let config = Config { cases: 400, failure_persistence: None, ..Config::default() };
        TestRunner::new_with_rng(config, TestRng::deterministic_rng(RngAlgorithm::ChaCha))
            .run(&strategy, |(vector, any_ids, cuts, [skip, random])| {
                let ids = if random { &any_ids } else { &vectors[vector].ids };
                let whole = tokenizer.decode(ids, skip);
                prop_assert_eq!(stream(&tokenizer, ids, &cuts, StreamDecoder::new(skip)), whole);
                let one_by_one = vec![1; ids.len()];
                prop_assert_eq!(
                    stream(&tokenizer, ids, &cuts, StreamDecoder::continuing(skip)),
                    stream(&tokenizer, ids, &one_by_one, StreamDecoder::continuing(skip))
                );
                Ok(())
            })
            .unwrap_or_else(|error| panic!("{}: {error}", case.name));
    }
}

#[test]
fn a_stream_never_shows_half_a_character() {
    for case in cases() {
        let tokenizer = case.build();
        for text in ["🎉🏳️‍🌈👩‍👩‍👧‍👦", "日本語のテキスト、漢字", "é ñ Ω й", "na\u{308}i\u{308}ve", "  indented  text "]
        {
            let ids = tokenizer.encode(text, false).unwrap();
            let whole = tokenizer.decode(&ids, false);
            assert!(!whole.contains('\u{fffd}'));
            let mut decoder = StreamDecoder::new(false);
            let mut seen = String::new();
            for id in &ids {
                seen.push_str(&decoder.push(&tokenizer, &[*id]));
                assert!(whole.starts_with(&seen), "{}: {seen:?} is no beginning of {whole:?}", case.name);
            }
            assert_eq!(seen, whole, "{}: nothing is held back at the end of whole characters", case.name);
            assert_eq!(decoder.finish(), "");
        }
    }
}

#[test]
fn a_character_without_an_end_becomes_a_replacement_character() {
    for case in cases() {
        let tokenizer = case.build();
        let mut ids = tokenizer.encode("a 🎉", false).unwrap();
        ids.pop();
        let text = tokenizer.decode(&ids, false);
        assert!(text.starts_with("a ") && text.ends_with('\u{fffd}'), "{}: {text:?}", case.name);
        let mut decoder = StreamDecoder::new(false);
        let held_back = decoder.push(&tokenizer, &ids);
        assert_eq!(held_back, "a ");
        assert_eq!(held_back + &decoder.finish(), text);
    }
}

#[test]
fn byte_tokens_that_are_no_character_leave_their_neighbours_alone() {
    let tokenizer = Case { name: "", golden: "", vocab_size: 512, files: folder("stories260K") }.build();
    let byte = |byte: u8| tokenizer.token_to_id(&format!("<0x{byte:02X}>")).unwrap();
    let text = |bytes: &[u8]| tokenizer.decode(&bytes.iter().map(|&b| byte(b)).collect::<Vec<_>>(), false);
    assert_eq!(text("é字".as_bytes()), "é字");
    assert_eq!(text(b"\xe5\xad"), "\u{fffd}\u{fffd}");
    assert_eq!(text(b"\xffA\xe5\xad\x97"), "\u{fffd}A字");
    // A token of text ends the bytes before it.
    let a = tokenizer.encode("a", false).unwrap()[0];
    assert_eq!(tokenizer.decode(&[byte(0xe5), a, byte(0xad)], false), "\u{fffd} a\u{fffd}");
}

#[test]
fn a_continuation_keeps_the_space_before_its_first_word() {
    let tokenizer = Case { name: "", golden: "", vocab_size: 512, files: folder("stories260K") }.build();
    let ids = tokenizer.encode("there was", false).unwrap();
    assert_eq!(tokenizer.decode(&ids, false), "there was");
    assert_eq!(stream(&tokenizer, &ids, &[], StreamDecoder::continuing(false)), " there was");
}

#[test]
fn a_llama_3_tokenizer_keeps_whole_words_and_adds_bos() {
    // "Ġab" can only be had as a whole word: no merge leads to it.
    let tokens = ["a", "b", "Ġ", "1", "2", "3", "4", "12", "123", "Ġab", "<|begin_of_text|>", "<|eot_id|>"];
    let files = |pre: &str| {
        let mut gguf = read_gguf(&shared("models/stories260K/stories260K-q8_0.gguf")).0;
        gguf.model = "gpt2".to_owned();
        gguf.pre = Some(pre.to_owned());
        gguf.tokens = tokens.iter().map(ToString::to_string).collect();
        gguf.token_types = tokens.iter().map(|token| if token.starts_with('<') { 3 } else { 1 }).collect();
        gguf.scores = Vec::new();
        gguf.merges = vec!["1 2".to_owned(), "12 3".to_owned()];
        (gguf.bos_token_id, gguf.eos_token_id, gguf.add_bos) = (Some(10), None, None);
        TokenizerFiles::Gguf(gguf)
    };
    let model = ModelTokens { vocab_size: tokens.len(), bos_token_id: None, eos_token_ids: &[] };
    let build = |pre: &str| Tokenizer::from_files(&files(pre), model);
    let llama3 = build("llama-bpe").unwrap();
    assert_eq!(llama3.encode(" ab1234<|eot_id|>", llama3.adds_bos()).unwrap(), [10, 9, 8, 6, 11]);
    assert_eq!(llama3.end_ids(), [11]);
    assert_eq!(build("gpt-2").unwrap().encode(" ab1234", false).unwrap(), [2, 0, 1, 8, 6]);
    assert_eq!(build("smollm").unwrap().encode(" ab1234", false).unwrap(), [2, 0, 1, 3, 4, 5, 6]);
    assert_eq!(build("qwen2").unwrap().encode("123", false).unwrap(), [3, 4, 5]);
    assert_eq!(build("default").unwrap().encode("1234", false).unwrap(), [8, 6]);
    let error = build("tekken").unwrap_err();
    assert_eq!(error.code(), ErrorCode::UnsupportedModel);
    assert!(error.to_string().contains("\"tekken\"") && error.to_string().contains("qwen2"), "{error}");
}

#[test]
fn sentencepiece_metadata_decides_about_spaces() {
    let build = |prefix: Option<bool>, remove: Option<bool>| {
        let mut gguf = read_gguf(&shared("models/stories260K/stories260K-q8_0.gguf")).0;
        (gguf.add_space_prefix, gguf.remove_extra_whitespaces) = (prefix, remove);
        Case { name: "", golden: "", vocab_size: 512, files: TokenizerFiles::Gguf(gguf) }.build()
    };
    let round = |tokenizer: &Tokenizer, text: &str| {
        let ids = tokenizer.encode(text, false).unwrap();
        (ids.iter().map(|&id| tokenizer.id_to_token(id).unwrap()).collect::<String>(), tokenizer.decode(&ids, false))
    };
    let both = |written: &str, read: &str| (written.to_owned(), read.to_owned());
    assert_eq!(round(&build(None, None), " a  b "), both("▁▁a▁▁b▁", " a  b "));
    assert_eq!(round(&build(Some(false), None), " a  b "), both("▁a▁▁b▁", " a  b "));
    assert_eq!(round(&build(None, Some(true)), "  a   b c "), both("▁a▁b▁c", "a b c"));
}

#[test]
fn a_tokenizer_that_does_not_fit_the_model_is_refused() {
    let files = folder("stories260K");
    let error = Tokenizer::from_files(&files, ModelTokens { vocab_size: 500, bos_token_id: None, eos_token_ids: &[] });
    assert_eq!(error.unwrap_err().code(), ErrorCode::ShapeMismatch);
}

#[test]
fn ids_of_the_model_configuration_are_used_where_the_files_name_none() {
    let TokenizerFiles::Json(mut files) = folder("stories260K") else { unreachable!() };
    (files.add_bos, files.bos_token, files.eos_token) = (Some(false), None, None);
    let model = ModelTokens { vocab_size: 512, bos_token_id: Some(7), eos_token_ids: &[2, 1, 2, 9999] };
    let tokenizer = Tokenizer::from_files(&TokenizerFiles::Json(files), model).unwrap();
    assert_eq!(tokenizer.bos_id(), Some(1), "the post-processor names it");
    assert!(!tokenizer.adds_bos());
    assert_eq!(tokenizer.end_ids(), [1, 2]);
}
