//! What a file of draft heads holds, before it is known which model they are to draft for.
//!
//! Read from the tensors alone: published configurations give wrong counts of heads (`medusa_num_heads` is 2 where there are
//! five), so none is read. The published code that trains several layers shares one module between them; every layer that a file
//! has is computed here, as TGI and vLLM do.

use std::collections::BTreeMap;
use std::fmt;

use super::calibration::{self, DepthCalibration};
use super::names::{Naming, Slot, is_head_tensor};
use super::stored::{type_key, unfold};
use super::{HeadForm, MAX_DEPTHS, Taps};
use crate::error::{Error, ErrorCode, Result};
use crate::model::checkpoint::TensorEntry;
use crate::model::container::weight_files;
use crate::model::safetensors;
use crate::model::source::{ByteSource, allocate, read_exact};

/// `format` in the metadata of our own files.
pub const FORMAT: &str = "draftree-heads";
/// `version` of our own files.
pub const VERSION: &str = "1";
/// Levels of recurrent heads with one matrix for all of them, where the file does not say.
const DEFAULT_DEPTHS: usize = 4;

/// Draft heads in a file, their tensors checked against each other.
#[derive(Debug)]
pub struct HeadFile {
    /// What the heads read.
    pub form: HeadForm,
    /// How the tensors are named.
    pub naming: Naming,
    /// Heads, or levels of the recurrent form.
    pub depths: usize,
    /// Blocks of a head, or of a level.
    pub layers: usize,
    /// Width of the hidden row.
    pub hidden_size: usize,
    /// Rank of the correction by the previous token; 0 where there is none.
    pub rank: usize,
    /// Layers of the model whose output they read besides the hidden row.
    pub taps: Taps,
    /// The layer of the model by whose keys and values they look at the context.
    pub context_layer: Option<usize>,
    /// The token id of every draft id, ascending; absent where they are the same.
    pub token_map: Option<Vec<u32>>,
    /// The hash of the model they were trained for ([`model_identity`](super::model_identity)), where the file says.
    pub model: Option<String>,
    /// What the file says in words, the licence among it.
    pub metadata: BTreeMap<String, String>,
    /// Rank paths, the best first, where the file has been calibrated: the first n - 1 make the best tree of n nodes.
    pub trees: Vec<Vec<usize>>,
    /// How far estimated probabilities are to be believed, depth by depth, where the file has been calibrated.
    pub calibration: Vec<DepthCalibration>,
    /// Tokens a pass to expect of the best trees of 1, 2, … nodes, where the file has been calibrated.
    pub tree_tokens: Vec<f64>,
    /// Matrices of blocks: depths, or 1 where one serves all levels.
    pub(super) blocks: usize,
    pub(super) biased: bool,
    /// Output matrices: none, one for all heads, or one each.
    pub(super) outputs: Vec<TensorEntry>,
    /// The stored row of each draft id, where the output matrix is in another order or has more rows.
    pub(super) output_rows: Option<Vec<u32>>,
    pub(super) tensors: BTreeMap<Slot, TensorEntry>,
}

impl HeadFile {
    /// Opens a safetensors file of heads, a folder with one, or a model that has heads beside its own weights.
    ///
    /// # Errors
    /// `BadModelFile` when there are no heads or the file is damaged, `MissingTensor` and `ShapeMismatch` for heads that
    /// are incomplete or contradict each other, `UnsupportedModel` for what cannot be run, and whatever the source reports.
    pub async fn open(source: &impl ByteSource) -> Result<Self> {
        Self::read(source, Headers::read(source, files(source)?).await?).await
    }

    /// The heads that lie among the files of a model, if there are some: in a file named after heads, or, as in Medusa-1.0 models,
    /// beside its own weights.
    ///
    /// # Errors
    /// As [`open`](Self::open), but for there being none.
    pub async fn find(source: &impl ByteSource) -> Result<Option<Self>> {
        if source.files().iter().any(|file| is_head_file(file.base_name())) {
            return Self::open(source).await.map(Some);
        }
        let headers = Headers::read(source, weight_files(source).await?).await?;
        match headers.tensors.keys().any(|name| is_head_tensor(name)) {
            true => Self::read(source, headers).await.map(Some),
            false => Ok(None),
        }
    }

