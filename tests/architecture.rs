//! The rules of the source tree: which way imports point, where platforms may be named, how kernels and oracles belong together.
//!
//! Read from the text, not from a compiled crate, so a rule also holds for code that this platform does not compile.

#![allow(clippy::unwrap_used)] // also in the helpers of tests

use std::fs;
use std::path::Path;

use draftree::backend::gpu::kernels::Kernel;

/// Top-level modules from the bottom up; modules of one rank do not know each other.
const RANKS: &[&[&str]] = &[
    &["error"],
    &["model"],
    &["tokenizer"],
    &["sampling"],
    &["speculate"],
    &["backend"],
    &["engine"],
    &["train"],
    &["web", "bin"],
];

/// A text file of the repository.
struct File {
    /// From the root of the repository, with `/`.
    path: String,
    text: String,
}

impl File {
    /// The lines without comments, numbered from 1.
    fn code(&self) -> impl Iterator<Item = (usize, &str)> {
        let lines = self.text.lines().map(|line| line.split("//").next().unwrap_or(""));
        (1..).zip(lines)
    }

    /// The top-level module it is in; none for lib.rs.
    fn module(&self) -> &str {
        let inside = self.path.strip_prefix("src/").unwrap_or(&self.path);
        inside.split(['/', '.']).next().unwrap_or(inside)
    }
}

fn files_below(folder: &str, extension: &str) -> Vec<File> {
    let mut found = Vec::new();
    collect(folder, &format!(".{extension}"), &mut found);
    assert!(!found.is_empty(), "{folder} has files that end in {extension}");
    found.sort_by(|a, b| a.path.cmp(&b.path));
    found
}

fn collect(folder: &str, ending: &str, found: &mut Vec<File>) {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    for entry in fs::read_dir(root.join(folder)).unwrap_or_else(|e| panic!("{folder}: {e}")) {
        let entry = entry.unwrap();
        let path = format!("{folder}/{}", entry.file_name().into_string().unwrap());
        if entry.file_type().unwrap().is_dir() {
            collect(&path, ending, found);
        } else if path.ends_with(ending) {
            found.push(File { text: fs::read_to_string(root.join(&path)).unwrap(), path });
        }
    }
}

fn rank(module: &str) -> Option<usize> {
    RANKS.iter().position(|names| names.contains(&module))
}

/// The top-level modules that a line of code names, by `crate::x`, `draftree::x`, a group of them, or `super` from the top level.
fn modules_named(line: &str) -> Vec<&str> {
    let mut named = Vec::new();
    for root in ["crate::", "draftree::", "super::"] {
        for (at, _) in line.match_indices(root) {
            let rest = &line[at + root.len()..];
            let group = rest.strip_prefix('{').and_then(|rest| rest.split_once('}')).map_or(rest, |(group, _)| group);
            let whole = if group.len() == rest.len() { vec![rest] } else { group.split(',').collect() };
            let names =
                whole.into_iter().map(|name| name.trim().split(|c: char| !c.is_alphanumeric() && c != '_').next());
            named.extend(names.flatten().filter(|name| rank(name).is_some()));
        }
    }
    named
}

fn import_faults(file: &File) -> Vec<String> {
    let module = file.module();
    let own = rank(module).unwrap_or_else(|| panic!("{}: give its module a rank", file.path));
    let mut faults = Vec::new();
    for (number, line) in file.code() {
        if line.contains("crate::{") && !line.contains('}') {
            faults.push(format!(
                "{}:{number}: one `use` per module, so that imports can be read line by line",
                file.path
            ));
        }
        for name in modules_named(line) {
            if name != module && rank(name) >= Some(own) {
                faults.push(format!("{}:{number}: {module} must not know {name}: {}", file.path, line.trim()));
            }
        }
    }
    faults
}

