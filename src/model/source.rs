//! Where the bytes of a model come from: a list of files and one way to read a range of one.
//!
//! Owns [`ByteSource`] and the bounded reads on top of it; knows nothing of formats. Everything that reads a checkpoint
//! goes through [`read_exact`], so that a range past the end of a file is the same error everywhere and no single request
//! is larger than [`MAX_READ_BYTES`], whatever a header says. Reading is asynchronous, although files on a disk are not,
//! because in a browser every source is; natively the futures are ready at once.

use crate::error::{Error, ErrorCode, Result};

/// The largest range asked of a [`ByteSource`] at once, in bytes.
pub const MAX_READ_BYTES: usize = 4 << 20;

/// One file of a model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileEntry {
    /// The file's name; a path before it is ignored.
    pub name: String,
    /// The file's length in bytes.
    pub size: u64,
}

impl FileEntry {
    /// The last part of the name, which tells what the file is.
    pub fn base_name(&self) -> &str {
        self.name.rsplit(['/', '\\']).next().unwrap_or(&self.name)
    }
}

/// The files of one model, read in ranges. One thread uses it, so its futures need not be `Send`.
#[allow(async_fn_in_trait, reason = "one thread everywhere: no caller needs a Send future")]
pub trait ByteSource {
    /// The files, in an order that does not change.
    fn files(&self) -> &[FileEntry];

    /// Fills `into` with the bytes of file number `file` that start at `offset`.
    ///
    /// # Errors
    /// `LoadFailed` when the bytes cannot be had, `Aborted` when the caller stopped the load.
    async fn read(&self, file: usize, offset: u64, into: &mut [u8]) -> Result<()>;
}

/// Fills `into` from `offset` in pieces of at most [`MAX_READ_BYTES`].
///
/// # Errors
/// `TruncatedFile` when the range ends after the file does, and whatever the source reports.
pub async fn read_exact(source: &impl ByteSource, file: usize, offset: u64, into: &mut [u8]) -> Result<()> {
    let entry = &source.files()[file];
    let in_range = offset.checked_add(into.len() as u64).is_some_and(|end| end <= entry.size);
    if !in_range {
        return Err(Error::new(
            ErrorCode::TruncatedFile,
            format!(
                "{}: {} bytes at offset {offset} were expected, but the file has {} bytes; download it again",
                entry.name,
                into.len(),
                entry.size
            ),
        ));
    }
    let mut at = offset;
    for piece in into.chunks_mut(MAX_READ_BYTES) {
        source.read(file, at, piece).await?;
        at += piece.len() as u64;
    }
    Ok(())
}

/// Reads a whole file; meant for the small JSON files beside the weights.
///
/// # Errors
/// `OutOfMemory` when the file does not fit in memory, and whatever the source reports.
pub async fn read_file(source: &impl ByteSource, file: usize) -> Result<Vec<u8>> {
    let entry = &source.files()[file];
    let mut bytes = allocate(entry.size, &entry.name)?;
    read_exact(source, file, 0, &mut bytes).await?;
    Ok(bytes)
}

/// A zeroed buffer of `size` bytes, or an error instead of an abort.
pub(super) fn allocate(size: u64, what: &str) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let granted = usize::try_from(size).is_ok_and(|size| {
        let granted = bytes.try_reserve_exact(size).is_ok();
        if granted {
            bytes.resize(size, 0);
        }
        granted
    });
    if granted {
        return Ok(bytes);
    }
    Err(Error::new(ErrorCode::OutOfMemory, format!("{what}: {size} bytes do not fit in memory; use a smaller model")))
}

/// Files that are already in memory: an embedded model, or the input of a test.
#[derive(Debug, Clone, Default)]
pub struct MemorySource {
    entries: Vec<FileEntry>,
    contents: Vec<Vec<u8>>,
}

impl MemorySource {
    /// The files by name and content.
    pub fn new(files: impl IntoIterator<Item = (impl Into<String>, Vec<u8>)>) -> Self {
        let mut source = Self::default();
        for (name, content) in files {
            source.entries.push(FileEntry { name: name.into(), size: content.len() as u64 });
            source.contents.push(content);
        }
        source
    }
}

impl ByteSource for MemorySource {
    fn files(&self) -> &[FileEntry] {
        &self.entries
    }

    async fn read(&self, file: usize, offset: u64, into: &mut [u8]) -> Result<()> {
        let content = usize::try_from(offset)
            .ok()
            .and_then(|start| self.contents.get(file)?.get(start..)?.get(..into.len()))
            .ok_or_else(|| {
                Error::new(ErrorCode::LoadFailed, format!("file {file}: no {} bytes at {offset}", into.len()))
            })?;
        into.copy_from_slice(content);
        Ok(())
    }
}
