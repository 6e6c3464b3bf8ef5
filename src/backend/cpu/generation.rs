//! What a generation decides between two passes: which tokens rows choose, how far the walk goes, what the next pass verifies.
//!
//! It knows no model: a pass comes to it as logits, or as what its rows chose. So whoever has those, from a cache or from a pass over
//! many texts at once, decides as the backends do.

use crate::backend::{Emitted, FinishReason, GenerationSetup, StepRecord};
use crate::error::Result;
use crate::sampling::{self, Candidate, Logprobs};
use crate::speculate::accept::{AcceptRule, Walk, walk};
use crate::speculate::grow::{Drafted, HeadCandidates, Material, grow};
use crate::speculate::lenient::{self, Judgement};
use crate::speculate::recycling::Successors;
use crate::speculate::rejection::{self, Child};
use crate::speculate::tree::Tree;
use crate::speculate::{Calibration, DraftPlan, Source, Sources};

/// A generation as it stands.
#[derive(Debug, Clone)]
pub struct Generation {
    /// What it began with.
    pub setup: GenerationSetup,
    /// Every token so far, the root last.
    pub text: Vec<u32>,
    /// What the next pass verifies.
    pub drafted: Drafted,
    /// How far drafters are believed.
    pub calibration: Calibration,
    /// Tokens emitted.
    pub emitted: u32,
    /// Why it has ended, if it has.
    pub finish: Option<FinishReason>,
    history: sampling::History,
    context_limit: usize,
    /// What heads proposed for `drafted`.
    heads: HeadCandidates,
}

/// What the rows of a pass say.
#[derive(Debug, Clone, PartialEq)]
pub struct Verified {
    /// The token that follows each row, by the rule.
    pub chosen: Vec<u32>,
    /// The best of every chunk of each row's vocabulary: what recycling learns.
    pub bests: Vec<Vec<Candidate>>,
    /// Logits of each row after penalties, bias and temperature.
    pub processed: Vec<Vec<f32>>,
}

impl Generation {
    /// Begins with `root` at position `start`.
    ///
    /// # Errors
    /// None; one node is a tree.
    pub fn begin(
        setup: &GenerationSetup,
        (start, root): (usize, u32),
        vocab_size: usize,
        context_limit: usize,
    ) -> Result<Self> {
        let mut history = vec![0; vocab_size];
        for &token in &setup.prompt {
            history[token as usize] = 1;
        }
        Ok(Self {
            setup: setup.clone(),
            text: setup.prompt.iter().take(start).chain([&root]).copied().collect(),
            drafted: Drafted::root(root)?,
            calibration: Calibration::default(),
            emitted: 0,
            finish: None,
            history,
            context_limit,
            heads: HeadCandidates::default(),
        })
    }

    /// Whether rows teach successors.
    pub fn recycles(&self) -> bool {
        self.setup.draft.nodes() > 1 && self.setup.draft.sources.contains(Source::Recycling)
    }

    /// What the first rows of the drafted tree choose by their logits, `[rows][vocab_size]`.
    pub fn verify(&self, logits: Vec<Vec<f32>>) -> Verified {
        let (tree, sampling) = (&self.drafted.tree, &self.setup.sampling);
        let process = |(node, mut row): (usize, Vec<f32>)| {
            row.truncate(self.setup.valid_tokens as usize);
            sampling::process_logits(&mut row, &self.history_of(tree, node), sampling);
            row
        };
        let processed: Vec<Vec<f32>> = logits.into_iter().enumerate().map(process).collect();
        let bests = |(node, row): (usize, &Vec<f32>)| sampling::chunk_bests(row, self.position(node), sampling);
        let bests: Vec<Vec<Candidate>> = processed.iter().enumerate().map(bests).collect();
        let chosen = bests.iter().map(|row| sampling::best_of(row)).collect();
        Verified { chosen: self.decide(&processed, chosen), bests, processed }
    }

    /// Has recycling learn from the row of a node.
    pub fn teach(&self, successors: &mut Successors, node: usize, bests: &[Candidate]) {
        let token = self.drafted.tree.tokens()[node];
        successors.learn(token, bests, self.position(node), &self.setup.sampling);
    }

    /// Walks the first `rows` nodes of the drafted tree by what they chose, and emits.
    ///
    /// # Errors
    /// None; one node is a tree.
    pub fn advance(&mut self, rows: usize, chosen: &[u32]) -> Result<(Walk, StepRecord)> {
        let drafted = self.drafted.clone();
        let walk = walk(&drafted, rows, chosen, |token| self.emit(token));
        let mut record = self.record(&drafted, &walk, rows);
        self.drafted = Drafted::root(self.text.last().copied().unwrap_or(0))?;
        self.show(&mut record);
        Ok((walk, record))
    }

