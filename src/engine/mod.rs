//! One model, ready to write: tokenizer, template and backend behind two calls, [`Engine::start`] and [`Engine::next`].
//!
//! A [`Session`] is plain data, so stopping is not calling `next` again. Steps are kept in flight: each `next` tops them up, then waits
//! for the oldest record only. The engine is generic over the backend and knows no browser; what it needs of the platform is a
//! clock.

mod costs;
pub(crate) mod drafting;
pub(crate) mod effort;
mod pacing;
mod session;
mod stats;
mod stop;

pub use self::drafting::Drafters;
use self::drafting::{DraftControl, DraftTrack};
use self::pacing::Pacer;
pub use self::session::{Chunk, Session, ShownNode};
pub use self::stats::{Acceptance, DraftStats, GenerationStats};
use self::stop::StopStrings;
use crate::backend::{Backend, Emitted, FinishReason, GenerationSetup, KvSlots, MAX_END_TOKENS, StepRecord};
use crate::error::{Error, ErrorCode, Result};
use crate::model::Checkpoint;
use crate::sampling::{MAX_TOP_LOGPROBS, SamplingParams};
use crate::speculate::Sources;
use crate::speculate::accept::AcceptRule;
use crate::speculate::costs::PassCosts;
use crate::speculate::grow::DraftedNode;
use crate::speculate::shape::Shape;
use crate::speculate::tree::Tree;
use crate::tokenizer::{ChatTemplate, Message, ModelTokens, StreamDecoder, Tokenizer};

/// Steps in flight at most.
pub const MAX_STEPS_IN_FLIGHT: usize = 32;

/// Tokens of a prompt that are computed before the caller can stop it.
const PREFILL_TOKENS: usize = 256;

/// Share of a pass that draft heads take, where nothing tells it.
const USUAL_HEADS_SHARE: f64 = 0.15;

/// Milliseconds from some fixed moment.
pub type Clock = fn() -> f64;

/// What to go on from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Prompt {
    /// Raw text; special tokens written in it count as such, and the model's own beginning token is put before it.
    Text(String),
    /// A conversation, through the chat template.
    Messages(Vec<Message>),
}

/// How to go on.
#[derive(Debug, Clone, PartialEq)]
pub struct GenerateOptions {
    /// How tokens are chosen.
    pub sampling: SamplingParams,
    /// Write no more tokens than this.
    pub max_tokens: u32,
    /// The text ends before the first of these.
    pub stop: Vec<String>,
    /// Go on past end tokens.
    pub ignore_eos: bool,
    /// Steps in flight; found by measurement when absent.
    pub steps_in_flight: Option<usize>,
    /// Who drafts.
    pub draft: Drafters,
    /// The shape of draft trees.
    pub tree: Shape,
    /// Nodes of a grown tree at most, the root included.
    pub max_nodes: Option<usize>,
    /// Which drafted tokens pass.
    pub accept: AcceptRule,
    /// Whether to tell the log-probability of every token, and of how many of the most probable ones at its place; at most
    /// [`MAX_TOP_LOGPROBS`].
    pub logprobs: Option<usize>,
    /// Whether chunks tell the draft trees of their passes.
    pub trees: bool,
}

impl Default for GenerateOptions {
    fn default() -> Self {
        Self {
            sampling: SamplingParams::default(),
            max_tokens: 256,
            stop: Vec::new(),
            ignore_eos: false,
            steps_in_flight: None,
            draft: Drafters::Auto,
            tree: Shape::Grown,
            max_nodes: None,
            accept: AcceptRule::Exact,
            logprobs: None,
            trees: false,
        }
    }
}

/// The parts of a model that are not weights.
#[derive(Debug)]
pub struct TextParts {
    /// Text to ids and back.
    pub tokenizer: Tokenizer,
    /// The chat template, or why there is none that works.
    pub template: Result<ChatTemplate>,
}

