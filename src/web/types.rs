//! Plain data that crosses the border, in JavaScript's spelling.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use wasm_bindgen::JsValue;

use super::errors::from_js;
use crate::engine::{Acceptance, Chunk, Drafters, GenerateOptions, Prompt, Session, ShownNode};
use crate::error::{Error, ErrorCode, Result};
use crate::model::heads::DraftHeads;
use crate::sampling::{Logprobs, SamplingParams};
use crate::speculate::accept::AcceptRule;
use crate::speculate::costs::SIZES;
use crate::speculate::shape::{RankTree, Shape};
use crate::speculate::{Source, Sources};
use crate::tokenizer::Message;

/// A plain object of `value`.
///
/// # Errors
/// `Internal`; plain data can always be written.
pub fn to_js(value: &impl Serialize) -> Result<JsValue> {
    let serializer = serde_wasm_bindgen::Serializer::new().serialize_maps_as_objects(true);
    value.serialize(&serializer).map_err(|e| Error::new(ErrorCode::Internal, e.to_string()))
}

/// Options of `Model.load`.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct LoadOptions {
    /// Cap of the context length, in tokens.
    pub context_length: Option<usize>,
    /// What passes cost when this model was loaded before.
    pub known_costs: Option<KnownCosts>,
}

/// Numbers by name or, as JavaScript has them, by number.
pub type Numbers = BTreeMap<String, f64>;

/// Costs of passes as an earlier load measured them. They hold for one version of this package on one adapter.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct KnownCosts {
    version: String,
    adapter: String,
    pass_ms: Numbers,
}

impl KnownCosts {
    /// The milliseconds by rows, if they were measured by this version on this adapter, and say enough to go by.
    pub fn measured(self, adapter: &str) -> Option<Vec<(usize, f64)>> {
        let measured: Option<Vec<(usize, f64)>> =
            self.pass_ms.iter().map(|(rows, &ms)| Some((rows.parse().ok()?, ms))).collect();
        measured.filter(|measured| {
            let sound = |&(rows, ms): &(usize, f64)| SIZES.contains(&rows) && ms.is_finite() && ms > 0.0;
            let enough = measured.len() > 1 && measured.iter().any(|&(rows, _)| rows == 1);
            self.version == VERSION && self.adapter == adapter && enough && measured.iter().all(sound)
        })
    }
}

/// The version of this package.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Progress of a load.
#[derive(Debug, Serialize)]
pub struct Progress {
    pub stage: &'static str,
    pub loaded: u64,
    pub total: u64,
}

/// One turn of a conversation.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct MessageDto {
    role: String,
    content: String,
}

impl From<MessageDto> for Message {
    fn from(message: MessageDto) -> Self {
        Self { role: message.role, content: message.content }
    }
}

/// Reads a conversation, `{ role, content }[]`.
///
/// # Errors
/// `InvalidOption`.
pub fn messages(value: JsValue) -> Result<Vec<Message>> {
    let messages: Vec<MessageDto> = from_js("messages", value)?;
    Ok(messages.into_iter().map(Message::from).collect())
}

/// The argument of `Model.start`.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Request {
    prompt: Option<String>,
    messages: Option<Vec<MessageDto>>,
    #[serde(default)]
    options: Options,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
struct Options {
    max_tokens: Option<u32>,
    temperature: Option<f32>,
    top_k: Option<u32>,
    top_p: Option<f32>,
    min_p: Option<f32>,
    repetition_penalty: Option<f32>,
    frequency_penalty: Option<f32>,
    presence_penalty: Option<f32>,
    logit_bias: Option<Numbers>,
    seed: Option<f64>,
    stop: Option<OneOrMany>,
    ignore_eos: Option<bool>,
    draft: Option<OneOrMany>,
    tree: Option<TreeDto>,
    max_nodes: Option<usize>,
    accept: Option<AcceptDto>,
    logprobs: Option<usize>,
    trees: Option<bool>,
    steps_in_flight: Option<usize>,
}

#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum OneOrMany {
    One(String),
    Many(Vec<String>),
}

#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum TreeDto {
    Text(String),
    Paths(Vec<Vec<usize>>),
}

#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum AcceptDto {
    Text(String),
    Values(AcceptValues),
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
enum AcceptValues {
    Typical { epsilon: Option<f32>, alpha: Option<f32> },
    TopK { k: Option<u32>, tolerance: Option<f32> },
}

impl AcceptDto {
    /// The rule; the engine checks its values.
    fn rule(self) -> Result<AcceptRule> {
        match self {
            Self::Text(text) => AcceptRule::parse(&text),
            Self::Values(AcceptValues::Typical { epsilon, alpha }) => Ok(AcceptRule::Typical {
                epsilon: epsilon.unwrap_or(AcceptRule::EPSILON),
                alpha: alpha.unwrap_or(AcceptRule::ALPHA),
            }),
            Self::Values(AcceptValues::TopK { k, tolerance }) => Ok(AcceptRule::TopK {
                k: k.unwrap_or(AcceptRule::K),
                tolerance: tolerance.unwrap_or(AcceptRule::TOLERANCE),
            }),
        }
    }
}

