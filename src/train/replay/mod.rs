//! Evaluation by replay: plain greedy text does not depend on who drafts, so it is made once, and every draft step is taken on it exactly as
//! the engine would take it.
//!
//! At a length of the text the root is its last token. Heads draft from the hidden row that decided it, which is among the text's
//! [states](crate::train::states) or computed by a [`Model`], as is always what else they read; n-grams need only the text. Recycling also learns from rows that are not on
//! the text; the model is asked for those, and for no row twice. The walk follows the text that is known. All texts of a group and all ways of drafting advance
//! together, one step at a time, so that rows can be computed together.

pub mod heads;
mod lane;
mod live;
mod rows;
mod summary;
mod text;
mod ways;

use std::collections::{BTreeSet, HashMap};

use rayon::prelude::*;

use self::heads::{BatchedHeads, HeadRow};
pub use self::lane::{Lane, Memory, ModelFacts, Steps};
pub use self::live::{Agreement, Live, Written};
pub use self::rows::TargetRows;
pub use self::summary::{Summary, Tally, category, spread};
pub use self::text::Text;
pub use self::ways::{TreeChoice, Way, ways};
use crate::backend::GenerationSetup;
use crate::backend::cpu::heads::DraftScene;
use crate::error::{Error, ErrorCode, Result};
use crate::sampling::{self, Candidate, SamplingParams};
use crate::speculate::costs::PassCosts;
use crate::speculate::grow::HeadCandidates;
use crate::speculate::recycling::SUCCESSORS;
use crate::speculate::{DraftPlan, Source};

/// Texts under all plans that advance together, about, and how many texts these are.
const LANES: usize = 256;
const GROUPS: std::ops::RangeInclusive<usize> = 8..=32;

/// A row of the model: that of a token of a text, or of drafted tokens that depart from it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Place {
    /// The text, by its number in the group.
    pub text: usize,
    /// The row of the text, by the token that it decides.
    pub row: usize,
    /// Tokens behind it that are not the text's own; without any, it is the row of the text itself.
    pub tail: Vec<u32>,
}

/// The model whose texts are replayed.
pub trait Model {
    /// Prepares for a group of texts; those of the group before are not asked for any more. Returns the rows that `heads` draft from
    /// where each token was decided, `[tokens, hidden]`: the hidden rows, normed, or what heads make of them and of more.
    ///
    /// # Errors
    /// What computing may fail with.
    fn open(&mut self, texts: &[&Text], heads: Option<&BatchedHeads<'_>>) -> Result<Vec<Vec<f32>>>;

    /// The [best](bests) successors of every place.
    ///
    /// # Errors
    /// What computing may fail with.
    fn bests(&mut self, places: &[Place]) -> Result<Vec<Vec<Candidate>>>;
}

/// What recycling keeps of the logits of a row, of which only those of valid tokens are given.
pub fn bests(logits: &[f32]) -> Vec<Candidate> {
    let mut bests = sampling::chunk_bests(logits, 0, &SamplingParams::default());
    bests.sort_by(|a, b| b.score.total_cmp(&a.score));
    bests.truncate(SUCCESSORS);
    bests
}

/// What is replayed, and how.
#[derive(Debug)]
pub struct Replay<'a> {
    /// The model whose texts they are.
    pub facts: &'a ModelFacts,
    /// Ways of drafting.
    pub plans: &'a [DraftPlan],
    /// The heads, where a plan drafts with them.
    pub heads: Option<&'a BatchedHeads<'a>>,
    /// Write no more than so many tokens of each text.
    pub max_tokens: usize,
    /// What passes cost on the device that is replayed, where the engine is to choose who drafts and how many nodes passes verify as it would
    /// there; else all draft, and passes verify whole trees.
    pub costs: Option<&'a PassCosts>,
    /// Whether drafting remembers what it learnt from one text to the next, in their order, as an engine does that is kept; else
    /// each text begins afresh.
    pub keep: bool,
}

/// What is known of the rows of one group.
struct Group<'a> {
    texts: Vec<&'a Text>,
    /// `[text][row]`.
    heads: Vec<Vec<HeadCandidates>>,
    bests: HashMap<Place, Vec<Candidate>>,
}

