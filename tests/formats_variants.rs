//! The forms in which one model can come, and the files that have to be refused, each with the right code.

mod model_files;

use draftree::error::ErrorCode;
use draftree::model::inspect::inspect;
use draftree::model::{Architecture, MemorySource, RopeScaling, TokenizerFiles, Vector};
use model_files::load;
use model_files::tiny::{self, Folder, Gguf, GgufTensor};
use serde_json::json;

#[test]
fn both_files_of_both_families_give_identical_bits() {
    for (family, architecture) in [("llama", Architecture::Llama), ("qwen2", Architecture::Qwen2)] {
        let (gguf, from_gguf) = load(&Gguf::tiny(family).source()).unwrap();
        let (folder, from_folder) = load(&Folder::tiny(family).source()).unwrap();
        assert_eq!(from_gguf, from_folder, "{family}");
        assert_eq!(gguf.config, folder.config, "{family}");
        assert_eq!(gguf.config.architecture, architecture);
        assert_eq!(gguf.config.eos_token_ids, [1, 2, 5]);
        assert_eq!(gguf.config.tie_word_embeddings, family == "llama");
        assert_eq!(gguf.config.attention_bias, family == "qwen2");
    }
}

#[test]
fn qkv_bias_is_in_the_order_of_the_rows() {
    let (_, collected) = load(&Folder::tiny("qwen2").source()).unwrap();
    let weights = tiny::weights("qwen2");
    let bias = |name: &str| &weights[&format!("model.layers.0.self_attn.{name}_proj.bias")].1;
    let fused = &collected.vectors[&Vector::QkvBias(0)];
    assert_eq!(fused.len(), 2 * 16 + 16 + 16);
    assert_eq!(&fused[..4], [bias("q")[0], bias("q")[8], bias("q")[1], bias("q")[9]]);
    assert_eq!(fused[16], bias("q")[16], "the second head");
    assert_eq!(&fused[32..34], [bias("k")[0], bias("k")[8]]);
    assert_eq!(&fused[48..], bias("v"));
}

#[test]
fn every_spelling_of_the_configuration_is_read() {
    let scaling = json!({ "type": "linear", "rope_type": "linear", "factor": 2.0 });
    let llama3 = json!({ "rope_type": "llama3", "rope_theta": 500_000.0, "factor": 8, "low_freq_factor": 1,
        "high_freq_factor": 4, "original_max_position_embeddings": 32 });
    let config = |folder: Folder| load(&folder.source()).unwrap().0.config;
    let base = || Folder::tiny("llama");

    assert_eq!(config(base()).rope_theta, 10_000.0);
    assert_eq!(config(base().set("rope_theta", json!(5000))).rope_theta, 5000.0);
    assert_eq!(config(base().set("rope_scaling", scaling)).rope_scaling, Some(RopeScaling::Linear { factor: 2.0 }));
    let new = config(base().set("rope_parameters", llama3));
    assert_eq!(new.rope_theta, 500_000.0);
    let original_max_position_embeddings = 32;
    let expected = RopeScaling::Llama3 {
        factor: 8.0,
        low_freq_factor: 1.0,
        high_freq_factor: 4.0,
        original_max_position_embeddings,
    };
    assert_eq!(new.rope_scaling, Some(expected));
    let default = json!({ "rope_type": "default", "rope_theta": 7.0 });
    assert_eq!(config(base().set("rope_parameters", default)).rope_theta, 7.0);

    let generation = json!({ "eos_token_id": [2, 4], "bos_token_id": 1 }).to_string();
    assert_eq!(config(base().file("generation_config.json", generation)).eos_token_ids, [1, 2, 4, 5]);
    assert_eq!(config(base().set("eos_token_id", json!([3, 2]))).eos_token_ids, [1, 2, 3, 5]);
    let no_ids = base().set("eos_token_id", json!(null)).set("bos_token_id", json!(-1));
    assert_eq!((config(no_ids.clone()).eos_token_ids, config(no_ids).bos_token_id), (vec![2, 5], None));
}