impl TextParts {
    /// Builds tokenizer and template of a checkpoint. `today` gives seconds since 1970 in local time, for templates that ask.
    ///
    /// # Errors
    /// `BadTokenizer`, `UnsupportedModel`. A template that does not parse is kept as an error, since plain prompts need none.
    pub fn new(checkpoint: &Checkpoint, today: fn() -> i64) -> Result<Self> {
        let config = &checkpoint.config;
        let tokenizer = Tokenizer::from_files(
            &checkpoint.tokenizer,
            ModelTokens {
                vocab_size: config.vocab_size,
                bos_token_id: config.bos_token_id,
                eos_token_ids: &config.eos_token_ids,
            },
        )?;
        let template = match &checkpoint.chat_template {
            Some(source) => ChatTemplate::new(source, checkpoint.bos_text.as_deref(), checkpoint.eos_text.as_deref())
                .map(|template| template.with_clock(today)),
            None => Err(Error::new(
                ErrorCode::BadChatTemplate,
                format!("{} has no chat template; give it a text prompt instead of messages", checkpoint.name),
            )),
        };
        Ok(Self { tokenizer, template })
    }
}

/// A model that can write.
#[derive(Debug)]
pub struct Engine<B> {
    backend: B,
    text: TextParts,
    slots: KvSlots,
    pacer: Pacer,
    control: DraftControl,
    measured: Vec<(usize, f64)>,
    clock: Clock,
}

impl<B: Backend> Engine<B> {
    /// An engine with an empty cache.
    pub fn new(backend: B, text: TextParts, clock: Clock) -> Self {
        let control = DraftControl::new(backend.usual_costs(), backend.heads());
        Self { backend, text, slots: KvSlots::default(), pacer: Pacer::default(), control, measured: Vec::new(), clock }
    }

    /// The backend.
    pub fn backend(&self) -> &B {
        &self.backend
    }

    /// Drafters that have something to work with.
    pub fn drafters(&self) -> Sources {
        drafting::available(self.backend.heads())
    }

    /// The backend, for passes outside a generation.
    pub fn backend_mut(&mut self) -> &mut B {
        self.forget();
        &mut self.backend
    }

    /// Tokenizer and template.
    pub fn text(&self) -> &TextParts {
        &self.text
    }

    /// Forgets the cache: the next generation computes its whole prompt.
    pub fn forget(&mut self) {
        self.backend.halt();
        self.slots.roll_back(0);
    }

    /// What passes cost, for choosing how many nodes one verifies.
    pub fn set_costs(&mut self, costs: PassCosts) {
        self.control = DraftControl::new(costs, self.backend.heads());
    }

    /// What passes cost here, as far as is known by now.
    pub fn costs(&self) -> &PassCosts {
        self.control.costs()
    }

    /// Measures what passes cost. Sizes that would take longer than a fraction of a second are only estimated from the others.
    ///
    /// # Errors
    /// `OutOfMemory`, `DeviceLost`.
    pub async fn measure_costs(&mut self) -> Result<()> {
        self.forget();
        let measured = costs::measure(&mut self.backend, self.clock).await?;
        self.set_measured(measured).await
    }

    /// Takes what an earlier [`measure_costs`](Self::measure_costs) found on the same device, as [`measured`](Self::measured) gave it.
    /// What draft heads take is measured, since there may be others now.
    ///
    /// # Errors
    /// `OutOfMemory`, `DeviceLost`.
    pub async fn set_measured(&mut self, measured: Vec<(usize, f64)>) -> Result<()> {
        let costs = self.backend.usual_costs().measured(&measured);
        let heads_ms = match self.backend.heads() {
            Some(_) => self.backend.time_heads().await?.unwrap_or(USUAL_HEADS_SHARE * costs.ms()[0]),
            None => 0.0,
        };
        self.set_costs(costs.with_heads(heads_ms));
        self.measured = measured;
        Ok(())
    }

    /// Milliseconds of passes as measured, by their number of rows.
    pub fn measured(&self) -> &[(usize, f64)] {
        &self.measured
    }

