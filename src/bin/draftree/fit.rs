//! The last stage of `draftree train`: draft heads learn from states of the target's own answers.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use candle_core::Device;
use clap::ValueEnum;
use draftree::model::files::FileSource;
use draftree::model::heads::{HeadForm, Taps, model_identity};
use draftree::model::{Checkpoint, TensorType};
use draftree::train::fit::{FitSettings, Fitted, Material, Report, train};
use draftree::train::loss::Loss;
use draftree::train::matrices::TargetMatrices;
use draftree::train::save::{StoredTypes, head_file};
use draftree::train::shapes::HeadShape;
use draftree::train::split::HELD_OUT;
use draftree::train::states::States;

/// What heads read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Form {
    /// The hidden row alone (Medusa).
    Parallel,
    /// The hidden row and every token drafted since (Hydra, MLPSpeculator).
    Recurrent,
}

/// How matrices are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
#[allow(non_camel_case_types, reason = "the names are ggml's own")]
pub enum Store {
    F32,
    F16,
    #[value(name = "q8_0")]
    Q8_0,
    #[value(name = "q4_0")]
    Q4_0,
    #[value(name = "q4_1")]
    Q4_1,
}

/// Where training runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum TrainDevice {
    Cpu,
    /// A graphics card of NVIDIA; only in builds with the feature `cuda`.
    Cuda,
    /// One of Apple; only in builds with the feature `metal`.
    Metal,
}

impl From<Form> for HeadForm {
    fn from(form: Form) -> Self {
        match form {
            Form::Parallel => Self::Parallel,
            Form::Recurrent => Self::Recurrent,
        }
    }
}

impl From<Store> for TensorType {
    fn from(store: Store) -> Self {
        match store {
            Store::F32 => Self::F32,
            Store::F16 => Self::F16,
            Store::Q8_0 => Self::Q8_0,
            Store::Q4_0 => Self::Q4_0,
            Store::Q4_1 => Self::Q4_1,
        }
    }
}

impl TrainDevice {
    /// The device itself.
    pub fn open(self) -> anyhow::Result<Device> {
        match self {
            Self::Cpu => Ok(Device::Cpu),
            Self::Cuda => Device::new_cuda(0).context("training on CUDA; build with --features cuda"),
            Self::Metal => Device::new_metal(0).context("training on Metal; build with --features metal"),
        }
    }
}

/// Options of training.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Heads")]
pub struct FitArgs {
    /// Where the heads are written; in the folder of the work unless told.
    #[arg(long)]
    out: Option<PathBuf>,
    /// What heads read.
    #[arg(long, value_enum, default_value = "recurrent")]
    form: Form,
    /// Tokens that heads draft ahead.
    #[arg(long, default_value_t = 4)]
    depths: usize,
    /// Blocks of a parallel head.
    #[arg(long, default_value_t = 1)]
    blocks: usize,
    /// Rank of the correction by the previous token; 0 for none.
    #[arg(long, default_value_t = 0)]
    rank: usize,
    /// Recurrent heads: a block for each level, instead of one for all.
    #[arg(long)]
    own_blocks: bool,
    /// Layers whose output is fused with the hidden row before heads read it, counted from 0, with commas between them. The states keep
    /// them.
    #[arg(long, value_delimiter = ',')]
    pub taps: Vec<usize>,
    /// The layer by whose keys and values heads look at the context before they draft, counted from 0. The states keep these.
    #[arg(long)]
    pub context_layer: Option<usize>,
    /// Tokens that heads can predict: those that the target writes most; 0 for all.
    #[arg(long, default_value_t = 8192)]
    draft_vocab: usize,
    /// Leave the output matrix as the target's rows, and out of the file.
    #[arg(long)]
    freeze_head: bool,
    /// ce, kl, tv, or a sum of them with factors.
    #[arg(long, default_value = "kl+0.1ce")]
    loss: Loss,
    /// A depth counts this to the power of itself.
    #[arg(long, default_value_t = 0.8)]
    depth_decay: f32,
    /// Times that every row is seen.
    #[arg(long, default_value_t = 4.0)]
    epochs: f64,
    /// Rows of a step.
    #[arg(long, default_value_t = 512)]
    step_rows: usize,
    /// Rate of learning of blocks and correction, at its highest.
    #[arg(long, default_value_t = 1e-3)]
    lr: f32,
    /// The same of the output matrix.
    #[arg(long, default_value_t = 1e-4)]
    head_lr: f32,
    /// Share of the steps in which rates rise.
    #[arg(long, default_value_t = 0.03)]
    warm_up: f64,
    /// What rates fall to, relative to the highest.
    #[arg(long, default_value_t = 0.05)]
    lr_floor: f32,
    /// What blocks and correction lose, relative to the rate.
    #[arg(long, default_value_t = 0.0)]
    weight_decay: f32,
    /// How much of its distance from the target's rows the output matrix loses, relative to the rate.
    #[arg(long, default_value_t = 0.0)]
    regularise: f32,
    /// Gradients longer than this are shortened; 0 for none.
    #[arg(long, default_value_t = 1.0)]
    clip: f32,
    /// Share of what blocks read that is left out.
    #[arg(long, default_value_t = 0.0)]
    dropout: f32,
    /// Another seed, another order of rows.
    #[arg(long, default_value_t = 0)]
    fit_seed: u64,
    /// Share of the answers that are not learnt from.
    #[arg(long, default_value_t = HELD_OUT)]
    held_out: f64,
    /// Rows of them that are looked at, at most.
    #[arg(long, default_value_t = 20_000)]
    held_out_rows: usize,
    /// Steps between evaluations; 0 for one an epoch.
    #[arg(long, default_value_t = 0)]
    evaluate_every: usize,
    /// Evaluations without a better one before training ends; 0 for never.
    #[arg(long, default_value_t = 0)]
    patience: usize,
    /// How matrices are stored.
    #[arg(long, value_enum, default_value = "f16")]
    store: Store,
    /// How the output matrix is stored; like the others unless told.
    #[arg(long, value_enum)]
    store_output: Option<Store>,
    /// Licence of the heads, for their file.
    #[arg(long)]
    license: Option<String>,
    /// What the answers were made from, for the file.
    #[arg(long)]
    data: Option<String>,
    /// Where training runs.
    #[arg(long, value_enum, default_value = "cpu")]
    train_device: TrainDevice,
}

