//! Draft heads: the files they come in, what is refused, and where their matrices go.

#![allow(clippy::unwrap_used)] // also in the helpers of tests

mod harness;

use std::cell::Cell;

use draftree::error::{ErrorCode, Result};
use draftree::model::heads::{DraftHeads, HeadForm, HeadMatrix, HeadOutput, Naming, Taps, head_layouts, stream_heads};
use draftree::model::heads::{HeadVector, model_identity};
use draftree::model::quantize::{dequantize, quantize};
use draftree::model::{
    ByteSource, Checkpoint, FileEntry, HeadFile, Matrix, MemorySource, PackedFormat, TensorType, Vector,
};
use harness::heads::{File, Heads, Tensor};
use harness::model_files::Collected;
use harness::model_files::tiny::{self, Folder, HIDDEN, VOCAB};
use harness::{heads, synthetic};
use pollster::block_on;

fn tiny_model() -> Checkpoint {
    harness::open(&Folder::tiny("qwen2").source())
}

fn open(file: &File) -> Result<HeadFile> {
    block_on(HeadFile::open(&file.source()))
}

/// Opened, fitted to the tiny model and streamed.
fn collect(file: &File) -> Result<(HeadFile, DraftHeads, Collected)> {
    let (model, source) = (tiny_model(), Folder::tiny("qwen2").source());
    let opened = open(file)?;
    let fitted = opened.fit(&model)?;
    let mut collected = Collected::default();
    let mut last = (0, 0);
    let mut progress = |done, total| last = (done, total);
    block_on(stream_heads((&opened, &fitted, &file.source()), (&model, &source), &mut collected, &mut progress))?;
    assert_eq!(last.0, last.1, "progress reaches its end");
    for (matrix, layout) in head_layouts(&opened, &fitted, &model)? {
        assert_eq!(collected.matrices[&matrix].0, layout, "{matrix:?}");
    }
    Ok((opened, fitted, collected))
}

/// A tensor of which every value tells where it is from.
fn numbered(shape: &[usize], first: f32) -> Tensor {
    let values: Vec<f32> = (0..shape.iter().product()).map(|i| first + i as f32 * 0.125).collect();
    Tensor::f32(shape, &values)
}

fn block(number: f32) -> Tensor {
    numbered(&[HIDDEN, HIDDEN], number)
}

fn bias(number: f32) -> Tensor {
    numbered(&[HIDDEN], number)
}

fn output(number: f32) -> Tensor {
    numbered(&[VOCAB, HIDDEN], number)
}

/// FasterDecoding's v0.1, as TGI reads it too.
fn medusa(count: usize, layers: usize, prefix: &str) -> File {
    let mut file = File::default();
    for head in 0..count {
        for layer in 0..layers {
            let number = (head * 10 + layer) as f32;
            file = file
                .with(&format!("{prefix}{head}.{layer}.linear.weight"), block(number))
                .with(&format!("{prefix}{head}.{layer}.linear.bias"), bias(100.0 + number));
        }
        file = file.with(&format!("{prefix}{head}.{layers}.weight"), output(200.0 + head as f32));
    }
    file
}

fn compact() -> File {
    File::default()
        .word("format", "draftree-heads")
        .word("version", "1")
        .with("blocks.0.0.weight", block(0.0))
        .with("blocks.0.0.bias", bias(1.0))
        .with("blocks.1.0.weight", block(2.0))
        .with("blocks.1.0.bias", bias(3.0))
}

