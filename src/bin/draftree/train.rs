//! `draftree train`: from a target and prompts to what draft heads learn from. Every stage goes on where an earlier run stopped.

use std::path::{Path, PathBuf};

use clap::ValueEnum;
use draftree::engine::TextParts;
use draftree::error::Result;
use draftree::model::Checkpoint;
use draftree::model::files::FileSource;
use draftree::sampling::SamplingParams;
use draftree::train::answers::AnswerFile;
use draftree::train::distill::{DistillOptions, distill};
use draftree::train::prompts::{Prompt, read_prompts};
use draftree::train::target::Target;

use crate::generate::utc_seconds;

/// A part of the work.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Stage {
    /// The model answers the prompts: answers.jsonl.
    Answers,
}

#[derive(Debug, clap::Args)]
pub struct Args {
    /// A .gguf file, or a folder with config.json and safetensors: the weights that will run.
    #[arg(long)]
    model: PathBuf,
    /// Folder of everything that is made on the way; a stopped run goes on from it.
    #[arg(long)]
    work: PathBuf,
    /// Run this stage only.
    #[arg(long, value_enum)]
    only: Option<Stage>,
    #[command(flatten)]
    data: DataArgs,
}

/// Where the text comes from.
#[derive(Debug, clap::Args)]
struct DataArgs {
    /// Prompts, a JSON object a line: {"id", "category", "turns"}, {"messages"}, {"prompt"} or {"text"}. May be given several times;
    /// without it the model invents them.
    #[arg(long)]
    prompts: Vec<PathBuf>,
    /// Tokens of an answer at most.
    #[arg(long, default_value_t = 256)]
    max_tokens: usize,
    /// 0 always takes the likeliest token.
    #[arg(long, default_value_t = 0.7)]
    temperature: f32,
    /// Keep the likeliest tokens that together reach P.
    #[arg(long, default_value_t = 0.95)]
    top_p: f32,
    /// Keep the K likeliest tokens; 0 keeps all.
    #[arg(long, default_value_t = 0)]
    top_k: u32,
    /// The same seed gives the same answers.
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Answers that are written at once.
    #[arg(long, default_value_t = 128)]
    batch: usize,
    /// Take the first N prompts only; invent N (1000) where there are none.
    #[arg(long)]
    limit: Option<usize>,
    /// Leave out prompts of more tokens.
    #[arg(long, default_value_t = 512)]
    max_prompt: usize,
}

impl DataArgs {
    fn prompts(&self, text: &TextParts) -> Result<Vec<Prompt>> {
        if self.prompts.is_empty() {
            return Ok((0..self.limit.unwrap_or(1000)).map(Prompt::invented).collect());
        }
        let mut prompts = Vec::new();
        for path in &self.prompts {
            prompts.extend(read_prompts(path, text)?);
        }
        prompts.truncate(self.limit.unwrap_or(usize::MAX));
        Ok(prompts)
    }

    fn options(&self) -> DistillOptions {
        DistillOptions {
            sampling: SamplingParams {
                temperature: self.temperature,
                top_p: self.top_p,
                top_k: self.top_k,
                seed: self.seed,
                ..Default::default()
            },
            max_tokens: self.max_tokens,
            batch: self.batch,
            max_prompt: self.max_prompt,
        }
    }
}

/// A target with its text.
struct Model {
    target: Target,
    text: TextParts,
}

/// Runs the stages.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let source = FileSource::open(&args.model)?;
    let checkpoint = pollster::block_on(Checkpoint::open(&source))?;
    let text = TextParts::new(&checkpoint, utc_seconds)?;
    let model = Model { target: Target::load(&checkpoint, &source)?, text };
    std::fs::create_dir_all(&args.work)?;
    let runs = |stage| args.only.is_none_or(|only| only == stage);
    if runs(Stage::Answers) {
        answer(&args.data, &model, &args.work)?;
    }
    Ok(())
}

fn answer(args: &DataArgs, model: &Model, work: &Path) -> Result<()> {
    let prompts = args.prompts(&model.text)?;
    let mut answers = AnswerFile::open(&work.join("answers.jsonl"))?;
    let done = distill(&model.target, &model.text, &prompts, &args.options(), &mut answers, &mut tell)?;
    tell(&format!(
        "answers: {} made with {} tokens, {} there before, {} left out since their prompt is too long, {} not asked",
        done.made, done.tokens, done.kept, done.too_long, done.unasked
    ));
    Ok(())
}

/// Progress goes where errors go, so that what a command prints stays clean.
fn tell(line: &str) {
    eprintln!("{line}");
}
