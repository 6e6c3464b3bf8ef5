//! WGSL text of a kernel: files of `shaders/` put together by one directive, `#import`.
//!
//! `#import "lib/x.wgsl"` inserts that file once. `#import name` inserts the file that the variant chooses for `name` (the weight
//! format, the tile). There are no conditionals and no text templates: a variant differs by which files it imports, and
//! numbers are `override` constants. Bindings are read back from the text, so a kernel's layout is written in one place.

use crate::error::{Error, ErrorCode, Result};

macro_rules! sources {
    ($($path:literal),* $(,)?) => {
        &[$(($path, include_str!(concat!("../../../shaders/", $path)))),*]
    };
}

/// Every shader file, embedded.
pub const SOURCES: &[(&str, &str)] = sources![
    "accept.wgsl",
    "attention_scores.wgsl",
    "attention_values.wgsl",
    "choose_path.wgsl",
    "commit.wgsl",
    "draft.wgsl",
    "embed.wgsl",
    "gate_up.wgsl",
    "judge.wgsl",
    "head_block.wgsl",
    "head_chunks.wgsl",
    "head_correct.wgsl",
    "head_expand.wgsl",
    "head_rank.wgsl",
    "head_start.wgsl",
    "lm_head.wgsl",
    "norm.wgsl",
    "process_logits.wgsl",
    "project.wgsl",
    "qkv.wgsl",
    "recycle.wgsl",
    "reject.wgsl",
    "sample.wgsl",
    "threshold.wgsl",
    "lib/attention_shape.wgsl",
    "lib/block_1.wgsl",
    "lib/block_2.wgsl",
    "lib/block_4.wgsl",
    "lib/bytes.wgsl",
    "lib/choice.wgsl",
    "lib/choose.wgsl",
    "lib/drafting.wgsl",
    "lib/edge.wgsl",
    "lib/halves.wgsl",
    "lib/heads.wgsl",
    "lib/input_normed.wgsl",
    "lib/input_plain.wgsl",
    "lib/judgement.wgsl",
    "lib/lanes_alone.wgsl",
    "lib/lanes_quad.wgsl",
    "lib/matmul.wgsl",
    "lib/ngram.wgsl",
    "lib/nibbles.wgsl",
    "lib/noise.wgsl",
    "lib/order_plain.wgsl",
    "lib/order_quad.wgsl",
    "lib/packed.wgsl",
    "lib/packed_row.wgsl",
    "lib/record.wgsl",
    "lib/recycling.wgsl",
    "lib/row.wgsl",
    "lib/rows_1.wgsl",
    "lib/rows_1_loop.wgsl",
    "lib/rows_2.wgsl",
    "lib/rows_4.wgsl",
    "lib/rows_8.wgsl",
    "lib/sampling.wgsl",
    "lib/state.wgsl",
    "lib/successors.wgsl",
    "lib/weights_bf16.wgsl",
    "lib/weights_f16.wgsl",
    "lib/weights_f32.wgsl",
    "lib/weights_q4.wgsl",
    "lib/weights_q4_wide.wgsl",
    "lib/weights_q8.wgsl",
    "lib/weights_q8_wide.wgsl",
    "lib/wide_scales.wgsl",
];

/// The text of `path` with its imports, each file once; `choices` maps `#import name` to a file.
///
/// # Errors
/// `Internal` for an import that names no file: a fault of this crate, found by the shader tests.
pub fn compose(path: &str, choices: &[(&str, &str)]) -> Result<String> {
    let mut text = String::new();
    insert(path, choices, &mut Vec::new(), &mut text)?;
    Ok(text)
}

fn insert(path: &str, choices: &[(&str, &str)], done: &mut Vec<String>, text: &mut String) -> Result<()> {
    if done.iter().any(|d| d == path) {
        return Ok(());
    }
    done.push(path.to_owned());
    let internal = |message: String| Error::new(ErrorCode::Internal, format!("composing {path}: {message}"));
    let (_, source) =
        SOURCES.iter().find(|(name, _)| *name == path).ok_or_else(|| internal("no such shader file".to_owned()))?;
    for line in source.lines() {
        let Some(import) = line.strip_prefix("#import ") else {
            text.push_str(line);
            text.push('\n');
            continue;
        };
        let import = import.trim();
        let file = match import.strip_prefix('"').and_then(|rest| rest.strip_suffix('"')) {
            Some(file) => file,
            None => choices
                .iter()
                .find(|(name, _)| *name == import)
                .map(|(_, file)| *file)
                .ok_or_else(|| internal(format!("nothing was chosen for `#import {import}`")))?,
        };
        insert(file, choices, done, text)?;
    }
    Ok(())
}

/// How a binding is used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BindingKind {
    /// `var<uniform>`
    Uniform,
    /// `var<storage, read>`
    ReadOnlyStorage,
    /// `var<storage, read_write>`
    Storage,
}

/// The bindings of group 0 in a composed text; element i is binding i.
pub fn bindings(text: &str) -> Vec<BindingKind> {
    text.lines()
        .filter(|line| line.starts_with("@group(0)"))
        .map(|line| {
            if line.contains("var<uniform>") {
                BindingKind::Uniform
            } else if line.contains("var<storage, read_write>") {
                BindingKind::Storage
            } else {
                BindingKind::ReadOnlyStorage
            }
        })
        .collect()
}