#[test]
fn every_published_form_is_read_and_counted_by_its_tensors() {
    let check = |what: &str, file: File, naming: Naming, (depths, layers): (usize, usize), output: HeadOutput| {
        let (opened, fitted, collected) = collect(&file).unwrap_or_else(|error| panic!("{what}: {error}"));
        assert_eq!((opened.naming, fitted.depths, fitted.layers), (naming, depths, layers), "{what}");
        assert_eq!((fitted.output, fitted.form), (output, HeadForm::Parallel), "{what}");
        assert_eq!((fitted.draft_vocab, &fitted.warning), (VOCAB, &None), "{what}");
        let (trunk, _) = collected.matrices[&Matrix::Heads(HeadMatrix::Trunk)];
        assert_eq!((trunk.rows, trunk.cols), (depths * HIDDEN, HIDDEN), "{what}");
    };
    let own = HeadOutput::Own;
    check("Medusa v0.1", medusa(5, 1, ""), Naming::Medusa, (5, 1), own);
    check("two layers", medusa(2, 2, ""), Naming::Medusa, (2, 2), own);
    check("MLC", medusa(4, 1, "medusa_head."), Naming::Medusa, (4, 1), own);
    let version_2 = medusa(3, 1, "").without("0.1.weight").without("1.1.weight").without("2.1.weight");
    check("version 2", version_2, Naming::Medusa, (3, 1), HeadOutput::Target);

    let model_opt = |head: usize| format!("medusa_heads.{head}");
    let mut file = File::default();
    for head in 0..3 {
        file = file
            .with(&format!("{}.medusa_layers.0.linear.weight", model_opt(head)), block(0.0))
            .with(&format!("{}.medusa_layers.0.linear.bias", model_opt(head)), bias(0.0))
            .with(&format!("{}.lm_head.weight", model_opt(head)), output(0.0));
    }
    check("ModelOpt", file, Naming::ModelOpt, (3, 1), own);

    for prefix in ["", "medusa_heads."] {
        let name = |name: &str| format!("{prefix}{name}");
        let blocks = || {
            (0..2).fold(File::default(), |file, head| {
                file.with(&name(&format!("blocks.{head}.layers.0.weight")), block(0.0))
                    .with(&name(&format!("blocks.{head}.layers.1.weight")), block(0.0))
            })
        };
        let heads =
            blocks().with(&name("lm_heads.0.weight"), output(0.0)).with(&name("lm_heads.1.weight"), output(0.0));
        check("vLLM", heads, Naming::Vllm, (2, 2), own);
        let shared = blocks().with(&name("lm_head.weight"), output(0.0));
        check("vLLM, one output", shared, Naming::Vllm, (2, 2), HeadOutput::Shared);
        let first = blocks().with(&name("lm_heads.0.weight"), output(0.0));
        check("vLLM, the first output for all", first, Naming::Vllm, (2, 2), HeadOutput::Shared);
    }
    check("draftree", compact(), Naming::Draftree, (2, 1), HeadOutput::Target);
    let shared = compact().with("head.weight", output(0.0));
    check("draftree, with an output", shared, Naming::Draftree, (2, 1), HeadOutput::Shared);
}

#[test]
fn values_come_where_they_belong_in_every_float_type() {
    let (_, _, collected) = collect(&medusa(2, 2, "")).unwrap();
    let trunk = collected.unpack(Matrix::Heads(HeadMatrix::Trunk));
    assert_eq!((trunk[0], trunk[1], trunk[HIDDEN * HIDDEN]), (0.0, 0.125, 10.0));
    let later = |head| collected.unpack(Matrix::Heads(HeadMatrix::Block { head, layer: 1 }))[0];
    assert_eq!((later(0), later(1)), (1.0, 11.0));
    assert_eq!(collected.unpack(Matrix::Heads(HeadMatrix::Output(1)))[2], 201.25);
    let trunk_bias = &collected.vectors[&Vector::Heads(HeadVector::TrunkBias)];
    assert_eq!((trunk_bias.len(), trunk_bias[0], trunk_bias[HIDDEN]), (2 * HIDDEN, 100.0, 110.0));
    let later = &collected.vectors[&Vector::Heads(HeadVector::BlockBias { head: 1, layer: 1 })];
    assert_eq!(later[..2], [111.0, 111.125]);

    let values: Vec<f32> = (0..HIDDEN * HIDDEN).map(|i| (i % 64) as f32).collect();
    let shape = [HIDDEN, HIDDEN];
    for (tensor, format) in [
        (Tensor::f32(&shape, &values), PackedFormat::F32),
        (Tensor::f16(&shape, &values), PackedFormat::F16),
        (Tensor::bf16(&shape, &values), PackedFormat::Bf16),
    ] {
        let file = File::default().with("0.0.linear.weight", tensor);
        let (_, _, collected) = collect(&file).unwrap();
        assert_eq!(collected.matrices[&Matrix::Heads(HeadMatrix::Trunk)].0.format, format);
        assert_eq!(collected.unpack(Matrix::Heads(HeadMatrix::Trunk)), values);
        assert!(collected.vectors.is_empty(), "no bias");
    }
}

/// Heads that fuse the output of the tiny model's one layer.
fn fused() -> File {
    compact()
        .word("taps", "[0]")
        .with("fusion.weight", numbered(&[HIDDEN, 2 * HIDDEN], 40.0))
        .with("fusion.bias", bias(50.0))
}

