//! Time, from the browser.

/// Milliseconds since the page (or worker) began, monotonic.
pub fn now_ms() -> f64 {
    // `performance` is on the global object of pages and workers alike.
    let performance = js_sys::Reflect::get(&js_sys::global(), &"performance".into());
    match performance.ok().and_then(|p| wasm_bindgen::JsCast::dyn_into::<web_sys::Performance>(p).ok()) {
        Some(performance) => performance.now(),
        None => js_sys::Date::now(),
    }
}

/// Seconds since 1970 as a clock on the wall shows them.
pub fn local_seconds() -> i64 {
    let date = js_sys::Date::new_0();
    ((date.get_time() - date.get_timezone_offset() * 60_000.0) / 1000.0) as i64
}
