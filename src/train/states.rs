//! Hidden rows of answers on disk: what heads learn from, and what evaluation replays.
//!
//! A *row* is a place of an answer: its hidden row decides the answer's next token. Rows of the prompt are not kept, so nothing of it
//! can be learnt. A folder of states has `states.json` (what they are), `sequences.jsonl` (a line an answer), and, row by row,
//! `hidden.f16`, `tokens.u32`, `best_tokens.u32` and `best_probabilities.f32`, little-endian; and, where it was asked for, `context.f16`
//! with the keys and values of a layer at every position that was read, so that heads can learn to look back. An answer is written to
//! `sequences.jsonl` last; whatever a stopped run left behind it is cut off when writing goes on.

use std::fs::{self, File, OpenOptions};
use std::io::{BufWriter, Write as _};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use half::f16;
use serde::{Deserialize, Serialize};

use crate::error::{Error, ErrorCode, Result};
use crate::model::heads::Taps;

/// What the states of a folder are.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StatesHeader {
    /// Hash of the model ([`model_identity`](crate::model::heads::model_identity)).
    pub model: String,
    /// The quantisation that made them, as [`TensorType`](crate::model::TensorType) displays it: other weights make other rows.
    pub quantisation: String,
    /// Width of the model.
    pub hidden_size: usize,
    /// Layers whose output, normed without a gain, stands behind the final hidden row, which always comes first: `width` is
    /// (1 + layers) times `hidden_size`.
    pub layers: Vec<usize>,
    /// What is kept of the context, if anything.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub context: Option<KeptContext>,
    /// How many of the target's most probable next tokens are kept for every row.
    pub best: usize,
}

/// What is kept of every position that was read, those of the prompt too.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeptContext {
    /// The layer whose keys, as attention reads them, and values are kept.
    pub layer: usize,
    /// Numbers of a position of `context.f16`: keys, then values.
    pub width: usize,
}

impl StatesHeader {
    /// That of a folder; `None` where it has no states.
    ///
    /// # Errors
    /// `LoadFailed`.
    pub fn read(folder: &Path) -> Result<Option<Self>> {
        folder.join("states.json").exists().then(|| read_header(folder)).transpose()
    }

    /// Numbers of a row of `hidden.f16`.
    pub fn width(&self) -> usize {
        self.hidden_size * (1 + self.layers.len())
    }

    /// Whether heads of this shape can learn from them.
    ///
    /// # Errors
    /// `InvalidOption` when a layer that heads read was not kept.
    pub fn check(&self, taps: &Taps, context_layer: Option<usize>) -> Result<()> {
        self.places(taps)?;
        let kept = self.context.map(|context| context.layer);
        match context_layer {
            Some(layer) if kept != Some(layer) => {
                let kept = kept.map_or("none".to_owned(), |layer| format!("that of layer {layer}"));
                let message = format!(
                    "the heads look at the context of layer {layer}, but the states have {kept}; make states with --context-layer, \
                     in another folder"
                );
                Err(Error::new(ErrorCode::InvalidOption, message))
            }
            _ => Ok(()),
        }
    }

    /// Where in a row the output of each of these layers begins.
    ///
    /// # Errors
    /// `InvalidOption` when one was not kept.
    pub fn places(&self, taps: &Taps) -> Result<Vec<usize>> {
        let place = |tap: usize| self.layers.iter().position(|&layer| layer == tap);
        let places: Option<Vec<usize>> = taps.layers().map(|tap| Some((1 + place(tap)?) * self.hidden_size)).collect();
        places.ok_or_else(|| {
            let message = format!(
                "the heads read the layers {taps}, but the states have {:?}; make states with --layers, in another folder",
                self.layers
            );
            Error::new(ErrorCode::InvalidOption, message)
        })
    }
}

/// One answer among states.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sequence {
    /// Of the answer.
    pub id: String,
    /// Its rows: as many as it has tokens.
    pub rows: usize,
    /// Positions of the context that are kept.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub positions: usize,
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde asks by reference")]
fn is_zero(count: &usize) -> bool {
    *count == 0
}

/// The rows of one answer.
#[derive(Debug, Clone, Copy)]
pub struct Rows<'a> {
    /// `[rows, width]`.
    pub hidden: &'a [f16],
    /// The token that each row decided: the answer, `[rows]`.
    pub tokens: &'a [u32],
    /// The target's most probable tokens at each row, best first, `[rows, best]`.
    pub best_tokens: &'a [u32],
    /// Their probabilities at temperature 1, over the whole vocabulary, `[rows, best]`.
    pub best_probabilities: &'a [f32],
    /// What was kept of the context, `[positions, width]`, the last row's own position last; empty where nothing is.
    pub context: &'a [f16],
}