/// Seeds are whole numbers that JavaScript holds exactly.
const MAX_SEED: f64 = 9_007_199_254_740_991.0;

impl Request {
    /// Prompt and options, with defaults filled in.
    ///
    /// # Errors
    /// `InvalidOption`.
    pub fn into_parts(self) -> Result<(Prompt, GenerateOptions)> {
        let prompt = match (self.prompt, self.messages) {
            (Some(text), None) => Prompt::Text(text),
            (None, Some(messages)) => Prompt::Messages(messages.into_iter().map(Message::from).collect()),
            _ => return invalid("give either a prompt or messages"),
        };
        Ok((prompt, self.options.into_options()?))
    }
}

impl Options {
    fn into_options(self) -> Result<GenerateOptions> {
        let seed = self.seed.unwrap_or(0.0);
        if !(0.0..=MAX_SEED).contains(&seed) || seed.fract() != 0.0 {
            return invalid(&format!("seed must be a whole number from 0 to {MAX_SEED}, found {seed}"));
        }
        let logit_bias = self
            .logit_bias
            .unwrap_or_default()
            .into_iter()
            .map(|(token, bias)| match token.parse() {
                Ok(token) => Ok((token, bias as f32)),
                Err(_) => invalid(&format!("logitBias: keys are token ids, found {token:?}")),
            })
            .collect::<Result<Vec<_>>>()?;
        let (sampling, other) = (SamplingParams::default(), GenerateOptions::default());
        Ok(GenerateOptions {
            sampling: SamplingParams {
                temperature: self.temperature.unwrap_or(sampling.temperature),
                top_k: self.top_k.unwrap_or(sampling.top_k),
                top_p: self.top_p.unwrap_or(sampling.top_p),
                min_p: self.min_p.unwrap_or(sampling.min_p),
                repetition_penalty: self.repetition_penalty.unwrap_or(sampling.repetition_penalty),
                frequency_penalty: self.frequency_penalty.unwrap_or(sampling.frequency_penalty),
                presence_penalty: self.presence_penalty.unwrap_or(sampling.presence_penalty),
                logit_bias,
                seed: seed as u64,
            },
            max_tokens: self.max_tokens.unwrap_or(other.max_tokens),
            stop: match self.stop {
                None => Vec::new(),
                Some(OneOrMany::One(stop)) => vec![stop],
                Some(OneOrMany::Many(stops)) => stops,
            },
            ignore_eos: self.ignore_eos.unwrap_or(false),
            steps_in_flight: self.steps_in_flight,
            draft: match self.draft {
                None => other.draft,
                Some(OneOrMany::One(name)) => Drafters::parse(&name)?,
                Some(OneOrMany::Many(names)) => Drafters::parse(&names.join(","))?,
            },
            tree: match self.tree {
                None => other.tree,
                Some(TreeDto::Text(text)) => Shape::parse(&text)?,
                Some(TreeDto::Paths(paths)) => Shape::Fixed(RankTree::from_paths(&paths)?),
            },
            max_nodes: self.max_nodes,
            accept: self.accept.map_or(Ok(other.accept), AcceptDto::rule)?,
            logprobs: self.logprobs,
            trees: self.trees.unwrap_or(false),
        })
    }
}

fn invalid<T>(message: &str) -> Result<T> {
    Err(Error::new(ErrorCode::InvalidOption, message))
}

/// A piece of text.
#[derive(Debug, Serialize)]
pub struct ChunkDto {
    text: String,
    tokens: Vec<u32>,
    sources: Vec<&'static str>,
    pieces: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    logprobs: Option<Vec<Logprobs>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tree: Option<Vec<NodeDto>>,
}

/// A node of the draft tree that the pass behind a piece of text had.
#[derive(Debug, Serialize)]
struct NodeDto {
    token: u32,
    text: String,
    parent: usize,
    source: &'static str,
    probability: f32,
    verified: bool,
    accepted: bool,
}

impl NodeDto {
    fn new(ShownNode { drafted, text, verified, accepted }: ShownNode) -> Self {
        Self {
            token: drafted.token,
            text,
            parent: drafted.parent,
            source: drafted.source.name(),
            probability: drafted.log_probability.exp(),
            verified,
            accepted,
        }
    }
}

impl ChunkDto {
    /// A piece of the text of this session.
    pub fn new(chunk: Chunk, session: &Session) -> Self {
        let sources = chunk.sources.into_iter().map(Source::name).collect();
        let logprobs = session.logprobs().map(|_| chunk.logprobs);
        let tree = session.shows_trees().then(|| chunk.tree.into_iter().map(NodeDto::new).collect());
        Self { text: chunk.text, tokens: chunk.tokens, sources, pieces: chunk.pieces, logprobs, tree }
    }
}