#[test]
fn layers_to_fuse_are_named_by_the_file_and_their_matrix_comes_as_it_is() {
    let (opened, fitted, collected) = collect(&fused()).unwrap();
    assert_eq!((opened.taps, fitted.taps.layers().collect::<Vec<_>>()), (Taps::new(&[0]).unwrap(), vec![0]));
    assert!(fitted.reads_more() && opened.to_string().contains("layers fused"));
    assert_eq!(collected.unpack(Matrix::Heads(HeadMatrix::Fusion))[..2], [40.0, 40.125]);
    assert_eq!(collected.vectors[&Vector::Heads(HeadVector::FusionBias)][..2], [50.0, 50.125]);
    let (_, plain, collected) = collect(&compact()).unwrap();
    assert!(!plain.reads_more() && !collected.matrices.contains_key(&Matrix::Heads(HeadMatrix::Fusion)));
    let (_, _, collected) = collect(&fused().quantised(TensorType::Q8_0)).unwrap();
    assert_eq!(collected.matrices[&Matrix::Heads(HeadMatrix::Fusion)].0.format, PackedFormat::Q8);
}

#[test]
fn fusion_that_contradicts_the_layers_named_is_refused() {
    use ErrorCode::{BadModelFile, MissingTensor, ShapeMismatch, UnsupportedModel};
    check_fault("no bias", &fused().without("fusion.bias"), MissingTensor, &["fusion.bias", "[32]"]);
    check_fault("no matrix", &fused().without("fusion.weight"), MissingTensor, &["fusion.weight", "[32, 64]"]);
    let wide = fused().word("taps", "[0,1]");
    check_fault("two layers", &wide, ShapeMismatch, &["fusion.weight", "[32, 64]", "[32, 96]"]);
    check_fault("no such layer", &fused().word("taps", "[1]"), ShapeMismatch, &["layer 1", "below 1", "another model"]);
    check_fault("no list", &fused().word("taps", "0"), BadModelFile, &["taps", "\"0\""]);
    let mut untold = fused();
    untold.metadata.remove("taps");
    check_fault("no layers", &untold, UnsupportedModel, &["fusion."]);
}

#[test]
fn what_looks_at_the_context_comes_as_it_is_or_is_refused() {
    use ErrorCode::{BadModelFile, MissingTensor, ShapeMismatch, UnsupportedModel};
    let model = synthetic::Model::WIDE;
    let source = model.source();
    let kind = Heads { context: Some(1), noise: 0.5, ..Heads::default() };
    let file = heads::file(&source, kind);
    let read = |file: &File| {
        let (checkpoint, opened) = (harness::open(&source), open(file)?);
        let fitted = opened.fit(&checkpoint)?;
        let mut collected = Collected::default();
        block_on(stream_heads(
            (&opened, &fitted, &file.source()),
            (&checkpoint, &source),
            &mut collected,
            &mut |_, _| {},
        ))?;
        Ok::<_, draftree::error::Error>((fitted, collected))
    };
    let (fitted, collected) = read(&file).unwrap();
    assert!(fitted.context_layer == Some(1) && fitted.reads_more());
    let shape = |matrix| {
        let (layout, _) = collected.matrices[&Matrix::Heads(matrix)];
        (layout.rows, layout.cols)
    };
    let (hidden, query) = (model.hidden, model.heads * model.head_dim);
    assert_eq!(shape(HeadMatrix::ContextQuery), (query, hidden));
    assert_eq!(shape(HeadMatrix::Context), (hidden, hidden + query));
    assert_eq!(collected.vectors[&Vector::Heads(HeadVector::ContextBias)].len(), hidden);
    let refused = |what: &str, file: &File, code: ErrorCode, words: &[&str]| {
        let error = read(file).map(|_| ()).expect_err(what);
        assert!(error.code() == code && words.iter().all(|word| error.to_string().contains(word)), "{what}: {error}");
    };
    refused("no bias", &file.clone().without("context.bias"), MissingTensor, &["context.bias"]);
    refused("no queries", &file.clone().without("context.query.weight"), MissingTensor, &["context.query.weight"]);
    let narrow = file.clone().with("context.weight", numbered(&[hidden, hidden], 0.0));
    refused("no place for attention", &narrow, ShapeMismatch, &["context.weight", "[256, 256]", "[256, 512]"]);
    refused(
        "no such layer",
        &file.clone().word("context_layer", "2"),
        ShapeMismatch,
        &["context_layer is 2", "below 2"],
    );
    refused("no number", &file.clone().word("context_layer", "last"), BadModelFile, &["context_layer", "last"]);
    let mut untold = file.clone();
    untold.metadata.remove("context_layer");
    refused("no layer", &untold, UnsupportedModel, &["context."]);
    let other = synthetic::Model { heads: 4, ..model }.source();
    refused("other queries", &heads::file(&other, kind), ShapeMismatch, &["context.query.weight", "128 rows", "256"]);
    let ragged = synthetic::Model::RAGGED.source();
    let error = open(&heads::file(&ragged, kind)).unwrap().fit(&harness::open(&ragged)).unwrap_err();
    assert!(error.code() == UnsupportedModel && error.to_string().contains("multiple of 64, found 96"), "{error}");
}