#[test]
fn imports_point_one_way() {
    let sources = files_below("src", "rs");
    let faults: Vec<_> = sources.iter().filter(|file| file.path != "src/lib.rs").flat_map(import_faults).collect();
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
fn an_import_that_points_up_is_found() {
    let check = |path: &str, text: &str, faults: usize| {
        let file = File { path: path.to_owned(), text: text.to_owned() };
        assert_eq!(import_faults(&file).len(), faults, "{path}: {text}");
    };
    check("src/model/config.rs", "use crate::error::Error;", 0);
    check("src/model/config.rs", "use crate::backend::Backend;", 1);
    check("src/model/config.rs", "//! [`crate::backend`] uses it.", 0);
    check("src/speculate/tree.rs", "use crate::{error::Result, engine::Engine, backend};", 2);
    check("src/speculate/tree.rs", "use crate::{\n    engine::Engine,\n};", 1);
    check("src/sampling/mod.rs", "let tree = super::speculate::tree::Tree::chain(&[1]);", 1);
    check("src/bin/draftree/main.rs", "use draftree::engine::Engine;", 0);
    check("src/bin/draftree/main.rs", "use draftree::web::Model;", 1);
}

/// Checks that none of `words` stands in a file outside `places`, and that each place has one.
fn check_confined(words: &[&str], places: &[&str]) {
    let sources = files_below("src", "rs");
    let names_it = |line: &str| words.iter().any(|word| line.contains(word));
    for file in &sources {
        let allowed = places.iter().any(|place| file.path.starts_with(place));
        for (number, line) in file.code() {
            assert!(allowed || !names_it(line), "{}:{number}: only {places:?} may say {}", file.path, line.trim());
        }
    }
    for place in places {
        let mut inside = sources.iter().filter(|file| file.path.starts_with(place));
        assert!(inside.any(|file| file.code().any(|(_, line)| names_it(line))), "{place} needs no leave for {words:?}");
    }
}

#[test]
fn platforms_are_named_in_their_own_places_only() {
    check_confined(&["wgpu::"], &["src/backend/gpu/"]);
    check_confined(&["wasm_bindgen", "js_sys", "web_sys"], &["src/web/"]);
    check_confined(
        &["target_arch", "target_family"],
        &["src/lib.rs", "src/backend/gpu/readback.rs", "src/model/mod.rs"],
    );
    check_confined(&["tokenizers::"], &["src/tokenizer/"]);
}

/// What follows "`label` `name` in path" in the comments of a shader: name and path.
fn counterparts<'f>(file: &'f File, label: &str) -> Vec<(&'f str, &'f str)> {
    let mut found = Vec::new();
    for (at, _) in file.text.match_indices(label) {
        let rest = &file.text[at + label.len()..];
        let mut parts = rest.splitn(3, '`');
        let name = parts.nth(1).unwrap_or_default();
        let place = parts.next().and_then(|rest| rest.strip_prefix(" in ")).unwrap_or_default();
        let end = place.find(|c: char| !(c.is_alphanumeric() || "/._".contains(c))).unwrap_or(place.len());
        found.push((name, place[..end].trim_end_matches('.')));
    }
    found
}

#[test]
fn every_kernel_names_an_oracle_that_exists() {
    let shaders = files_below("shaders", "wgsl");
    let source = |path: &str| fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(path)).unwrap_or_default();
    for kernel in Kernel::ALL {
        let path = format!("shaders/{}.wgsl", kernel.name());
        let file = shaders.iter().find(|file| file.path == path).unwrap_or_else(|| panic!("{path} is there"));
        assert_eq!(counterparts(file, "Oracle:").len(), 1, "{path} names one oracle");
    }
    for file in &shaders {
        for (name, path) in counterparts(file, "Oracle:") {
            assert!(source(path).contains(&format!("fn {name}(")), "{}: no function {name:?} in {path:?}", file.path);
        }
        for (name, path) in counterparts(file, "Mirrored by") {
            let text = source(path);
            let exists = ["struct", "enum"].iter().any(|kind| text.contains(&format!("{kind} {name} {{")));
            assert!(exists, "{}: no type {name:?} in {path:?}", file.path);
        }
    }
}

#[test]
fn no_file_is_too_long_to_read() {
    const MOST_LINES: usize = 700;
    let kinds = [("src", "rs"), ("src", "ts"), ("shaders", "wgsl"), ("tests", "rs"), ("tests", "mjs"), ("xtask", "rs")];
    for file in kinds.into_iter().flat_map(|(folder, extension)| files_below(folder, extension)) {
        let lines = file.text.lines().count();
        assert!(lines <= MOST_LINES, "{} has {lines} lines; at most {MOST_LINES} are read in one go", file.path);
    }
}