    /// Has `drafters` draft below the last token of the text, and completes the record of the step.
    ///
    /// # Errors
    /// None in practice: what is grown is a tree.
    pub fn draft(
        &mut self,
        drafters: Sources,
        successors: &Successors,
        heads: HeadCandidates,
        record: &mut StepRecord,
    ) -> Result<()> {
        self.heads = heads;
        let room = self.context_limit + 1 - self.text.len();
        let material = Material {
            text: &self.text,
            successors,
            heads: &self.heads,
            sampling: &self.setup.sampling,
            calibration: &self.calibration,
            max_depth: ((self.setup.max_tokens - self.emitted) as usize).min(room) - 1,
        };
        self.drafted = grow(&DraftPlan { sources: drafters, ..self.setup.draft.clone() }, material)?;
        record.drafted = self.drafted.tree.len();
        record.match_length = self.drafted.match_length;
        self.show(record);
        Ok(())
    }

    /// Tells the drafted tree, where that was asked for.
    fn show(&self, record: &mut StepRecord) {
        if self.setup.trees {
            record.tree = self.drafted.nodes();
        }
    }

    /// Where in the text the choice of a node stands.
    fn position(&self, node: usize) -> u32 {
        (self.text.len() + self.drafted.tree.depths()[node]) as u32
    }

    /// Emits a token, and decides whether the text ends with it.
    fn emit(&mut self, token: u32) -> bool {
        self.history[token as usize] += 2;
        self.emitted += 1;
        let context_length = self.text.len();
        self.text.push(token);
        self.finish = if self.setup.end_tokens.contains(&token) {
            Some(FinishReason::Stop)
        } else if self.emitted >= self.setup.max_tokens {
            Some(FinishReason::Length)
        } else if context_length >= self.context_limit {
            Some(FinishReason::Context)
        } else {
            None
        };
        self.finish.is_some()
    }

    /// What penalties count before the choice of a node: what was emitted, and the drafted tokens on its path.
    fn history_of(&self, tree: &Tree, node: usize) -> sampling::History {
        let mut history = self.history.clone();
        for &ancestor in &tree.path(node)[1..] {
            history[tree.tokens()[ancestor] as usize] += 2;
        }
        history
    }

    /// What rows choose by the rule, where each has `chosen` for itself by its processed logits.
    fn decide(&self, logits: &[Vec<f32>], chosen: Vec<u32>) -> Vec<u32> {
        let rule = self.setup.rule();
        let (sampling, tree) = (&self.setup.sampling, &self.drafted.tree);
        let rows = logits.len();
        match rule {
            AcceptRule::Exact => chosen,
            AcceptRule::Rejection => (0..rows).map(|row| self.decide_by_rejection(row, rows, &logits[row])).collect(),
            AcceptRule::Typical { .. } | AcceptRule::TopK { .. } => {
                let judge = |node: usize| {
                    let row = &logits[tree.parents()[node]];
                    lenient::judge(rule, row, sampling::edge(row, sampling), tree.tokens()[node])
                };
                let judgements: Vec<Judgement> = (0..rows).map(judge).collect();
                let ends = |token| self.setup.end_tokens.contains(&token);
                lenient::choose_paths(&self.drafted, rows, &judgements, &chosen, ends)
            }
        }
    }

    fn decide_by_rejection(&self, row: usize, rows: usize, logits: &[f32]) -> u32 {
        let (sampling, drafted) = (&self.setup.sampling, &self.drafted);
        let tree = &drafted.tree;
        let children: Vec<Child> = (row + 1..rows)
            .filter(|&node| tree.parents()[node] == row)
            .map(|node| Child { token: tree.tokens()[node], drawn: drafted.sources[node] == Source::Heads })
            .collect();
        let proposal = drafted.slots[row].and_then(|slot| self.heads.draws.as_ref()?.proposal(slot));
        let edge = sampling::edge(logits, sampling);
        rejection::decide(logits, edge, &children, proposal, sampling.seed, self.position(row))
    }

    /// The log-probabilities of the tokens of a walk, where they were asked for; `processed` are the logits of every row.
    pub fn logprobs(&self, walk: &Walk, processed: &[Vec<f32>]) -> Vec<Logprobs> {
        let Some(top) = self.setup.logprobs else { return Vec::new() };
        let visited = walk.path.iter().zip(&walk.tokens);
        visited.map(|(&row, &token)| sampling::logprobs(&processed[row], token, top, &self.setup.sampling)).collect()
    }

    /// The record of a step that walked `walk` through the first `rows` nodes.
    fn record(&self, drafted: &Drafted, walk: &Walk, rows: usize) -> StepRecord {
        let visited_next = walk.path[1..].iter().map(|&node| (drafted.sources[node], node));
        let carriers = visited_next.chain([(Source::Model, 0)]);
        let tokens = walk.tokens.iter().zip(&walk.offered).zip(carriers);
        StepRecord {
            tokens: tokens
                .map(|((&token, &offered), (source, node))| Emitted { token, source, node, offered })
                .collect(),
            logprobs: Vec::new(),
            finish: self.finish,
            context_length: self.text.len() - 1,
            rows,
            tree: Vec::new(),
            missed: walk.missed,
            drafted: 1,
            match_length: 0,
        }
    }
}
