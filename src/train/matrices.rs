//! The two matrices of the target that heads use: its embedding and its output matrix, in float32.

use crate::backend::cpu::heads::Target;
use crate::backend::cpu::ops::MatrixF32;
use crate::error::{Error, ErrorCode, Result};
use crate::model::packing::PackedLayout;
use crate::model::{ByteSource, Checkpoint, Matrix, ModelConfig, Vector, WeightSink, stream_weights};

/// Embedding and output matrix.
#[derive(Debug, Clone)]
pub struct TargetMatrices {
    config: ModelConfig,
    embedding: MatrixF32,
    lm_head: Option<MatrixF32>,
}

impl TargetMatrices {
    /// These matrices of a model, `[vocab, hidden]`; without an output matrix it is the embedding.
    pub fn new(config: ModelConfig, embedding: MatrixF32, lm_head: Option<MatrixF32>) -> Self {
        Self { config, embedding, lm_head }
    }

    /// Reads them from the files of a model.
    ///
    /// # Errors
    /// Whatever the files report.
    pub async fn read(checkpoint: &Checkpoint, source: &impl ByteSource) -> Result<Self> {
        let mut kept = Kept::default();
        stream_weights(checkpoint, source, &mut kept, &mut |_, _| {}).await?;
        let embedding = kept.embedding.ok_or_else(|| {
            Error::new(ErrorCode::MissingTensor, "the embedding was not among the weights".to_owned())
        })?;
        let lm_head = kept.lm_head.as_ref().map(unpack);
        Ok(Self { config: checkpoint.config.clone(), embedding: unpack(&embedding), lm_head })
    }

    /// What the model is.
    pub fn config(&self) -> &ModelConfig {
        &self.config
    }

    /// As heads draft with them.
    pub fn target(&self) -> Target<'_> {
        Target { embedding: &self.embedding, lm_head: self.lm_head() }
    }

    /// `[vocab, hidden]`.
    pub fn embedding(&self) -> &MatrixF32 {
        &self.embedding
    }

    /// `[vocab, hidden]`.
    pub fn lm_head(&self) -> &MatrixF32 {
        self.lm_head.as_ref().unwrap_or(&self.embedding)
    }
}

type Packed = (PackedLayout, Vec<u32>);

/// Takes the two matrices and forgets the rest.
#[derive(Default)]
struct Kept {
    embedding: Option<Packed>,
    lm_head: Option<Packed>,
}

impl Kept {
    fn place(&mut self, matrix: Matrix) -> Option<&mut Option<Packed>> {
        match matrix {
            Matrix::Embedding => Some(&mut self.embedding),
            Matrix::LmHead => Some(&mut self.lm_head),
            _ => None,
        }
    }
}

impl WeightSink for Kept {
    fn begin(&mut self, matrix: Matrix, layout: PackedLayout) -> Result<()> {
        if let Some(place) = self.place(matrix) {
            *place = Some((layout, Vec::with_capacity((layout.bytes() / 4) as usize)));
        }
        Ok(())
    }

    fn write(&mut self, matrix: Matrix, _: u64, bytes: &[u8]) -> Result<()> {
        if let Some(Some((_, words))) = self.place(matrix) {
            words.extend(bytes.chunks_exact(4).map(bytemuck::pod_read_unaligned::<u32>));
        }
        Ok(())
    }

    fn vector(&mut self, _: Vector, _: &[f32]) -> Result<()> {
        Ok(())
    }

    async fn drain(&mut self) -> Result<()> {
        Ok(())
    }
}

fn unpack((layout, words): &Packed) -> MatrixF32 {
    MatrixF32 { rows: layout.rows, columns: layout.cols, values: layout.unpack(words) }
}
