//! `draftree train-joint`: trains a model together with its draft heads, and writes both.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use candle_core::Device;
use clap::ValueEnum;
use draftree::error::{Error, ErrorCode, Result};
use draftree::model::Checkpoint;
use draftree::model::files::FileSource;
use draftree::model::heads::{HeadForm, Taps, model_identity};
use draftree::train::joint::backbone::Backbone;
use draftree::train::joint::evaluation::Evaluation;
use draftree::train::joint::save::save;
use draftree::train::joint::{
    Joined, JointSettings, LanguageLoss, Lora, Material, Ramp, Report, Tuning, measure, train,
};
use draftree::train::loss::Loss;
use draftree::train::matrices::TargetMatrices;
use draftree::train::save::{StoredTypes, head_file};
use draftree::train::shapes::{HeadShape, TrainHeads};
use draftree::train::split::HELD_OUT;

use crate::fit::{Form, Store, TrainDevice};
use crate::train::{DataArgs, Model, answers};

/// Models of fewer weights are trained as a whole, unless told.
const SMALL: u64 = 20_000_000;

/// What of the model is trained.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Trained {
    /// All weights.
    All,
    /// Adapters of low rank on the linear layers (LoRA), which become part of them when the model is written.
    Lora,
}

/// What the model is to say.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Language {
    /// What it said before: divergence from the original.
    Original,
    /// The text of the answers.
    Text,
}

/// How the coefficient rises.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum RampShape {
    Sine,
    Linear,
    None,
}

/// `draftree train-joint`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// A .gguf file, or a folder with config.json and safetensors.
    #[arg(long)]
    model: PathBuf,
    /// The folder of the work: answers are in `answers.jsonl`, checkpoints come to `joint`; a stopped run goes on from it.
    #[arg(long)]
    work: PathBuf,
    /// Folder of the trained model and its heads, or the GGUF file, whose heads come beside it; `model` in the folder of the work unless
    /// told.
    #[arg(long)]
    out: Option<PathBuf>,
    #[command(flatten)]
    data: DataArgs,
    #[command(flatten)]
    joint: JointArgs,
}

/// How model and heads are trained.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Joint training")]
struct JointArgs {
    /// A file of heads to begin with, those of `draftree train` for example; form, depths, rank and draft vocabulary are theirs then.
    #[arg(long, conflicts_with_all = ["form", "depths", "blocks", "rank", "own_blocks", "draft_vocab", "share_head"])]
    heads: Option<PathBuf>,
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
    /// Tokens that heads can predict: those that the target writes most; 0 for all.
    #[arg(long, default_value_t = 8192)]
    draft_vocab: usize,
    /// Let heads use the model's output matrix, instead of one of their own.
    #[arg(long)]
    share_head: bool,
    /// What of the model is trained; all of it where it has fewer than 20 million weights.
    #[arg(long, value_enum)]
    train: Option<Trained>,
    /// Rank of adapters.
    #[arg(long, default_value_t = 32)]
    lora_rank: usize,
    /// What adapters add counts this over their rank.
    #[arg(long, default_value_t = 16.0)]
    lora_alpha: f32,
    /// What the model is to say.
    #[arg(long, value_enum, default_value = "original")]
    language: Language,
    /// The heads' loss: ce, kl, tv, or a sum of them with factors; their teacher is the model itself.
    #[arg(long, default_value = "kl+0.1ce")]
    loss: Loss,
    /// A depth counts this to the power of itself.
    #[arg(long, default_value_t = 0.8)]
    depth_decay: f32,
    /// What the heads' loss counts beside the model's own.
    #[arg(long, default_value_t = 0.2)]
    coefficient: f32,
    /// How the coefficient rises.
    #[arg(long, value_enum, default_value = "sine")]
    ramp: RampShape,
    /// Share of the joint steps in which it does.
    #[arg(long, default_value_t = 0.5)]
    ramp_share: f64,
    /// Times that every answer is seen by the heads alone, at first.
    #[arg(long, default_value_t = 2.0)]
    head_epochs: f64,
    /// Times that every answer is seen by both.
    #[arg(long, default_value_t = 4.0)]
    epochs: f64,
    /// Answers of a step.
    #[arg(long, default_value_t = 8)]
    step_answers: usize,
    /// Tokens of a prompt with its answer, at most; the rest is cut off.
    #[arg(long, default_value_t = 1024)]
    longest: usize,
    /// The model's rate of learning, at its highest.
    #[arg(long, default_value_t = 5e-4)]
    lr: f32,
    /// The heads' is so many times that.
    #[arg(long, default_value_t = 4.0)]
    head_factor: f32,
    /// Share of the steps of each stage in which rates rise.
    #[arg(long, default_value_t = 0.03)]
    warm_up: f64,
    /// What rates fall to, relative to the highest.
    #[arg(long, default_value_t = 0.05)]
    lr_floor: f32,
    /// What weights lose, relative to the rate.
    #[arg(long, default_value_t = 0.0)]
    weight_decay: f32,
    /// Gradients longer than this are shortened; 0 for none.
    #[arg(long, default_value_t = 1.0)]
    clip: f32,
    /// Another seed, another order of answers.
    #[arg(long, default_value_t = 0)]
    fit_seed: u64,
    /// Share of the answers that are not learnt from.
    #[arg(long, default_value_t = HELD_OUT)]
    held_out: f64,
    /// Answers of them that are looked at, at most.
    #[arg(long, default_value_t = 100)]
    held_out_answers: usize,
    /// Steps between evaluations; 0 for one an epoch.
    #[arg(long, default_value_t = 0)]
    evaluate_every: usize,
    /// Evaluations of joint training without a better one before it ends; 0 for never.
    #[arg(long, default_value_t = 0)]
    patience: usize,
    /// How matrices of the heads are stored.
    #[arg(long, value_enum, default_value = "f16")]
    store: Store,
    /// How those of the model are; as they were read unless told, or F16 where nothing is written as that.
    #[arg(long, value_enum)]
    store_model: Option<Store>,
    /// Licence of the heads, for their file.
    #[arg(long)]
    license: Option<String>,
    /// What the answers were made from, for the file.
    #[arg(long = "data")]
    made_from: Option<String>,
    /// Where training runs.
    #[arg(long, value_enum, default_value = "cpu")]
    train_device: TrainDevice,
}