    async fn read(source: &impl ByteSource, headers: Headers) -> Result<Self> {
        let Headers { tensors: found, metadata } = headers;
        let mut tensors = Tensors::select(found, &metadata)?;
        let token_map = match tensors.slots.remove(&Slot::TokenMap) {
            Some((name, tensor)) => Some(read_ids(source, &name, &tensor).await?),
            None => None,
        };
        Self::from_tensors(tensors, token_map, metadata)
    }

    fn from_tensors(
        mut tensors: Tensors,
        token_map: Option<Vec<u32>>,
        metadata: BTreeMap<String, String>,
    ) -> Result<Self> {
        let naming = tensors.naming;
        let first = Slot::Block { head: 0, layer: 0 };
        let (_, block) = tensors.slots.get(&first).ok_or_else(|| tensors.missing(first, "[hidden, hidden]"))?;
        let hidden_size = block.shape.first().copied().unwrap_or(0);
        let form = form(naming, &metadata, block)?;
        let blocks = tensors.heads;
        let (depths, width) = match form {
            HeadForm::Parallel => (blocks, hidden_size),
            HeadForm::Recurrent if blocks == 1 => (depths(&metadata)?, 2 * hidden_size),
            HeadForm::Recurrent => (blocks, 2 * hidden_size),
        };
        if depths > MAX_DEPTHS {
            return Err(Error::new(
                ErrorCode::UnsupportedModel,
                format!("the file drafts {depths} tokens ahead, expected at most {MAX_DEPTHS}"),
            ));
        }
        let layers = if form == HeadForm::Parallel { tensors.layers } else { 1 };
        let mut kept = BTreeMap::new();
        let biased = tensors.slots.contains_key(&Slot::Bias { head: 0, layer: 0 });
        for head in 0..blocks {
            for layer in 0..layers {
                kept.extend([tensors.take(Slot::Block { head, layer }, &[hidden_size, width])?]);
                if biased {
                    kept.extend([tensors.take(Slot::Bias { head, layer }, &[hidden_size])?]);
                }
            }
        }
        let taps = if naming == Naming::Draftree { Taps::read(&metadata)? } else { Taps::NONE };
        if !taps.is_empty() {
            let width = (1 + taps.len()) * hidden_size;
            kept.extend([tensors.take(Slot::Fusion, &[hidden_size, width])?]);
            kept.extend([tensors.take(Slot::FusionBias, &[hidden_size])?]);
        }
        let context_layer = if naming == Naming::Draftree { context_layer(&metadata)? } else { None };
        if context_layer.is_some() {
            tensors.context(hidden_size, &mut kept)?;
        }
        let outputs = tensors.outputs(hidden_size)?;
        let rows = outputs.first().map(|tensor| tensor.shape[0]);
        let (token_map, output_rows) = arrange(naming, token_map, rows)?;
        let rank = tensors.correction(token_map.as_ref().map(Vec::len).or(rows), &mut kept)?;
        tensors.refuse_rest()?;
        let (trees, calibration, tree_tokens) = match naming {
            Naming::Draftree => (
                calibration::trees(&metadata)?,
                calibration::calibration(&metadata, depths)?,
                calibration::tree_tokens(&metadata)?,
            ),
            _ => Default::default(),
        };
        Ok(Self {
            form,
            naming,
            depths,
            layers,
            hidden_size,
            rank,
            taps,
            context_layer,
            token_map,
            model: metadata.get("model").cloned(),
            metadata,
            trees,
            calibration,
            tree_tokens,
            blocks,
            biased,
            outputs,
            output_rows,
            tensors: kept,
        })
    }

    /// The licence of the heads, where the file gives it.
    pub fn licence(&self) -> Option<&str> {
        ["license", "licence"].iter().find_map(|key| self.metadata.get(*key)).map(String::as_str)
    }