#[test]
fn the_chat_template_is_found_wherever_it_is() {
    let template = |folder: Folder| load(&folder.source()).unwrap().0.chat_template;
    let configured = |value: serde_json::Value| {
        let config = json!({ "chat_template": value, "bos_token": { "content": "<s>" }, "add_bos_token": true });
        Folder::tiny("llama").file("tokenizer_config.json", config.to_string())
    };
    assert_eq!(template(Folder::tiny("llama")), None);
    assert_eq!(template(configured(json!("one"))).as_deref(), Some("one"));
    let named = json!([{ "name": "tools", "template": "two" }, { "name": "default", "template": "three" }]);
    assert_eq!(template(configured(named)).as_deref(), Some("three"));
    assert_eq!(template(configured(json!("one")).file("chat_template.jinja", "four")).as_deref(), Some("four"));
    let checkpoint = load(&configured(json!("one")).source()).unwrap().0;
    assert_eq!(checkpoint.bos_text.as_deref(), Some("<s>"));
    assert!(matches!(checkpoint.tokenizer, TokenizerFiles::Json(json) if json.add_bos == Some(true)));
}

#[test]
fn a_model_in_several_files_is_one_model() {
    let whole = load(&Folder::tiny("qwen2").source()).unwrap().1;
    let mut first = tiny::weights("qwen2");
    let second = first.split_off("model.layers.0.self_attn.k_proj.weight");
    let name = |number: usize| format!("model-0000{number}-of-00002.safetensors");
    let mut map = serde_json::Map::new();
    for (number, part) in [(1, &first), (2, &second)] {
        map.extend(part.keys().map(|tensor| (tensor.clone(), json!(name(number)))));
    }
    let parts = Folder::tiny("qwen2")
        .without("model.safetensors")
        .file(&name(1), tiny::safetensors(&first))
        .file(&name(2), tiny::safetensors(&second));
    assert_eq!(load(&parts.source()).unwrap().1, whole, "without an index");
    let index = json!({ "weight_map": map }).to_string();
    let indexed = parts.file("model.safetensors.index.json", index).file("other.safetensors", "not part of the model");
    assert_eq!(load(&indexed.source()).unwrap().1, whole, "with an index");
    let error = load(&indexed.without(&name(2)).source()).unwrap_err();
    assert_eq!(error.code(), ErrorCode::LoadFailed, "{error}");
}

#[test]
fn llama_3_factors_of_a_gguf_divide_the_frequencies() {
    let factors: Vec<u8> = (1..=8).flat_map(|factor| (factor as f32).to_le_bytes()).collect();
    let tensor = GgufTensor { name: "rope_freqs.weight".to_owned(), shape: vec![8], type_id: 0, data: factors };
    let plain = load(&Gguf::tiny("llama").source()).unwrap().0.config.inverse_frequencies();
    let scaled = load(&Gguf::tiny("llama").with(tensor).source()).unwrap().0.config.inverse_frequencies();
    for (i, (scaled, plain)) in scaled.iter().zip(&plain).enumerate() {
        assert!((scaled * (i + 1) as f32 / plain - 1.0).abs() < 1e-6);
    }
}

#[test]
fn every_kind_of_metadata_is_read() {
    let nested = |depth: u64| {
        (1..depth).fold(array_of_bytes(), |inner, _| tiny::array(9, 1, &inner[4..])) // the element's own type is left out
    };
    let numbers = [(0, 1), (1, 1), (2, 2), (3, 2), (7, 1), (10, 8), (11, 8), (12, 8)];
    let mut gguf = Gguf::tiny("llama");
    for (type_id, bytes) in numbers {
        let value = [&u32::to_le_bytes(type_id)[..], &vec![1; bytes]].concat();
        gguf = gguf.set(&format!("test.number.{type_id}"), value);
        gguf = gguf.set(&format!("test.array.{type_id}"), tiny::array(type_id, 3, &vec![1; 3 * bytes]));
    }
    let read = |gguf: &Gguf| load(&gguf.source()).map(|_| ()).map_err(|error| error.code());
    assert_eq!(read(&gguf), Ok(()));
    assert_eq!(read(&gguf.clone().set("test.nested", nested(4))), Ok(()));
    assert_eq!(read(&gguf.clone().set("test.nested", nested(5))), Err(ErrorCode::BadModelFile));
    gguf.version = 2;
    assert_eq!(read(&gguf), Ok(()));
    let sizes: Vec<u8> = [tiny::FFN as u32].iter().flat_map(|size| size.to_le_bytes()).collect();
    assert_eq!(read(&gguf.set("llama.feed_forward_length", tiny::array(4, 1, &sizes))), Ok(()));
}

fn array_of_bytes() -> Vec<u8> {
    tiny::array(0, 2, &[1, 2])
}