impl Replay<'_> {
    /// Replays all texts under all plans: `[plan][text]`. `progress` is told tokens done and in all, over all plans.
    ///
    /// # Errors
    /// `InvalidOption` where a plan needs heads or a model that is not there; what the model reports.
    pub fn run(
        &self,
        texts: &[Text],
        mut model: Option<&mut dyn Model>,
        progress: &mut dyn FnMut(usize, usize),
    ) -> Result<Vec<Vec<Steps>>> {
        let total = self.tokens(texts);
        let mut found: Vec<Vec<Steps>> = vec![Vec::new(); self.plans.len()];
        let mut memories: Vec<Memory> = self.plans.iter().map(|plan| self.forgotten(plan)).collect();
        let mut done = 0;
        let together = (LANES / self.plans.len().max(1)).clamp(*GROUPS.start(), *GROUPS.end());
        for texts in texts.chunks(if self.keep { 1 } else { together }) {
            let texts: Vec<Text> = texts.iter().map(|text| text.first(self.max_tokens)).collect();
            let mut group = self.group(texts.iter().collect(), &mut model)?;
            let mut lanes = Vec::with_capacity(self.plans.len() * texts.len());
            for (plan, memory) in self.plans.iter().zip(&mut memories) {
                for text in &texts {
                    let fresh = self.forgotten(plan);
                    let memory = if self.keep { std::mem::replace(memory, fresh) } else { fresh };
                    lanes.push(self.begin(text, plan, memory)?);
                }
            }
            while lanes.iter().any(|lane| !lane.ended()) {
                self.learn(&mut group, &lanes, &mut model)?;
                let step = |(number, lane): (usize, &mut Lane)| match lane.ended() {
                    true => Ok(()),
                    false => group.step(number % texts.len(), lane),
                };
                lanes.par_iter_mut().enumerate().try_for_each(step)?;
                let emitted: u32 = lanes.iter().map(|lane| lane.generation.emitted).sum();
                progress(done + emitted as usize, total);
            }
            done += self.tokens(&texts);
            for (number, lane) in lanes.into_iter().enumerate() {
                let plan = number / texts.len();
                let (steps, memory) = lane.into_memory();
                found[plan].push(steps);
                if self.keep {
                    memories[plan] = memory;
                }
            }
        }
        Ok(found)
    }

    /// Tokens to replay under all plans.
    fn tokens(&self, texts: &[Text]) -> usize {
        self.plans.len() * texts.iter().map(|text| text.answer.tokens.len().min(self.max_tokens)).sum::<usize>()
    }

    fn forgotten(&self, plan: &DraftPlan) -> Memory {
        Memory::new(plan, self.facts.vocab_size, self.heads.map(BatchedHeads::shape), self.costs)
    }

    fn begin(&self, text: &Text, plan: &DraftPlan, memory: Memory) -> Result<Lane> {
        let setup = GenerationSetup {
            sampling: SamplingParams::default(),
            end_tokens: self.facts.end_tokens.clone(),
            max_tokens: if text.answer.ended { self.max_tokens } else { text.answer.tokens.len() } as u32,
            prompt: text.answer.prompt.clone(),
            valid_tokens: self.facts.valid_tokens,
            logprobs: None,
            trees: false,
            draft: plan.clone(),
        };
        Lane::begin(&setup, self.facts, memory)
    }

    fn drafts_with(&self, source: Source) -> bool {
        self.plans.iter().any(|plan| plan.nodes() > 1 && plan.sources.contains(source))
    }

    fn group<'a>(&self, texts: Vec<&'a Text>, model: &mut Option<&mut dyn Model>) -> Result<Group<'a>> {
        for text in &texts {
            text.check(&self.facts.end_tokens)?;
        }
        let more = self.heads.is_some_and(|heads| heads.shape().reads_more());
        let unknown = more || texts.iter().any(|text| text.rows.is_empty());
        let computed = match self.drafts_with(Source::Recycling) || (unknown && self.drafts_with(Source::Heads)) {
            true => model.as_mut().ok_or_else(|| missing("the model"))?.open(&texts, self.heads)?,
            false => Vec::new(),
        };
        let heads = match self.drafts_with(Source::Heads) {
            true if computed.is_empty() => {
                self.candidates(&texts, &texts.iter().map(|text| &text.rows[..]).collect::<Vec<_>>())?
            }
            true => self.candidates(&texts, &computed.iter().map(Vec::as_slice).collect::<Vec<_>>())?,
            false => Vec::new(),
        };
        Ok(Group { texts, heads, bests: HashMap::new() })
    }

    /// What heads propose behind every token of every text but the last.
    fn candidates(&self, texts: &[&Text], hidden: &[&[f32]]) -> Result<Vec<Vec<HeadCandidates>>> {
        let heads = self.heads.ok_or_else(|| missing("draft heads"))?;
        let sampling = SamplingParams::default();
        let mut rows = Vec::new();
        for (text, hidden) in texts.iter().zip(hidden) {
            let pairs = hidden.chunks_exact(hidden.len() / text.answer.tokens.len()).zip(&text.answer.tokens);
            rows.extend(pairs.enumerate().take(text.answer.tokens.len() - 1).map(|(row, (hidden, &root))| HeadRow {
                hidden,
                root,
                scene: DraftScene {
                    sampling: &sampling,
                    context_length: text.answer.prompt.len() + row,
                    valid_tokens: self.facts.valid_tokens,
                    shares_noise: true,
                },
            }));
        }
        let mut found = heads.candidates(&rows)?.into_iter();
        Ok(texts.iter().map(|text| found.by_ref().take(text.answer.tokens.len() - 1).collect()).collect())
    }

    /// Asks the model for what recycling is about to learn.
    fn learn(&self, group: &mut Group<'_>, lanes: &[Lane], model: &mut Option<&mut dyn Model>) -> Result<()> {
        let Some(model) = model.as_mut().filter(|_| self.drafts_with(Source::Recycling)) else { return Ok(()) };
        let mut places = BTreeSet::new();
        for (number, lane) in lanes.iter().enumerate() {
            if !lane.ended() && lane.generation.recycles() {
                places.extend(group.places(number % group.texts.len(), lane));
            }
        }
        places.retain(|place| !group.bests.contains_key(place));
        let places: Vec<Place> = places.into_iter().collect();
        let bests = model.bests(&places)?;
        group.bests.extend(places.into_iter().zip(bests));
        Ok(())
    }
}