    /// The tensors by the names of our own format, whatever the file calls them; none where that has no place for them: an output
    /// matrix for each head, or one whose rows stand in another order.
    pub fn own_tensors(&self) -> Option<Vec<(String, &TensorEntry)>> {
        let outputs = match &self.outputs[..] {
            [] => None,
            [output] if self.output_rows.is_none() => Some((Slot::SharedOutput, output)),
            _ => return None,
        };
        let slots = self.tensors.iter().map(|(&slot, tensor)| (slot, tensor)).chain(outputs);
        Some(slots.map(|(slot, tensor)| (Naming::Draftree.name(slot, self.layers), tensor)).collect())
    }

    /// Number of weights.
    pub fn parameters(&self) -> u64 {
        self.tensors.values().chain(&self.outputs).map(TensorEntry::values).sum()
    }
}

/// What the headers of some files say.
#[derive(Default)]
struct Headers {
    tensors: BTreeMap<String, TensorEntry>,
    metadata: BTreeMap<String, String>,
}

impl Headers {
    async fn read(source: &impl ByteSource, files: impl IntoIterator<Item = usize>) -> Result<Self> {
        let mut headers = Self::default();
        for file in files {
            headers.metadata.extend(safetensors::read_header(source, file, &mut headers.tensors).await?);
        }
        Ok(headers)
    }
}

/// The tensors of heads by what they are for.
struct Tensors {
    naming: Naming,
    heads: usize,
    layers: usize,
    slots: BTreeMap<Slot, (String, TensorEntry)>,
}

impl Tensors {
    fn select(found: BTreeMap<String, TensorEntry>, metadata: &BTreeMap<String, String>) -> Result<Self> {
        let is_block = |naming: &Naming| {
            found.keys().any(|name| matches!(naming.slot(name, &mut 0), Some(Slot::Block { .. } | Slot::Bias { .. })))
        };
        let naming = match metadata.get("format").map(String::as_str) {
            Some(FORMAT) => Some(Naming::Draftree),
            _ => Naming::ALL.into_iter().find(is_block),
        };
        let Some(naming) = naming else {
            return Err(bad(format!(
                "no draft heads: none of the {} tensors is named like those of Medusa, ModelOpt, vLLM or draftree (the first \
                 is {:?})",
                found.len(),
                found.keys().next().map_or("", String::as_str)
            )));
        };
        // A model that has heads beside its own weights: only what is named as theirs is.
        let beside_model = found.keys().any(|name| name.starts_with("model."));
        let mut tensors = Self { naming, heads: 0, layers: 0, slots: BTreeMap::new() };
        for (name, mut tensor) in found {
            if beside_model && !is_head_tensor(&name) {
                continue;
            }
            let Some(slot) = naming.slot(&name, &mut tensors.layers) else {
                return Err(Error::new(
                    ErrorCode::UnsupportedModel,
                    format!(
                        "the tensor {name} is no part of {} heads; they would compute something else",
                        naming.as_str()
                    ),
                ));
            };
            if let Slot::Block { head, .. } | Slot::Bias { head, .. } | Slot::Output(head) = slot {
                tensors.heads = tensors.heads.max(head + 1);
            }
            if naming == Naming::Draftree && slot != Slot::TokenMap {
                unfold(&name, &mut tensor, metadata)?;
            }
            if slot != Slot::TokenMap && !tensor.tensor_type.is_supported() {
                let own = format!("; bytes of our own format need {:?} in the metadata", type_key(&name));
                let own = if naming == Naming::Draftree { own } else { String::new() };
                return Err(Error::new(
                    ErrorCode::UnsupportedModel,
                    format!("{name}: values of type {}, expected F32, F16 or BF16{own}", tensor.tensor_type),
                ));
            }
            if let Some((other, _)) = tensors.slots.insert(slot, (name, tensor)) {
                return Err(bad(format!("the tensor {other} is there under two names")));
            }
        }
        Ok(tensors)
    }

