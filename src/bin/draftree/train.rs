//! `draftree train`: from a target and prompts to draft heads. Every stage goes on where an earlier run stopped.

use std::cell::OnceCell;
use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::bail;
use clap::ValueEnum;
use draftree::engine::TextParts;
use draftree::error::Result;
use draftree::model::Checkpoint;
use draftree::model::files::FileSource;
use draftree::sampling::SamplingParams;
use draftree::train::answers::{Answer, AnswerFile, read_answers};
use draftree::train::distill::{DistillOptions, distill};
use draftree::train::endpoint::{Endpoint, answer_by_endpoint};
use draftree::train::extract::{ExtractOptions, extract, states_header};
use draftree::train::overlap::Evaluation;
use draftree::train::prompts::{Prompt, openings, read_prompts};
use draftree::train::states::{StatesHeader, StatesWriter};
use draftree::train::target::Target;

use crate::fit::FitArgs;
use crate::generate::utc_seconds;

/// A part of the work.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Stage {
    /// The model answers the prompts: answers.jsonl.
    Answers,
    /// Hidden rows and most probable tokens of the answers: the folder states.
    States,
    /// Heads that learn from them: heads.safetensors.
    Heads,
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
    #[command(flatten)]
    states: StateArgs,
    #[command(flatten)]
    fit: FitArgs,
}

/// Where the text comes from.
#[derive(Debug, clap::Args)]
pub struct DataArgs {
    /// Prompts, a JSON object a line: {"id", "category", "turns"}, {"messages"}, {"prompt"} or {"text"}. May be given several times;
    /// without it (and without --answers) the model invents them.
    #[arg(long)]
    prompts: Vec<PathBuf>,
    /// Go on from sentences of the texts that the model invented in an earlier run, each a prompt: for models without a chat template.
    #[arg(long, conflicts_with_all = ["prompts", "answers", "endpoint"])]
    openings: bool,
    /// Answers that were made elsewhere, a JSON object a line: {"id", "prompt_ids", "ids"}, or {"id", "prompt", "answer"} as text. May be
    /// given several times; an id that is there already is skipped.
    #[arg(long)]
    answers: Vec<PathBuf>,
    /// Prompts that the heads will be measured on: what is equal to one, or shares 13 words in a row with one, is left out. May be given
    /// several times.
    #[arg(long)]
    exclude: Vec<PathBuf>,
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
    /// Have the prompts answered by an endpoint of OpenAI's kind that runs the model, as http://localhost:8000/v1; the key, where one is
    /// asked for, is read from OPENAI_API_KEY.
    #[arg(long, requires = "endpoint_model")]
    endpoint: Option<String>,
    /// The name of the model at the endpoint.
    #[arg(long)]
    endpoint_model: Option<String>,
    /// Requests to the endpoint at once.
    #[arg(long, default_value_t = 16)]
    endpoint_requests: usize,
}

/// What is kept of it.
#[derive(Debug, clap::Args)]
struct StateArgs {
    /// Most probable next tokens that are kept of each row.
    #[arg(long, default_value_t = 8)]
    best: usize,
    /// Layers whose output is kept of each row besides the final hidden row, counted from 0, with commas between them: those of --taps,
    /// and others that heads may be made of later.
    #[arg(long, value_delimiter = ',')]
    layers: Vec<usize>,
}

impl Args {
    /// The layers that states are to keep; those of the folder, where it has all that are asked for.
    fn layers(&self, there: Option<&StatesHeader>) -> Vec<usize> {
        let mut layers = [&self.states.layers[..], &self.fit.taps].concat();
        layers.sort_unstable();
        layers.dedup();
        let there = there.map_or(&[][..], |header| &header.layers);
        if layers.iter().all(|layer| there.contains(layer)) { there.to_vec() } else { layers }
    }
}

impl DataArgs {
    fn prompts(&self, text: &TextParts, before: &[Answer]) -> Result<Vec<Prompt>> {
        if self.openings {
            return Ok(openings(before, &text.tokenizer));
        }
        if self.prompts.is_empty() && self.answers.is_empty() {
            return Ok((0..self.limit.unwrap_or(1000)).map(Prompt::invented).collect());
        }
        let mut prompts = Vec::new();
        for path in &self.prompts {
            prompts.extend(read_prompts(path, text)?);
        }
        prompts.truncate(self.limit.unwrap_or(usize::MAX));
        Ok(prompts)
    }

    fn evaluation(&self, text: &TextParts) -> Result<Evaluation> {
        let mut evaluation = Evaluation::default();
        for path in &self.exclude {
            evaluation.add(&read_prompts(path, text)?);
        }
        Ok(evaluation)
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

    fn endpoint(&self) -> Option<Endpoint> {
        Some(Endpoint {
            url: self.endpoint.clone()?,
            model: self.endpoint_model.clone()?,
            key: std::env::var("OPENAI_API_KEY").ok(),
            requests: self.endpoint_requests,
            pause: Duration::from_secs(1),
        })
    }
}

/// A target with its text; its weights are read when they are first needed.
pub struct Model {
    pub source: FileSource,
    pub checkpoint: Checkpoint,
    text: TextParts,
    target: OnceCell<Target>,
}

impl Model {
    pub fn open(path: &Path) -> Result<Self> {
        let source = FileSource::open(path)?;
        let checkpoint = pollster::block_on(Checkpoint::open(&source))?;
        let text = TextParts::new(&checkpoint, utc_seconds)?;
        Ok(Self { source, checkpoint, text, target: OnceCell::new() })
    }

