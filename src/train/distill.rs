//! Self-distillation: the target answers prompts, many at once.
//!
//! Sequences join and leave the batch one by one: where one ends, the next prompt is computed in the same pass in which the others
//! get their next token. Each answer is sampled with noise of its own, so it does not depend on its neighbours as far as float32 sums
//! allow.

use std::collections::VecDeque;

use rayon::prelude::*;

use super::answers::{Answer, AnswerFile};
use super::progress::Progress;
use super::prompts::{Content, Prompt, can_ask};
use super::sampler::choose;
use super::target::{KvCache, NewTokens, SequenceSlice, Target, values};
use super::{from_candle, hash};
use crate::engine::TextParts;
use crate::error::{Error, ErrorCode, Result};
use crate::sampling::SamplingParams;

/// Rows of new prompts in a pass, about.
const PROMPT_ROWS: usize = 1024;
/// What the model asks itself is sampled at this temperature: less would ask the same again and again.
const ASKING_TEMPERATURE: f32 = 1.0;

/// How the target answers.
#[derive(Debug, Clone)]
pub struct DistillOptions {
    /// Temperature, top-k, top-p, and the seed from which each answer has its own.
    pub sampling: SamplingParams,
    /// Tokens of an answer at most.
    pub max_tokens: usize,
    /// Sequences in a pass.
    pub batch: usize,
    /// Prompts of more tokens are left out.
    pub max_prompt: usize,
}

/// What a run did.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Distilled {
    /// Answers that were there already.
    pub kept: usize,
    /// Answers that were made.
    pub made: usize,
    /// Their tokens.
    pub tokens: usize,
    /// Answers left out since their prompt was too long.
    pub too_long: usize,
    /// Questions of the model's own that were empty or had no end, and answers of others without a token.
    pub empty: usize,
}

/// A prompt that waits for its next answer.
pub(super) struct Job {
    pub prompt: Prompt,
    /// Texts of the answers to the turns before.
    pub answered: Vec<String>,
}

impl Job {
    /// The id of the next answer.
    pub fn answer_id(&self) -> String {
        self.prompt.answer_id(self.answered.len())
    }

    /// Answers that are missing.
    pub fn left(&self) -> usize {
        self.prompt.answers() - self.answered.len()
    }
}

/// An answer that is being written.
struct Slot {
    job: Job,
    /// Whether the model is asking, not answering yet.
    asks: bool,
    sampling: SamplingParams,
    prompt: Vec<u32>,
    tokens: Vec<u32>,
    max_tokens: usize,
    cache: KvCache,
}

impl Slot {
    /// What the next pass computes.
    fn new_tokens(&self) -> &[u32] {
        if self.tokens.is_empty() { &self.prompt } else { &self.tokens[self.tokens.len() - 1..] }
    }
}

/// Answers what of `prompts` the file has no answer to yet. Conversations of several turns come first, since their turns wait for one
/// another; all others keep their order.
///
/// # Errors
/// `InvalidOption`; `BadChatTemplate` when the model cannot chat; `LoadFailed` when the disk is full.
pub fn distill(
    target: &Target,
    text: &TextParts,
    prompts: &[Prompt],
    options: &DistillOptions,
    answers: &mut AnswerFile,
    tell: &mut dyn FnMut(&str),
) -> Result<Distilled> {
    options.sampling.validate(target.config().vocab_size)?;
    if options.batch == 0 || options.max_tokens == 0 {
        let message = "a batch has at least one sequence, and an answer at least one token; found 0";
        return Err(Error::new(ErrorCode::InvalidOption, message));
    }
    let (queue, kept) = unanswered(prompts, answers, text);
    let left = queue.iter().map(Job::left).sum();
    let mut run = Run {
        target,
        text,
        options,
        answers,
        queue,
        slots: Vec::new(),
        spare: Vec::new(),
        done: Distilled { kept, ..Distilled::default() },
        progress: Progress::new("answers", left, tell),
    };
    while run.step()? {}
    run.progress.report();
    Ok(run.done)
}

/// What is still to be answered, and how many answers are there.
pub(super) fn unanswered(prompts: &[Prompt], answers: &AnswerFile, text: &TextParts) -> (VecDeque<Job>, usize) {
    let mut kept = 0;
    let mut jobs: Vec<Job> = Vec::new();
    for prompt in prompts {
        let there = (0..prompt.answers()).map_while(|turn| answers.get(&prompt.answer_id(turn)));
        let answered: Vec<String> = there.map(|answer| text.tokenizer.decode(&answer.tokens, true)).collect();
        kept += answered.len();
        jobs.push(Job { prompt: prompt.clone(), answered });
    }
    jobs.retain(|job| job.left() > 0);
    jobs.sort_by_key(|job| std::cmp::Reverse(job.left()));
    (jobs.into(), kept)
}

struct Run<'a> {
    target: &'a Target,
    text: &'a TextParts,
    options: &'a DistillOptions,
    answers: &'a mut AnswerFile,
    queue: VecDeque<Job>,
    slots: Vec<Slot>,
    /// Memory of sequences that have ended.
    spare: Vec<KvCache>,
    done: Distilled,
    progress: Progress<'a>,
}