#[test]
fn damaged_and_foreign_gguf_files_are_refused_with_the_right_code() {
    use ErrorCode as E;
    let base = || Gguf::tiny("llama");
    let damage = |change: &dyn Fn(&mut Vec<u8>)| {
        let mut bytes = base().bytes();
        change(&mut bytes);
        MemorySource::new([("tiny.gguf", bytes)])
    };
    let norm = "blk.0.attn_norm.weight";
    let twice = |gguf: Gguf| gguf.clone().with(gguf.tensors[0].clone());
    let extra = |name: &str| GgufTensor { name: name.to_owned(), shape: vec![1], type_id: 0, data: vec![0; 4] };
    let cases = [
        ("wrong magic", damage(&|bytes| bytes[0] = b'X'), E::BadModelFile, "GGUF"),
        ("a web page", MemorySource::new([("m.gguf", b"<!DOCTYPE html>".to_vec())]), E::BadModelFile, "web page"),
        ("version 1", damage(&|bytes| bytes[4] = 1), E::UnsupportedModel, "version 1"),
        ("big-endian", damage(&|bytes| bytes[4..8].copy_from_slice(&[0, 0, 0, 3])), E::UnsupportedModel, "big-endian"),
        ("truncated", damage(&|bytes| bytes.truncate(bytes.len() - 40)), E::TruncatedFile, "download it again"),
        ("empty", damage(&|bytes| bytes.clear()), E::TruncatedFile, "only 0 bytes"),
        ("a tensor missing", base().without("blk.0.ffn_up.weight").source(), E::MissingTensor, "blk.0.ffn_up.weight"),
        ("a norm missing", base().without(norm).source(), E::MissingTensor, "[32]"),
        (
            "another shape",
            base().tensor(norm, |t| t.shape = vec![16]).source(),
            E::ShapeMismatch,
            "[16], expected [32]",
        ),
        ("another size", base().set("llama.embedding_length", tiny::number(64)).source(), E::ShapeMismatch, "[6, 64]"),
        ("a quantisation", base().tensor(norm, |t| t.type_id = 20).source(), E::UnsupportedModel, "IQ4_NL"),
        ("a future type", base().tensor(norm, |t| t.type_id = 999).source(), E::UnsupportedModel, "ggml type 999"),
        ("no family", base().without("general.architecture").source(), E::BadModelFile, "general.architecture"),
        ("a family", Gguf::tiny("mamba").source(), E::UnsupportedModel, "\"mamba\""),
        ("experts", base().set("llama.expert_count", tiny::number(8)).source(), E::UnsupportedModel, "8 experts"),
        ("a scaling", base().set("llama.rope.scaling.type", tiny::text("yarn")).source(), E::UnsupportedModel, "yarn"),
        ("part rotation", base().set("llama.rope.dimension_count", tiny::number(8)).source(), E::UnsupportedModel, "8"),
        ("no tokenizer", base().without("tokenizer.ggml.tokens").source(), E::BadTokenizer, "no tokenizer"),
        ("a setting", base().without("llama.block_count").source(), E::BadModelFile, "llama.block_count"),
        ("no layers", base().set("llama.block_count", tiny::number(0)).source(), E::BadModelFile, "num_hidden_layers"),
        ("heads", base().set("llama.attention.head_count_kv", tiny::number(3)).source(), E::ShapeMismatch, "multiple"),
        (
            "a kind",
            base().set("llama.block_count", tiny::text("one")).source(),
            E::BadModelFile,
            "expected an unsigned",
        ),
        ("an end token", base().set("tokenizer.ggml.eos_token_id", tiny::number(6)).source(), E::ShapeMismatch, "id 6"),
        ("a tensor twice", twice(base()).source(), E::BadModelFile, "appears twice"),
        ("an extra bias", base().with(extra("blk.0.attn_output.bias")).source(), E::UnsupportedModel, "output.bias"),
        ("alignment", base().set("general.alignment", tiny::number(24)).source(), E::BadModelFile, "power of two"),
    ];
    for (what, source, code, words) in cases {
        let error = load(&source).expect_err(what);
        assert_eq!(error.code(), code, "{what}: {error}");
        assert!(error.to_string().contains(words), "{what}: {error}");
    }
}

