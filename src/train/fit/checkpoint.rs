//! A run of training on disk, so that a stopped one goes on where it was.

use std::fs::OpenOptions;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use candle_core::{Device, Tensor};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::adamw::Moments;
use super::held_out::Accuracy;
use crate::error::{Error, ErrorCode, Result};
use crate::train::from_candle;
use crate::train::shapes::Parameter;
use crate::train::tensor_file::TensorFile;

/// Where a run stands.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Standing {
    /// Steps that are done.
    pub step: usize,
    /// Seconds that they took.
    pub seconds: f64,
    /// Whether it has come to its end.
    pub finished: bool,
    /// The step after which heads were best.
    pub best_step: usize,
    /// How good they were.
    pub best: Accuracy,
    /// Evaluations since.
    pub since_best: usize,
}

/// The folder of a run.
#[derive(Debug, Clone)]
pub struct Checkpoint {
    folder: PathBuf,
}

impl Checkpoint {
    /// The run in this folder.
    pub fn new(folder: &Path) -> Self {
        Self { folder: folder.to_owned() }
    }

    /// A file of the folder.
    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// Keeps weights, moments and standing. `run` is what is trained, from what, and how: a run goes on only as the same one.
    ///
    /// # Errors
    /// `LoadFailed` when the disk is full.
    pub fn keep(
        &self,
        parameters: &[Parameter],
        moments: &[Moments],
        run: &str,
        standing: &impl Serialize,
    ) -> Result<()> {
        let mut file = TensorFile::default();
        let text =
            serde_json::to_string(standing).map_err(|error| Error::new(ErrorCode::Internal, error.to_string()))?;
        file.metadata.insert("standing".to_owned(), text);
        file.metadata.insert("run".to_owned(), run.to_owned());
        for (parameter, moments) in parameters.iter().zip(moments) {
            file.insert(&parameter.name, parameter.var.as_tensor())?;
            file.insert(&format!("first.{}", parameter.name), &moments.first)?;
            file.insert(&format!("second.{}", parameter.name), &moments.second)?;
        }
        file.write(&self.path("last.safetensors"))
    }

    /// Takes up weights and moments of a run that was stopped; `None` when there is none.
    ///
    /// # Errors
    /// `InvalidOption` when the folder has another run; `BadModelFile` and the like when its files are damaged.
    pub fn resume<S: DeserializeOwned>(
        &self,
        parameters: &[Parameter],
        moments: &mut [Moments],
        run: &str,
    ) -> Result<Option<S>> {
        let path = self.path("last.safetensors");
        if !path.exists() {
            return Ok(None);
        }
        let file = TensorFile::read(&path)?;
        let standing = file.metadata.get("standing").and_then(|text| serde_json::from_str(text).ok());
        let (Some(standing), Some(found)) = (standing, file.metadata.get("run")) else {
            return Err(Error::new(ErrorCode::BadModelFile, format!("{} is no checkpoint; remove it", path.display())));
        };
        if found != run {
            return Err(Error::new(
                ErrorCode::InvalidOption,
                format!(
                    "{} has a run of other settings: expected {run}, found {found}; use another folder or remove that one",
                    self.folder.display()
                ),
            ));
        }
        for (parameter, moments) in parameters.iter().zip(moments) {
            let read = |name: &str| file.tensor(name, parameter.var.dims(), parameter.var.device());
            parameter.var.set(&read(&parameter.name)?).map_err(from_candle)?;
            moments.first = read(&format!("first.{}", parameter.name))?;
            moments.second = read(&format!("second.{}", parameter.name))?;
        }
        Ok(Some(standing))
    }

    /// Keeps the weights as the best so far.
    ///
    /// # Errors
    /// `LoadFailed` when the disk is full.
    pub fn keep_best(&self, parameters: &[Parameter]) -> Result<()> {
        let mut file = TensorFile::default();
        parameters.iter().try_for_each(|parameter| file.insert(&parameter.name, parameter.var.as_tensor()))?;
        file.write(&self.path("best.safetensors"))
    }

    /// Sets the weights to the best that were kept.
    ///
    /// # Errors
    /// `LoadFailed` when there are none, and the like when the file is damaged.
    pub fn load_best(&self, parameters: &[Parameter]) -> Result<()> {
        let file = TensorFile::read(&self.path("best.safetensors"))?;
        parameters.iter().try_for_each(|parameter| {
            let best: Tensor = file.tensor(&parameter.name, parameter.var.dims(), &Device::Cpu)?;
            best.to_device(parameter.var.device()).and_then(|best| parameter.var.set(&best)).map_err(from_candle)
        })
    }
    /// Adds a line to `log.jsonl`.
    ///
    /// # Errors
    /// `LoadFailed` when the disk is full.
    pub fn log(&self, line: &serde_json::Value) -> Result<()> {
        let path = self.path("log.jsonl");
        let file = OpenOptions::new().create(true).append(true).open(&path);
        file.and_then(|mut file| writeln!(file, "{line}"))
            .map_err(|error| Error::new(ErrorCode::LoadFailed, format!("writing {}: {error}", path.display())))
    }
}
