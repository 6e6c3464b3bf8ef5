//! What the engine decides about drafting: who drafts, how many nodes a pass verifies, how far each drafter is believed.
//!
//! It learns from records and is kept from one generation to the next. The text never depends on it.

use std::collections::VecDeque;

use super::effort::{Effort, Efforts};
use super::{DraftStats, GenerateOptions};
use crate::backend::{MAX_ROWS, StepRecord};
use crate::error::{Error, ErrorCode, Result};
use crate::model::heads::DraftHeads;
use crate::speculate::accept::AcceptRule;
use crate::speculate::controller::{Controller, Observation, situation};
use crate::speculate::costs::{PassCosts, SIZES};
use crate::speculate::shape::Shape;
use crate::speculate::{Calibration, DraftPlan, Source, Sources, ngram};

/// Who drafts.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Drafters {
    /// Whoever has something to work with.
    #[default]
    Auto,
    /// Nobody: plain decoding.
    None,
    /// These.
    These(Vec<Source>),
}

impl Drafters {
    /// Reads `auto`, `none`, or names with commas between them.
    ///
    /// # Errors
    /// `InvalidOption` that lists the names there are.
    pub fn parse(text: &str) -> Result<Self> {
        match text {
            "auto" => return Ok(Self::Auto),
            "none" => return Ok(Self::None),
            _ => {}
        }
        let known = |name: &str| Source::DRAFTERS.into_iter().find(|source| source.name() == name.trim());
        let named: Option<Vec<Source>> = text.split(',').map(known).collect();
        named.map(Self::These).ok_or_else(|| {
            let names = Source::DRAFTERS.map(Source::name).join(", ");
            Error::new(
                ErrorCode::InvalidOption,
                format!("draft must be auto, none, or some of {names} with commas between them, found {text:?}"),
            )
        })
    }
}

/// Nodes of a grown tree where the caller does not say: as many as cost no more than this many plain passes.
const MAX_PLAIN_PASSES: f64 = 4.0;
/// And no more and no fewer than these.
const DEFAULT_MAX_NODES: std::ops::RangeInclusive<usize> = 4..=16;
/// Weight of the newest observation of a drafter's acceptance.
const LEARNING: f32 = 0.03;
/// Estimates stay this far from certainty, so that a drafter is never written off.
const SURE: f32 = 0.98;
/// A pass of one row that takes this long leaves a round trip of a few milliseconds little weight.
const LONG_PASS_MS: f64 = 30.0;
/// Steps that tell together what steps take besides their passes: more than are in flight, since records may come in bursts.
const STEPS_OBSERVED: u32 = 32;
/// Records between two updates of what the device goes by.
const CALIBRATION_INTERVAL: u32 = 16;

/// Chooses and learns.
#[derive(Debug)]
pub struct DraftControl {
    controller: Controller,
    calibration: Calibration,
    records: u32,
    efforts: Efforts,
    observed: Observed,
}

/// Steps since the last look at what they take besides their passes.
#[derive(Debug, Default)]
struct Observed {
    steps: u32,
    ms: f64,
    passes_ms: f64,
}

/// What a session remembers of its steps.
#[derive(Debug, Clone, Default)]
pub struct DraftTrack {
    /// Length of the n-gram match in the tree that the next record tells of.
    match_length: usize,
    /// Steps in flight, oldest first.
    submitted: VecDeque<Submitted>,
    /// The situation that the step of the last record was submitted in.
    situation: usize,
    /// Who drafted what that step verified, and what the next one submitted verifies.
    had: Option<Effort>,
    has: Option<Effort>,
    last_record_ms: Option<f64>,
}

#[derive(Debug, Clone, Copy)]
struct Submitted {
    situation: usize,
    rows: usize,
    had: Option<Effort>,
    effort: Effort,
    at_ms: f64,
}

/// How long a step took.
#[derive(Debug, Clone, Copy)]
pub struct StepTime {
    /// Its rows.
    pub rows: usize,
    /// How long the device was at work on it.
    pub ms: f64,
    /// What its draft took, if that is also what the draft it verified took.
    effort: Option<Effort>,
}

impl DraftTrack {
    /// Steps in flight.
    pub fn in_flight(&self) -> usize {
        self.submitted.len()
    }

    /// Remembers a step as submitted, and who drafts in it.
    pub fn submit(&mut self, rows: usize, effort: Effort, now_ms: f64) {
        let situation = self.situation();
        let had = self.has.replace(effort);
        self.submitted.push_back(Submitted { situation, rows, had, effort, at_ms: now_ms });
    }

    /// The situation that the next step is submitted in.
    fn situation(&self) -> usize {
        situation(self.match_length, self.has == Some(Effort::Heads))
    }