impl FitArgs {
    /// Trains heads for a model on the states in the folder `states` of the work, and writes their file.
    pub fn run(&self, model: &Path, work: &Path) -> anyhow::Result<()> {
        let source = FileSource::open(model)?;
        let checkpoint = pollster::block_on(Checkpoint::open(&source))?;
        let states = States::open(&work.join("states"))?;
        let identity = model_identity(&checkpoint);
        if states.header.model != identity {
            anyhow::bail!(
                "{} has states of the model {}, but {} is {identity}; make states of this model",
                work.display(),
                states.header.model,
                model.display()
            );
        }
        let target = pollster::block_on(TargetMatrices::read(&checkpoint, &source))?;
        let settings = self.settings()?;
        let always = &checkpoint.config.eos_token_ids;
        let material = Material { states: &states, target: &target, always };
        let device = self.train_device.open()?;
        let fitted = train(material, &settings, &work.join("heads"), &device, &mut |report| print_report(&report))?;
        let words = self.words(&states, &settings, &fitted);
        let stored = StoredTypes { output: self.store_output.unwrap_or(self.store).into(), others: self.store.into() };
        let file = head_file(&fitted.heads, stored, &identity, &words)?;
        let out = self.out.clone().unwrap_or_else(|| work.join("heads.safetensors"));
        file.write(&out)?;
        let megabytes = out.metadata().with_context(|| out.display().to_string())?.len() as f64 / 1e6;
        eprintln!("{}: {megabytes:.2} MB, of step {}\n{}", out.display(), fitted.step, fitted.accuracy);
        Ok(())
    }

    fn settings(&self) -> anyhow::Result<FitSettings> {
        let form = self.form.into();
        Ok(FitSettings {
            shape: HeadShape {
                form,
                depths: self.depths,
                layers: self.blocks,
                rank: self.rank,
                one_block: form == HeadForm::Recurrent && !self.own_blocks,
                frozen_head: self.freeze_head,
                taps: Taps::new(&self.taps)?,
                context_layer: self.context_layer,
            },
            draft_vocab: self.draft_vocab,
            loss: self.loss,
            depth_decay: self.depth_decay,
            epochs: self.epochs,
            batch: self.step_rows,
            rate: self.lr,
            head_rate: self.head_lr,
            warm_up: self.warm_up,
            floor: self.lr_floor,
            weight_decay: self.weight_decay,
            regularise: self.regularise,
            clip: self.clip,
            dropout: self.dropout,
            seed: self.fit_seed,
            held_out: self.held_out,
            held_out_rows: self.held_out_rows,
            evaluate_every: self.evaluate_every,
            patience: self.patience,
        })
    }

    /// What the file says of how the heads came to be.
    fn words(&self, states: &States, settings: &FitSettings, fitted: &Fitted) -> BTreeMap<String, String> {
        let share = |value: f64| format!("{value:.3}");
        let top_1 = fitted.accuracy.top.iter().map(|top| share(top[0])).collect::<Vec<_>>().join(" ");
        let (answers, tokens, weights) = (states.sequences.len(), states.len(), &states.header.quantisation);
        let made = format!("{answers} answers of the model itself, {tokens} tokens, by its {weights} weights");
        let recipe = format!(
            "loss {}, depth decay {}, step {} of {} epochs, batch {}, rate {} (output {}), weight decay {}, regularise {}, \
             dropout {}, seed {}",
            settings.loss,
            settings.depth_decay,
            fitted.step,
            settings.epochs,
            settings.batch,
            settings.rate,
            settings.head_rate,
            settings.weight_decay,
            settings.regularise,
            settings.dropout,
            settings.seed,
        );
        let words = [
            ("license", self.license.clone()),
            ("data", Some(self.data.as_ref().map_or(made.clone(), |data| format!("{made}; {data}")))),
            ("training_rows", Some(fitted.rows.to_string())),
            ("recipe", Some(recipe)),
            ("draft_vocabulary_coverage", Some(share(fitted.coverage))),
            ("held_out_top_1", Some(top_1)),
            ("held_out_chain", Some(share(fitted.accuracy.chain))),
        ];
        words.into_iter().filter_map(|(key, value)| Some((key.to_owned(), value?))).collect()
    }
}

/// Says on the terminal how training goes.
fn print_report(report: &Report) {
    match report {
        Report::Began { step, steps, rows, coverage } => {
            let covered = 100.0 * coverage;
            eprintln!("step {step} of {steps}; {rows} rows; {covered:.1} % of held-out tokens can be drafted");
        }
        Report::Stepped { step, steps, loss, rows_per_second, seconds_left } => {
            let minutes = seconds_left / 60.0;
            eprint!("\rstep {step} of {steps}, loss {loss:.4}, {rows_per_second:.0} rows/s, {minutes:.1} min left   ");
        }
        Report::Evaluated { step, epoch, accuracy, best } => {
            let best = if *best { ", the best so far" } else { "" };
            eprintln!("\rafter step {step}, epoch {epoch:.2}{best}                              \n{accuracy}");
        }
    }
}
