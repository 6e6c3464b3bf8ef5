//! Model files for tests: the ones beside the repository, and a sink that keeps every packed matrix.

#![allow(dead_code, reason = "each test binary uses its part")]

pub mod tiny;

use std::collections::BTreeMap;
use std::path::PathBuf;

use draftree::error::Result;
use draftree::model::files::FileSource;
use draftree::model::{ByteSource, Checkpoint, Matrix, PackedLayout, Vector, WeightSink, stream_weights};

/// A file or folder of test data that lies beside the repository.
pub fn shared(path: &str) -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../shared")).join(path)
}

/// Everything that was streamed.
#[derive(Debug, Default, PartialEq)]
pub struct Collected {
    pub matrices: BTreeMap<Matrix, (PackedLayout, Vec<u8>)>,
    pub vectors: BTreeMap<Vector, Vec<f32>>,
}

impl WeightSink for Collected {
    fn begin(&mut self, matrix: Matrix, layout: PackedLayout) -> Result<()> {
        assert!(self.matrices.insert(matrix, (layout, Vec::new())).is_none(), "{matrix:?} begins once");
        Ok(())
    }

    fn write(&mut self, matrix: Matrix, offset: u64, bytes: &[u8]) -> Result<()> {
        let (_, packed) = self.matrices.get_mut(&matrix).expect("begin comes before write");
        assert_eq!(packed.len() as u64, offset, "{matrix:?} is written in order");
        packed.extend_from_slice(bytes);
        Ok(())
    }

    fn vector(&mut self, vector: Vector, values: &[f32]) -> Result<()> {
        assert!(self.vectors.insert(vector, values.to_vec()).is_none(), "{vector:?} comes once");
        Ok(())
    }

    async fn drain(&mut self) -> Result<()> {
        Ok(())
    }
}

impl Collected {
    /// The float32 weights of a matrix, `[rows, cols]`.
    pub fn unpack(&self, matrix: Matrix) -> Vec<f32> {
        let (layout, bytes) = &self.matrices[&matrix];
        let words: Vec<u32> = bytes.chunks_exact(4).map(|b| u32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect();
        layout.unpack(&words)
    }
}

/// Opens a model and collects its weights.
pub fn load(source: &impl ByteSource) -> Result<(Checkpoint, Collected)> {
    pollster::block_on(async {
        let checkpoint = Checkpoint::open(source).await?;
        let mut collected = Collected::default();
        let mut last = (0, 0);
        stream_weights(&checkpoint, source, &mut collected, &mut |done, total| {
            assert!(done >= last.0 && done <= total, "progress rises to its end");
            last = (done, total);
        })
        .await?;
        assert_eq!(last.0, last.1, "progress reaches its end");
        for (matrix, (layout, bytes)) in &collected.matrices {
            assert_eq!(bytes.len() as u64, layout.bytes(), "{matrix:?} is complete");
        }
        Ok((checkpoint, collected))
    })
}

/// Opens a model on the disk and collects its weights.
pub fn load_shared(path: &str) -> (Checkpoint, Collected) {
    let source = FileSource::open(shared(path)).expect("the test data lies beside the repository");
    load(&source).unwrap_or_else(|error| panic!("{path}: {error}"))
}