    /// The record of the oldest step came. Returns what is known of the step's time; nothing for the first one, which had to wait for
    /// the prompt.
    pub fn record(&mut self, now_ms: f64) -> Option<StepTime> {
        let step = self.submitted.pop_front()?;
        self.situation = step.situation;
        self.had = step.had;
        let before_ms = self.last_record_ms.replace(now_ms)?;
        let Submitted { rows, had, effort, at_ms, .. } = step;
        let effort = (had.unwrap_or(Effort::Plain) == effort).then_some(effort);
        Some(StepTime { rows, ms: now_ms - at_ms.max(before_ms), effort })
    }
}

impl DraftControl {
    /// Knows what passes cost, and of drafters only what the heads' own file says.
    pub fn new(costs: PassCosts, heads: Option<&DraftHeads>) -> Self {
        Self {
            controller: Controller::new(costs, heads.map_or(&[], |heads| &heads.tree_tokens)),
            calibration: Calibration::of(heads),
            records: 0,
            efforts: Efforts::default(),
            observed: Observed::default(),
        }
    }

    /// What passes cost.
    pub fn costs(&self) -> &PassCosts {
        self.controller.costs()
    }

    /// A step took so long and brought so many tokens; `promptly` if its record came as soon as it was there.
    pub fn follow(&mut self, StepTime { rows, ms, effort }: StepTime, tokens: usize, promptly: bool) {
        let size = SIZES.iter().position(|&size| rows <= size).unwrap_or(0);
        if self.long_passes() {
            // What comes besides is little, and a late record tells nothing of the pass.
            let draft_ms = effort.map_or(0.0, |effort| self.draft_ms(effort));
            if promptly {
                self.controller.costs_mut().follow(rows, ms - draft_ms);
            }
            if let Some(effort) = effort {
                self.efforts.observe(effort, tokens, self.costs().step_ms(size) + draft_ms);
            }
            return;
        }
        if let Some(effort) = effort {
            self.efforts.observe(effort, tokens, ms);
        }
        let costs = self.controller.costs_mut();
        self.observed.steps += 1;
        self.observed.ms += ms;
        self.observed.passes_ms += costs.ms()[size];
        if self.observed.steps == STEPS_OBSERVED {
            let Observed { ms, passes_ms, .. } = std::mem::take(&mut self.observed);
            costs.follow_steps((ms - passes_ms) / f64::from(STEPS_OBSERVED));
        }
    }

    fn long_passes(&self) -> bool {
        self.costs().ms()[0] >= LONG_PASS_MS
    }

    /// Who should draft the next tree, behind the step that is now submitted.
    pub fn effort(&mut self, plan: &DraftPlan) -> Effort {
        let most = Effort::most(plan.sources);
        if plan.nodes() == 1 {
            return Effort::Plain;
        }
        if plan.shape != Shape::Grown || self.costs().is_fixed() {
            return most;
        }
        let usable = |effort: Effort| Effort::most(effort.of(plan.sources)) == effort;
        // Looking at the text costs nothing that could be noticed beside a long pass.
        let least = if self.long_passes() && usable(Effort::Text) { Effort::Text } else { Effort::Plain };
        let choices = Effort::ALL.into_iter().filter(|&effort| effort >= least && usable(effort));
        let choices: Vec<_> = choices.map(|effort| (effort, self.expected_rate(effort, plan))).collect();
        self.efforts.submit(&choices)
    }

    /// Tokens per millisecond of steps of this kind, before any was seen.
    fn expected_rate(&self, effort: Effort, plan: &DraftPlan) -> f64 {
        let limit = if effort == Effort::Plain { 1 } else { plan.nodes() };
        self.controller.best(situation(0, effort == Effort::Heads), limit, self.draft_ms(effort)).1
    }

    /// What a draft takes besides what every step does.
    fn draft_ms(&self, effort: Effort) -> f64 {
        if effort == Effort::Heads { self.costs().heads_ms() } else { 0.0 }
    }

    /// Whether a step of so many rows should wait for the record under way, where records come back fast. Several rows are worth it only
    /// while drafts are right, which that record will tell; with long passes, waiting for it costs less than rows in vain.
    pub fn waits(&self, rows: usize, plan: &DraftPlan) -> bool {
        rows > 1 && plan.shape == Shape::Grown && self.long_passes()
    }

    /// Rows of the next step as far as is known now.
    pub fn rows(&self, track: &DraftTrack, plan: &DraftPlan) -> usize {
        match &plan.shape {
            _ if plan.nodes() == 1 => 1,
            Shape::Fixed(tree) => tree.len(),
            Shape::Grown => match track.has {
                None | Some(Effort::Plain) => 1,
                Some(effort) => self.controller.best(track.situation(), plan.nodes(), self.draft_ms(effort)).0,
            },
        }
    }

