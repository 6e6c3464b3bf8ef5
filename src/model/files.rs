//! Model files on a disk: one `.gguf`, or the files of a folder.
//!
//! Native only. A folder is listed once, when it is opened, and not searched below its first level; files are opened on
//! their first read, since a folder may hold many that no loader asks for.

use std::cell::RefCell;
use std::fs::File;
use std::io::{Read as _, Seek as _, SeekFrom};
use std::path::{Path, PathBuf};

use super::source::{ByteSource, FileEntry};
use crate::error::{Error, ErrorCode, Result};

/// A [`ByteSource`] over files of this computer.
#[derive(Debug)]
pub struct FileSource {
    entries: Vec<FileEntry>,
    paths: Vec<PathBuf>,
    open: RefCell<Vec<Option<File>>>,
}

impl FileSource {
    /// Opens one model file, or a folder with the files of a model.
    ///
    /// # Errors
    /// `LoadFailed` when the path does not exist or cannot be read.
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        let failed = |error: std::io::Error| failed(path, &error);
        let mut paths = vec![path.to_path_buf()];
        if path.metadata().map_err(failed)?.is_dir() {
            paths = path
                .read_dir()
                .map_err(failed)?
                .map(|file| file.map(|file| file.path()))
                .collect::<Result<_, _>>()
                .map_err(failed)?;
            paths.retain(|file| file.is_file());
            paths.sort();
        }
        let mut entries = Vec::with_capacity(paths.len());
        for file in &paths {
            let name = file.file_name().unwrap_or_default().to_string_lossy().into_owned();
            entries.push(FileEntry { name, size: file.metadata().map_err(failed)?.len() });
        }
        let open = RefCell::new(paths.iter().map(|_| None).collect());
        Ok(Self { entries, paths, open })
    }

    fn read_now(&self, file: usize, offset: u64, into: &mut [u8]) -> std::io::Result<()> {
        let mut open = self.open.borrow_mut();
        let slot = &mut open[file];
        let handle = match slot {
            Some(handle) => handle,
            None => slot.insert(File::open(&self.paths[file])?),
        };
        handle.seek(SeekFrom::Start(offset))?;
        handle.read_exact(into)
    }
}

impl ByteSource for FileSource {
    fn files(&self) -> &[FileEntry] {
        &self.entries
    }

    async fn read(&self, file: usize, offset: u64, into: &mut [u8]) -> Result<()> {
        self.read_now(file, offset, into).map_err(|error| failed(&self.paths[file], &error))
    }
}

fn failed(path: &Path, error: &std::io::Error) -> Error {
    Error::new(ErrorCode::LoadFailed, format!("reading {}: {error}", path.display()))
}