impl Group<'_> {
    /// Where the nodes of a lane's next pass stand.
    fn places(&self, text: usize, lane: &Lane) -> Vec<Place> {
        let tokens = &self.texts[text].answer.tokens;
        let tree = &lane.generation.drafted.tree;
        let mut places = vec![Place { text, row: lane.generation.emitted as usize, tail: Vec::new() }];
        for node in 1..lane.rows() {
            let (token, above) = (tree.tokens()[node], &places[tree.parents()[node]]);
            let follows = above.tail.is_empty() && above.row + 1 < tokens.len() && tokens[above.row] == token;
            places.push(match follows {
                true => Place { row: above.row + 1, ..above.clone() },
                false => Place { tail: [above.tail.as_slice(), &[token]].concat(), ..*above },
            });
        }
        places
    }

    /// One step of a lane.
    fn step(&self, text: usize, lane: &mut Lane) -> Result<()> {
        if lane.generation.recycles() {
            for (node, place) in self.places(text, lane).iter().enumerate() {
                let unknown = || Error::new(ErrorCode::Internal, format!("{place:?} was not asked for"));
                lane.teach(node, self.bests.get(place).ok_or_else(unknown)?);
            }
        }
        let tokens = &self.texts[text].answer.tokens;
        let emitted = lane.generation.emitted as usize;
        // Rows that the walk does not reach choose nothing that counts.
        let chosen = |&depth: &usize| tokens.get(emitted + depth).copied().unwrap_or_default();
        let chosen: Vec<u32> = lane.generation.drafted.tree.depths()[..lane.rows()].iter().map(chosen).collect();
        let (_, record) = lane.walk(&chosen)?;
        let last = lane.generation.emitted as usize - 1;
        let heads = self.heads.get(text).filter(|_| lane.heads_draft()).and_then(|rows| rows.get(last));
        lane.finish_step(record, heads.cloned().unwrap_or_default())
    }
}

fn missing(what: &str) -> Error {
    Error::new(
        ErrorCode::InvalidOption,
        format!("these drafters need {what} to be replayed; give it, or leave them out"),
    )
}