    /// The ids of a prompt.
    ///
    /// # Errors
    /// `BadChatTemplate`, `BadTokenizer`, `EmptyPrompt`.
    pub fn encode(&self, prompt: &Prompt) -> Result<Vec<u32>> {
        let tokenizer = &self.text.tokenizer;
        let ids = match prompt {
            Prompt::Text(text) => tokenizer.encode(text, tokenizer.adds_bos())?,
            Prompt::Messages(messages) => {
                let template = self.text.template.as_ref().map_err(Clone::clone)?;
                tokenizer.encode(&template.render(messages, true)?, false)?
            }
        };
        if ids.is_empty() {
            return Err(Error::new(
                ErrorCode::EmptyPrompt,
                "the prompt is empty and this model has no token to begin a text with; give it some text",
            ));
        }
        Ok(ids)
    }

    /// Starts a generation; [`next`](Self::next) does the work. Tokens of the prompt that the cache still holds from the last one
    /// are not computed again.
    ///
    /// # Errors
    /// `InvalidOption` for options out of range, `PromptTooLong`, those of [`encode`](Self::encode).
    pub fn start(&mut self, prompt: &Prompt, options: &GenerateOptions) -> Result<Session> {
        let started_ms = (self.clock)();
        self.check(options)?;
        let draft = drafting::plan(options, self.backend.heads(), self.control.costs())?;
        let prompt = self.encode(prompt)?;
        let limit = self.backend.context_limit();
        if prompt.len() > limit {
            return Err(Error::new(
                ErrorCode::PromptTooLong,
                format!(
                    "the prompt has {} tokens, but the context has room for {limit}; shorten it, or drop old messages",
                    prompt.len()
                ),
            ));
        }
        let [head @ .., root] = prompt.as_slice() else {
            return Err(Error::new(ErrorCode::Internal, "an encoded prompt has at least one token"));
        };
        let reused = self.slots.common_prefix(head);
        self.slots.roll_back(reused);
        self.pacer.begin();
        let tokenizer = &self.text.tokenizer;
        let setup = GenerationSetup {
            sampling: options.sampling.clone(),
            end_tokens: if options.ignore_eos { Vec::new() } else { tokenizer.end_ids().to_vec() },
            max_tokens: options.max_tokens,
            prompt: prompt.clone(),
            valid_tokens: tokenizer.vocab_len().min(self.backend.config().vocab_size) as u32,
            draft,
            logprobs: options.logprobs,
            trees: options.trees,
        };
        let guarantee = setup.rule().guarantee(options.sampling.temperature);
        Ok(Session {
            stats: GenerationStats::new(prompt.len(), reused, guarantee, started_ms),
            root: *root,
            setup,
            deciding: false,
            tokens: Vec::new(),
            logprobs: Vec::new(),
            text: String::new(),
            decoder: StreamDecoder::continuing(true),
            stop: StopStrings::new(&options.stop),
            finish: None,
            track: DraftTrack::default(),
            tree: Vec::new(),
            fixed_depth: options.steps_in_flight,
        })
    }

    fn check(&self, options: &GenerateOptions) -> Result<()> {
        let invalid = |message: String| Err(Error::new(ErrorCode::InvalidOption, message));
        options.sampling.validate(self.backend.config().vocab_size)?;
        options.accept.validate()?;
        if options.max_tokens == 0 {
            return invalid("maxTokens must be at least 1, found 0".to_owned());
        }
        if options.stop.iter().any(String::is_empty) {
            return invalid("a stop string must not be empty".to_owned());
        }
        if let Some(depth) = options.steps_in_flight
            && !(1..=MAX_STEPS_IN_FLIGHT).contains(&depth)
        {
            return invalid(format!("stepsInFlight must be from 1 to {MAX_STEPS_IN_FLIGHT}, found {depth}"));
        }
        if let Some(top) = options.logprobs
            && top > MAX_TOP_LOGPROBS
        {
            return invalid(format!("logprobs must be from 0 to {MAX_TOP_LOGPROBS}, found {top}"));
        }
        let n_ends = self.text.tokenizer.end_ids().len();
        if n_ends > MAX_END_TOKENS {
            return Err(Error::new(
                ErrorCode::UnsupportedModel,
                format!("the model names {n_ends} end tokens; at most {MAX_END_TOKENS} can be watched for"),
            ));
        }
        Ok(())
    }

