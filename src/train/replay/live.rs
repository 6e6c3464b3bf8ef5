//! Generations that cannot be replayed, since their text depends on the drafts: lossy rules of acceptance, or sampled text. Many are written
//! together, each as the engine would write it.

use rayon::prelude::*;

use super::heads::{BatchedHeads, HeadRow};
use super::lane::{Lane, Memory, ModelFacts, Steps};
use crate::backend::cpu::generation::{Generation, Verified};
use crate::backend::cpu::heads::DraftScene;
use crate::backend::{GenerationSetup, MAX_ROWS, StepRecord};
use crate::error::{Error, ErrorCode, Result};
use crate::sampling::SamplingParams;
use crate::speculate::accept::AcceptRule;
use crate::speculate::grow::HeadCandidates;
use crate::speculate::{DraftPlan, Source};
use crate::train::from_candle;
use crate::train::target::{HiddenRows, KvCache, NewTokens, Seen, SequenceSlice, Target, values};

/// Generations that are written together at most: each has a cache of its own.
const LANES: usize = 64;
/// Rows whose logits are there at a time, about.
const LOGIT_ROWS: usize = 256;

/// What is written, and how.
#[derive(Debug)]
pub struct Live<'a> {
    /// The model.
    pub target: &'a Target,
    /// And what else of it counts.
    pub facts: &'a ModelFacts,
    /// The heads, where a plan drafts with them.
    pub heads: Option<&'a BatchedHeads<'a>>,
    /// Ways of drafting and rules of acceptance.
    pub plans: &'a [DraftPlan],
    /// How tokens are chosen.
    pub sampling: &'a SamplingParams,
    /// Tokens of a text at most.
    pub max_tokens: usize,
}

/// A text that was written.
#[derive(Debug, Clone, PartialEq)]
pub struct Written {
    /// Without its prompt.
    pub tokens: Vec<u32>,
    /// How it was drafted.
    pub steps: Steps,
}

/// How far texts are those of another rule.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Agreement {
    /// The share of texts that are the same.
    pub identical: f64,
    /// Tokens that are the same from the beginning on, of all tokens of the other rule.
    pub prefix: f64,
    /// The same as a number of tokens, on average.
    pub prefix_tokens: f64,
}

impl Agreement {
    /// Of texts with those of the exact rule.
    pub fn of(texts: &[Written], exact: &[Written]) -> Self {
        let common = |(text, exact): (&Written, &Written)| {
            text.tokens.iter().zip(&exact.tokens).take_while(|(found, exact)| found == exact).count()
        };
        let same = texts.iter().zip(exact).filter(|(text, exact)| text.tokens == exact.tokens).count();
        let prefix: usize = texts.iter().zip(exact).map(common).sum();
        let all: usize = exact.iter().map(|text| text.tokens.len()).sum();
        let texts = exact.len().max(1) as f64;
        Self {
            identical: same as f64 / texts,
            prefix: prefix as f64 / all.max(1) as f64,
            prefix_tokens: prefix as f64 / texts,
        }
    }
}

/// A generation under way.
struct Writer {
    lane: Lane,
    cache: KvCache,
    /// The last visited node, among the rows of the pass.
    last: usize,
    /// The row there that heads draft from.
    hidden: Vec<f32>,
}

