//! The wasm module's exports: handles and data for JavaScript, no logic of their own.
//!
//! Every call that can fail throws an `Error` with a `code`. Handles keep their state in an `Option` that a running call takes
//! out, so an overlapping call is an error with code `busy`, never a panic of the borrow checker.

mod adapter;
mod benchmark;
mod clock;
mod errors;
mod source;
mod types;

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use js_sys::{Function, Uint8Array, Uint32Array};
use wasm_bindgen::prelude::*;

use self::errors::{IntoJs as _, from_js};
use self::source::JsSource;
use self::types::{AdapterInfo, ChunkDto, HeadsInfo, LoadOptions, ModelInfo, Progress, Request, ResultDto};
use crate::backend::Backend as _;
use crate::backend::gpu::device::Gpu;
use crate::backend::gpu::kernels::Kernels;
use crate::backend::gpu::{GpuBackend, GpuWeights};
use crate::engine::{Engine, Session, TextParts};
use crate::error::{Error, ErrorCode, Result};
use crate::model::heads::stream_heads;
use crate::model::weights::layouts;
use crate::model::{Checkpoint, HeadFile, stream_weights};
use crate::speculate::Source;

type Slot<T> = Rc<RefCell<Option<T>>>;
type GpuEngine = Engine<GpuBackend>;

/// Turns a Rust panic into a readable console message. Called once by the module itself.
#[wasm_bindgen(start)]
pub fn start() {
    console_error_panic_hook::set_once();
}

/// A model on the GPU.
#[wasm_bindgen]
#[derive(Debug)]
pub struct Model {
    engine: Slot<GpuEngine>,
    /// Whether a generation holds the model.
    generating: Rc<Cell<bool>>,
    info: Rc<ModelInfo>,
}

#[wasm_bindgen]
impl Model {
    /// Loads a model from a source of bytes: `{ files: { name, size }[], read(file, offset, length) }`. Draft heads come from a source
    /// of their own, with `'auto'` from the model's if it has some, and with `null` not at all.
    ///
    /// # Errors
    /// An `Error` with a `code`.
    pub async fn load(
        source: JsValue,
        heads: JsValue,
        options: JsValue,
        on_progress: Option<Function>,
    ) -> std::result::Result<Model, JsValue> {
        load(source, heads, options, on_progress.as_ref()).await.js()
    }

    /// What was loaded, as a plain object.
    ///
    /// # Errors
    /// None in practice; serialising a plain object cannot fail.
    pub fn info(&self) -> std::result::Result<JsValue, JsValue> {
        types::to_js(&*self.info).js()
    }

    /// The ids of a text; `add_bos` puts the beginning token before it, by default if the model wants it.
    ///
    /// # Errors
    /// An `Error` with a `code`.
    pub fn tokenize(&self, text: &str, add_bos: Option<bool>) -> std::result::Result<Vec<u32>, JsValue> {
        self.with(|engine| {
            let tokenizer = &engine.text().tokenizer;
            tokenizer.encode(text, add_bos.unwrap_or(tokenizer.adds_bos()))
        })
        .js()
    }

    /// The text of ids.
    ///
    /// # Errors
    /// An `Error` with a `code`.
    pub fn detokenize(&self, ids: &[u32]) -> std::result::Result<String, JsValue> {
        self.with(|engine| Ok(engine.text().tokenizer.decode(ids, false))).js()
    }

    /// The bytes of each of these ids, alone: perhaps a part of a character.
    ///
    /// # Errors
    /// An `Error` with a `code`.
    #[wasm_bindgen(js_name = tokenBytes)]
    pub fn token_bytes(&self, ids: &[u32]) -> std::result::Result<Vec<Uint8Array>, JsValue> {
        let bytes_of = |engine: &GpuEngine| {
            let tokenizer = &engine.text().tokenizer;
            Ok(ids.iter().map(|&id| Uint8Array::from(tokenizer.token_bytes(id))).collect())
        };
        self.with(bytes_of).js()
    }

    /// The prompt that the chat template makes of messages.
    ///
    /// # Errors
    /// An `Error` with a `code`.
    #[wasm_bindgen(js_name = applyChatTemplate)]
    pub fn apply_chat_template(
        &self,
        messages: JsValue,
        add_generation_prompt: Option<bool>,
    ) -> std::result::Result<String, JsValue> {
        self.with(|engine| {
            let messages = types::messages(messages)?;
            let template = engine.text().template.as_ref().map_err(Clone::clone)?;
            template.render(&messages, add_generation_prompt.unwrap_or(true))
        })
        .js()
    }

    /// Starts a generation: `{ prompt | messages, options }`.
    ///
    /// # Errors
    /// An `Error` with a `code`; `busy` while another runs.
    pub fn start(&self, request: JsValue) -> std::result::Result<Generation, JsValue> {
        self.start_generation(request).js()
    }

