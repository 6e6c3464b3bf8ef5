//! Errors on their way to JavaScript, and values on their way from it.

use serde::de::DeserializeOwned;
use wasm_bindgen::JsValue;

use crate::error::{Error, ErrorCode, Result};

/// The JavaScript form of a result.
pub trait IntoJs<T> {
    /// The value, or an `Error` object with `name` and `code`.
    fn js(self) -> std::result::Result<T, JsValue>;
}

impl<T> IntoJs<T> for Result<T> {
    fn js(self) -> std::result::Result<T, JsValue> {
        self.map_err(|e| {
            let error = js_sys::Error::new(&e.to_string());
            error.set_name("DraftreeError");
            // Setting a property of a fresh object cannot fail.
            let _ = js_sys::Reflect::set(&error, &"code".into(), &e.code().as_str().into());
            error.into()
        })
    }
}

/// Reads a plain object.
///
/// # Errors
/// `InvalidOption` that names what was read.
pub fn from_js<T: DeserializeOwned>(what: &str, value: JsValue) -> Result<T> {
    serde_wasm_bindgen::from_value(value).map_err(|e| Error::new(ErrorCode::InvalidOption, format!("{what}: {e}")))
}

/// The message of whatever JavaScript threw.
pub fn thrown(value: &JsValue) -> String {
    value.as_string().unwrap_or_else(|| {
        let message = js_sys::Reflect::get(value, &"message".into()).ok().and_then(|m| m.as_string());
        message.unwrap_or_else(|| format!("{value:?}"))
    })
}
