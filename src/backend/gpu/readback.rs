//! Results on their way back: copies into staging buffers, mapped without anybody waiting.
//!
//! The one place where native and web differ: a browser settles a map by itself, a native device must be polled.

use std::cell::RefCell;
use std::rc::Rc;

use futures_channel::oneshot;

use super::device::Gpu;
use crate::error::{Error, ErrorCode, Result};

/// Staging buffers of one size, used again and again.
#[derive(Debug, Clone)]
pub struct StagingPool {
    gpu: Gpu,
    bytes: u64,
    free: Rc<RefCell<Vec<wgpu::Buffer>>>,
}

impl StagingPool {
    /// An empty pool of buffers of `bytes` bytes.
    pub fn new(gpu: Gpu, bytes: u64) -> Self {
        Self { gpu, bytes, free: Rc::default() }
    }

    /// Appends to `encoder` a copy of this pool's size from `source`; call [`Copy::read`] after the submit.
    pub fn copy(&self, encoder: &mut wgpu::CommandEncoder, source: &wgpu::Buffer, offset: u64) -> Copy {
        self.copy_parts(encoder, &[(source, offset, self.bytes)])
    }

    /// The same of several parts, one behind the other: from which buffer, from where on, and how many bytes.
    pub fn copy_parts(&self, encoder: &mut wgpu::CommandEncoder, parts: &[(&wgpu::Buffer, u64, u64)]) -> Copy {
        let buffer = self.free.borrow_mut().pop().unwrap_or_else(|| self.gpu.staging(self.bytes));
        let mut at = 0;
        for &(source, offset, bytes) in parts {
            encoder.copy_buffer_to_buffer(source, offset, &buffer, at, bytes);
            at += bytes;
        }
        Copy { pool: self.clone(), buffer }
    }
}

/// A copy that was encoded, but perhaps not yet submitted.
#[derive(Debug)]
pub struct Copy {
    pool: StagingPool,
    buffer: wgpu::Buffer,
}

impl Copy {
    /// Asks for the bytes. The submit with the copy must have happened.
    pub fn read(self) -> Readback {
        let (sender, mapped) = oneshot::channel();
        self.buffer.map_async(wgpu::MapMode::Read, .., move |result| {
            // The receiver is gone when the generation was dropped; nobody wants the bytes then.
            let _ = sender.send(result.map_err(|e| e.to_string()));
        });
        Readback { pool: self.pool, buffer: self.buffer, mapped }
    }
}

/// Bytes that will arrive.
#[derive(Debug)]
pub struct Readback {
    pool: StagingPool,
    buffer: wgpu::Buffer,
    mapped: oneshot::Receiver<Result<(), String>>,
}

impl Readback {
    /// Waits for the bytes and hands them to `read`.
    ///
    /// # Errors
    /// `DeviceLost` when they will never come.
    pub async fn wait<T>(self, read: impl FnOnce(&[u8]) -> T) -> Result<T> {
        let Self { pool, buffer, mapped } = self;
        pool.gpu.check()?;
        drive(&pool.gpu)?;
        let lost = |why: &str| {
            pool.gpu.check().err().unwrap_or_else(|| {
                Error::new(
                    ErrorCode::DeviceLost,
                    format!("a result could not be read back ({why}); load the model again"),
                )
            })
        };
        match mapped.await {
            Ok(Ok(())) => {}
            Ok(Err(e)) => return Err(lost(&e)),
            Err(_) => return Err(lost("the device went away")),
        }
        let result = {
            let view = buffer.get_mapped_range(..).map_err(|e| lost(&e.to_string()))?;
            read(&view)
        };
        buffer.unmap();
        pool.free.borrow_mut().push(buffer);
        Ok(result)
    }
}

/// Runs the callbacks of everything submitted. A browser does so by itself.
fn drive(gpu: &Gpu) -> Result<()> {
    if cfg!(target_arch = "wasm32") {
        return Ok(());
    }
    gpu.device
        .poll(wgpu::PollType::wait_indefinitely())
        .map(drop)
        .map_err(|e| Error::new(ErrorCode::DeviceLost, format!("waiting for the device failed: {e}")))
}

/// Waits until everything submitted so far has run.
///
/// # Errors
/// `DeviceLost`.
pub async fn settle(gpu: &Gpu) -> Result<()> {
    let (sender, done) = oneshot::channel();
    gpu.queue.on_submitted_work_done(move || {
        let _ = sender.send(());
    });
    drive(gpu)?;
    // A lost device may drop the callback; the check says so.
    let _ = done.await;
    gpu.check()
}