/// All states of a folder, in memory.
#[derive(Debug, Clone)]
pub struct States {
    /// What they are.
    pub header: StatesHeader,
    /// The answers, in the order of their rows.
    pub sequences: Vec<Sequence>,
    starts: Vec<usize>,
    /// Where the context of each answer begins, in positions.
    context_starts: Vec<usize>,
    context: Arc<Vec<f16>>,
    hidden: Vec<f16>,
    tokens: Vec<u32>,
    best_tokens: Vec<u32>,
    best_probabilities: Vec<f32>,
}

const CONTEXT: &str = "context.f16";
const FILES: [&str; 4] = ["hidden.f16", "tokens.u32", "best_tokens.u32", "best_probabilities.f32"];

/// Bytes of a row in each of [`FILES`].
fn row_bytes(header: &StatesHeader) -> [usize; 4] {
    [2 * header.width(), 4, 4 * header.best, 4 * header.best]
}

fn failed(what: &str, path: &Path, error: impl std::fmt::Display) -> Error {
    Error::new(ErrorCode::LoadFailed, format!("{what} {}: {error}", path.display()))
}

impl States {
    /// Reads a folder.
    ///
    /// # Errors
    /// `LoadFailed` when a file cannot be read; `TruncatedFile` when one is shorter than the answers it is said to hold.
    pub fn open(folder: &Path) -> Result<Self> {
        let header = read_header(folder)?;
        let sequences = read_sequences(folder)?;
        let starts = starts(sequences.iter().map(|sequence| sequence.rows));
        let context_starts = starts_of_context(&sequences);
        let rows = starts[sequences.len()];
        let context = match header.context {
            Some(context) => read_file(&folder.join(CONTEXT), 2 * context.width * context_starts[sequences.len()])?,
            None => Vec::new(),
        };
        let bytes = row_bytes(&header);
        let read = |file: usize| read_file(&folder.join(FILES[file]), rows * bytes[file]);
        Ok(Self {
            hidden: bytemuck::pod_collect_to_vec(&read(0)?),
            tokens: bytemuck::pod_collect_to_vec(&read(1)?),
            best_tokens: bytemuck::pod_collect_to_vec(&read(2)?),
            best_probabilities: bytemuck::pod_collect_to_vec(&read(3)?),
            context: Arc::new(bytemuck::pod_collect_to_vec(&context)),
            header,
            sequences,
            starts,
            context_starts,
        })
    }

    /// Rows of all answers.
    pub fn len(&self) -> usize {
        self.tokens.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.tokens.is_empty()
    }

    /// Where the rows of an answer are among all rows.
    pub fn range(&self, sequence: usize) -> Range<usize> {
        self.starts[sequence]..self.starts[sequence + 1]
    }

    /// What was kept of the contexts of all answers, `[positions, width]`.
    pub fn context(&self) -> &Arc<Vec<f16>> {
        &self.context
    }

    /// The positions of it that a row sees: those of its own text up to its own.
    pub fn seen(&self, row: usize) -> Range<usize> {
        let sequence = self.starts.partition_point(|&start| start <= row) - 1;
        let behind = self.starts[sequence + 1] - 1 - row;
        self.context_starts[sequence]..self.context_starts[sequence + 1] - behind
    }

    /// Rows of all answers.
    pub fn all(&self) -> Rows<'_> {
        self.rows(0..self.len())
    }

    /// Some of all rows; without their context, which [`seen`](Self::seen) finds.
    pub fn rows(&self, range: Range<usize>) -> Rows<'_> {
        let (width, best) = (self.header.width(), self.header.best);
        Rows {
            hidden: &self.hidden[range.start * width..range.end * width],
            tokens: &self.tokens[range.clone()],
            best_tokens: &self.best_tokens[range.start * best..range.end * best],
            best_probabilities: &self.best_probabilities[range.start * best..range.end * best],
            context: &[],
        }
    }
}

/// Writes a folder of states, or goes on with one.
#[derive(Debug)]
pub struct StatesWriter {
    folder: PathBuf,
    header: StatesHeader,
    /// What is there already.
    pub sequences: Vec<Sequence>,
    files: [BufWriter<File>; 4],
    context: Option<BufWriter<File>>,
    index: File,
}