    /// The next piece of text with its tokens; `None` once the session has ended. A piece may have tokens but no text yet, when a
    /// character or a possible stop string is not complete, and neither while a long prompt is computed piece by piece.
    ///
    /// # Errors
    /// `OutOfMemory`, `DeviceLost`. The session has then ended, and the cache is forgotten.
    pub async fn next(&mut self, session: &mut Session) -> Result<Option<Chunk>> {
        if session.finish.is_some() {
            return Ok(None);
        }
        match self.step(session).await {
            Ok(chunk) => Ok(Some(chunk)),
            Err(e) => {
                session.finish = Some(FinishReason::Aborted);
                self.forget();
                Err(e)
            }
        }
    }

    async fn step(&mut self, session: &mut Session) -> Result<Chunk> {
        if !session.deciding && !self.prefill(session).await? {
            return Ok(Chunk::default());
        }
        let depth = session.fixed_depth.unwrap_or_else(|| self.pacer.depth());
        // A step emits at least one token, so more steps than missing tokens are never needed.
        let wanted = session.setup.max_tokens as usize - session.tokens.len();
        while session.track.in_flight() < depth.min(wanted) {
            let rows = self.control.rows(&session.track, &session.setup.draft);
            let may_wait =
                session.fixed_depth.is_none() && depth <= pacing::FIRST_DEPTH && session.track.in_flight() > 0;
            if may_wait && self.control.waits(rows, &session.setup.draft) {
                break;
            }
            let effort = self.control.effort(&session.setup.draft);
            self.backend.submit_step(rows, effort.of(session.setup.draft.sources)).await?;
            session.track.submit(rows, effort, (self.clock)());
        }
        let record = self.backend.next_record().await?;
        let now_ms = (self.clock)();
        if let Some(time) = session.track.record(now_ms) {
            self.control.follow(time, record.tokens.len(), depth <= pacing::FIRST_DEPTH);
        }
        let (track, stats) = (&mut session.track, &mut session.stats.draft);
        if let Some(calibration) = self.control.observe(track, &session.setup.draft, &record, stats) {
            self.backend.calibrate(&calibration);
        }
        if session.fixed_depth.is_none() {
            self.pacer.record(now_ms);
        }
        let chunk = self.take(session, &record);
        session.stats.record(now_ms, depth, chunk.tokens.len());
        Ok(chunk)
    }

    /// Computes the next piece of the prompt, or, behind the last one, lets the first step decide. Returns whether it does.
    async fn prefill(&mut self, session: &mut Session) -> Result<bool> {
        let [head @ .., root] = session.setup.prompt.as_slice() else {
            return Err(Error::new(ErrorCode::Internal, "an encoded prompt has at least one token"));
        };
        let position = self.slots.next_position();
        let piece = &head[position..head.len().min(position + PREFILL_TOKENS)];
        self.backend.prefill(position, piece).await?;
        self.slots.commit(piece);
        if self.slots.len() < head.len() {
            // Work that was queued cannot be taken back, so no more is queued than a stop may have to wait for.
            self.backend.settle().await?;
            return Ok(false);
        }
        self.backend.begin(self.slots.next_position(), *root, &session.setup)?;
        self.backend.calibrate(self.control.calibration());
        session.deciding = true;
        Ok(true)
    }

