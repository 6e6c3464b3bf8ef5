//! `draftree generate`: the engine on this machine, text streamed to the terminal.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::path::PathBuf;
use std::sync::OnceLock;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use clap::ValueEnum;
use draftree::backend::Backend;
use draftree::backend::cpu::heads::CpuHeads;
use draftree::backend::cpu::{CpuBackend, CpuWeights};
use draftree::backend::gpu::device::Gpu;
use draftree::backend::gpu::kernels::Kernels;
use draftree::backend::gpu::{GpuBackend, GpuWeights};
use draftree::engine::{DraftStats, Drafters, Engine, GenerateOptions, Prompt, Session, TextParts};
use draftree::error::{Error, ErrorCode, Result};
use draftree::model::files::FileSource;
use draftree::model::heads::{DraftHeads, stream_heads};
use draftree::model::{Checkpoint, HeadFile, stream_weights};
use draftree::sampling::SamplingParams;
use draftree::speculate::Source;
use draftree::speculate::accept::AcceptRule;
use draftree::speculate::shape::Shape;
use draftree::tokenizer::Message;

/// Where passes run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Device {
    /// The best graphics device, by Vulkan, Metal or DirectX.
    Gpu,
    /// The reference in plain float32; slow.
    Cpu,
}

#[derive(Debug, clap::Args)]
pub struct Args {
    /// A .gguf file, or a folder with config.json and safetensors.
    #[arg(long)]
    model: PathBuf,
    /// Draft heads, as safetensors; without it those that lie beside the model, if there are some.
    #[arg(long)]
    heads: Option<PathBuf>,
    /// Text to go on from.
    #[arg(long)]
    prompt: String,
    /// Take the prompt as a user's message and apply the chat template.
    #[arg(long)]
    chat: bool,
    /// System message, with --chat.
    #[arg(long, requires = "chat")]
    system: Option<String>,
    /// Most tokens to write.
    #[arg(long, default_value_t = 256)]
    max_tokens: u32,
    /// 0 always takes the likeliest token.
    #[arg(long, default_value_t = 0.0)]
    temperature: f32,
    /// Keep the K likeliest tokens; 0 keeps all.
    #[arg(long, default_value_t = 0)]
    top_k: u32,
    /// Keep the likeliest tokens that together reach P.
    #[arg(long, default_value_t = 1.0)]
    top_p: f32,
    /// Keep tokens at least P times as likely as the likeliest.
    #[arg(long, default_value_t = 0.0)]
    min_p: f32,
    /// Make tokens that occurred less likely; 1 is off.
    #[arg(long, default_value_t = 1.0)]
    repetition_penalty: f32,
    /// The same seed gives the same text.
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// End before this text; may be given several times.
    #[arg(long)]
    stop: Vec<String>,
    /// Write on after an end token.
    #[arg(long)]
    ignore_eos: bool,
    /// Decode steps submitted before their results are read; found by measurement unless told.
    #[arg(long)]
    steps_in_flight: Option<usize>,
    /// Who drafts: auto, none, or some of ngram, recycling, medusa with commas between them.
    #[arg(long, default_value = "auto")]
    draft: String,
    /// The shape of draft trees: auto (grown best first), dense:4,3,2, a list of rank paths, or a file that holds one.
    #[arg(long, default_value = "auto")]
    tree: String,
    /// Nodes of a grown tree at most, the root included.
    #[arg(long)]
    max_nodes: Option<usize>,
    /// Which drafted tokens pass: exact (the same text), rejection (the same distribution); or, both lossy,
    /// typical[:EPSILON,ALPHA] and topk[:K,TOLERANCE].
    #[arg(long, default_value = "exact", value_parser = AcceptRule::parse)]
    accept: AcceptRule,
    /// Tell the log-probability of every token, and of the N most probable ones at its place; at most 20.
    #[arg(long, value_name = "N", requires = "json")]
    logprobs: Option<usize>,
    /// Where to run.
    #[arg(long, value_enum, default_value = "gpu")]
    device: Device,
    /// Print one JSON object instead of the text.
    #[arg(long)]
    json: bool,
}

