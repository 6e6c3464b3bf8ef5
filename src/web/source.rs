//! A model's bytes, read through JavaScript: from the network, the cache or a file the user chose.

use js_sys::{Promise, Uint8Array};
use serde::Deserialize;
use wasm_bindgen::prelude::*;
use wasm_bindgen_futures::JsFuture;

use super::errors::{from_js, thrown};
use crate::error::{Error, ErrorCode, Result};
use crate::model::{ByteSource, FileEntry};

#[wasm_bindgen]
extern "C" {
    /// `{ files, read }` as src/js/source.ts makes it.
    type RawSource;

    #[wasm_bindgen(method, getter)]
    fn files(this: &RawSource) -> JsValue;

    #[wasm_bindgen(method, catch)]
    fn read(this: &RawSource, file: u32, offset: f64, length: u32) -> std::result::Result<JsValue, JsValue>;
}

#[derive(Deserialize)]
struct RawFile {
    name: String,
    size: f64,
}

/// A source made in JavaScript.
pub struct JsSource {
    raw: RawSource,
    files: Vec<FileEntry>,
}

impl JsSource {
    /// Reads the list of files.
    ///
    /// # Errors
    /// `InvalidOption` when it is no source.
    pub fn new(source: JsValue) -> Result<Self> {
        if !source.is_object() {
            return Err(Error::new(
                ErrorCode::InvalidOption,
                "the model's source must be an object with files and read",
            ));
        }
        let raw: RawSource = source.unchecked_into();
        let files: Vec<RawFile> = from_js("the source's files", raw.files())?;
        let files = files.into_iter().map(|file| FileEntry { name: file.name, size: file.size as u64 }).collect();
        Ok(Self { raw, files })
    }
}

impl ByteSource for JsSource {
    fn files(&self) -> &[FileEntry] {
        &self.files
    }

    async fn read(&self, file: usize, offset: u64, into: &mut [u8]) -> Result<()> {
        let name = &self.files[file].name;
        let answer = match self.raw.read(file as u32, offset as f64, into.len() as u32) {
            Ok(value) if value.has_type::<Promise>() => JsFuture::from(value.unchecked_into::<Promise>()).await,
            other => other,
        };
        let bytes = answer.map_err(|e| failed(name, &e))?;
        let bytes: Uint8Array = bytes.dyn_into().map_err(|_| {
            Error::new(ErrorCode::LoadFailed, format!("{name}: reading gave something else than bytes"))
        })?;
        if bytes.length() as usize != into.len() {
            return Err(Error::new(
                ErrorCode::TruncatedFile,
                format!(
                    "{name}: {} bytes at offset {offset} were expected, {} came; download the file again",
                    into.len(),
                    bytes.length()
                ),
            ));
        }
        bytes.copy_to(into);
        Ok(())
    }
}

/// What a failed read means: an aborted one is the caller's own wish.
fn failed(name: &str, thrown_value: &JsValue) -> Error {
    let property = |key: &str| js_sys::Reflect::get(thrown_value, &key.into()).ok().and_then(|v| v.as_string());
    let aborted = property("name").as_deref() == Some("AbortError") || property("code").as_deref() == Some("aborted");
    let code = if aborted { ErrorCode::Aborted } else { ErrorCode::LoadFailed };
    Error::new(code, format!("{name}: {}", thrown(thrown_value)))
}