#[test]
fn quantised_matrices_of_our_own_format_come_as_their_values() {
    let file = compact().with("head.weight", output(-3.0)).with("token_map", Tensor::ids("I32", &[0, 1, 2, 3, 4, 5]));
    for (ty, format) in [
        (TensorType::Q8_0, PackedFormat::Q8),
        (TensorType::Q4_0, PackedFormat::Q4),
        (TensorType::Q4_1, PackedFormat::Q4),
    ] {
        let (opened, fitted, collected) = collect(&file.clone().quantised(ty)).unwrap();
        assert_eq!((fitted.draft_vocab, fitted.output), (VOCAB, HeadOutput::Shared));
        assert_eq!(opened.parameters(), (2 * (HIDDEN * HIDDEN + HIDDEN) + VOCAB * HIDDEN) as u64, "values, not bytes");
        let values: Vec<f32> = (0..VOCAB * HIDDEN).map(|i| -3.0 + i as f32 * 0.125).collect();
        let mut bytes = vec![0; ty.bytes_for(values.len() as u64).unwrap() as usize];
        let mut expected = vec![0.0; values.len()];
        quantize(ty, &values, &mut bytes).unwrap();
        dequantize(ty, &bytes, &mut expected).unwrap();
        let output = Matrix::Heads(HeadMatrix::Output(0));
        assert_eq!((collected.matrices[&output].0.format, collected.unpack(output)), (format, expected));
        assert_eq!(collected.matrices[&Matrix::Heads(HeadMatrix::Trunk)].0.format, format);
        let bias = &collected.vectors[&Vector::Heads(HeadVector::TrunkBias)];
        assert_eq!((bias[0], bias[HIDDEN]), (1.0, 3.0), "vectors stay floats");
    }
}

#[test]
fn quantised_matrices_that_contradict_their_type_are_refused() {
    use ErrorCode::{ShapeMismatch, UnsupportedModel};
    let file = || compact().quantised(TensorType::Q8_0);
    let key = "type.blocks.0.0.weight";
    check_fault("type", &file().word(key, "Q9_0"), UnsupportedModel, &[key, "Q9_0", "Q8_0", "Q4_1"]);
    check_fault("a float", &file().word(key, "F16"), UnsupportedModel, &[key, "F16"]);
    check_fault("other blocks", &file().word(key, "Q4_0"), ShapeMismatch, &["[32, 34]", "18", "Q4_0"]);
    check_fault("two blocks a row", &file().word(key, "Q5_1"), ShapeMismatch, &["blocks.0.0.weight", "24"]);
    let floats = file().with("blocks.0.0.weight", block(0.0));
    check_fault("floats", &floats, ShapeMismatch, &["F32", "Q8_0"]);
    let mut untold = file();
    untold.metadata.remove(key);
    check_fault("no type", &untold, UnsupportedModel, &["blocks.0.0.weight", "U8", key]);
    let bias = Tensor::quantised(TensorType::Q8_0, &[1, HIDDEN], &[0.5; HIDDEN]);
    let vector = file().with("blocks.0.0.bias", bias).word("type.blocks.0.0.bias", "Q8_0");
    check_fault("a vector", &vector, ShapeMismatch, &["blocks.0.0.bias", "[1, 32]", "[32]"]);
    let foreign = medusa(1, 1, "").quantised(TensorType::Q8_0);
    check_fault("another's format", &foreign, UnsupportedModel, &["U8"]);
}

#[test]
fn what_calibration_found_is_read_from_our_own_files_only() {
    let words = |file: File| file.word("trees", "[[0],[0,0],[1]]").word("calibration", "[[0.9,-0.1],[1.25,0]]");
    let opened = open(&words(compact())).unwrap();
    assert_eq!(opened.trees, [vec![0], vec![0, 0], vec![1]]);
    assert_eq!(
        opened.calibration.iter().map(|it| (it.slope, it.offset)).collect::<Vec<_>>(),
        [(0.9, -0.1), (1.25, 0.0)]
    );
    let foreign = open(&words(medusa(2, 1, ""))).unwrap();
    assert!(foreign.trees.is_empty() && foreign.calibration.is_empty());
    check_fault("trees", &compact().word("trees", "0 1 00"), ErrorCode::BadModelFile, &["trees", "0 1 00"]);
    let three = compact().word("calibration", "[[1,0],[1,0],[1,0]]");
    check_fault("depths", &three, ErrorCode::BadModelFile, &["calibration", "2 depths"]);
}

