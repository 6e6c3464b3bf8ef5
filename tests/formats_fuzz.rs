//! Damaged model files, exhaustively and repeatably: the header cut at every byte, every byte of it changed, every number
//! in it made huge.
//!
//! Whatever the damage, loading ends with a model or with an error that blames the file, never with a panic, and takes no
//! more memory than a small multiple of the file. The tiny model keeps the files at a few kilobytes, so that every byte has
//! its turn.

mod model_files;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use draftree::error::{ErrorCode, Result};
use draftree::model::inspect::inspect;
use draftree::model::source::MAX_READ_BYTES;
use draftree::model::{
    ByteSource, Checkpoint, FileEntry, Matrix, MemorySource, PackedLayout, Vector, WeightSink, stream_weights,
};
use model_files::tiny::{self, Folder, Gguf};
use model_files::{load, shared};

/// Counts the bytes that this thread holds.
struct Counting;

thread_local! {
    static HELD: Cell<i64> = const { Cell::new(0) };
    static PEAK: Cell<i64> = const { Cell::new(0) };
}

fn count(bytes: i64) {
    let held = HELD.get() + bytes;
    HELD.set(held);
    PEAK.set(PEAK.get().max(held));
}

// SAFETY: every call is passed on to the system allocator unchanged; the counters hold plain numbers.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as i64);
        // SAFETY: the caller's promises are those of the system allocator.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        count(-(layout.size() as i64));
        // SAFETY: as above.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// What a damaged file may be blamed for.
const BLAME: [ErrorCode; 7] = [
    ErrorCode::BadModelFile,
    ErrorCode::TruncatedFile,
    ErrorCode::UnsupportedModel,
    ErrorCode::MissingTensor,
    ErrorCode::ShapeMismatch,
    ErrorCode::BadTokenizer,
    ErrorCode::BadChatTemplate,
];

/// Loads and inspects a damaged model; gives the error, if there was one.
fn check(source: &MemorySource, file_bytes: usize, damage: &dyn Fn() -> String) -> Option<ErrorCode> {
    let before = HELD.get();
    PEAK.set(before);
    let outcome = load(source).map(|_| ());
    let peak = PEAK.get() - before;
    assert!(peak <= 16 * file_bytes as i64 + (512 << 10), "{}: {peak} bytes for a file of {file_bytes}", damage());
    match pollster::block_on(inspect(source)) {
        Ok(report) => assert!(!report.to_string().is_empty()),
        Err(error) => assert!(BLAME.contains(&error.code()), "{}: {error}", damage()),
    }
    let error = outcome.err()?;
    assert!(BLAME.contains(&error.code()), "{}: {} {error}", damage(), error.code());
    assert!(!error.to_string().is_empty());
    Some(error.code())
}

/// Every damage to one file, of which `rebuild` makes a source.
fn damage_everywhere(file: &[u8], header_bytes: usize, rebuild: impl Fn(Vec<u8>) -> MemorySource) {
    for end in (0..header_bytes).chain((header_bytes..file.len()).step_by(101)) {
        check(&rebuild(file[..end].to_vec()), file.len(), &|| format!("cut at {end}"));
    }
    for at in 0..header_bytes {
        for change in [0x00, 0xff, file[at] ^ 1, file[at] ^ 0x80, file[at].wrapping_add(1), b'"', b'9', b'['] {
            let mut damaged = file.to_vec();
            damaged[at] = change;
            check(&rebuild(damaged), file.len(), &|| format!("byte {at} set to {change:#x}"));
        }
        for huge in [u64::MAX, 1 << 63, 1 << 40, u64::from(u32::MAX), 1 << 20, 0] {
            let mut damaged = file.to_vec();
            let end = file.len().min(at + 8);
            damaged[at..end].copy_from_slice(&huge.to_le_bytes()[..end - at]);
            check(&rebuild(damaged), file.len(), &|| format!("the number at {at} set to {huge}"));
        }
    }
}

#[test]
fn damaged_gguf_files_are_refused_or_read() {
    for family in ["llama", "qwen2"] {
        let file = Gguf::tiny(family).bytes();
        let data_bytes: usize = Gguf::tiny(family).tensors.iter().map(|tensor| tensor.data.len()).sum();
        damage_everywhere(&file, file.len() - data_bytes, |bytes| MemorySource::new([("tiny.gguf", bytes)]));
    }
}

