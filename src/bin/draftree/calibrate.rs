//! `draftree calibrate`: measures how trained heads draft, and writes it into their file.

use std::path::PathBuf;

use draftree::backend::cpu::CpuWeights;
use draftree::backend::cpu::heads::CpuHeads;
use draftree::model::files::FileSource;
use draftree::model::heads::{model_identity, stream_heads};
use draftree::model::{Checkpoint, HeadFile};
use draftree::train::calibrate::measure;
use draftree::train::fit::batch::Split;
use draftree::train::matrices::TargetMatrices;
use draftree::train::split::HELD_OUT;
use draftree::train::states::States;
use draftree::train::tensor_file::TensorFile;

/// Options of `draftree calibrate`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// A .gguf file, or a folder with config.json and safetensors.
    #[arg(long)]
    model: PathBuf,
    /// The draft heads, in our own format.
    #[arg(long)]
    heads: PathBuf,
    /// A folder of states of the model.
    #[arg(long)]
    states: PathBuf,
    /// Share of the answers that was held out in training: those alone are looked at.
    #[arg(long, default_value_t = HELD_OUT)]
    held_out: f64,
    /// Places of them that are looked at, at most.
    #[arg(long, default_value_t = 10_000)]
    rows: usize,
    /// Print what was found, and leave the file as it is.
    #[arg(long)]
    dry_run: bool,
}

/// Measures, prints and writes.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let source = FileSource::open(&args.model)?;
    let checkpoint = pollster::block_on(Checkpoint::open(&source))?;
    let states = States::open(&args.states)?;
    let identity = model_identity(&checkpoint);
    if states.header.model != identity {
        let (folder, found) = (args.states.display(), &states.header.model);
        anyhow::bail!(
            "{folder} has states of the model {found}, but the model is {identity}; make states of this model"
        );
    }
    let heads = pollster::block_on(async {
        let own = FileSource::open(&args.heads)?;
        let file = HeadFile::open(&own).await?;
        let fitted = file.fit(&checkpoint)?;
        let mut weights = CpuWeights::default();
        stream_heads((&file, &fitted, &own), (&checkpoint, &source), &mut weights, &mut |_, _| {}).await?;
        CpuHeads::new(fitted, weights)
    })?;
    if let Some(warning) = &heads.shape().warning {
        eprintln!("{warning}");
    }
    let target = pollster::block_on(TargetMatrices::read(&checkpoint, &source))?;
    let (rows, ends) = Split::held_out(&states, args.held_out, args.rows)?;
    let findings = measure(&heads, &target, (&states, &ends), &rows)?;
    print!("{findings}");
    if !args.dry_run {
        let mut file = TensorFile::read(&args.heads)?;
        file.metadata.extend(findings.words());
        file.write(&args.heads)?;
    }
    Ok(())
}
