//! What the browser tells of the graphics adapter.

use js_sys::{Function, Promise, Reflect};
use wasm_bindgen::{JsCast as _, JsValue};
use wasm_bindgen_futures::JsFuture;

use crate::error::{Error, ErrorCode, Result};

/// Vendor, architecture and description of the adapter the browser prefers, as far as it tells; empty where it does not. wgpu passes on
/// only the description, which browsers leave out.
///
/// # Errors
/// `WebGpuUnavailable` when the browser has no WebGPU.
pub async fn name() -> Result<String> {
    let gpu = get(&get(&js_sys::global(), "navigator"), "gpu");
    if !gpu.is_object() {
        return Err(Error::new(
            ErrorCode::WebGpuUnavailable,
            "this browser has no WebGPU (navigator.gpu is missing); use a current Chrome, Edge, Firefox or Safari on a secure \
             (https or localhost) page",
        ));
    }
    let Ok(request) = get(&gpu, "requestAdapter").dyn_into::<Function>() else { return Ok(String::new()) };
    // An adapter that cannot be had is reported when the device is asked for.
    let Some(promise) = request.call0(&gpu).ok().and_then(|value| value.dyn_into::<Promise>().ok()) else {
        return Ok(String::new());
    };
    let adapter = JsFuture::from(promise).await.unwrap_or(JsValue::NULL);
    let info = get(&adapter, "info");
    let parts = ["vendor", "architecture", "description"].map(|key| get(&info, key).as_string().unwrap_or_default());
    Ok(parts.into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join(" "))
}

/// A property; `undefined` where there is none, or no object.
fn get(object: &JsValue, key: &str) -> JsValue {
    Reflect::get(object, &key.into()).unwrap_or(JsValue::UNDEFINED)
}
