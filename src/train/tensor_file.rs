//! Safetensors files, written in one order, so that the same tensors make the same bytes, and never half.

use std::collections::BTreeMap;
use std::path::Path;
use std::{fmt, fs};

use candle_core::{DType, Device, Tensor};
use safetensors::{Dtype, SafeTensors};
use serde_json::{Map, Value, json};

use super::from_candle;
use crate::error::{Error, ErrorCode, Result};

/// Headers end where data of any type may begin.
const ALIGNMENT: usize = 8;

/// A tensor of a file.
#[derive(Clone, PartialEq)]
pub struct Stored {
    /// How its values are stored.
    pub dtype: Dtype,
    /// Its shape, slowest axis first.
    pub shape: Vec<usize>,
    /// Its values, little-endian.
    pub data: Vec<u8>,
}

impl fmt::Debug for Stored {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} {:?}", self.dtype, self.shape)
    }
}

impl Stored {
    /// Values in float32.
    pub fn f32(shape: &[usize], values: &[f32]) -> Self {
        Self { dtype: Dtype::F32, shape: shape.to_vec(), data: bytemuck::cast_slice(values).to_vec() }
    }
}

/// A safetensors file in memory.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct TensorFile {
    /// What it says in words.
    pub metadata: BTreeMap<String, String>,
    /// Its tensors.
    pub tensors: BTreeMap<String, Stored>,
}

impl TensorFile {
    /// The bytes of the file.
    pub fn bytes(&self) -> Vec<u8> {
        let mut header = Map::new();
        if !self.metadata.is_empty() {
            header.insert("__metadata__".to_owned(), json!(self.metadata));
        }
        let mut end = 0;
        for (name, tensor) in &self.tensors {
            let start = end;
            end += tensor.data.len();
            let entry = json!({ "dtype": tensor.dtype, "shape": tensor.shape, "data_offsets": [start, end] });
            header.insert(name.clone(), entry);
        }
        let mut header = Value::Object(header).to_string().into_bytes();
        header.resize(header.len().next_multiple_of(ALIGNMENT), b' ');
        let mut bytes = Vec::with_capacity(8 + header.len() + end);
        bytes.extend((header.len() as u64).to_le_bytes());
        bytes.extend(header);
        self.tensors.values().for_each(|tensor| bytes.extend(&tensor.data));
        bytes
    }

    /// Writes the file beside its place, then moves it there: a stopped run leaves the file that was there before.
    ///
    /// # Errors
    /// `LoadFailed`.
    pub fn write(&self, path: &Path) -> Result<()> {
        let failed = |error| Error::new(ErrorCode::LoadFailed, format!("writing {}: {error}", path.display()));
        if let Some(folder) = path.parent() {
            fs::create_dir_all(folder).map_err(failed)?;
        }
        let beside = path.with_extension("part");
        fs::write(&beside, self.bytes()).map_err(failed)?;
        fs::rename(&beside, path).map_err(failed)
    }

    /// Reads a file.
    ///
    /// # Errors
    /// `LoadFailed` when it cannot be read, `BadModelFile` when it is no safetensors file.
    pub fn read(path: &Path) -> Result<Self> {
        let place = path.display();
        let bytes =
            fs::read(path).map_err(|error| Error::new(ErrorCode::LoadFailed, format!("reading {place}: {error}")))?;
        let bad = |error| Error::new(ErrorCode::BadModelFile, format!("{place} is no safetensors file: {error}"));
        let (_, header) = SafeTensors::read_metadata(&bytes).map_err(bad)?;
        let tensors = SafeTensors::deserialize(&bytes).map_err(bad)?;
        let stored = tensors.tensors().into_iter().map(|(name, view)| {
            let data = view.data().to_vec();
            (name, Stored { dtype: view.dtype(), shape: view.shape().to_vec(), data })
        });
        Ok(Self { metadata: header.metadata().clone().into_iter().flatten().collect(), tensors: stored.collect() })
    }

    /// Adds a tensor of floats.
    ///
    /// # Errors
    /// `Internal`.
    pub fn insert(&mut self, name: &str, tensor: &Tensor) -> Result<()> {
        let flat = tensor.flatten_all().and_then(|flat| flat.to_dtype(DType::F32)).and_then(|flat| flat.to_vec1());
        let values: Vec<f32> = flat.map_err(from_candle)?;
        self.tensors.insert(name.to_owned(), Stored::f32(tensor.dims(), &values));
        Ok(())
    }

    /// A tensor of float32 values.
    ///
    /// # Errors
    /// `MissingTensor` when it is not there, `ShapeMismatch` when it is of another shape or type.
    pub fn tensor(&self, name: &str, shape: &[usize], device: &Device) -> Result<Tensor> {
        let found = self.tensors.get(name).ok_or_else(|| {
            Error::new(ErrorCode::MissingTensor, format!("the tensor {name} is missing, expected {shape:?}"))
        })?;
        if found.dtype != Dtype::F32 || found.shape != shape {
            return Err(Error::new(
                ErrorCode::ShapeMismatch,
                format!("{name}: {:?} {:?}, expected F32 {shape:?}", found.dtype, found.shape),
            ));
        }
        let values: Vec<f32> = bytemuck::pod_collect_to_vec(&found.data);
        Tensor::from_vec(values, shape, device).map_err(from_candle)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_read_as_it_was_written() {
        let mut file = TensorFile::default();
        file.metadata.insert("why".to_owned(), "a \"test\"".to_owned());
        file.insert("b", &Tensor::new(&[[1.0f32, 2.0], [3.0, 4.0]], &Device::Cpu).unwrap()).unwrap();
        let bytes = Stored { dtype: Dtype::U8, shape: vec![1, 3], data: vec![1, 2, 3] };
        file.tensors.insert("a".to_owned(), bytes);
        let path = std::env::temp_dir().join(format!("draftree-tensors-{}/f.safetensors", std::process::id()));
        file.write(&path).unwrap();
        let read = TensorFile::read(&path).unwrap();
        assert_eq!(read, file);
        assert_eq!(read.bytes(), file.bytes());
        let b = read.tensor("b", &[2, 2], &Device::Cpu).unwrap();
        assert_eq!(b.to_vec2::<f32>().unwrap(), [[1.0, 2.0], [3.0, 4.0]]);
        assert_eq!(read.tensor("b", &[4], &Device::Cpu).unwrap_err().code(), ErrorCode::ShapeMismatch);
        assert_eq!(read.tensor("c", &[4], &Device::Cpu).unwrap_err().code(), ErrorCode::MissingTensor);
        fs::write(&path, b"no").unwrap();
        assert_eq!(TensorFile::read(&path).unwrap_err().code(), ErrorCode::BadModelFile);
        fs::remove_dir_all(path.parent().unwrap()).unwrap();
    }
}