/// Trains model and heads, and writes them.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let out = args.out.clone().unwrap_or_else(|| args.work.join("model"));
    refuse_own_place(&args.model, &out)?;
    std::fs::create_dir_all(&args.work)?;
    let model = Model::open(&args.model)?;
    let answers = answers(&args.data, &model, &args.work)?;
    let Model { source, checkpoint, .. } = &model;
    let device = args.joint.train_device.open()?;
    let original = Backbone::read(checkpoint, source, &device)?;
    let heads = args.joint.first_heads(&model, &device)?;
    let settings = args.joint.settings(checkpoint, heads.as_ref());
    let identity = model_identity(checkpoint);
    let always = &checkpoint.config.eos_token_ids;
    let material =
        Material { original: &original, identity: &identity, answers: &answers, always, heads: heads.as_ref() };
    let joined = train(material, &settings, &args.work.join("joint"), &mut |report| print_report(&report))?;
    eprintln!("of step {}:\n{}", joined.step, joined.evaluation);

    let store_model = args.joint.store_model.map(Into::into);
    let saved = save((checkpoint, source), &joined.backbone, store_model, &out)?;
    let stored = Model::open(&saved.model)?;
    let stored = Backbone::read(&stored.checkpoint, &stored.source, &device)?;
    let evaluation = measure(material, &settings, &stored, &joined.heads)?;
    let before = measure(material, &settings, &original, &joined.heads)?.text;
    eprintln!(
        "the same as it is stored:\n{evaluation}\nperplexity of the held-out text: {:.4}, of the original {:.4}",
        evaluation.text.exp(),
        before.exp()
    );
    let words = args.joint.words(&settings, (&joined, &evaluation, before), answers.len());
    head_file(&joined.heads, StoredTypes::all(args.joint.store.into()), &identity, &words)?.write(&saved.heads)?;
    println!("{}\n{}", saved.model.display(), saved.heads.display());
    Ok(())
}

/// The model that is trained is not to be written over, nor its heads.
fn refuse_own_place(model: &Path, out: &Path) -> Result<()> {
    let place = |path: &Path| path.canonicalize().ok();
    let parent = model.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let is_own = |own: &Path| place(own).is_some_and(|own| place(out) == Some(own));
    if is_own(model) || is_own(parent) {
        return Err(Error::new(
            ErrorCode::InvalidOption,
            format!(
                "{} is the place of the model that is trained, which would be written over; name another one by --out",
                out.display()
            ),
        ));
    }
    Ok(())
}

impl JointArgs {
    /// The heads to begin with, where a file was named.
    fn first_heads(&self, model: &Model, device: &Device) -> Result<Option<TrainHeads>> {
        let Some(path) = &self.heads else { return Ok(None) };
        let Model { source, checkpoint, .. } = model;
        let target = pollster::block_on(TargetMatrices::read(checkpoint, source))?;
        TrainHeads::read(&FileSource::open(path)?, checkpoint, &target, device).map(Some)
    }