impl StatesWriter {
    /// Goes on where the folder ends, which may be at its beginning.
    ///
    /// # Errors
    /// `InvalidOption` when the folder has other states than these; `LoadFailed`.
    pub fn open(folder: &Path, header: StatesHeader) -> Result<Self> {
        fs::create_dir_all(folder).map_err(|e| failed("making", folder, e))?;
        let description = folder.join("states.json");
        if description.exists() {
            let found = read_header(folder)?;
            if found != header {
                return Err(Error::new(
                    ErrorCode::InvalidOption,
                    format!(
                        "{} has states of another kind: expected {header:?}, found {found:?}; use another folder",
                        folder.display()
                    ),
                ));
            }
        } else {
            let text = serde_json::to_string(&header).map_err(|e| failed("writing", &description, e))?;
            fs::write(&description, text).map_err(|e| failed("writing", &description, e))?;
        }
        let sequences = read_sequences(folder)?;
        let rows: usize = sequences.iter().map(|sequence| sequence.rows).sum();
        let open = |name: &str, length: Option<u64>| {
            let path = folder.join(name);
            let file =
                OpenOptions::new().create(true).append(true).open(&path).map_err(|e| failed("opening", &path, e))?;
            if let Some(length) = length {
                file.set_len(length).map_err(|e| failed("cutting", &path, e))?;
            }
            Ok(file)
        };
        let bytes = row_bytes(&header);
        let data = |file: usize| open(FILES[file], Some((rows * bytes[file]) as u64)).map(BufWriter::new);
        let positions: usize = sequences.iter().map(|sequence| sequence.positions).sum();
        let context = header.context.map(|context| open(CONTEXT, Some((2 * context.width * positions) as u64)));
        Ok(Self {
            files: [data(0)?, data(1)?, data(2)?, data(3)?],
            context: context.transpose()?.map(BufWriter::new),
            index: open("sequences.jsonl", None)?,
            folder: folder.to_owned(),
            header,
            sequences,
        })
    }

    /// Adds an answer.
    ///
    /// # Errors
    /// `LoadFailed` when the disk is full.
    pub fn append(&mut self, id: &str, rows: Rows<'_>) -> Result<()> {
        let count = rows.tokens.len();
        assert_eq!(rows.hidden.len(), count * self.header.width(), "hidden rows are as wide as their header says");
        assert_eq!(
            rows.best_tokens.len(),
            count * self.header.best,
            "each row has as many best tokens as its header says"
        );
        assert_eq!(rows.best_tokens.len(), rows.best_probabilities.len(), "each best token has a probability");
        let positions = match self.header.context {
            Some(context) => rows.context.len() / context.width,
            None => 0,
        };
        assert!(positions >= count || self.header.context.is_none(), "each row has a position of the context");
        let parts: [&[u8]; 4] = [
            bytemuck::cast_slice(rows.hidden),
            bytemuck::cast_slice(rows.tokens),
            bytemuck::cast_slice(rows.best_tokens),
            bytemuck::cast_slice(rows.best_probabilities),
        ];
        let Self { files, context, index, folder, .. } = self;
        let context = context.iter_mut().map(|file| (file, bytemuck::cast_slice(rows.context)));
        for (file, part) in files.iter_mut().zip(parts).chain(context) {
            file.write_all(part).and_then(|()| file.flush()).map_err(|e| failed("writing to", folder, e))?;
        }
        let sequence = Sequence { id: id.to_owned(), rows: count, positions };
        let line = serde_json::to_string(&sequence).map_err(|e| failed("writing to", folder, e))?;
        writeln!(index, "{line}").map_err(|e| failed("writing to", folder, e))?;
        self.sequences.push(sequence);
        Ok(())
    }
}

/// Where parts of these sizes begin, and where the last one ends.
fn starts(sizes: impl Iterator<Item = usize>) -> Vec<usize> {
    let ends = sizes.scan(0, |end, size| {
        *end += size;
        Some(*end)
    });
    std::iter::once(0).chain(ends).collect()
}

fn starts_of_context(sequences: &[Sequence]) -> Vec<usize> {
    starts(sequences.iter().map(|sequence| sequence.positions))
}

fn read_header(folder: &Path) -> Result<StatesHeader> {
    let path = folder.join("states.json");
    let text = fs::read_to_string(&path).map_err(|e| failed("reading", &path, e))?;
    serde_json::from_str(&text).map_err(|e| failed("reading", &path, e))
}