impl Args {
    /// The file of heads: the one that was named, or `name.heads.safetensors` beside `name.gguf`.
    fn head_path(&self) -> Option<PathBuf> {
        let beside = self.model.with_extension("heads.safetensors");
        let is_gguf = self.model.extension().is_some_and(|extension| extension == "gguf");
        self.heads.clone().or((is_gguf && beside.exists()).then_some(beside))
    }

    fn prompt(&self) -> Prompt {
        if !self.chat {
            return Prompt::Text(self.prompt.clone());
        }
        let message = |role: &str, content: &str| Message { role: role.to_owned(), content: content.to_owned() };
        let system = self.system.iter().map(|system| message("system", system));
        Prompt::Messages(system.chain([message("user", &self.prompt)]).collect())
    }

    /// The shape of draft trees: what is written there, or in the file of that name.
    fn shape(&self) -> Result<Shape> {
        if !std::path::Path::new(&self.tree).is_file() {
            return Shape::parse(&self.tree);
        }
        let unreadable = |e| Error::new(ErrorCode::LoadFailed, format!("--tree {}: {e}", self.tree));
        let list = std::fs::read_to_string(&self.tree).map_err(unreadable)?;
        Shape::parse(&list).map_err(|e| e.context(format!("--tree {}", self.tree)))
    }

    fn options(&self) -> Result<GenerateOptions> {
        Ok(GenerateOptions {
            sampling: SamplingParams {
                temperature: self.temperature,
                top_k: self.top_k,
                top_p: self.top_p,
                min_p: self.min_p,
                repetition_penalty: self.repetition_penalty,
                seed: self.seed,
                ..Default::default()
            },
            max_tokens: self.max_tokens,
            stop: self.stop.clone(),
            ignore_eos: self.ignore_eos,
            steps_in_flight: self.steps_in_flight,
            draft: Drafters::parse(&self.draft)?,
            tree: self.shape()?,
            max_nodes: self.max_nodes,
            accept: self.accept,
            logprobs: self.logprobs,
            trees: false,
        })
    }
}

/// Loads the model and writes.
pub fn run(args: &Args) -> anyhow::Result<()> {
    pollster::block_on(async {
        let source = FileSource::open(&args.model)?;
        let checkpoint = Checkpoint::open(&source).await?;
        let own = args.head_path().map(FileSource::open).transpose()?;
        let head_file = match &own {
            Some(own) => Some(HeadFile::open(own).await?),
            None => HeadFile::find(&source).await?,
        };
        let fitted = head_file.as_ref().map(|file| file.fit(&checkpoint)).transpose()?;
        let heads = match (&head_file, &fitted) {
            (Some(file), Some(fitted)) => Some((file, fitted, own.as_ref().unwrap_or(&source))),
            _ => None,
        };
        let model = (&checkpoint, &source);
        let text = TextParts::new(&checkpoint, utc_seconds)?;
        match args.device {
            Device::Cpu => {
                let mut weights = CpuWeights::default();
                stream_weights(&checkpoint, &source, &mut weights, &mut |_, _| {}).await?;
                let mut backend = CpuBackend::new(checkpoint.config.clone(), weights, None)?;
                if let Some(heads) = heads {
                    let mut weights = CpuWeights::default();
                    stream_heads(heads, model, &mut weights, &mut |_, _| {}).await?;
                    backend.set_heads(CpuHeads::new(heads.1.clone(), weights)?);
                }
                write(args, Engine::new(backend, text, now_ms), &checkpoint.name, "CPU reference").await
            }
            Device::Gpu => {
                let gpu = Gpu::request().await?;
                let adapter = gpu.caps.description.clone();
                let mut weights = GpuWeights::new(gpu.clone());
                stream_weights(&checkpoint, &source, &mut weights, &mut |_, _| {}).await?;
                let kernels = Kernels::new(gpu.clone());
                let mut backend = GpuBackend::new(checkpoint.config.clone(), weights, kernels, None).await?;
                backend.self_check().await?;
                if let Some(heads) = heads {
                    let mut weights = GpuWeights::new(gpu);
                    stream_heads(heads, model, &mut weights, &mut |_, _| {}).await?;
                    backend.set_heads(heads.1.clone(), weights).await?;
                }
                write(args, Engine::new(backend, text, now_ms), &checkpoint.name, &adapter).await
            }
        }
    })
}