    fn missing(&self, slot: Slot, expected: impl fmt::Display) -> Error {
        let name = self.naming.name(slot, self.layers);
        Error::new(
            ErrorCode::MissingTensor,
            format!(
                "the tensor {name} is missing, expected {expected}, since the file has {} heads of {} layers; it is incomplete",
                self.heads, self.layers
            ),
        )
    }

    fn take(&mut self, slot: Slot, shape: &[usize]) -> Result<(Slot, TensorEntry)> {
        let (name, tensor) = self.slots.remove(&slot).ok_or_else(|| self.missing(slot, format!("{shape:?}")))?;
        if tensor.shape == shape && shape.iter().all(|&size| size > 0) {
            return Ok((slot, tensor));
        }
        Err(misshapen(&name, &tensor, format!("{shape:?}")))
    }

    /// The output matrices, every one `[rows, hidden]` with the same rows.
    fn outputs(&mut self, hidden_size: usize) -> Result<Vec<TensorEntry>> {
        let mut slots: Vec<Slot> = (0..self.heads).map(Slot::Output).collect();
        if self.slots.contains_key(&Slot::SharedOutput) {
            slots = vec![Slot::SharedOutput];
        } else if !slots.iter().any(|slot| self.slots.contains_key(slot)) {
            return Ok(Vec::new());
        } else if self.naming == Naming::Vllm && !self.slots.contains_key(&Slot::Output(1)) {
            slots.truncate(1); // vLLM reads one `lm_heads.0` as the output of all heads
        }
        let first = slots.iter().find_map(|slot| self.slots.get(slot));
        let rows = first.and_then(|(_, tensor)| tensor.shape.first().copied()).unwrap_or(1);
        slots.into_iter().map(|slot| Ok(self.take(slot, &[rows, hidden_size])?.1)).collect()
    }

    /// Takes the correction by the previous token; returns its rank. `drafts` is the draft vocabulary, if the file gives it.
    fn correction(&mut self, drafts: Option<usize>, kept: &mut BTreeMap<Slot, TensorEntry>) -> Result<usize> {
        let shape = |slot| self.slots.get(&slot).map(|(_, tensor)| tensor.shape.clone());
        let (previous, correction) = (shape(Slot::Previous), shape(Slot::Correction));
        if previous.is_none() && correction.is_none() {
            return Ok(0);
        }
        let size = |shape: &Option<Vec<usize>>, axis: usize| shape.as_ref().and_then(|shape| shape.get(axis).copied());
        let rank = size(&previous, 1).or(size(&correction, 1)).unwrap_or(1);
        let vocabulary = size(&previous, 0).unwrap_or(1);
        let drafts = drafts.or(size(&correction, 0)).unwrap_or(vocabulary);
        kept.extend([self.take(Slot::Previous, &[vocabulary, rank])?, self.take(Slot::Correction, &[drafts, rank])?]);
        Ok(rank)
    }

    /// Takes what looks at the context.
    fn context(&mut self, hidden_size: usize, kept: &mut BTreeMap<Slot, TensorEntry>) -> Result<()> {
        let query = self.slots.get(&Slot::ContextQuery).and_then(|(_, tensor)| tensor.shape.first().copied());
        let query = query.unwrap_or(hidden_size);
        kept.extend([
            self.take(Slot::ContextQuery, &[query, hidden_size])?,
            self.take(Slot::Context, &[hidden_size, hidden_size + query])?,
            self.take(Slot::ContextBias, &[hidden_size])?,
        ]);
        Ok(())
    }

    fn refuse_rest(&self) -> Result<()> {
        let Some((name, tensor)) = self.slots.values().next() else { return Ok(()) };
        let shape = &tensor.shape;
        Err(Error::new(
            ErrorCode::UnsupportedModel,
            format!("the tensor {name} {shape:?} has no place in these heads; they would compute something else"),
        ))
    }
}

/// Whether a file of this name holds draft heads and no model.
pub fn is_head_file(base_name: &str) -> bool {
    base_name.ends_with(".safetensors") && (base_name.contains("medusa") || base_name.contains("heads"))
}

