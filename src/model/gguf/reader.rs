//! A window over the header of a GGUF file, refilled in bounded pieces.
//!
//! A header with a large vocabulary is several megabytes, and its length is not written anywhere: it has to be read to be
//! known. The window holds the part being parsed and nothing behind it. Every length in the file is compared with what is
//! left of the file before anything is allocated for it.

use crate::error::{Error, ErrorCode, Result};
use crate::model::source::{ByteSource, MAX_READ_BYTES, read_exact};

/// Bytes of the first refill; each later one doubles, up to [`MAX_READ_BYTES`].
const FIRST_REFILL_BYTES: usize = 64 << 10;

/// Reads little-endian values one after the other from the start of a file.
pub(super) struct HeaderReader<'s, S> {
    source: &'s S,
    file: usize,
    file_size: u64,
    window: Vec<u8>,
    at: usize,
    window_end: u64,
    refill_bytes: usize,
}

macro_rules! read_number {
    ($name:ident, $type:ty) => {
        pub(super) async fn $name(&mut self) -> Result<$type> {
            let mut bytes = [0; size_of::<$type>()];
            bytes.copy_from_slice(self.bytes(size_of::<$type>() as u64).await?);
            Ok(<$type>::from_le_bytes(bytes))
        }
    };
}

impl<'s, S: ByteSource> HeaderReader<'s, S> {
    pub(super) fn new(source: &'s S, file: usize) -> Self {
        Self {
            source,
            file,
            file_size: source.files()[file].size,
            window: Vec::new(),
            at: 0,
            window_end: 0,
            refill_bytes: FIRST_REFILL_BYTES,
        }
    }

    /// Offset in the file of the next byte.
    pub(super) fn position(&self) -> u64 {
        self.window_end - (self.window.len() - self.at) as u64
    }

    /// Bytes from here to the end of the file.
    pub(super) fn remaining(&self) -> u64 {
        self.file_size - self.position()
    }

    /// The next `count` bytes.
    pub(super) async fn bytes(&mut self, count: u64) -> Result<&[u8]> {
        if count > (self.window.len() - self.at) as u64 {
            self.refill(count).await?;
        }
        let start = self.at;
        self.at += count as usize; // fits: the window holds them
        Ok(&self.window[start..self.at])
    }

    /// Refuses a count of items, each at least `item_bytes` long, that the rest of the file cannot hold.
    pub(super) fn check_count(&self, count: u64, item_bytes: u64, what: &str) -> Result<usize> {
        let fits = count.checked_mul(item_bytes).is_some_and(|bytes| bytes <= self.remaining());
        match usize::try_from(count) {
            Ok(count) if fits => Ok(count),
            _ => Err(self.truncated(&format!("{count} {what}"))),
        }
    }

    /// A string: u64 length, then UTF-8.
    pub(super) async fn string(&mut self) -> Result<String> {
        let length = self.u64().await?;
        self.check_count(length, 1, "bytes of text")?;
        let position = self.position();
        let text = std::str::from_utf8(self.bytes(length).await?).map(str::to_owned);
        text.map_err(|_| {
            Error::new(
                ErrorCode::BadModelFile,
                format!("the text at offset {position} is not UTF-8; the file is damaged"),
            )
        })
    }

    read_number!(u8, u8);
    read_number!(i8, i8);
    read_number!(u16, u16);
    read_number!(i16, i16);
    read_number!(u32, u32);
    read_number!(i32, i32);
    read_number!(u64, u64);
    read_number!(i64, i64);
    read_number!(f32, f32);
    read_number!(f64, f64);

    async fn refill(&mut self, count: u64) -> Result<()> {
        self.check_count(count, 1, "bytes")?;
        self.window.drain(..self.at);
        self.at = 0;
        let missing = count as usize - self.window.len();
        let left_in_file = self.file_size - self.window_end;
        let wanted = missing.max(self.refill_bytes);
        let wanted = usize::try_from(left_in_file).map_or(wanted, |left| wanted.min(left));
        let held = self.window.len();
        self.window.try_reserve(wanted).map_err(|_| {
            Error::new(ErrorCode::OutOfMemory, format!("{count} bytes of the header do not fit in memory"))
        })?;
        self.window.resize(held + wanted, 0);
        read_exact(self.source, self.file, self.window_end, &mut self.window[held..]).await?;
        self.window_end += wanted as u64;
        self.refill_bytes = (self.refill_bytes * 2).min(MAX_READ_BYTES);
        Ok(())
    }

    fn truncated(&self, what: &str) -> Error {
        Error::new(
            ErrorCode::TruncatedFile,
            format!(
                "the header promises {what} at offset {}, but only {} bytes follow; download the file again",
                self.position(),
                self.remaining()
            ),
        )
    }
}