    /// Learns from the record that `track` was just told of. Returns a new calibration when it is time to tell the device.
    pub fn observe(
        &mut self,
        track: &mut DraftTrack,
        plan: &DraftPlan,
        record: &StepRecord,
        stats: &mut DraftStats,
    ) -> Option<Calibration> {
        let match_length = std::mem::replace(&mut track.match_length, record.match_length);
        stats.record(record);
        if plan.nodes() == 1 || record.tokens.is_empty() || matches!(track.had, None | Some(Effort::Plain)) {
            return None;
        }
        for (depth, emitted) in record.tokens.iter().enumerate() {
            for source in emitted.offered.iter() {
                let estimate = match source {
                    Source::NGram => &mut self.calibration.ngram[ngram::class(match_length + depth)],
                    Source::Recycling => &mut self.calibration.recycling,
                    Source::Heads | Source::Model => continue,
                };
                let right = f32::from(u8::from(emitted.source == source));
                *estimate = (*estimate + LEARNING * (right - *estimate)).clamp(1.0 - SURE, SURE);
            }
        }
        let path: Vec<usize> = record.tokens.iter().map(|emitted| emitted.node).filter(|&node| node > 0).collect();
        self.controller.observe(&Observation {
            situation: track.situation,
            path: &path,
            missed: record.missed,
            ended: record.finish.is_some(),
        });
        self.records += 1;
        self.records.is_multiple_of(CALIBRATION_INTERVAL).then_some(self.calibration)
    }

    /// How far drafters are believed now.
    pub fn calibration(&self) -> &Calibration {
        &self.calibration
    }
}

/// Drafters that need nothing but the text.
const ALWAYS: Sources = Sources::NONE.with(Source::NGram).with(Source::Recycling);

/// The drafters that have something to work with, where the model has these heads.
pub fn available(heads: Option<&DraftHeads>) -> Sources {
    if heads.is_some() { ALWAYS.with(Source::Heads) } else { ALWAYS }
}

/// The drafting that options ask for, of a model that has these heads; `costs` is what passes cost here.
///
/// # Errors
/// `InvalidOption` for a drafter that has nothing to work with, for too many nodes, and for a fixed tree that nobody can fill.
pub fn plan(options: &GenerateOptions, heads: Option<&DraftHeads>, costs: &PassCosts) -> Result<DraftPlan> {
    let available = available(heads);
    let invalid = |message: String| Err(Error::new(ErrorCode::InvalidOption, message));
    let affordable = SIZES.iter().zip(costs.ms()).filter(|&(_, ms)| *ms <= MAX_PLAIN_PASSES * costs.ms()[0]);
    let most = affordable.map(|(&rows, _)| rows).max().unwrap_or(1);
    let max_nodes = options.max_nodes.unwrap_or(most.clamp(*DEFAULT_MAX_NODES.start(), *DEFAULT_MAX_NODES.end()));
    if !(1..=MAX_ROWS).contains(&max_nodes) {
        return invalid(format!("maxNodes must be from 1 to {MAX_ROWS}, found {max_nodes}"));
    }
    let sources = match &options.draft {
        Drafters::None => Sources::NONE,
        Drafters::Auto => available,
        Drafters::These(named) => {
            if let Some(source) = named.iter().find(|&&source| !available.contains(source)) {
                return invalid(format!(
                    "draft: {} has nothing to work with; give the model draft heads, or leave it out",
                    source.name()
                ));
            }
            named.iter().fold(Sources::NONE, |set, &source| set.with(source))
        }
    };
    // What heads draw must be verified in order: a draw that is passed over would leave the next one's distribution unknown.
    if sources.contains(Source::Heads)
        && options.accept.at(options.sampling.temperature) == AcceptRule::Rejection
        && matches!(&options.tree, Shape::Fixed(tree) if !tree.lists_every_rank())
    {
        return invalid("accept: rejection needs a tree that lists with every rank all better ones".to_owned());
    }
    if let (Shape::Fixed(tree), Some(heads)) = (&options.tree, heads)
        && sources == Sources::NONE.with(Source::Heads)
        && tree.depth() > heads.depths
    {
        return invalid(format!(
            "tree: its deepest node is at depth {}, but the draft heads guess {} tokens ahead; use a shallower tree, or more drafters",
            tree.depth(),
            heads.depths
        ));
    }
    Ok(DraftPlan { sources, shape: options.tree.clone(), max_nodes, accept: options.accept })
}
