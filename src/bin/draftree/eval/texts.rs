//! The texts that are looked at: greedy answers, and their hidden rows where heads draft from them.

use std::collections::HashSet;

use draftree::error::{Error, ErrorCode, Result};
use draftree::sampling::SamplingParams;
use draftree::speculate::Source;
use draftree::train::answers::{Answer, AnswerFile};
use draftree::train::distill::{DistillOptions, distill};
use draftree::train::extract::{ExtractOptions, extract, states_header};
use draftree::train::prompts::{Prompt, read_prompts};
use draftree::train::replay::{Text, Way, spread};
use draftree::train::states::{States, StatesHeader, StatesWriter};

use super::{Args, Loaded, tell};

/// The greedy answers to the prompts, in their order, with hidden rows if they are to be kept.
pub fn texts(args: &Args, model: &Loaded, ways: &[Way]) -> Result<Vec<Text>> {
    let mut prompts = read_prompts(&args.prompts, &model.text)?;
    if let Some(count) = args.per_category {
        let chosen = spread(prompts.iter().map(|prompt| &prompt.category[..]), count);
        prompts = chosen.into_iter().map(|number| prompts[number].clone()).collect();
    }
    let answers = answers(args, model, &prompts)?;
    let draft_with = |source| ways.iter().any(|way| way.plan.sources.contains(source));
    // Recycling needs the texts computed anew, as do heads that read more than hidden rows, and live texts have rows of their own.
    let of_layers = model.heads.as_ref().is_some_and(|heads| heads.shape().reads_more());
    let computed = args.exact_rows || args.is_live() || of_layers || draft_with(Source::Recycling);
    if computed || !draft_with(Source::Heads) {
        return Ok(answers.into_iter().map(|answer| Text { answer, rows: Vec::new() }).collect());
    }
    let states = states(args, model, &answers)?;
    Text::with_states(answers, &states)
}

/// Answers prompts that have none yet, and returns the answers to all.
fn answers(args: &Args, model: &Loaded, prompts: &[Prompt]) -> Result<Vec<Answer>> {
    std::fs::create_dir_all(&args.work)
        .map_err(|error| Error::new(ErrorCode::LoadFailed, format!("making {}: {error}", args.work.display())))?;
    let path = args.work.join("answers.jsonl");
    let mut file = AnswerFile::open(&path)?;
    let options = DistillOptions {
        sampling: SamplingParams::default(),
        max_tokens: args.max_tokens,
        batch: args.batch,
        max_prompt: usize::MAX,
    };
    let ids: Vec<String> =
        prompts.iter().flat_map(|prompt| (0..prompt.answers()).map(|turn| prompt.answer_id(turn))).collect();
    if ids.iter().any(|id| file.get(id).is_none()) {
        let done = distill(&model.target, &model.text, prompts, &options, &mut file, &mut tell)?;
        if done.too_long > 0 {
            tell(&format!("{} answers are left out, since their prompts do not fit the context", done.too_long));
        }
    }
    let answers: Vec<Answer> = ids.iter().filter_map(|id| file.get(id).cloned()).collect();
    let room = |answer: &Answer| model.facts.context_limit.saturating_sub(answer.prompt.len()).min(args.max_tokens);
    if let Some(short) = answers.iter().find(|answer| !answer.ended && answer.tokens.len() < room(answer)) {
        let message = format!(
            "{}: the answer {} was cut at {} tokens, expected {}; use another folder, or --max-tokens {}",
            path.display(),
            short.id,
            short.tokens.len(),
            room(short),
            short.tokens.len()
        );
        return Err(Error::new(ErrorCode::InvalidOption, message));
    }
    Ok(answers)
}

/// The hidden rows of answers, made where they are not there yet.
fn states(args: &Args, model: &Loaded, answers: &[Answer]) -> Result<States> {
    let folder = args.work.join("states");
    let there = StatesHeader::read(&folder)?;
    let options = ExtractOptions {
        best: there.as_ref().map_or(1, |header| header.best),
        layers: there.as_ref().map_or_else(Vec::new, |header| header.layers.clone()),
        context_layer: there.and_then(|header| header.context).map(|context| context.layer),
        valid_tokens: model.facts.valid_tokens as usize,
    };
    let mut writer = StatesWriter::open(&folder, states_header(&model.target, &options)?)?;
    let there: HashSet<&str> = writer.sequences.iter().map(|sequence| &*sequence.id).collect();
    if answers.iter().any(|answer| !there.contains(&*answer.id)) {
        extract(&model.target, answers, &options, &mut writer, &mut tell)?;
    }
    drop(writer);
    States::open(&folder)
}
