//! `draftree eval`: how many tokens passes bring, by drafters, trees and rules, on the model's own answers to prompts.

mod report;
mod texts;

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use draftree::backend::cpu::CpuWeights;
use draftree::backend::cpu::heads::CpuHeads;
use draftree::engine::TextParts;
use draftree::error::{Error, ErrorCode, Result};
use draftree::model::files::FileSource;
use draftree::model::heads::stream_heads;
use draftree::model::{Checkpoint, HeadFile};
use draftree::sampling::SamplingParams;
use draftree::speculate::DraftPlan;
use draftree::speculate::accept::{AcceptRule, Guarantee};
use draftree::speculate::costs::{PassCosts, SIZES};
use draftree::speculate::shape::RankTree;
use draftree::train::replay::heads::BatchedHeads;
use draftree::train::replay::{
    Agreement, Live, Model, ModelFacts, Replay, Summary, TargetRows, Text, TreeChoice, Way, ways,
};
use draftree::train::target::Target;

use self::report::{Report, Run};
use self::texts::texts;
use crate::generate::utc_seconds;

#[derive(Debug, clap::Args)]
pub struct Args {
    /// A .gguf file, or a folder with config.json and safetensors: the weights that will run.
    #[arg(long)]
    model: PathBuf,
    /// Prompts, a JSON object a line, as for train. Of conversations every turn is answered and counted.
    #[arg(long)]
    prompts: PathBuf,
    /// Folder for the model's greedy answers (answers.jsonl) and their hidden rows (states/); a stopped run goes on from it.
    #[arg(long)]
    work: PathBuf,
    /// Draft heads, as safetensors; without it those that lie beside the model, if there are some.
    #[arg(long)]
    heads: Option<PathBuf>,
    /// Who drafts: some of ngram, recycling, medusa with commas between them. May be given several times.
    #[arg(long, default_value = "ngram,recycling")]
    draft: Vec<String>,
    /// Nodes of grown and calibrated trees, the root included, with commas between them.
    #[arg(long, value_delimiter = ',', default_value = "2,4,8,16,32")]
    nodes: Vec<usize>,
    /// The shape of trees: auto (grown best first), dense:4,3,2, a list of rank paths, a file that holds one, or calibrated (the trees
    /// that were measured with the heads). May be given several times.
    #[arg(long, default_value = "auto")]
    tree: Vec<String>,
    /// Tokens of an answer at most.
    #[arg(long, default_value_t = 128)]
    max_tokens: usize,
    /// Take N prompts of each category, spread over it.
    #[arg(long)]
    per_category: Option<usize>,
    /// Let drafting remember what it learnt from one answer to the next, as in a chat; else each begins afresh.
    #[arg(long)]
    keep: bool,
    /// Replay a device whose passes of 1, 2, 4, 8, 16, 32 and 64 rows take so many milliseconds, with commas between them, as `npm run bench`
    /// prints them: the engine then chooses who drafts and how many nodes each pass verifies, of trees of at most --nodes, and the
    /// speed-up that comes of it is printed.
    #[arg(long, value_delimiter = ',')]
    pass_ms: Vec<f64>,
    /// And a draft of heads so many.
    #[arg(long, default_value_t = 0.0)]
    heads_ms: f64,
    /// Compute hidden rows in every run, instead of keeping them in half precision; where recycling drafts, that is done anyway.
    #[arg(long)]
    exact_rows: bool,
    /// Rules besides the exact one: typical[:EPSILON,ALPHA] and topk[:K,TOLERANCE]. Texts are then written with each, and compared with
    /// those of the exact rule. May be given several times.
    #[arg(long, value_parser = AcceptRule::parse)]
    accept: Vec<AcceptRule>,
    /// Write texts at this temperature; 0 always takes the likeliest token.
    #[arg(long, default_value_t = 0.0)]
    temperature: f32,
    /// The same seed gives the same texts.
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Answers that are made at once.
    #[arg(long, default_value_t = 128)]
    batch: usize,
    /// Print one JSON object instead of tables.
    #[arg(long)]
    json: bool,
}

/// A model and its heads.
struct Loaded {
    checkpoint: Checkpoint,
    text: TextParts,
    target: Target,
    facts: ModelFacts,
    heads: Option<CpuHeads>,
    /// Measured trees of the heads.
    trees: Vec<Vec<usize>>,
}