impl Live<'_> {
    /// Writes on from all prompts under all plans: `[plan][prompt]`. `progress` is told texts done and in all.
    ///
    /// # Errors
    /// `InvalidOption` where a plan needs heads that are not there; `PromptTooLong`.
    pub fn run(&self, prompts: &[&[u32]], progress: &mut dyn FnMut(usize, usize)) -> Result<Vec<Vec<Written>>> {
        let total = prompts.len() * self.plans.len();
        let mut found: Vec<Vec<Written>> = vec![Vec::new(); self.plans.len()];
        for (at, prompt) in prompts.iter().enumerate() {
            if prompt.len() > self.facts.context_limit {
                let message = format!(
                    "prompt {at} has {} tokens, but the context has room for {}; leave it out",
                    prompt.len(),
                    self.facts.context_limit
                );
                return Err(Error::new(ErrorCode::PromptTooLong, message));
            }
        }
        let together = (LANES / self.plans.len().max(1)).max(1);
        for (group, prompts) in prompts.chunks(together).enumerate() {
            let done = group * together * self.plans.len();
            let mut writers = self.begin(prompts)?;
            while writers.iter().any(|writer| !writer.lane.ended()) {
                self.step(&mut writers)?;
                progress(done + writers.iter().filter(|writer| writer.lane.ended()).count(), total);
            }
            for (number, writer) in writers.into_iter().enumerate() {
                let prompt = prompts[number / self.plans.len()].len();
                let tokens = writer.lane.generation.text[prompt..].to_vec();
                found[number % self.plans.len()].push(Written { tokens, steps: writer.lane.into_memory().0 });
            }
        }
        Ok(found)
    }

    fn forgotten(&self, plan: &DraftPlan) -> Memory {
        Memory::new(plan, self.facts.vocab_size, self.heads.map(BatchedHeads::shape), None)
    }

    /// Writers of all plans behind each prompt, which is computed once.
    fn begin(&self, prompts: &[&[u32]]) -> Result<Vec<Writer>> {
        let mut writers = Vec::with_capacity(prompts.len() * self.plans.len());
        for &prompt in prompts {
            let mut cache = self.target.new_cache();
            cache.reserve(prompt.len() + self.max_tokens + MAX_ROWS);
            if let [head @ .., _] = prompt
                && !head.is_empty()
            {
                self.target.forward(&mut [SequenceSlice { cache: &mut cache, new: NewTokens::Text(head) }], &[])?;
            }
            for plan in self.plans {
                let setup = GenerationSetup {
                    sampling: self.sampling.clone(),
                    end_tokens: self.facts.end_tokens.clone(),
                    max_tokens: self.max_tokens as u32,
                    prompt: prompt.to_vec(),
                    valid_tokens: self.facts.valid_tokens,
                    logprobs: None,
                    trees: false,
                    draft: plan.clone(),
                };
                let lane = Lane::begin(&setup, self.facts, self.forgotten(plan))?;
                writers.push(Writer { lane, cache: cache.clone(), last: 0, hidden: Vec::new() });
            }
        }
        Ok(writers)
    }

    /// One step of every writer that has not ended.
    fn step(&self, writers: &mut [Writer]) -> Result<()> {
        let hidden_size = self.target.config().hidden_size;
        let mut active: Vec<&mut Writer> = writers.iter_mut().filter(|writer| !writer.lane.ended()).collect();
        let slices = active.iter_mut().map(|writer| {
            let Writer { lane, cache, .. } = &mut **writer;
            SequenceSlice { cache, new: NewTokens::Tree(&lane.generation.drafted.tree) }
        });
        let layers = self.heads.map_or_else(Vec::new, BatchedHeads::layers);
        let rows = self.target.forward(&mut slices.collect::<Vec<_>>(), &layers)?;
        let (mut rest, mut records) = (&rows.hidden[..], Vec::with_capacity(active.len()));
        let mut first = 0;
        while first < active.len() {
            let (mut end, mut count) = (first, 0);
            while end < active.len() && (end == first || count < LOGIT_ROWS) {
                count += active[end].lane.generation.drafted.tree.len();
                end += 1;
            }
            let (own, behind) = rest.split_at(count * hidden_size);
            rest = behind;
            let verified = self.verify(&active[first..end], own)?;
            let mut row = (rows.hidden.len() - own.len() - rest.len()) / hidden_size;
            for (writer, verified) in active[first..end].iter_mut().zip(verified) {
                records.push(writer.advance(&verified, row)?);
                row += verified.chosen.len();
            }
            first = end;
        }
        self.take_rows(&rows, &mut active)?;
        let heads = self.candidates(&active)?;
        for ((writer, record), heads) in active.iter_mut().zip(records).zip(heads) {
            writer.lane.finish_step(record, heads)?;
        }
        Ok(())
    }

    /// What the rows `[rows, hidden]` of some writers' trees say.
    fn verify(&self, writers: &[&mut Writer], hidden: &[f32]) -> Result<Vec<Verified>> {
        let vocab_size = self.facts.vocab_size;
        let logits = self.target.logits(hidden)?;
        let verify = |logits: &[f32]| -> Vec<Verified> {
            let mut rest = logits;
            let mut parts = Vec::with_capacity(writers.len());
            for writer in writers {
                let (own, behind) = rest.split_at(writer.lane.generation.drafted.tree.len() * vocab_size);
                rest = behind;
                parts.push((&writer.lane.generation, own));
            }
            let verify = |(generation, own): (&Generation, &[f32])| {
                generation.verify(own.chunks_exact(vocab_size).map(<[f32]>::to_vec).collect())
            };
            parts.into_par_iter().map(verify).collect()
        };
        values(&logits, verify).map_err(from_candle)
    }

    /// Gives every writer the row that heads draft from.
    fn take_rows(&self, rows: &HiddenRows, writers: &mut [&mut Writer]) -> Result<()> {
        let size = self.target.config().hidden_size;
        let lasts = |rows: &[f32]| -> Vec<f32> {
            writers.iter().flat_map(|writer| &rows[writer.last * size..][..size]).copied().collect()
        };
        let hidden = lasts(&rows.hidden);
        let found = match self.heads {
            Some(heads) => {
                let layers: Vec<Vec<f32>> = rows.layers.iter().map(|layer| lasts(layer)).collect();
                let seen = writers.iter().map(|writer| Seen { cache: &writer.cache, position: writer.cache.len() - 1 });
                heads.rows(&hidden, &layers, &seen.collect::<Vec<_>>())?
            }
            None => hidden,
        };
        for (writer, row) in writers.iter_mut().zip(found.chunks_exact(size)) {
            writer.hidden = row.to_vec();
        }
        Ok(())
    }

    /// What heads propose for every writer that goes on and drafts with them.
    fn candidates(&self, writers: &[&mut Writer]) -> Result<Vec<HeadCandidates>> {
        let rows: Vec<Option<HeadRow<'_>>> = writers.iter().map(|writer| self.head_row(writer)).collect();
        let wanted: Vec<HeadRow<'_>> = rows.iter().flatten().copied().collect();
        let mut found = match self.heads {
            Some(heads) => heads.candidates(&wanted)?.into_iter(),
            None if wanted.is_empty() => Vec::new().into_iter(),
            None => return Err(super::missing("draft heads")),
        };
        Ok(rows.iter().map(|row| row.and_then(|_| found.next()).unwrap_or_default()).collect())
    }

    fn head_row<'w>(&'w self, writer: &'w Writer) -> Option<HeadRow<'w>> {
        let generation = &writer.lane.generation;
        let draft = &generation.setup.draft;
        let drafts = !writer.lane.ended() && draft.nodes() > 1 && draft.sources.contains(Source::Heads);
        let scene = DraftScene {
            sampling: self.sampling,
            context_length: generation.text.len() - 1,
            valid_tokens: self.facts.valid_tokens,
            shares_noise: generation.setup.rule() != AcceptRule::Rejection,
        };
        let root = generation.text.last().copied()?;
        drafts.then_some(HeadRow { hidden: &writer.hidden, root, scene })
    }
}

impl Writer {
    /// Walks and commits; `first` is the first row of its tree in the pass.
    fn advance(&mut self, verified: &Verified, first: usize) -> Result<StepRecord> {
        if self.lane.generation.recycles() {
            for (node, bests) in verified.bests.iter().enumerate() {
                self.lane.teach(node, bests);
            }
        }
        let (walk, record) = self.lane.walk(&verified.chosen)?;
        self.cache.commit(&walk.path);
        self.last = first + walk.path.last().copied().unwrap_or_default();
        Ok(record)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn agreement_counts_the_same_texts_and_the_same_beginnings() {
        let written = |tokens: &[u32]| Written { tokens: tokens.to_vec(), steps: Steps::default() };
        let exact = [written(&[1, 2, 3, 4]), written(&[5, 6]), written(&[7, 8])];
        let found = [written(&[1, 2, 9, 4]), written(&[5, 6]), written(&[7])];
        let agreement = Agreement::of(&found, &exact);
        assert_eq!(agreement, Agreement { identical: 1.0 / 3.0, prefix: 5.0 / 8.0, prefix_tokens: 5.0 / 3.0 });
        assert_eq!(Agreement::of(&exact, &exact).identical, 1.0);
    }
}
