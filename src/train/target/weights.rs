//! The weights of a model as float32 tensors, filled while they stream in.

use std::collections::HashMap;

use candle_core::{Device, Tensor};

use crate::error::{Error, ErrorCode, Result};
use crate::model::packing::PackedLayout;
use crate::model::{ByteSource, Checkpoint, Matrix, Vector, WeightSink, stream_weights};

/// Every matrix and vector of a model in float32, as the packed model has them: q, k and v rows in one matrix, rows that rotate
/// together side by side. Only gate and up do not alternate: gate rows come first.
#[derive(Debug, Default)]
pub struct TargetWeights {
    /// Packed words so far of the matrix that is coming in.
    open: HashMap<Matrix, (PackedLayout, Vec<u32>)>,
    matrices: HashMap<Matrix, Tensor>,
    vectors: HashMap<Vector, Vec<f32>>,
}

impl TargetWeights {
    /// Reads all weights of a model.
    ///
    /// # Errors
    /// Whatever the source reports.
    pub fn load(checkpoint: &Checkpoint, source: &impl ByteSource) -> Result<Self> {
        let mut weights = Self::default();
        pollster::block_on(stream_weights(checkpoint, source, &mut weights, &mut |_, _| {}))?;
        Ok(weights)
    }

    /// Takes a matrix, `[rows, columns]` (outputs by inputs).
    ///
    /// # Errors
    /// When the model has no such matrix, or it was taken before.
    pub fn matrix(&mut self, matrix: Matrix) -> candle_core::Result<Tensor> {
        let found = self.matrices.remove(&matrix);
        found.ok_or_else(|| candle_core::Error::Msg(format!("{matrix:?} is not among the weights")))
    }

    /// Takes a matrix as `[inputs, outputs]`, contiguous.
    ///
    /// # Errors
    /// As [`matrix`](Self::matrix).
    pub fn by_inputs(&mut self, matrix: Matrix) -> candle_core::Result<Tensor> {
        self.matrix(matrix)?.t()?.contiguous()
    }

    /// Takes a vector; empty where the model has none.
    pub fn vector(&mut self, vector: Vector) -> Vec<f32> {
        self.vectors.remove(&vector).unwrap_or_default()
    }

    fn close(&mut self, matrix: Matrix) -> Result<()> {
        let Some((layout, words)) = self.open.remove(&matrix) else { return Ok(()) };
        let mut values = layout.unpack(&words);
        if matches!(matrix, Matrix::GateUp(_)) {
            let rows = |first: usize| values.chunks_exact(layout.cols).skip(first).step_by(2);
            values = rows(0).chain(rows(1)).flatten().copied().collect();
        }
        let tensor = Tensor::from_vec(values, (layout.rows, layout.cols), &Device::Cpu);
        self.matrices.insert(matrix, tensor.map_err(crate::train::from_candle)?);
        Ok(())
    }
}

impl WeightSink for TargetWeights {
    fn begin(&mut self, matrix: Matrix, layout: PackedLayout) -> Result<()> {
        self.open.insert(matrix, (layout, Vec::with_capacity((layout.bytes() / 4) as usize)));
        Ok(())
    }

    fn write(&mut self, matrix: Matrix, offset: u64, bytes: &[u8]) -> Result<()> {
        let done = match self.open.get_mut(&matrix) {
            Some((layout, words)) if words.len() as u64 * 4 == offset => {
                words.extend(bytes.chunks_exact(4).map(bytemuck::pod_read_unaligned::<u32>));
                words.len() as u64 * 4 == layout.bytes()
            }
            _ => return Err(Error::new(ErrorCode::Internal, format!("{matrix:?} did not arrive in order"))),
        };
        if done { self.close(matrix) } else { Ok(()) }
    }

    fn vector(&mut self, vector: Vector, values: &[f32]) -> Result<()> {
        self.vectors.insert(vector, values.to_vec());
        Ok(())
    }

    async fn drain(&mut self) -> Result<()> {
        Ok(())
    }
}