/// Evaluates and prints.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let rules = args.rules()?;
    let model = load(args)?;
    let trees = args.tree.iter().map(|tree| tree_choice(tree, &model.trees)).collect::<Result<Vec<_>>>()?;
    let shape = model.heads.as_ref().map(CpuHeads::shape);
    let ways = ways(&args.draft, &trees, &args.nodes, &rules, shape)?;
    let texts = texts(args, &model, &ways)?;
    let heads = model.heads.as_ref().map(|heads| BatchedHeads::new(heads, &model.target)).transpose()?;
    let runs = match args.is_live() {
        true => write(args, &model, heads.as_ref(), &texts, &ways)?,
        false => replay(args, &model, heads.as_ref(), &texts, ways)?,
    };
    let report = Report { model: &model.checkpoint.name, heads: shape, args, texts: &texts, runs };
    if args.json {
        println!("{}", report.json())
    } else {
        print!("{report}")
    }
    Ok(())
}

impl Args {
    /// What passes cost, where that is given.
    fn costs(&self) -> Result<Option<PassCosts>> {
        if self.pass_ms.is_empty() {
            return Ok(None);
        }
        let valid = self.pass_ms.iter().chain([&self.heads_ms]).all(|ms| ms.is_finite() && *ms >= 0.0);
        match self.pass_ms[..].try_into() {
            Ok(ms) if valid && self.pass_ms[0] > 0.0 => Ok(Some(PassCosts::new(ms).with_heads(self.heads_ms))),
            _ => Err(Error::new(
                ErrorCode::InvalidOption,
                format!(
                    "--pass-ms takes {} times in milliseconds, of passes of {SIZES:?} rows, and --heads-ms another, found {:?} and {}",
                    SIZES.len(),
                    self.pass_ms,
                    self.heads_ms
                ),
            )),
        }
    }

    /// Whether texts depend on how they are drafted, or are sampled.
    fn is_live(&self) -> bool {
        !self.accept.is_empty() || self.temperature > 0.0
    }

    /// The rules to be compared, the exact one first.
    fn rules(&self) -> Result<Vec<AcceptRule>> {
        if let Some(rule) = self.accept.iter().find(|rule| rule.guarantee(self.temperature) != Guarantee::Lossy) {
            let message = format!(
                "accept: {rule:?} gives the exact text at temperature {}, or one that cannot be compared with it; give a lossy rule, \
                 and --temperature for typical",
                self.temperature
            );
            return Err(Error::new(ErrorCode::InvalidOption, message));
        }
        Ok([AcceptRule::Exact].iter().chain(&self.accept).copied().collect())
    }

    /// The file of heads: the one that was named, or `name.heads.safetensors` beside `name.gguf`.
    fn head_path(&self) -> Option<PathBuf> {
        let beside = self.model.with_extension("heads.safetensors");
        let is_gguf = self.model.extension().is_some_and(|extension| extension == "gguf");
        self.heads.clone().or((is_gguf && beside.exists()).then_some(beside))
    }
}

fn load(args: &Args) -> Result<Loaded> {
    let source = FileSource::open(&args.model)?;
    let checkpoint = pollster::block_on(Checkpoint::open(&source))?;
    let text = TextParts::new(&checkpoint, utc_seconds)?;
    let facts = ModelFacts::of(&checkpoint.config, &text.tokenizer);
    let target = Target::load(&checkpoint, &source)?;
    let (mut heads, mut trees) = (None, Vec::new());
    if let Some(path) = args.head_path() {
        let own = FileSource::open(&path)?;
        let file = pollster::block_on(HeadFile::open(&own))?;
        let fitted = file.fit(&checkpoint)?;
        if let Some(warning) = &fitted.warning {
            tell(warning);
        }
        let mut weights = CpuWeights::default();
        let model = (&checkpoint, &source);
        pollster::block_on(stream_heads((&file, &fitted, &own), model, &mut weights, &mut |_, _| {}))?;
        heads = Some(CpuHeads::new(fitted, weights)?);
        trees.clone_from(&file.trees);
    }
    Ok(Loaded { checkpoint, text, target, facts, heads, trees })
}

