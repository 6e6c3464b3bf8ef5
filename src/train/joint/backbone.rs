//! The whole model with gradients: rows of texts in one pass, everything that they read known.
//!
//! Weights are read tensor by tensor and stay in the order of their file, so that a trained model is written as it was read; only the
//! rotary embedding has to know the order.

use std::collections::BTreeMap;

use candle_core::{Device, Result as CandleResult, Tensor};

use super::attention::{Rotations, attend};
use super::linear::Weight;
use super::{Lora, Tuning};
use crate::error::{Error, ErrorCode, Result};
use crate::model::architecture::{Role, RotaryOrder};
use crate::model::quantize::dequantize;
use crate::model::source::read_exact;
use crate::model::{ByteSource, Checkpoint, ModelConfig};
use crate::train::from_candle;
use crate::train::random::Random;
use crate::train::shapes::Parameter;

/// What the random numbers of adapters are for; each matrix has its own.
const ADAPTERS: u64 = 3 << 32;
/// The matrices that get adapters.
const LINEAR: [Role; 7] = [Role::Query, Role::Key, Role::Value, Role::AttentionOut, Role::Gate, Role::Up, Role::Down];

/// A model.
#[derive(Debug, Clone)]
pub struct Backbone {
    config: ModelConfig,
    order: RotaryOrder,
    device: Device,
    /// By canonical name.
    weights: BTreeMap<String, Weight>,
}

impl Backbone {
    /// Reads a model of any format and type; quantised weights become exactly the floats that the kernels use.
    ///
    /// # Errors
    /// Whatever the source reports.
    pub fn read(checkpoint: &Checkpoint, source: &impl ByteSource, device: &Device) -> Result<Self> {
        let mut tensors = BTreeMap::new();
        for (name, entry) in &checkpoint.tensors {
            let (mut bytes, mut values) = (vec![0; entry.bytes as usize], vec![0.0; entry.values() as usize]);
            pollster::block_on(read_exact(source, entry.file, entry.offset, &mut bytes))?;
            dequantize(entry.tensor_type, &bytes, &mut values)?;
            let tensor = Tensor::from_vec(values, &entry.shape[..], device).map_err(from_candle)?;
            tensors.insert(name.clone(), tensor);
        }
        Self::new(checkpoint.config.clone(), checkpoint.rotary_order, tensors, device)
    }

    /// A model of these tensors, by their canonical names.
    ///
    /// # Errors
    /// `MissingTensor` when one is not there.
    pub fn new(
        config: ModelConfig,
        order: RotaryOrder,
        mut tensors: BTreeMap<String, Tensor>,
        device: &Device,
    ) -> Result<Self> {
        let mut weights = BTreeMap::new();
        for rule in config.architecture.traits().tensors.iter().filter(|rule| rule.role.is_in(&config)) {
            for name in (0..rule.count(config.num_hidden_layers)).map(|layer| rule.name_in(layer)) {
                let missing = || Error::new(ErrorCode::MissingTensor, format!("the model has no {name}"));
                let tensor = tensors.remove(&name).ok_or_else(missing)?;
                weights.insert(name, Weight::new(tensor));
            }
        }
        Ok(Self { config, order, device: device.clone(), weights })
    }

    /// Lets the model be trained; gives what of it is.
    ///
    /// # Errors
    /// `OutOfMemory` and the like.
    pub fn train(&mut self, tuning: Tuning, seed: u64) -> Result<Vec<Parameter>> {
        let parameters = match tuning {
            Tuning::All => self.weights.iter_mut().map(|(name, weight)| weight.train(name)).collect(),
            Tuning::Lora(lora) => self.adapt(lora, seed),
        };
        parameters.map_err(from_candle)
    }

    fn adapt(&mut self, lora: Lora, seed: u64) -> CandleResult<Vec<Parameter>> {
        let mut parameters = Vec::new();
        let layers = self.config.num_hidden_layers;
        for (number, (layer, role)) in (0..layers).flat_map(|layer| LINEAR.map(|role| (layer, role))).enumerate() {
            let name = self.name(role, layer);
            let random = Random::new(seed, ADAPTERS + number as u64);
            if let Some(weight) = self.weights.get_mut(&name) {
                parameters.extend(weight.adapt(&name, lora, random)?);
            }
        }
        Ok(parameters)
    }