#[test]
fn a_configuration_that_lies_changes_nothing() {
    let config = br#"{"medusa_num_heads": 2, "medusa_num_layers": 7, "hidden_size": 1, "vocab_size": 1}"#;
    let files = [("config.json", config.to_vec()), ("medusa_lm_head.safetensors", medusa(5, 1, "").bytes())];
    let opened = block_on(HeadFile::open(&MemorySource::new(files))).unwrap();
    assert_eq!((opened.depths, opened.layers), (5, 1));
}

#[test]
fn a_medusa_1_0_model_is_both_a_model_and_heads() {
    let mut file = medusa(4, 1, "medusa_head.");
    for (name, (shape, values)) in tiny::weights("llama") {
        file = file.with(&name, Tensor::f32(&shape, &values));
    }
    file = file.with("lm_head.weight", output(0.0));
    let source = Folder::tiny("llama").file("model.safetensors", file.bytes()).source();
    assert_eq!(harness::open(&source).config.hidden_size, HIDDEN);
    let opened = block_on(HeadFile::open(&source)).unwrap();
    assert_eq!((opened.naming, opened.depths), (Naming::Medusa, 4));

    let beside = Folder::tiny("llama").file("medusa_lm_head.safetensors", medusa(2, 1, "").bytes()).source();
    assert_eq!(harness::open(&beside).config.hidden_size, HIDDEN);
    assert_eq!(block_on(HeadFile::open(&beside)).unwrap().depths, 2);

    let found = |source: &MemorySource| block_on(HeadFile::find(source)).unwrap().map(|heads| heads.depths);
    assert_eq!((found(&source), found(&beside)), (Some(4), Some(2)));
    assert_eq!(found(&Folder::tiny("llama").source()), None, "a model without heads");
    let gguf = ("m.gguf", tiny::Gguf::tiny("llama").bytes());
    assert_eq!(found(&MemorySource::new([gguf.clone()])), None);
    assert_eq!(found(&MemorySource::new([gguf.clone(), ("m.heads.safetensors", medusa(3, 1, "").bytes())])), Some(3));
    let damaged = MemorySource::new([gguf, ("m.heads.safetensors", b"<!doctype html>".to_vec())]);
    assert!(block_on(HeadFile::find(&damaged)).is_err(), "heads that cannot be read are not passed over");
}

fn check_fault(what: &str, file: &File, code: ErrorCode, words: &[&str]) {
    let error = collect(file).map(|_| ()).expect_err(what);
    assert_eq!(error.code(), code, "{what}: {error}");
    for word in words {
        assert!(error.to_string().contains(word), "{what}: {error:?} says {word:?}");
    }
}

#[test]
fn what_is_missing_is_named() {
    use ErrorCode::MissingTensor;
    check_fault(
        "block",
        &medusa(3, 1, "").without("1.0.linear.weight"),
        MissingTensor,
        &["1.0.linear.weight", "[32, 32]"],
    );
    check_fault("bias", &medusa(3, 1, "").without("2.0.linear.bias"), MissingTensor, &["2.0.linear.bias", "[32]"]);
    check_fault("output", &medusa(3, 1, "").without("0.1.weight"), MissingTensor, &["0.1.weight", "[6, 32]"]);
    let gap = medusa(2, 2, "").without("0.1.linear.weight").without("0.1.linear.bias");
    check_fault("layer", &gap, MissingTensor, &["0.1.linear.weight"]);
    check_fault("first block", &compact().without("blocks.0.0.weight"), MissingTensor, &["blocks.0.0.weight"]);
    let half = compact().with("correction.weight", numbered(&[VOCAB, 4], 0.0));
    check_fault("half of a correction", &half, MissingTensor, &["previous.weight"]);
    check_fault("nothing", &File::default().word("format", "draftree-heads"), MissingTensor, &["blocks.0.0.weight"]);
}

