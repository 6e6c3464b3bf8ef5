//! The native command line: looks into model files, and runs them without a browser.

mod generate;

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use draftree::error::Error;
use draftree::model::files::FileSource;
use draftree::model::inspect::inspect;

/// Small language models on the GPU, made fast with draft trees.
#[derive(Debug, Parser)]
#[command(version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Print what a model file (or folder) holds and whether it can be run.
    Inspect {
        /// A .gguf file, or a folder with config.json and safetensors.
        path: std::path::PathBuf,
    },
    /// Write text on this machine's GPU or CPU.
    Generate(generate::Args),
}

fn main() -> ExitCode {
    let result = match Cli::parse().command {
        Command::Inspect { path } => print_report(&path),
        Command::Generate(args) => generate::run(&args),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            let code = e.downcast_ref::<Error>().map_or("internal", |e| e.code().as_str());
            println!("{}", serde_json::json!({ "error": { "code": code, "message": format!("{e:#}") } }));
            ExitCode::FAILURE
        }
    }
}

fn print_report(path: &std::path::Path) -> anyhow::Result<()> {
    let source = FileSource::open(path)?;
    println!("{}", pollster::block_on(inspect(&source))?);
    Ok(())
}