/// The files to look for heads in: those named after heads, else all safetensors.
fn files(source: &impl ByteSource) -> Result<Vec<usize>> {
    let all = source.files();
    let with = |wanted: &dyn Fn(&str) -> bool| -> Vec<usize> {
        (0..all.len()).filter(|&file| all.len() == 1 || wanted(all[file].base_name())).collect()
    };
    if let Some(pickle) =
        all.iter().find(|file| file.base_name().ends_with(".pt") || file.base_name().ends_with(".bin"))
        && !all.iter().any(|file| file.base_name().ends_with(".safetensors"))
    {
        return Err(bad(format!(
            "{} is a Python pickle, which can run code and is not read; save the same tensors as safetensors",
            pickle.name
        )));
    }
    let named = with(&is_head_file);
    let found = if named.is_empty() { with(&|name| name.ends_with(".safetensors")) } else { named };
    if found.is_empty() {
        return Err(bad(format!("no draft heads among the {} files; expected a .safetensors file", all.len())));
    }
    Ok(found)
}

/// The form: what the file says, else what the shape of its first block says.
fn form(naming: Naming, metadata: &BTreeMap<String, String>, block: &TensorEntry) -> Result<HeadForm> {
    if naming != Naming::Draftree {
        return Ok(HeadForm::Parallel);
    }
    let version = metadata.get("version").map_or(VERSION, String::as_str);
    if version != VERSION {
        return Err(Error::new(
            ErrorCode::UnsupportedModel,
            format!(
                "draft heads of version {version:?}, expected {VERSION:?}; a newer release of this package reads them"
            ),
        ));
    }
    let is = |form: HeadForm| metadata.get("form").is_some_and(|found| found == form.as_str());
    match metadata.get("form") {
        Some(_) if is(HeadForm::Parallel) => Ok(HeadForm::Parallel),
        Some(_) if is(HeadForm::Recurrent) => Ok(HeadForm::Recurrent),
        Some(found) => Err(Error::new(
            ErrorCode::UnsupportedModel,
            format!("draft heads of the form {found:?}, expected \"parallel\" or \"recurrent\""),
        )),
        None if block.shape.len() == 2 && block.shape[1] == 2 * block.shape[0] => Ok(HeadForm::Recurrent),
        None => Ok(HeadForm::Parallel),
    }
}

/// The levels that recurrent heads with one matrix for all of them were trained for.
fn depths(metadata: &BTreeMap<String, String>) -> Result<usize> {
    let Some(text) = metadata.get("depths") else { return Ok(DEFAULT_DEPTHS) };
    text.parse::<usize>()
        .ok()
        .filter(|&depths| depths > 0)
        .ok_or_else(|| bad(format!("depths is {text:?} in the metadata of the heads, expected a number of at least 1")))
}

/// The layer that heads look at the context by, where the file names one.
fn context_layer(metadata: &BTreeMap<String, String>) -> Result<Option<usize>> {
    let Some(text) = metadata.get("context_layer") else { return Ok(None) };
    let wrong =
        || bad(format!("context_layer is {text:?} in the metadata of the heads, expected the number of a layer"));
    text.parse().map(Some).map_err(|_| wrong())
}

/// Token ids, stored as integers.
async fn read_ids(source: &impl ByteSource, name: &str, tensor: &TensorEntry) -> Result<Vec<u32>> {
    let width = match tensor.tensor_type.to_string().as_str() {
        "I32" | "U32" => 4,
        "I64" | "U64" => 8,
        other => {
            return Err(Error::new(
                ErrorCode::UnsupportedModel,
                format!("{name}: values of type {other}, expected I32, U32, I64 or U64"),
            ));
        }
    };
    if tensor.shape.len() != 1 || tensor.shape[0] == 0 {
        return Err(misshapen(name, tensor, "[drafts]"));
    }
    let mut bytes = allocate(tensor.bytes, name)?;
    read_exact(source, tensor.file, tensor.offset, &mut bytes).await?;
    let ids = bytes.chunks_exact(width).map(|bytes| {
        let mut word = [0; 8];
        word[..width].copy_from_slice(bytes);
        u32::try_from(u64::from_le_bytes(word))
            .map_err(|_| Error::new(ErrorCode::ShapeMismatch, format!("{name}: an entry is no token id")))
    });
    ids.collect()
}