#[test]
fn damaged_and_foreign_folders_are_refused_with_the_right_code() {
    use ErrorCode as E;
    let base = || Folder::tiny("llama");
    let weights = |change: &dyn Fn(&mut Vec<u8>)| {
        let mut folder = base();
        change(folder.files.get_mut("model.safetensors").unwrap());
        folder
    };
    let mut incomplete = tiny::weights("llama");
    incomplete.remove("model.norm.weight");
    let incomplete = base().file("model.safetensors", tiny::safetensors(&incomplete));
    let gptq = json!({ "quant_method": "gptq", "bits": 4 });
    let cases = [
        ("no tokenizer", base().without("tokenizer.json"), E::BadTokenizer, "tokenizer.json"),
        ("a damaged tokenizer", base().file("tokenizer.json", "{"), E::BadTokenizer, "tokenizer.json"),
        ("no weights", base().without("model.safetensors"), E::BadModelFile, "no weights"),
        ("a tensor missing", incomplete, E::MissingTensor, "model.norm.weight"),
        ("truncated", weights(&|bytes| bytes.truncate(bytes.len() - 1)), E::TruncatedFile, "download it again"),
        ("too long", weights(&|bytes| bytes.push(0)), E::BadModelFile, "by its header"),
        ("a damaged header", weights(&|bytes| bytes[8] = b'x'), E::BadModelFile, "safetensors header"),
        ("a huge header", weights(&|bytes| bytes[7] = 255), E::BadModelFile, "expected at most"),
        ("a family", base().set("model_type", json!("mamba")), E::UnsupportedModel, "mamba"),
        (
            "a class",
            base().set("architectures", json!(["LlamaForTokenClassification"])),
            E::UnsupportedModel,
            "expected Ll",
        ),
        ("an activation", base().set("hidden_act", json!("gelu")), E::UnsupportedModel, "gelu"),
        ("a scaling", base().set("rope_scaling", json!({ "type": "yarn", "factor": 4 })), E::UnsupportedModel, "yarn"),
        ("a quantisation", base().set("quantization_config", gptq), E::UnsupportedModel, "gptq"),
        ("a setting", base().set("hidden_size", json!(null)), E::BadModelFile, "hidden_size"),
        ("a kind", base().set("hidden_size", json!("x")), E::BadModelFile, "config.json"),
        ("another size", base().set("intermediate_size", json!(64)), E::ShapeMismatch, "expected [64, 32]"),
        ("an untied head", base().set("tie_word_embeddings", json!(false)), E::MissingTensor, "lm_head.weight"),
        ("biases", base().set("attention_bias", json!(true)), E::MissingTensor, "q_proj.bias"),
    ];
    for (what, folder, code, words) in cases {
        let error = load(&folder.source()).expect_err(what);
        assert_eq!(error.code(), code, "{what}: {error}");
        assert!(error.to_string().contains(words), "{what}: {error}");
    }
}

#[test]
fn files_that_are_no_one_model_are_refused() {
    let file = |name: &str| (name.to_owned(), Gguf::tiny("llama").bytes());
    let cases = [
        (vec![], "no model"),
        (vec![file("a.gguf"), file("b.gguf")], "choose one"),
        (vec![file("m-00001-of-00002.gguf"), file("m-00002-of-00002.gguf")], "merged"),
        (vec![("model.safetensors".to_owned(), vec![])], "config.json"),
    ];
    for (files, words) in cases {
        let error = load(&MemorySource::new(files)).unwrap_err();
        assert_eq!(error.code(), ErrorCode::BadModelFile);
        assert!(error.to_string().contains(words), "{error}");
    }
    load(&MemorySource::new([("download", Gguf::tiny("llama").bytes())])).unwrap();
    load(&MemorySource::new([("folder/tiny.gguf", Gguf::tiny("llama").bytes()), ("README.md", vec![])])).unwrap();
}

#[test]
fn inspection_reports_models_that_run_and_why_others_do_not() {
    let report = |source: &MemorySource| pollster::block_on(inspect(source)).unwrap();
    let runs = report(&Gguf::tiny("qwen2").source());
    let text = runs.to_string();
    for line in ["GGUF v3, architecture qwen2", "blk.0.ffn_up.weight", "[96, 32]", "supported: yes", "[6 texts]"] {
        assert!(text.contains(line), "{line} in {text}");
    }
    assert_eq!(runs.totals().values().map(|total| total.tensors).sum::<usize>(), 15);

    let gemma = report(&Gguf::tiny("gemma3").source());
    assert_eq!(gemma.verdict.as_ref().unwrap_err().code(), ErrorCode::UnsupportedModel);
    assert!(gemma.to_string().contains("supported: no (unsupported_model)"), "{gemma}");
    assert!(gemma.to_string().contains("blk.0.attn_q.weight"));

    let quantised = Gguf::tiny("llama").tensor("blk.0.attn_norm.weight", |tensor| tensor.type_id = 20);
    assert!(report(&quantised.source()).to_string().contains("IQ4_NL"));

    let folder = report(&Folder::tiny("llama").source());
    assert!(folder.to_string().contains("supported: yes"), "{folder}");
}