async fn write<B: Backend>(args: &Args, mut engine: Engine<B>, model: &str, adapter: &str) -> anyhow::Result<()> {
    let options = args.options()?;
    if options.draft != Drafters::None {
        engine.measure_costs().await?;
    }
    let mut session = engine.start(&args.prompt(), &options)?;
    let mut out = std::io::stdout().lock();
    while let Some(chunk) = engine.next(&mut session).await? {
        if !args.json {
            write!(out, "{}", chunk.text)?;
            out.flush()?;
        }
    }
    if args.json {
        writeln!(out, "{}", report(&session, model, adapter, engine.backend().heads()))?;
    } else {
        writeln!(out)?;
    }
    Ok(())
}

fn report(session: &Session, model: &str, adapter: &str, heads: Option<&DraftHeads>) -> serde_json::Value {
    let stats = session.stats();
    let mut report = serde_json::json!({
        "model": model,
        "adapter": adapter,
        "heads": heads.map(|heads| serde_json::json!({
            "form": heads.form.as_str(),
            "depths": heads.depths,
            "layers": heads.layers,
            "draft_vocabulary": heads.draft_vocab,
            "rank": heads.rank,
            "warning": heads.warning,
        })),
        "prompt_tokens": session.prompt(),
        "tokens": session.tokens(),
        "text": session.text(),
        "finish_reason": session.finish().map(|finish| finish.as_str()),
        "stats": {
            "prefill_ms": stats.prefill_ms(),
            "decode_ms": stats.decode_ms(),
            "passes": stats.passes,
            "dispatches_per_pass": stats.dispatches_per_pass,
            "submits": stats.submits,
            "steps_in_flight": stats.steps_in_flight,
            "guarantee": stats.guarantee.as_str(),
            "tokens_per_second": stats.tokens_per_second(),
            "tokens_per_pass": stats.tokens_per_pass(),
            "draft": report_draft(&stats.draft),
        },
    });
    if let Some(logprobs) = session.logprobs() {
        report["logprobs"] = serde_json::json!(logprobs);
    }
    report
}

fn report_draft(stats: &DraftStats) -> serde_json::Value {
    let acceptance = Source::DRAFTERS.iter().zip(&stats.acceptance).map(|(source, depths)| {
        let depths = depths.iter().zip(1..).map(
            |(seen, depth)| serde_json::json!({ "depth": depth, "offered": seen.offered, "accepted": seen.accepted }),
        );
        (source.name(), depths.collect::<Vec<_>>())
    });
    let tokens = Source::ALL.iter().zip(stats.tokens).map(|(source, tokens)| (source.name(), tokens));
    serde_json::json!({
        "rows_per_step": stats.rows_per_step(),
        "acceptance": acceptance.collect::<BTreeMap<_, _>>(),
        "tokens_by_source": tokens.collect::<BTreeMap<_, _>>(),
    })
}

fn now_ms() -> f64 {
    static BEGAN: OnceLock<Instant> = OnceLock::new();
    BEGAN.get_or_init(Instant::now).elapsed().as_secs_f64() * 1000.0
}

/// The standard library knows no time zones; templates that ask for a date get that of UTC.
pub fn utc_seconds() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs() as i64)
}