    fn target(&self) -> Result<&Target> {
        if let Some(target) = self.target.get() {
            return Ok(target);
        }
        let target = Target::load(&self.checkpoint, &self.source)?;
        Ok(self.target.get_or_init(|| target))
    }
}

/// Runs the stages.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let model = Model::open(&args.model)?;
    let evaluation = args.data.evaluation(&model.text)?;
    std::fs::create_dir_all(&args.work)?;
    let runs = |stage| args.only.is_none_or(|only| only == stage);
    if runs(Stage::Answers) {
        make_answers(&args.data, &model, &evaluation, &args.work)?;
    }
    if runs(Stage::States) {
        make_states(args, &model, &evaluation, &args.work)?;
    }
    if runs(Stage::Heads) {
        args.fit.run(&args.model, &args.work)?;
    }
    Ok(())
}

/// Has the prompts answered, or takes the answers that are there where none were named; gives all that do not overlap with the evaluation.
pub fn answers(args: &DataArgs, model: &Model, work: &Path) -> Result<Vec<Answer>> {
    let evaluation = args.evaluation(&model.text)?;
    let asks = !args.prompts.is_empty() || !args.answers.is_empty() || args.openings || args.limit.is_some();
    if asks || AnswerFile::open(&work.join("answers.jsonl"))?.answers().is_empty() {
        make_answers(args, model, &evaluation, work)?;
    }
    let mut answers = AnswerFile::open(&work.join("answers.jsonl"))?.answers().to_vec();
    let overlaps = evaluation.exclude(&mut answers, |answer| evaluation.answer_overlap(answer, &model.text.tokenizer));
    if overlaps.total() > 0 {
        tell(&format!("{overlaps} answers left out since they overlap with the evaluation"));
    }
    Ok(answers)
}

/// Takes over answers that were made elsewhere, then has the prompts answered.
fn make_answers(args: &DataArgs, model: &Model, evaluation: &Evaluation, work: &Path) -> Result<()> {
    let mut answers = AnswerFile::open(&work.join("answers.jsonl"))?;
    for path in &args.answers {
        let read = read_answers(path, &model.text, model.checkpoint.config.vocab_size)?;
        take_over(read, &mut answers, model, evaluation)?;
    }
    let mut prompts = args.prompts(&model.text, answers.answers())?;
    let overlaps = evaluation.exclude(&mut prompts, |prompt| evaluation.prompt_overlap(prompt));
    if overlaps.total() > 0 {
        tell(&format!("prompts: {overlaps} left out since they overlap with the evaluation"));
    }
    if prompts.is_empty() {
        return Ok(());
    }
    let options = args.options();
    let done = match args.endpoint() {
        Some(endpoint) => {
            let context = model.checkpoint.config.max_position_embeddings;
            answer_by_endpoint(&endpoint, &model.text, context, &prompts, &options, &mut answers, &mut tell)?
        }
        None => distill(model.target()?, &model.text, &prompts, &options, &mut answers, &mut tell)?,
    };
    tell(&format!(
        "answers: {} made with {} tokens, {} there before, {} left out since their prompt is too long, {} empty",
        done.made, done.tokens, done.kept, done.too_long, done.empty
    ));
    Ok(())
}

fn take_over(read: Vec<Answer>, answers: &mut AnswerFile, model: &Model, evaluation: &Evaluation) -> Result<()> {
    let mut read = read;
    let overlaps = evaluation.exclude(&mut read, |answer| evaluation.answer_overlap(answer, &model.text.tokenizer));
    let (all, mut taken) = (read.len(), 0);
    for answer in read {
        if answers.get(&answer.id).is_none() {
            answers.append(answer)?;
            taken += 1;
        }
    }
    tell(&format!(
        "answers: {taken} taken over, {} there before, {overlaps} left out as in the evaluation",
        all - taken
    ));
    Ok(())
}

/// What heads learn from, of all answers that do not overlap with the evaluation.
fn make_states(args: &Args, model: &Model, evaluation: &Evaluation, work: &Path) -> anyhow::Result<()> {
    let mut answers = AnswerFile::open(&work.join("answers.jsonl"))?.answers().to_vec();
    let all: HashSet<String> = answers.iter().map(|answer| answer.id.clone()).collect();
    let overlaps = evaluation.exclude(&mut answers, |answer| evaluation.answer_overlap(answer, &model.text.tokenizer));
    if overlaps.total() > 0 {
        tell(&format!("states: {overlaps} answers left out since they overlap with the evaluation"));
    }
    let config = &model.checkpoint.config;
    let folder = work.join("states");
    let there = StatesHeader::read(&folder)?;
    let options = ExtractOptions {
        best: args.states.best,
        layers: args.layers(there.as_ref()),
        context_layer: args.fit.context_layer.or(there.and_then(|header| header.context).map(|context| context.layer)),
        valid_tokens: model.text.tokenizer.vocab_len().min(config.vocab_size),
    };
    let target = model.target()?;
    let mut writer = StatesWriter::open(&folder, states_header(target, &options)?)?;
    let honest: HashSet<&str> = answers.iter().map(|answer| &*answer.id).collect();
    let there = writer.sequences.iter().map(|sequence| &*sequence.id);
    if let Some(id) = there.clone().find(|&id| all.contains(id) && !honest.contains(id)) {
        bail!("{} has states of answer {id}, which overlaps with the evaluation; remove the folder", folder.display());
    }
    let done = extract(target, &answers, &options, &mut writer, &mut tell)?;
    tell(&format!(
        "states: {} answers added with {} rows, {} there before, {} longer than the model's context",
        done.made, done.rows, done.kept, done.too_long
    ));
    Ok(())
}

/// Progress goes where errors go, so that what a command prints stays clean.
fn tell(line: &str) {
    eprintln!("{line}");
}