impl Run<'_> {
    /// One pass; whether there was anything to do.
    fn step(&mut self) -> Result<bool> {
        self.fill()?;
        if self.slots.is_empty() {
            return Ok(false);
        }
        let hidden_size = self.target.config().hidden_size;
        let mut ends = Vec::with_capacity(self.slots.len());
        let mut batch = Vec::with_capacity(self.slots.len());
        for slot in &mut self.slots {
            let count = slot.new_tokens().len();
            ends.push(ends.last().unwrap_or(&0) + count);
            let Slot { prompt, tokens, cache, .. } = slot;
            let new = if tokens.is_empty() { &prompt[..] } else { &tokens[tokens.len() - 1..] };
            batch.push(SequenceSlice { cache, new: NewTokens::Text(new) });
        }
        let rows = self.target.forward(&mut batch, &[])?;
        let last = ends.iter().flat_map(|&end| &rows.hidden[(end - 1) * hidden_size..end * hidden_size]);
        let logits = self.target.logits(&last.copied().collect::<Vec<_>>())?;
        let chosen = values(&logits, |logits| self.choose(logits)).map_err(from_candle)?;
        for (slot, token) in self.slots.iter_mut().zip(chosen) {
            slot.tokens.push(token);
        }
        self.progress.advance(self.slots.len());
        self.retire()?;
        Ok(true)
    }

    /// Gives free places of the batch to what waits, as long as a pass does not get too long.
    fn fill(&mut self) -> Result<()> {
        let mut rows = 0;
        while self.slots.len() < self.options.batch && rows < PROMPT_ROWS {
            let Some(job) = self.queue.pop_front() else { break };
            if let Some(slot) = self.start(job)? {
                rows += slot.prompt.len();
                self.slots.push(slot);
            }
        }
        Ok(())
    }

    /// A slot for a job; none when its prompt is too long.
    fn start(&mut self, job: Job) -> Result<Option<Slot>> {
        let Self { text, options, .. } = self;
        let asks = job.prompt.content == Content::Invented && can_ask(text);
        let prompt = job.prompt.ids_after(&job.answered, text)?;
        let context = self.target.config().max_position_embeddings;
        if prompt.len() > options.max_prompt || prompt.len() >= context {
            for _ in 0..job.left() {
                self.done.too_long += 1;
                self.progress.drop_one();
            }
            return Ok(None);
        }
        let name = job.answer_id();
        let mut sampling = options.sampling.clone();
        sampling.seed ^= hash(if asks { format!("{name} asks") } else { name }.as_bytes());
        if asks {
            sampling.temperature = ASKING_TEMPERATURE;
        }
        let max_tokens = options.max_tokens.min(context - prompt.len());
        let mut cache = self.spare.pop().unwrap_or_else(|| self.target.new_cache());
        cache.truncate(0);
        cache.reserve(prompt.len() + max_tokens);
        Ok(Some(Slot { job, asks, sampling, prompt, tokens: Vec::new(), max_tokens, cache }))
    }

    /// A token for every slot.
    fn choose(&self, logits: &[f32]) -> Vec<u32> {
        let vocab_size = self.target.config().vocab_size;
        let valid = self.text.tokenizer.vocab_len().min(vocab_size);
        let rows = self.slots.par_iter().zip(logits.par_chunks_exact(vocab_size));
        let choose = |(slot, row): (&Slot, &[f32])| {
            choose(&row[..valid], (slot.prompt.len() + slot.tokens.len()) as u32, &slot.sampling)
        };
        rows.map(choose).collect()
    }

    /// Takes ended answers out of the batch.
    fn retire(&mut self) -> Result<()> {
        let ends = self.text.tokenizer.end_ids();
        let mut place = 0;
        while place < self.slots.len() {
            let slot = &self.slots[place];
            let ended = slot.tokens.last().is_some_and(|token| ends.contains(token));
            if !ended && slot.tokens.len() < slot.max_tokens {
                place += 1;
                continue;
            }
            let Slot { job, asks, prompt, tokens, cache, .. } = self.slots.swap_remove(place);
            self.spare.push(cache);
            if asks {
                self.ask(job, &tokens, ended);
            } else {
                self.finish(job, prompt, tokens, ended)?;
            }
        }
        Ok(())
    }

    /// The model has asked: next it answers.
    fn ask(&mut self, mut job: Job, tokens: &[u32], ended: bool) {
        let question = self.text.tokenizer.decode(tokens, true).trim().to_owned();
        if !ended || question.is_empty() {
            self.done.empty += 1;
            self.progress.drop_one();
            return;
        }
        job.prompt.content = Content::Turns { before: Vec::new(), turns: vec![question] };
        self.queue.push_front(job);
    }

    /// An answer is there: it is written down, and the next turn may be asked.
    fn finish(&mut self, mut job: Job, prompt: Vec<u32>, tokens: Vec<u32>, ended: bool) -> Result<()> {
        self.done.made += 1;
        self.done.tokens += tokens.len();
        self.progress.finish_one(tokens.len());
        let id = job.answer_id();
        job.answered.push(self.text.tokenizer.decode(&tokens, true));
        self.answers.append(Answer { id, category: job.prompt.category.clone(), prompt, tokens, ended })?;
        if job.left() > 0 {
            self.queue.push_front(job);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