    /// Logits `[vocab]` of what follows these ids, computed from an empty cache.
    ///
    /// # Errors
    /// An `Error` with a `code`.
    #[wasm_bindgen(js_name = nextLogits)]
    pub async fn next_logits(&self, ids: Uint32Array) -> std::result::Result<Vec<f32>, JsValue> {
        let result = async {
            let mut engine = self.idle()?;
            engine.get().next_logits(&ids.to_vec()).await
        };
        result.await.js()
    }

    /// Times passes: `{ rows?, context?, repeats? }` to milliseconds per pass for every number of rows, and per kernel.
    ///
    /// # Errors
    /// An `Error` with a `code`.
    pub async fn benchmark(&self, options: JsValue) -> std::result::Result<JsValue, JsValue> {
        let result = async {
            let options =
                if options.is_undefined() { Default::default() } else { from_js("benchmark options", options)? };
            let mut engine = self.idle()?;
            types::to_js(&benchmark::run(engine.get().backend_mut(), &options, clock::now_ms).await?)
        };
        result.await.js()
    }

    /// Forgets the cache: the next generation computes its whole prompt.
    ///
    /// # Errors
    /// An `Error` with code `busy` while a generation runs.
    pub fn reset(&self) -> std::result::Result<(), JsValue> {
        let result = self.idle().map(|mut engine| engine.get().forget());
        result.js()
    }
}

impl Model {
    fn with<T>(&self, read: impl FnOnce(&GpuEngine) -> Result<T>) -> Result<T> {
        let slot = self.engine.borrow();
        read(slot.as_ref().ok_or_else(busy)?)
    }

    /// The engine, if no generation holds it: what uses the cache for itself must not pull it from under one.
    fn idle(&self) -> Result<Taken<'_, GpuEngine>> {
        if self.generating.get() { Err(busy()) } else { Taken::from(&self.engine) }
    }

    fn start_generation(&self, request: JsValue) -> Result<Generation> {
        let request: Request = from_js("the request", request)?;
        let (prompt, options) = request.into_parts()?;
        if self.generating.replace(true) {
            return Err(busy());
        }
        let session = Taken::from(&self.engine).and_then(|mut engine| engine.get().start(&prompt, &options));
        match session {
            Ok(session) => Ok(Generation {
                engine: Rc::clone(&self.engine),
                generating: Rc::clone(&self.generating),
                session: Rc::new(RefCell::new(Some(session))),
                info: Rc::clone(&self.info),
            }),
            Err(e) => {
                self.generating.set(false);
                Err(e)
            }
        }
    }
}

impl Drop for Model {
    fn drop(&mut self) {
        // While a call runs the engine is out of its slot, and its own end frees it.
        if let Some(engine) = self.engine.borrow().as_ref() {
            engine.backend().release();
        }
    }
}

/// A generation under way. Dropping it stops it and gives the model free.
#[wasm_bindgen]
#[derive(Debug)]
pub struct Generation {
    engine: Slot<GpuEngine>,
    generating: Rc<Cell<bool>>,
    session: Slot<Session>,
    info: Rc<ModelInfo>,
}

#[wasm_bindgen]
impl Generation {
    /// The next piece, `{ text, tokens, sources, pieces, logprobs?, tree? }`; `undefined` once it has ended.
    ///
    /// # Errors
    /// An `Error` with a `code`.
    pub async fn next(&self) -> std::result::Result<JsValue, JsValue> {
        let result = async {
            let mut session = Taken::from(&self.session)?;
            let mut engine = Taken::from(&self.engine)?;
            match engine.get().next(session.get()).await? {
                Some(chunk) => types::to_js(&ChunkDto::new(chunk, session.get())),
                None => Ok(JsValue::UNDEFINED),
            }
        };
        result.await.js()
    }

    /// Text, tokens, usage and stats; whole once `next` gave `undefined` or after `abort`.
    ///
    /// # Errors
    /// An `Error` with code `busy` while `next` runs.
    pub fn result(&self) -> std::result::Result<JsValue, JsValue> {
        let session = self.session.borrow();
        let result =
            session.as_ref().ok_or_else(busy).and_then(|session| types::to_js(&ResultDto::new(session, &self.info)));
        result.js()
    }

    /// Stops where it stands; the model is then free.
    ///
    /// # Errors
    /// An `Error` with code `busy` while `next` runs.
    pub fn abort(&self) -> std::result::Result<(), JsValue> {
        let result = (|| {
            let mut session = Taken::from(&self.session)?;
            let mut engine = Taken::from(&self.engine)?;
            engine.get().abort(session.get());
            Ok(())
        })();
        result.js()
    }
}

impl Drop for Generation {
    fn drop(&mut self) {
        if let (Some(session), Some(engine)) = (self.session.borrow_mut().as_mut(), self.engine.borrow_mut().as_mut()) {
            engine.abort(session);
        }
        self.generating.set(false);
    }
}

/// A value taken out of its slot for the length of a call, and put back whatever happens.
struct Taken<'a, T> {
    slot: &'a Slot<T>,
    value: Option<T>,
}