#[test]
fn damaged_folders_are_refused_or_read() {
    let folder = Folder::tiny("qwen2").file("generation_config.json", r#"{ "eos_token_id": [1, 2] }"#).file(
        "tokenizer_config.json",
        r#"{ "bos_token": "<s>", "chat_template": "{{ bos_token }}", "add_bos_token": true }"#,
    );
    let config = folder.config.to_string().into_bytes();
    damage_everywhere(&config, config.len(), |bytes| {
        let files = folder.files.clone().into_iter().chain([("config.json".to_owned(), bytes)]);
        MemorySource::new(files)
    });
    for (name, file) in &folder.files {
        let header = if name.ends_with(".safetensors") {
            8 + usize::from(u16::from_le_bytes([file[0], file[1]]))
        } else {
            file.len()
        };
        damage_everywhere(file, header, |bytes| folder.clone().file(name, bytes).source());
    }
}

#[test]
fn a_real_file_cut_anywhere_is_truncated() {
    let file = std::fs::read(shared("models/stories260K/stories260K-q4_0.gguf")).unwrap();
    let cuts = (0..24_000).step_by(7).chain((24_000..file.len() - 32).step_by(997));
    for end in cuts {
        let source = MemorySource::new([("m.gguf", file[..end].to_vec())]);
        let error = pollster::block_on(Checkpoint::open(&source)).unwrap_err();
        assert_eq!(error.code(), ErrorCode::TruncatedFile, "cut at {end}: {error}");
    }
}

/// A file that is zero behind its first bytes, and remembers the longest range asked of it.
struct Sparse {
    entries: [FileEntry; 1],
    start: Vec<u8>,
    longest_read: Cell<usize>,
}

impl ByteSource for Sparse {
    fn files(&self) -> &[FileEntry] {
        &self.entries
    }

    async fn read(&self, _: usize, offset: u64, into: &mut [u8]) -> Result<()> {
        self.longest_read.set(self.longest_read.get().max(into.len()));
        let start = self.start.get(offset as usize..).unwrap_or_default();
        let held = start.len().min(into.len());
        into[..held].copy_from_slice(&start[..held]);
        into[held..].fill(0);
        Ok(())
    }
}

/// Takes the weights and keeps nothing.
struct Nothing;

impl WeightSink for Nothing {
    fn begin(&mut self, _: Matrix, _: PackedLayout) -> Result<()> {
        Ok(())
    }

    fn write(&mut self, _: Matrix, _: u64, _: &[u8]) -> Result<()> {
        Ok(())
    }

    fn vector(&mut self, _: Vector, _: &[f32]) -> Result<()> {
        Ok(())
    }

    async fn drain(&mut self) -> Result<()> {
        Ok(())
    }
}

#[test]
fn memory_does_not_grow_with_the_tensors() {
    const ROWS: usize = 1_000_000; // 128 MB
    let mut gguf = Gguf::tiny("llama").set("llama.vocab_size", tiny::number(ROWS as u32));
    let mut embedding = gguf.tensors.remove(0);
    assert_eq!(embedding.name, "token_embd.weight");
    embedding.shape[0] = ROWS;
    embedding.data.clear();
    gguf.tensors.push(embedding);
    let start = gguf.bytes();
    let size = (start.len() + ROWS * tiny::HIDDEN * 4) as u64;
    let entries = [FileEntry { name: "large.gguf".to_owned(), size }];
    let source = Sparse { entries, start, longest_read: Cell::new(0) };

    let before = HELD.get();
    PEAK.set(before);
    pollster::block_on(async {
        let checkpoint = Checkpoint::open(&source).await?;
        stream_weights(&checkpoint, &source, &mut Nothing, &mut |_, _| {}).await
    })
    .unwrap();
    let peak = PEAK.get() - before;
    assert!(peak < 8 << 20, "{peak} bytes to stream a file of {size}");
    assert!(source.longest_read.get() <= MAX_READ_BYTES);
}