fn tree_choice(text: &str, measured: &[Vec<usize>]) -> Result<TreeChoice> {
    let named = |name: &str, tree: &str| {
        let tree = RankTree::parse(tree).map_err(|error| error.context(format!("--tree {name}")))?;
        Ok(TreeChoice::Fixed(name.to_owned(), tree))
    };
    match text {
        "auto" => Ok(TreeChoice::Grown),
        "calibrated" => Ok(TreeChoice::Calibrated(measured.to_vec())),
        path if Path::new(path).is_file() => {
            let list = std::fs::read_to_string(path)
                .map_err(|error| Error::new(ErrorCode::LoadFailed, format!("--tree {path}: {error}")))?;
            named(path, &list)
        }
        tree => named(tree, tree),
    }
}

fn plans(ways: &[Way]) -> Vec<DraftPlan> {
    ways.iter().map(|way| way.plan.clone()).collect()
}

fn replay(
    args: &Args,
    model: &Loaded,
    heads: Option<&BatchedHeads<'_>>,
    texts: &[Text],
    ways: Vec<Way>,
) -> Result<Vec<Run>> {
    let plans = plans(&ways);
    let costs = args.costs()?;
    let replay = Replay {
        facts: &model.facts,
        plans: &plans,
        heads,
        max_tokens: args.max_tokens,
        costs: costs.as_ref(),
        keep: args.keep,
    };
    let mut rows = TargetRows::new(&model.target, model.facts.valid_tokens);
    let mut clock = Clock::new("replay");
    let rows: Option<&mut dyn Model> = Some(&mut rows);
    let found = replay.run(texts, rows, &mut |done, total| clock.tell(done, total))?;
    let cut: Vec<Text> = texts.iter().map(|text| text.first(args.max_tokens)).collect();
    let run = |(way, steps)| Run { summary: Summary::of(&cut, &steps), way, steps, agreement: None };
    Ok(ways.into_iter().zip(found).map(run).collect())
}

/// Writes texts with every rule, and compares them with those of the exact one.
fn write(
    args: &Args,
    model: &Loaded,
    heads: Option<&BatchedHeads<'_>>,
    texts: &[Text],
    ways: &[Way],
) -> Result<Vec<Run>> {
    let sampling = SamplingParams { temperature: args.temperature, seed: args.seed, ..Default::default() };
    sampling.validate(model.facts.vocab_size)?;
    let prompts: Vec<&[u32]> = texts.iter().map(|text| &text.answer.prompt[..]).collect();
    let live = Live {
        target: &model.target,
        facts: &model.facts,
        heads,
        plans: &plans(ways),
        sampling: &sampling,
        max_tokens: args.max_tokens,
    };
    let mut clock = Clock::new("texts");
    let found = live.run(&prompts, &mut |done, total| clock.tell(done, total))?;
    let mut runs = Vec::new();
    for (ways, found) in ways.chunks(1 + args.accept.len()).zip(found.chunks(1 + args.accept.len())) {
        for (way, written) in ways.iter().zip(found) {
            let summary = Summary::of(texts, written.iter().map(|text| &text.steps));
            let steps = written.iter().map(|text| text.steps.clone()).collect();
            let agreement = Some(Agreement::of(written, &found[0]));
            runs.push(Run { way: way.clone(), summary, steps, agreement });
        }
    }
    Ok(runs)
}

/// Says now and then how far work has come.
struct Clock {
    what: &'static str,
    began: Instant,
    told: Instant,
}

impl Clock {
    const PAUSE: Duration = Duration::from_secs(10);
    /// Before that share is done, nothing can be said of the rest.
    const FIRST: usize = 50;

    fn new(what: &'static str) -> Self {
        Self { what, began: Instant::now(), told: Instant::now() }
    }

    fn tell(&mut self, done: usize, total: usize) {
        if self.told.elapsed() < Self::PAUSE || done * Self::FIRST < total {
            return;
        }
        self.told = Instant::now();
        let left = self.began.elapsed().as_secs_f64() * (total - done) as f64 / done as f64;
        let (percent, seconds) = (100 * done / total, left as u64);
        tell(&format!("{}: {percent} %, {} min {:02} s left", self.what, seconds / 60, seconds % 60));
    }
}

/// Progress goes where errors go, so that what a command prints stays clean.
fn tell(line: &str) {
    eprintln!("{line}");
}