    /// What a record means for the text.
    fn take(&mut self, session: &mut Session, record: &StepRecord) -> Chunk {
        let mut chunk = Chunk { tree: self.shown(session, record), ..Chunk::default() };
        for (place, &Emitted { token, source, .. }) in record.tokens.iter().enumerate() {
            // The root's keys and values are in the cache as soon as a token follows it.
            self.slots.commit(&[session.root]);
            session.root = token;
            session.tokens.push(token);
            session.stats.draft.tokens[source as usize] += 1;
            chunk.tokens.push(token);
            chunk.sources.push(source);
            chunk.logprobs.extend(record.logprobs.get(place).cloned());
            let ends = record.finish == Some(FinishReason::Stop) && session.setup.end_tokens.contains(&token);
            let piece = if ends { String::new() } else { session.decoder.push(&self.text.tokenizer, &[token]) };
            chunk.pieces.push(session.stop.push(&piece));
            if session.stop.found() {
                session.finish = Some(FinishReason::Stop);
                break;
            }
        }
        if session.finish.is_none() && record.finish.is_some() {
            session.finish = record.finish;
            let mut rest = session.decoder.finish();
            rest = session.stop.push(&rest) + &session.stop.finish();
            if let Some(last) = chunk.pieces.last_mut() {
                *last += &rest;
            }
            if session.stop.found() {
                session.finish = Some(FinishReason::Stop);
            }
        }
        chunk.text = chunk.pieces.concat();
        session.text += &chunk.text;
        session.logprobs.extend_from_slice(&chunk.logprobs);
        if session.finish.is_some() {
            self.end(session);
        }
        chunk
    }

    /// The tree that the step of a record verified, where trees were asked for: the one that the record before told of.
    fn shown(&self, session: &mut Session, record: &StepRecord) -> Vec<ShownNode> {
        if !session.setup.trees {
            return Vec::new();
        }
        let mut tree = std::mem::replace(&mut session.tree, record.tree.clone());
        if tree.is_empty() {
            tree.push(DraftedNode::root(session.root));
        }
        let path = std::iter::once(0).chain(record.tokens.iter().map(|emitted| emitted.node).filter(|&node| node > 0));
        let path: Vec<usize> = path.collect();
        let text = |token| {
            let mut decoder = StreamDecoder::continuing(true);
            decoder.push(&self.text.tokenizer, &[token]) + &decoder.finish()
        };
        let shown = tree.into_iter().enumerate().map(|(node, drafted)| ShownNode {
            text: text(drafted.token),
            verified: node < record.rows,
            accepted: path.contains(&node),
            drafted,
        });
        shown.collect()
    }

    /// Stops a session where it stands. What it wrote stays in the cache.
    pub fn abort(&mut self, session: &mut Session) {
        if session.finish.is_none() {
            session.finish = Some(FinishReason::Aborted);
            let rest = session.decoder.finish();
            session.text += &session.stop.push(&rest);
            session.text += &session.stop.finish();
            self.end(session);
        }
    }

    fn end(&mut self, session: &mut Session) {
        // Before its first step the counters are still those of the generation before.
        if session.deciding {
            session.stats.finish(self.backend.counters());
        }
        self.backend.halt();
    }

    /// Logits `[vocab]` of what follows `tokens`, computed from an empty cache.
    ///
    /// # Errors
    /// `EmptyPrompt`, `PromptTooLong`, `OutOfMemory`, `DeviceLost`.
    pub async fn next_logits(&mut self, tokens: &[u32]) -> Result<Vec<f32>> {
        let [head @ .., last] = tokens else {
            return Err(Error::new(ErrorCode::EmptyPrompt, "logits follow at least one token; none was given"));
        };
        let (limit, vocab_size) = (self.backend.context_limit(), self.backend.config().vocab_size);
        if tokens.len() > limit {
            return Err(Error::new(
                ErrorCode::PromptTooLong,
                format!("{} tokens were given, but the context has room for {limit}", tokens.len()),
            ));
        }
        if let Some(token) = tokens.iter().find(|&&token| token as usize >= vocab_size) {
            return Err(Error::new(
                ErrorCode::InvalidOption,
                format!("token ids lie below {vocab_size}, found {token}"),
            ));
        }
        self.forget();
        self.backend.prefill(0, head).await?;
        self.backend.evaluate(head.len(), &Tree::chain(&[*last])?).await
    }
}
