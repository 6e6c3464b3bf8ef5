//! Makes the JavaScript side of the built wasm module: `cargo xtask bindgen <module.wasm> <folder>` writes `core.js`,
//! `core.d.ts`, `core_bg.wasm` and `core_bg.wasm.d.ts` into the folder.
//!
//! wasm-bindgen is linked as a library rather than called as a program, so that its version comes from the same Cargo.lock as
//! the macros': the two must be the same, and nothing has to be installed beside cargo. Everything else of a build
//! (TypeScript, sizes) is in `scripts/build.mjs`.

use std::path::Path;
use std::process::ExitCode;

use wasm_bindgen_cli_support::Bindgen;

const USAGE: &str = "usage: cargo xtask bindgen <module.wasm> <output folder>";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let outcome = match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["bindgen", module, folder] => bindgen(Path::new(module), Path::new(folder)),
        _ => Err(USAGE.to_owned()),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("xtask: {message}");
            ExitCode::FAILURE
        }
    }
}

/// Writes the bindings of `module` for the `web` target. The library leaves out the default module path unless told
/// otherwise; with it, `init()` without an argument finds `core_bg.wasm` beside `core.js`, in bundlers too.
fn bindgen(module: &Path, folder: &Path) -> Result<(), String> {
    if !module.is_file() {
        return Err(format!("{} is missing; `npm run build` makes it", module.display()));
    }
    let mut bindgen = Bindgen::new();
    bindgen.input_path(module).out_name("core").typescript(true).omit_default_module_path(false);
    bindgen.remove_name_section(true).remove_producers_section(true);
    bindgen
        .web(true)
        .and_then(|bindgen| bindgen.generate(folder))
        .map_err(|error| format!("making the bindings of {}: {error:#}", module.display()))
}
