//! The native command line: looks into model files, and runs them without a browser.

mod calibrate;
mod eval;
mod fit;
mod generate;
mod joint;
mod train;

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use draftree::error::Error;
use draftree::model::files::FileSource;
use draftree::model::inspect::inspect;
use draftree::model::{ByteSource as _, HeadFile};

/// Small language models on the GPU, made fast with draft trees.
#[derive(Debug, Parser)]
#[command(version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Print what a model file (or folder) or a file of draft heads holds, and whether it can be run.
    Inspect {
        /// A .gguf file, a folder with config.json and safetensors, or the .safetensors of draft heads.
        path: std::path::PathBuf,
    },
    /// Write text on this machine's GPU or CPU.
    Generate(Box<generate::Args>),
    /// Make draft heads for a model: let it answer prompts, keep what heads learn from, and train them.
    Train(Box<train::Args>),
    /// Train a model together with its draft heads (Medusa-2): writes a model of its own, with heads.
    TrainJoint(Box<joint::Args>),
    /// Measure how trained heads draft, and write trees and calibration into their file.
    Calibrate(calibrate::Args),
    /// Measure how many tokens passes bring, by drafters and trees, on a model's own answers.
    Eval(Box<eval::Args>),
}

/// candle shares element-wise work between threads that wait for one another at full speed: on a machine that has anything else to do
/// that is several times slower than one thread. Matrix products and our own operations have other threads.
fn keep_candle_from_spinning() {
    const THREADS: &str = "CANDLE_NUM_THREADS";
    if std::env::var_os(THREADS).is_none() {
        // SAFETY: called before there is a second thread that could read the environment meanwhile.
        unsafe { std::env::set_var(THREADS, "1") };
    }
}

fn main() -> ExitCode {
    keep_candle_from_spinning();
    let result = match Cli::parse().command {
        Command::Inspect { path } => print_report(&path),
        Command::Generate(args) => generate::run(&args),
        Command::Train(args) => train::run(&args),
        Command::TrainJoint(args) => joint::run(&args),
        Command::Calibrate(args) => calibrate::run(&args),
        Command::Eval(args) => eval::run(&args),
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

/// Reports on a model, on draft heads, or on a model with heads beside it.
fn print_report(path: &std::path::Path) -> anyhow::Result<()> {
    let source = FileSource::open(path)?;
    let heads = pollster::block_on(HeadFile::open(&source));
    let model = pollster::block_on(inspect(&source));
    let only_heads = source.files().iter().all(|file| file.base_name().ends_with(".safetensors"));
    match (heads, model) {
        (Ok(heads), Ok(model)) if model.verdict.is_ok() => println!("{model}\n{heads}"),
        (Ok(heads), _) => print!("{heads}"),
        (Err(error), _) if only_heads => return Err(error.into()),
        (Err(_), model) => println!("{}", model?),
    }
    Ok(())
}