#[test]
fn what_is_misshapen_is_named_with_both_shapes() {
    use ErrorCode::ShapeMismatch;
    let wide = medusa(2, 1, "").with("1.0.linear.weight", numbered(&[HIDDEN, HIDDEN + 1], 0.0));
    check_fault("block", &wide, ShapeMismatch, &["1.0.linear.weight", "[32, 33]", "[32, 32]"]);
    let flat = medusa(2, 1, "").with("0.0.linear.weight", numbered(&[HIDDEN * HIDDEN], 0.0));
    check_fault("axes", &flat, ShapeMismatch, &["0.0.linear.weight", "[1024]"]);
    let bias = medusa(2, 1, "").with("0.0.linear.bias", numbered(&[1], 0.0));
    check_fault("bias", &bias, ShapeMismatch, &["0.0.linear.bias", "[1]", "[32]"]);
    let rows = medusa(2, 1, "").with("1.1.weight", numbered(&[VOCAB + 2, HIDDEN], 0.0));
    check_fault("other rows than the first", &rows, ShapeMismatch, &["1.1.weight", "[8, 32]", "[6, 32]"]);
    let narrow = File::default().with("0.0.linear.weight", numbered(&[64, 64], 0.0));
    check_fault("hidden size", &narrow, ShapeMismatch, &["0.0.linear.weight", "[64, 64]", "[32, 32]", "another model"]);
    let rank = compact()
        .with("previous.weight", numbered(&[VOCAB, 4], 0.0))
        .with("correction.weight", numbered(&[VOCAB, 5], 0.0));
    check_fault("rank", &rank, ShapeMismatch, &["correction.weight", "[6, 5]", "[6, 4]"]);
    let previous = compact()
        .with("previous.weight", numbered(&[VOCAB + 1, 4], 0.0))
        .with("correction.weight", numbered(&[VOCAB, 4], 0.0));
    check_fault("rows of the correction", &previous, ShapeMismatch, &["previous.weight", "[7, 4]", "6 rows"]);
    let form = compact().word("form", "recurrent");
    check_fault("form", &form, ShapeMismatch, &["blocks.0.0.weight", "[32, 64]"]);
    let empty = medusa(1, 1, "").with("0.1.weight", numbered(&[0, HIDDEN], 0.0));
    check_fault("no rows", &empty, ShapeMismatch, &["0.1.weight"]);
}

#[test]
fn token_maps_are_checked() {
    use ErrorCode::{ShapeMismatch, UnsupportedModel};
    let map = |ids: &[u32]| compact().with("token_map", Tensor::ids("I32", ids));
    check_fault("outside", &map(&[1, 6]), ShapeMismatch, &["token 6", "below 6"]);
    check_fault("twice", &map(&[1, 1]), ShapeMismatch, &["token 1 twice"]);
    check_fault("order", &map(&[2, 1]), ShapeMismatch, &["ascending"]);
    let negative = compact().with("token_map", Tensor::ids("I64", &[1, 2]).data_changed());
    check_fault("negative", &negative, ShapeMismatch, &["token_map", "no token id"]);
    let floats = compact().with("token_map", numbered(&[2], 0.0));
    check_fault("type", &floats, UnsupportedModel, &["token_map", "F32", "I64"]);
    let rows = map(&[1, 2]).with("head.weight", output(0.0));
    check_fault("rows", &rows, ShapeMismatch, &["6 rows", "2 entries"]);
}

trait Damage {
    fn data_changed(self) -> Self;
}

impl Damage for Tensor {
    /// The last value negative.
    fn data_changed(mut self) -> Self {
        *self.data.last_mut().unwrap() = 0xff;
        self
    }
}

#[test]
fn what_cannot_be_run_is_refused() {
    use ErrorCode::{BadModelFile, UnsupportedModel};
    let foreign = medusa(2, 1, "").with("fc.weight", bias(0.0));
    check_fault("a foreign tensor", &foreign, UnsupportedModel, &["fc.weight"]);
    let unplaced = compact().with("blocks.0.1.bias", bias(0.0));
    check_fault("a bias without a block", &unplaced, UnsupportedModel, &["blocks.0.1.bias"]);
    let integers = medusa(1, 1, "").with("0.0.linear.bias", Tensor::ids("I32", &[0; HIDDEN]));
    check_fault("integers", &integers, UnsupportedModel, &["0.0.linear.bias", "I32", "BF16"]);
    check_fault("version", &compact().word("version", "2"), UnsupportedModel, &["\"2\"", "\"1\""]);
    check_fault("form", &compact().word("form", "circular"), UnsupportedModel, &["circular"]);
    check_fault("too many", &medusa(17, 1, ""), UnsupportedModel, &["17", "16"]);
    let hydra = File::default().with("hydra_mlp.0.0.weight", bias(0.0));
    check_fault("other heads", &hydra, BadModelFile, &["no draft heads", "hydra_mlp.0.0.weight"]);
    let twice = medusa(1, 1, "").with("medusa_head.0.1.weight", output(0.0));
    check_fault("two names", &twice, BadModelFile, &["two names"]);
    let recurrent = File::default()
        .word("format", "draftree-heads")
        .word("depths", "none")
        .with("blocks.0.0.weight", numbered(&[HIDDEN, 2 * HIDDEN], 0.0));
    check_fault("depths", &recurrent, BadModelFile, &["depths", "none"]);

    let refused = |files: Vec<(&str, Vec<u8>)>| block_on(HeadFile::open(&MemorySource::new(files))).unwrap_err();
    let pickle = refused(vec![("config.json", b"{}".to_vec()), ("medusa_lm_head.pt", b"PK".to_vec())]);
    assert!(pickle.code() == BadModelFile && pickle.to_string().contains("safetensors"), "{pickle}");
    let nothing = refused(vec![("config.json", b"{}".to_vec()), ("README.md", Vec::new())]);
    assert!(nothing.to_string().contains("no draft heads"), "{nothing}");
    let cut = medusa(2, 1, "").bytes();
    let cut = refused(vec![("heads.safetensors", cut[..cut.len() - 1].to_vec())]);
    assert_eq!(cut.code(), ErrorCode::TruncatedFile, "{cut}");
}