    /// The same model, which follows its training, but asks for no gradient.
    pub fn at_rest(&self) -> Self {
        let weights = self.weights.iter().map(|(name, weight)| (name.clone(), weight.at_rest())).collect();
        Self { weights, ..self.clone() }
    }

    /// What the model is.
    pub fn config(&self) -> &ModelConfig {
        &self.config
    }

    /// Where it is computed.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// The canonical names of its weights.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.weights.keys().map(String::as_str)
    }

    /// The weight of this canonical name as it is now, with what an adapter adds.
    ///
    /// # Errors
    /// `MissingTensor` when there is none.
    pub fn merged(&self, name: &str) -> Result<Tensor> {
        let missing = || Error::new(ErrorCode::MissingTensor, format!("the model has no {name}"));
        self.weights.get(name).ok_or_else(missing)?.merged().map_err(from_candle)
    }

    fn name(&self, role: Role, layer: usize) -> String {
        let rule = self.config.architecture.traits().rule(role);
        rule.map(|rule| rule.name_in(layer)).unwrap_or_default()
    }

    fn weight(&self, role: Role, layer: usize) -> CandleResult<&Weight> {
        let missing = || candle_core::Error::Msg(format!("the model has no {role:?} in layer {layer}"));
        self.weights.get(&self.name(role, layer)).ok_or_else(missing)
    }

    /// Token embedding, `[vocab_size, hidden]`.
    ///
    /// # Errors
    /// None for a model that was made by [`new`](Self::new), as below.
    pub fn embedding(&self) -> CandleResult<&Weight> {
        self.weight(Role::Embedding, 0)
    }

    /// Output matrix, `[vocab_size, hidden]`.
    ///
    /// # Errors
    /// As above.
    pub fn lm_head(&self) -> CandleResult<&Weight> {
        match self.config.tie_word_embeddings {
            true => self.embedding(),
            false => self.weight(Role::LmHead, 0),
        }
    }

    /// The rows `[rows, hidden]` behind the final norm of texts that lie behind one another and have these lengths.
    ///
    /// # Errors
    /// When memory is short.
    pub fn hidden(&self, tokens: &[u32], lengths: &[usize]) -> CandleResult<Tensor> {
        let config = &self.config;
        let rotations = Rotations::new(config, self.order, lengths, &self.device)?;
        let tokens = Tensor::new(tokens, &self.device)?;
        let mut residual = self.embedding()?.tensor().index_select(&tokens, 0)?;
        for layer in 0..config.num_hidden_layers {
            let normed = self.norm(&residual, Role::AttentionNorm, layer)?;
            let queries = self.biased(&normed, (Role::Query, Role::QueryBias), layer)?;
            let keys = self.biased(&normed, (Role::Key, Role::KeyBias), layer)?;
            let values = self.biased(&normed, (Role::Value, Role::ValueBias), layer)?;
            let mixed = attend(config, &rotations, (&queries, &keys, &values), lengths)?;
            residual = (residual + self.weight(Role::AttentionOut, layer)?.product(&mixed)?)?;
            let normed = self.norm(&residual, Role::FfnNorm, layer)?;
            let gate = self.weight(Role::Gate, layer)?.product(&normed)?;
            let up = self.weight(Role::Up, layer)?.product(&normed)?;
            residual = (residual + self.weight(Role::Down, layer)?.product(&(gate.silu()? * up)?)?)?;
        }
        self.norm(&residual, Role::FinalNorm, 0)
    }

    fn norm(&self, rows: &Tensor, role: Role, layer: usize) -> CandleResult<Tensor> {
        let mean_squares = rows.sqr()?.mean_keepdim(1)?;
        let roots = (mean_squares + f64::from(self.config.rms_norm_eps))?.sqrt()?;
        rows.broadcast_div(&roots)?.broadcast_mul(self.weight(role, layer)?.tensor())
    }

    fn biased(&self, rows: &Tensor, (matrix, bias): (Role, Role), layer: usize) -> CandleResult<Tensor> {
        let product = self.weight(matrix, layer)?.product(rows)?;
        match bias.is_in(&self.config) {
            true => product.broadcast_add(self.weight(bias, layer)?.tensor()),
            false => Ok(product),
        }
    }
}