    fn settings(&self, checkpoint: &Checkpoint, heads: Option<&TrainHeads>) -> JointSettings {
        let form: HeadForm = self.form.into();
        let small = if checkpoint.parameters() < SMALL { Trained::All } else { Trained::Lora };
        JointSettings {
            shape: heads.map(|heads| heads.shape).unwrap_or(HeadShape {
                form,
                depths: self.depths,
                layers: self.blocks,
                rank: self.rank,
                one_block: form == HeadForm::Recurrent && !self.own_blocks,
                frozen_head: self.share_head,
                taps: Taps::NONE,
                context_layer: None,
            }),
            draft_vocab: self.draft_vocab,
            tuning: match self.train.unwrap_or(small) {
                Trained::All => Tuning::All,
                Trained::Lora => Tuning::Lora(Lora { rank: self.lora_rank, alpha: self.lora_alpha }),
            },
            language: match self.language {
                Language::Original => LanguageLoss::Original,
                Language::Text => LanguageLoss::Text,
            },
            loss: self.loss,
            depth_decay: self.depth_decay,
            coefficient: self.coefficient,
            ramp: match self.ramp {
                RampShape::Sine => Ramp::Sine,
                RampShape::Linear => Ramp::Linear,
                RampShape::None => Ramp::None,
            },
            ramp_share: self.ramp_share,
            head_epochs: self.head_epochs,
            epochs: self.epochs,
            batch: self.step_answers,
            longest: self.longest,
            rate: self.lr,
            head_factor: self.head_factor,
            warm_up: self.warm_up,
            floor: self.lr_floor,
            weight_decay: self.weight_decay,
            clip: self.clip,
            seed: self.fit_seed,
            held_out: self.held_out,
            held_out_answers: self.held_out_answers,
            evaluate_every: self.evaluate_every,
            patience: self.patience,
        }
    }

    /// What the file of heads says of how they came to be.
    fn words(
        &self,
        settings: &JointSettings,
        (joined, evaluation, loss_of_original): (&Joined, &Evaluation, f64),
        answers: usize,
    ) -> BTreeMap<String, String> {
        let (share, exact) = (|value: f64| format!("{value:.3}"), |value: f64| format!("{value:.5}"));
        let Joined { tokens, step, coverage, .. } = joined;
        let top_1 = evaluation.heads.top.iter().map(|top| share(top[0])).collect::<Vec<_>>().join(" ");
        let made = format!("{answers} answers of the original model, {tokens} tokens");
        let begun = if self.heads.is_some() { "heads that were trained before" } else { "new heads" };
        let recipe = format!(
            "{begun}, trained with the model ({:?}, {:?}), loss {}, depth decay {}, coefficient {} ({:?}), step {step} of {} + {} epochs, \
             {} answers a step, rate {} (heads {} times that), seed {}",
            settings.tuning,
            settings.language,
            settings.loss,
            settings.depth_decay,
            settings.coefficient,
            settings.ramp,
            settings.head_epochs,
            settings.epochs,
            settings.batch,
            settings.rate,
            settings.head_factor,
            settings.seed,
        );
        let words = [
            ("license", self.license.clone()),
            ("data", Some(self.made_from.as_ref().map_or(made.clone(), |data| format!("{made}; {data}")))),
            ("recipe", Some(recipe)),
            ("draft_vocabulary_coverage", Some(share(*coverage))),
            ("held_out_top_1", Some(top_1)),
            ("held_out_chain", Some(share(evaluation.heads.chain))),
            ("held_out_text_loss", Some(exact(evaluation.text))),
            ("held_out_text_loss_of_original", Some(exact(loss_of_original))),
            ("held_out_divergence", Some(exact(evaluation.divergence))),
            ("held_out_agreement", Some(share(evaluation.agreement))),
        ];
        words.into_iter().filter_map(|(key, value)| Some((key.to_owned(), value?))).collect()
    }
}

/// Says on the terminal how training goes.
fn print_report(report: &Report) {
    match report {
        Report::Began { step, head_steps, steps, answers, tokens, left_out, coverage, trained } => {
            let covered = 100.0 * coverage;
            eprintln!(
                "step {step} of {steps}, heads alone until {head_steps}; {answers} answers of {tokens} tokens, {left_out} left out; \
                 {covered:.1} % of held-out tokens can be drafted; {trained} numbers of the model are trained"
            );
        }
        Report::Stepped { step, steps, language, heads, tokens_per_second, seconds_left } => {
            let minutes = seconds_left / 60.0;
            eprint!(
                "\rstep {step} of {steps}, loss {language:.4}, of heads {heads:.4}, {tokens_per_second:.0} tokens/s, {minutes:.1} min \
                 left   "
            );
        }
        Report::Evaluated { step, epoch, evaluation, best } => {
            let best = if *best { ", the best so far" } else { "" };
            eprintln!(
                "\rafter step {step}, epoch {epoch:.2}{best}                                          \n{evaluation}"
            );
        }
    }
}