#[test]
fn a_damaged_header_is_an_error_or_other_heads_but_never_a_panic() {
    let subset = compact()
        .with("token_map", Tensor::ids("I64", &[1, 3]))
        .with("previous.weight", numbered(&[VOCAB, 2], 0.0))
        .with("correction.weight", numbered(&[2, 2], 0.0));
    let model = tiny_model();
    let source = Folder::tiny("qwen2").source();
    let quantised = compact()
        .with("head.weight", output(0.0))
        .quantised(TensorType::Q4_1)
        .word("trees", "[[0],[0,1]]")
        .word("calibration", "[[0.9,-0.1],[1.25,0]]");
    for file in [subset.word("form", "parallel"), medusa(2, 1, ""), quantised, fused()] {
        let bytes = file.bytes();
        let header = 8 + usize::from(bytes[0]) + 256 * usize::from(bytes[1]);
        for at in 0..header {
            for value in [0, b'0', b'9', b'"', b'.', bytes[at] ^ 1] {
                let mut damaged = bytes.clone();
                damaged[at] = value;
                let heads = MemorySource::new([("heads.safetensors", damaged)]);
                let Ok(opened) = block_on(HeadFile::open(&heads)) else { continue };
                let Ok(fitted) = opened.fit(&model) else { continue };
                let mut collected = Collected::default();
                let (own, target) = ((&opened, &fitted, &heads), (&model, &source));
                let streamed = block_on(stream_heads(own, target, &mut collected, &mut |_, _| {}));
                streamed.unwrap_or_else(|error| panic!("byte {at} = {value}: {error}"));
            }
        }
    }
}

#[test]
fn heads_of_another_model_load_with_a_warning() {
    let model = tiny_model();
    let identity = model_identity(&model);
    let warning = |file: File| open(&file).unwrap().fit(&model).unwrap().warning;
    assert_eq!(warning(compact()), None, "a file that does not say");
    assert_eq!(warning(compact().word("model", &identity)), None);
    let other = warning(compact().word("model", "0123456789abcdef")).unwrap();
    assert!(other.contains("0123456789abcdef") && other.contains(&identity), "{other}");
}

#[test]
fn a_model_is_the_same_in_every_file_and_another_with_another_template() {
    let identity = |source: &MemorySource| model_identity(&harness::open(source));
    let folder = Folder::tiny("llama");
    assert_eq!(identity(&folder.source()), identity(&tiny::Gguf::tiny("llama").source()));
    assert_ne!(identity(&folder.source()), identity(&Folder::tiny("qwen2").source()));
    let one = folder.clone().file("chat_template.jinja", "one");
    assert_ne!(identity(&folder.source()), identity(&one.source()));
    assert_eq!(identity(&one.source()), identity(&folder.file("chat_template.jinja", "one\n").source()));
    assert_eq!(model_identity(&harness::open(&harness::embedded())).len(), 16);
}

#[test]
fn licence_and_metadata_are_kept_and_printed() {
    let file = compact().word("license", "apache-2.0").word("data", "own answers").word("model", "abc");
    let opened = open(&file).unwrap();
    assert_eq!(opened.licence(), Some("apache-2.0"));
    assert_eq!(opened.parameters(), 2 * (HIDDEN * HIDDEN + HIDDEN) as u64);
    let report = opened.to_string();
    for words in ["draftree", "parallel", "apache-2.0", "own answers", "abc"] {
        assert!(report.contains(words), "{words}: {report}");
    }
}