impl<'a, T> Taken<'a, T> {
    fn from(slot: &'a Slot<T>) -> Result<Self> {
        let value = slot.borrow_mut().take().ok_or_else(busy)?;
        Ok(Self { slot, value: Some(value) })
    }

    fn get(&mut self) -> &mut T {
        let Some(value) = self.value.as_mut() else { unreachable!("the value is here until the guard is dropped") };
        value
    }
}

impl<T> Drop for Taken<'_, T> {
    fn drop(&mut self) {
        *self.slot.borrow_mut() = self.value.take();
    }
}

fn busy() -> Error {
    Error::new(ErrorCode::Busy, "the model is generating; wait for its result, or abort it first")
}

async fn load(source: JsValue, heads: JsValue, options: JsValue, on_progress: Option<&Function>) -> Result<Model> {
    let began_ms = clock::now_ms();
    let options = if options.is_undefined() { LoadOptions::default() } else { from_js("load options", options)? };
    let adapter = adapter::name().await?;
    let source = JsSource::new(source)?;
    let checkpoint = Checkpoint::open(&source).await?;
    let head_source = if heads.is_object() { Some(JsSource::new(heads.clone())?) } else { None };
    let head_file = match &head_source {
        Some(own) => Some(HeadFile::open(own).await?),
        None if heads.is_string() => HeadFile::find(&source).await?,
        None => None,
    };
    let heads = head_file.as_ref().map(|file| file.fit(&checkpoint)).transpose()?;
    let text = TextParts::new(&checkpoint, clock::local_seconds)?;
    let gpu = Gpu::request_known_as(&adapter).await?;
    let report = |stage: &'static str, loaded: u64, total: u64| {
        if let (Some(callback), Ok(event)) = (on_progress, types::to_js(&Progress { stage, loaded, total })) {
            // A callback that throws must not end the load; its error is the page's own.
            let _ = callback.call1(&JsValue::NULL, &event);
        }
    };
    let kernels = Kernels::new(gpu.clone());
    let compiled = kernels.warm_up(&layouts(&checkpoint)?);
    let mut weights = GpuWeights::new(gpu.clone());
    stream_weights(&checkpoint, &source, &mut weights, &mut |done, total| report("weights", done, total)).await?;
    report("compile", 0, 1);
    compiled.await?;
    report("compile", 1, 1);
    let mut backend =
        GpuBackend::new(checkpoint.config.clone(), weights, kernels.clone(), options.context_length).await?;
    backend.self_check().await?;
    report("check", 1, 1);
    if let (Some(file), Some(heads)) = (&head_file, heads) {
        let mut weights = GpuWeights::new(gpu);
        let own = (file, &heads, head_source.as_ref().unwrap_or(&source));
        let model = (&checkpoint, &source);
        stream_heads(own, model, &mut weights, &mut |done, total| report("heads", done, total)).await?;
        backend.set_heads(heads, weights).await?;
    }
    let mut info = ModelInfo::new(&checkpoint, &backend, text.template.is_ok());
    if !adapter.is_empty() {
        info.adapter.description = adapter;
    }
    let mut engine = Engine::new(backend, text, clock::now_ms);
    match options.known_costs.and_then(|known| known.measured(&info.adapter.description)) {
        Some(measured) => engine.set_measured(measured).await?,
        None => engine.measure_costs().await?,
    }
    // Not earlier: compiling beside the passes that were measured would have slowed them.
    engine.backend().prepare_drafting()?;
    if let Some(heads) = &mut info.heads {
        heads.draft_ms = engine.costs().heads_ms();
    }
    info.drafters = engine.drafters().iter().map(Source::name).collect();
    info.pass_ms = engine.measured().iter().map(|&(rows, ms)| (rows.to_string(), ms)).collect();
    info.load_ms = clock::now_ms() - began_ms;
    Ok(Model { engine: Rc::new(RefCell::new(Some(engine))), generating: Rc::default(), info: Rc::new(info) })
}

impl AdapterInfo {
    fn new(backend: &GpuBackend) -> Self {
        let caps = backend.caps();
        Self { description: caps.description.clone(), backend: caps.backend.clone(), software: caps.software }
    }
}

impl ModelInfo {
    fn new(checkpoint: &Checkpoint, backend: &GpuBackend, has_chat_template: bool) -> Self {
        let config = backend.config();
        Self {
            name: checkpoint.name.clone(),
            architecture: config.architecture.name().to_owned(),
            format: checkpoint.format.clone(),
            quantisation: checkpoint.quantisation().to_string(),
            parameters: checkpoint.parameters(),
            context_length: backend.context_limit(),
            vocab_size: config.vocab_size,
            layers: config.num_hidden_layers,
            hidden_size: config.hidden_size,
            has_chat_template,
            adapter: AdapterInfo::new(backend),
            weight_bytes: backend.weight_bytes(),
            load_ms: 0.0,
            drafters: Vec::new(),
            pass_ms: types::Numbers::new(),
            version: types::VERSION,
            heads: backend.heads().map(HeadsInfo::from),
        }
    }
}