/// What a generation came to.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ResultDto {
    text: String,
    tokens: Vec<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    logprobs: Option<Vec<Logprobs>>,
    prompt_tokens: Vec<u32>,
    finish_reason: Option<&'static str>,
    usage: Usage,
    stats: Stats,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Usage {
    prompt_tokens: usize,
    completion_tokens: usize,
    total_tokens: usize,
    reused_prompt_tokens: usize,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Stats {
    prefill_ms: f64,
    decode_ms: f64,
    time_to_first_token_ms: f64,
    tokens_per_second: f64,
    passes: u32,
    tokens_per_pass: f64,
    dispatches_per_pass: u32,
    submits: u32,
    steps_in_flight: usize,
    guarantee: &'static str,
    peak_wasm_bytes: usize,
    load_ms: f64,
    draft: Draft,
    warnings: Vec<String>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Draft {
    drafters: Vec<&'static str>,
    tree: &'static str,
    max_nodes: usize,
    rows_per_step: Vec<(u8, u32)>,
    acceptance: BTreeMap<&'static str, Vec<DepthDto>>,
    tokens_by_source: Numbers,
    pass_ms: Numbers,
}

#[derive(Debug, Serialize)]
struct DepthDto {
    depth: usize,
    offered: u32,
    accepted: u32,
}

impl Draft {
    fn new(session: &Session, pass_ms: &Numbers) -> Self {
        let (plan, stats) = (session.draft(), &session.stats().draft);
        let drafters = || if plan.nodes() > 1 { plan.sources } else { Sources::NONE }.iter();
        let by_depth = |source: Source| {
            let depths = stats.acceptance[source as usize - 1].iter().zip(1..);
            depths.map(|(&Acceptance { offered, accepted }, depth)| DepthDto { depth, offered, accepted }).collect()
        };
        Self {
            drafters: drafters().map(Source::name).collect(),
            tree: if plan.shape == Shape::Grown { "auto" } else { "fixed" },
            max_nodes: plan.nodes(),
            rows_per_step: stats.rows_per_step(),
            acceptance: drafters().map(|source| (source.name(), by_depth(source))).collect(),
            tokens_by_source: Source::ALL
                .iter()
                .map(|&s| (s.name().to_owned(), stats.tokens[s as usize].into()))
                .collect(),
            pass_ms: pass_ms.clone(),
        }
    }
}

impl ResultDto {
    /// The state of a session.
    pub fn new(session: &Session, info: &ModelInfo) -> Self {
        let stats = session.stats();
        let (prompt, tokens) = (session.prompt().len(), session.tokens().len());
        Self {
            text: session.text().to_owned(),
            tokens: session.tokens().to_vec(),
            logprobs: session.logprobs().map(<[Logprobs]>::to_vec),
            prompt_tokens: session.prompt().to_vec(),
            finish_reason: session.finish().map(|finish| finish.as_str()),
            usage: Usage {
                prompt_tokens: prompt,
                completion_tokens: tokens,
                total_tokens: prompt + tokens,
                reused_prompt_tokens: stats.reused_prompt_tokens,
            },
            stats: Stats {
                prefill_ms: stats.prefill_ms(),
                decode_ms: stats.decode_ms(),
                time_to_first_token_ms: stats.prefill_ms(),
                tokens_per_second: stats.tokens_per_second(),
                passes: stats.passes,
                tokens_per_pass: stats.tokens_per_pass(),
                dispatches_per_pass: stats.dispatches_per_pass,
                submits: stats.submits,
                steps_in_flight: stats.steps_in_flight,
                guarantee: stats.guarantee.as_str(),
                peak_wasm_bytes: peak_wasm_bytes(),
                load_ms: info.load_ms,
                draft: Draft::new(session, &info.pass_ms),
                warnings: info.heads.iter().filter_map(|heads| heads.warning.clone()).collect(),
            },
        }
    }
}

/// Size of the module's memory. It never shrinks, so it is also the peak.
fn peak_wasm_bytes() -> usize {
    core::arch::wasm32::memory_size(0) << 16
}

/// What was loaded.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ModelInfo {
    pub name: String,
    pub architecture: String,
    pub format: String,
    pub quantisation: String,
    pub parameters: u64,
    pub context_length: usize,
    pub vocab_size: usize,
    pub layers: usize,
    pub hidden_size: usize,
    pub has_chat_template: bool,
    pub adapter: AdapterInfo,
    pub weight_bytes: u64,
    pub load_ms: f64,
    pub drafters: Vec<&'static str>,
    pub pass_ms: Numbers,
    pub version: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub heads: Option<HeadsInfo>,
}

/// Draft heads.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct HeadsInfo {
    form: &'static str,
    depths: usize,
    layers: usize,
    draft_vocabulary: usize,
    rank: usize,
    /// As measured when the model loaded.
    pub draft_ms: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    warning: Option<String>,
}

impl From<&DraftHeads> for HeadsInfo {
    fn from(heads: &DraftHeads) -> Self {
        Self {
            form: heads.form.as_str(),
            depths: heads.depths,
            layers: heads.layers,
            draft_vocabulary: heads.draft_vocab,
            rank: heads.rank,
            draft_ms: 0.0,
            warning: heads.warning.clone(),
        }
    }
}

/// The adapter, as far as it tells.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct AdapterInfo {
    pub description: String,
    pub backend: String,
    pub software: bool,
}