/// Brings a token map to ascending order, with the stored row of the output matrix for each draft id where that is another.
#[allow(clippy::type_complexity, reason = "the two lists belong together")]
fn arrange(
    naming: Naming,
    token_map: Option<Vec<u32>>,
    rows: Option<usize>,
) -> Result<(Option<Vec<u32>>, Option<Vec<u32>>)> {
    let Some(map) = token_map else { return Ok((None, None)) };
    let ascending = map.windows(2).all(|pair| pair[0] < pair[1]);
    let mut order: Vec<u32> = (0..map.len() as u32).collect();
    let mut sorted = map.clone();
    if !ascending {
        order.sort_by_key(|&row| map[row as usize]);
        sorted.sort_unstable();
        let repeated = sorted.windows(2).find(|pair| pair[0] == pair[1]);
        if repeated.is_some() || naming == Naming::Draftree {
            let what = repeated.map_or("is not ascending".to_owned(), |pair| format!("has token {} twice", pair[0]));
            return Err(Error::new(
                ErrorCode::ShapeMismatch,
                format!("token_map {what}; expected every token at most once, ascending"),
            ));
        }
    }
    let last = sorted.last().map_or(0, |&id| id as usize);
    match rows {
        None => Ok((Some(sorted), None)),
        Some(rows) if rows == map.len() => Ok((Some(sorted), (!ascending).then_some(order))),
        // vLLM also takes a whole output matrix, of which the map names the rows.
        Some(rows) if naming == Naming::Vllm && rows > last => Ok((Some(sorted.clone()), Some(sorted))),
        Some(rows) => Err(Error::new(
            ErrorCode::ShapeMismatch,
            format!(
                "the output matrix has {rows} rows, expected one for each of the {} entries of token_map",
                map.len()
            ),
        )),
    }
}

fn misshapen(name: &str, tensor: &TensorEntry, expected: impl fmt::Display) -> Error {
    Error::new(ErrorCode::ShapeMismatch, format!("{name}: its shape is {:?}, expected {expected}", tensor.shape))
}

fn bad(message: String) -> Error {
    Error::new(ErrorCode::BadModelFile, message)
}

impl fmt::Display for HeadFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "draft heads, named as in {}", self.naming.as_str())?;
        let rows = self.outputs.first().map(|tensor| tensor.shape[0]);
        let output = match (self.outputs.len(), rows) {
            (_, None) => "rows of the model's own".to_owned(),
            (1, Some(rows)) => format!("{rows} rows for all heads"),
            (_, Some(rows)) => format!("{rows} rows for each head"),
        };
        let none = || "not given".to_owned();
        let layer = self.context_layer.map_or("none".to_owned(), |layer| layer.to_string());
        let lines = [
            ("form", self.form.as_str().to_owned()),
            ("depths", self.depths.to_string()),
            ("layers", self.layers.to_string()),
            ("hidden size", self.hidden_size.to_string()),
            ("output", output),
            ("draft vocabulary", self.token_map.as_ref().map_or("all tokens".to_owned(), |map| map.len().to_string())),
            ("rank of the correction", self.rank.to_string()),
            ("layers fused", if self.taps.is_empty() { "none".to_owned() } else { self.taps.to_string() }),
            ("layer of the context", layer),
            ("parameters", self.parameters().to_string()),
            ("trained for model", self.model.clone().unwrap_or_else(none)),
            ("licence", self.licence().map_or_else(none, str::to_owned)),
        ];
        lines.iter().try_for_each(|(name, value)| writeln!(f, "  {name:<24} {value}"))?;
        self.metadata.iter().try_for_each(|(key, value)| writeln!(f, "  metadata {key:<15} {value}"))
    }
}