#[test]
fn output_matrices_padded_up_or_down_are_cut_to_the_vocabulary() {
    for (rows, drafts) in [(VOCAB + 10, VOCAB), (VOCAB - 2, VOCAB - 2)] {
        let file = medusa(1, 1, "").with("0.1.weight", numbered(&[rows, HIDDEN], 0.0));
        let (_, fitted, collected) = collect(&file).unwrap();
        assert_eq!(fitted.draft_vocab, drafts);
        assert_eq!(collected.matrices[&Matrix::Heads(HeadMatrix::Output(0))].0.rows, drafts);
        assert_eq!(fitted.valid_drafts(3), 3);
        assert_eq!(fitted.valid_drafts(100), drafts);
    }
}

#[test]
fn a_token_map_of_vllm_may_stand_in_any_order_and_name_rows_of_a_whole_matrix() {
    let blocks = || File::default().with("blocks.0.layers.0.weight", block(0.0));
    let map = blocks().with("token_map", Tensor::ids("I64", &[4, 0, 2]));
    let row = |number: f32| (0..HIDDEN).map(|i| number + i as f32 * 0.125).collect::<Vec<_>>();
    let width = HIDDEN as f32 * 0.125;
    let mut expected = [row(width), row(2.0 * width), row(0.0)].concat();
    let (_, fitted, collected) = collect(&map.clone().with("lm_head.weight", numbered(&[3, HIDDEN], 0.0))).unwrap();
    assert_eq!(fitted.token_map.as_deref(), Some(&[0, 2, 4][..]));
    assert_eq!(collected.unpack(Matrix::Heads(HeadMatrix::Output(0))), expected, "rows follow their tokens");
    let (_, fitted, collected) = collect(&map.with("lm_head.weight", output(0.0))).unwrap();
    expected = [row(0.0), row(2.0 * width), row(4.0 * width)].concat();
    assert_eq!(collected.unpack(Matrix::Heads(HeadMatrix::Output(0))), expected, "rows named by token");
    assert_eq!((fitted.draft_vocab, fitted.token(1), fitted.valid_drafts(3)), (3, 2, 2));
}

/// A source that notes the largest range asked for and how many there were.
struct Watched<'s, S>(&'s S, Cell<usize>, Cell<usize>);

impl<S: ByteSource> ByteSource for Watched<'_, S> {
    fn files(&self) -> &[FileEntry] {
        self.0.files()
    }

    async fn read(&self, file: usize, offset: u64, into: &mut [u8]) -> Result<()> {
        self.1.set(self.1.get().max(into.len()));
        self.2.set(self.2.get() + 1);
        self.0.read(file, offset, into).await
    }
}

#[test]
fn rows_of_the_models_output_matrix_are_gathered_in_its_own_format_and_in_bounded_pieces() {
    for matrices in [TensorType::F32, TensorType::F16, TensorType::Q8_0, TensorType::Q4K, TensorType::Q6K] {
        for tied in [true, false] {
            let model = synthetic::Model { matrices, tied, vocab: 3001, ..synthetic::Model::WIDE }.source();
            let file = heads::from_model(&model, Heads { draft_vocab: Some(900), ..Heads::default() });
            let (checkpoint, weights) = harness::model_files::load(&model).unwrap();
            let opened = block_on(HeadFile::open(&file)).unwrap();
            let fitted = opened.fit(&checkpoint).unwrap();
            let mut collected = Collected::default();
            let watched = Watched(&model, Cell::new(0), Cell::new(0));
            block_on(stream_heads((&opened, &fitted, &file), (&checkpoint, &watched), &mut collected, &mut |_, _| {}))
                .unwrap();
            let source = if tied { Matrix::Embedding } else { Matrix::LmHead };
            let gathered = &collected.matrices[&Matrix::Heads(HeadMatrix::Output(0))];
            assert_eq!(gathered.0.format, weights.matrices[&source].0.format, "{matrices}");
            let (rows, found) = (weights.unpack(source), collected.unpack(Matrix::Heads(HeadMatrix::Output(0))));
            let width = checkpoint.config.hidden_size;
            for (draft, found) in found.chunks_exact(width).enumerate() {
                let token = fitted.token(draft) as usize;
                assert_eq!(found, &rows[token * width..][..width], "{matrices}, draft id {draft}");
            }
            assert!(watched.1.get() <= 4 << 20, "pieces of {} bytes", watched.1.get());
            assert!(watched.2.get() < 200, "{} requests for 900 rows", watched.2.get());
        }
    }
}