/// The answers of a folder; a last line that was not written to its end does not count.
fn read_sequences(folder: &Path) -> Result<Vec<Sequence>> {
    let path = folder.join("sequences.jsonl");
    if !path.exists() {
        return Ok(Vec::new());
    }
    let text = fs::read_to_string(&path).map_err(|e| failed("reading", &path, e))?;
    let whole = text.rfind('\n').map_or("", |end| &text[..end]);
    if whole.len() + 1 < text.len() {
        fs::write(&path, format!("{whole}\n")).map_err(|e| failed("cutting", &path, e))?;
    }
    whole.lines().map(|line| serde_json::from_str(line).map_err(|e| failed("reading", &path, e))).collect()
}

fn read_file(path: &Path, bytes: usize) -> Result<Vec<u8>> {
    let mut read = fs::read(path).map_err(|e| failed("reading", path, e))?;
    if read.len() < bytes {
        let message = format!("{}: {} bytes, expected {bytes}; make the states anew", path.display(), read.len());
        return Err(Error::new(ErrorCode::TruncatedFile, message));
    }
    read.truncate(bytes);
    Ok(read)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header() -> StatesHeader {
        let text = |text: &str| text.to_owned();
        let context = Some(KeptContext { layer: 0, width: 2 });
        StatesHeader { model: text("m"), quantisation: text("Q4_1"), hidden_size: 2, layers: vec![1], context, best: 2 }
    }

    fn append(writer: &mut StatesWriter, id: &str, tokens: &[u32]) {
        let hidden: Vec<f16> = tokens.iter().flat_map(|&token| [f16::from_f32(token as f32); 4]).collect();
        let best: Vec<u32> = tokens.iter().flat_map(|&token| [token, token + 1]).collect();
        let probabilities = vec![0.5; best.len()];
        // Two positions of a prompt, of which the last decides the first token.
        let context = vec![f16::from_f32(tokens[0] as f32); 2 * (1 + tokens.len())];
        let rows =
            Rows { hidden: &hidden, tokens, best_tokens: &best, best_probabilities: &probabilities, context: &context };
        writer.append(id, rows).unwrap();
    }

    #[test]
    fn what_was_written_is_read_and_writing_goes_on_behind_the_last_whole_answer() {
        let folder = std::env::temp_dir().join(format!("draftree-states-{}", std::process::id()));
        let _ = fs::remove_dir_all(&folder);
        let mut writer = StatesWriter::open(&folder, header()).unwrap();
        append(&mut writer, "a", &[1, 2, 3]);
        drop(writer);
        // A run was stopped in the middle of an answer.
        OpenOptions::new().append(true).open(folder.join("hidden.f16")).unwrap().write_all(&[7; 5]).unwrap();
        OpenOptions::new().append(true).open(folder.join(CONTEXT)).unwrap().write_all(&[7; 3]).unwrap();
        OpenOptions::new().append(true).open(folder.join("sequences.jsonl")).unwrap().write_all(b"{\"id\":").unwrap();
        let mut writer = StatesWriter::open(&folder, header()).unwrap();
        assert_eq!(writer.sequences.len(), 1);
        append(&mut writer, "b", &[4]);
        let states = States::open(&folder).unwrap();
        assert_eq!((states.len(), states.range(1)), (4, 3..4));
        assert_eq!(states.rows(2..4).tokens, [3, 4]);
        assert_eq!([0, 2, 3].map(|row| states.seen(row)), [0..2, 0..4, 4..6]);
        assert_eq!(states.context()[2 * 4..], [f16::from_f32(4.0); 4]);
        assert!(header().check(&Taps::NONE, Some(0)).is_ok() && header().check(&Taps::NONE, None).is_ok());
        let error = header().check(&Taps::NONE, Some(1)).unwrap_err();
        assert!(error.code() == ErrorCode::InvalidOption && error.to_string().contains("that of layer 0"), "{error}");
        assert_eq!(states.rows(3..4).hidden, [f16::from_f32(4.0); 4]);
        assert_eq!(states.all().best_tokens[2..4], [2, 3]);
        let other = StatesHeader { best: 3, ..header() };
        assert_eq!(StatesWriter::open(&folder, other).unwrap_err().code(), ErrorCode::InvalidOption);
        assert_eq!(header().places(&Taps::new(&[1]).unwrap()).unwrap(), [2]);
        let error = header().places(&Taps::new(&[0, 1]).unwrap()).unwrap_err();
        assert!(error.code() == ErrorCode::InvalidOption && error.to_string().contains("[0,1]"), "{error}");
        fs::remove_file(folder.join("tokens.u32")).unwrap();
        File::create(folder.join("tokens.u32")).unwrap();
        assert_eq!(States::open(&folder).unwrap_err().code(), ErrorCode::TruncatedFile);
        fs::remove_dir_all(&folder).unwrap();
    }
}
