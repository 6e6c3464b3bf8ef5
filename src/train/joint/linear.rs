//! The weights of the model, as they were read or as they are trained, and products with them.

use candle_core::backend::BackendStorage;
use candle_core::{CpuStorage, CudaStorage, CustomOp1, DType, Layout, MetalStorage, Result as CandleResult, Shape};
use candle_core::{Storage, Tensor, Var};

use super::Lora;
use crate::train::random::Random;
use crate::train::shapes::{Parameter, Part};

/// A weight of the model.
#[derive(Debug, Clone)]
pub struct Weight {
    /// `[outputs, inputs]`, or a vector.
    tensor: Tensor,
    adapter: Option<Adapter>,
}

/// A correction of low rank: `scale * up · down` is added to the matrix (LoRA; Hu et al. 2021).
#[derive(Debug, Clone)]
struct Adapter {
    /// `[rank, inputs]`
    down: Tensor,
    /// `[outputs, rank]`
    up: Tensor,
    scale: f64,
}

impl Weight {
    /// A weight that stays as it is.
    pub fn new(tensor: Tensor) -> Self {
        Self { tensor, adapter: None }
    }

    /// The weight itself, without what an adapter adds.
    pub fn tensor(&self) -> &Tensor {
        &self.tensor
    }

    /// Whether anything of it is trained.
    pub fn is_trained(&self) -> bool {
        self.adapter.is_some() || self.tensor.is_variable()
    }

    /// Lets all of it be trained.
    ///
    /// # Errors
    /// When memory is short, as below.
    pub fn train(&mut self, name: &str) -> CandleResult<Parameter> {
        let var = Var::from_tensor(&self.tensor)?;
        self.tensor = var.as_tensor().clone();
        Ok(Parameter { name: name.to_owned(), part: Part::Model, var })
    }

    /// Gives a matrix an adapter that adds nothing yet.
    pub fn adapt(&mut self, name: &str, lora: Lora, mut random: Random) -> CandleResult<[Parameter; 2]> {
        let ((outputs, inputs), device) = (self.tensor.dims2()?, self.tensor.device());
        let bound = 1.0 / (inputs as f32).sqrt();
        let values = (0..lora.rank * inputs).map(|_| bound * (2.0 * random.fraction() - 1.0)).collect::<Vec<_>>();
        let down = Var::from_tensor(&Tensor::from_vec(values, (lora.rank, inputs), device)?)?;
        let up = Var::from_tensor(&Tensor::zeros((outputs, lora.rank), DType::F32, device)?)?;
        let scale = f64::from(lora.alpha) / lora.rank as f64;
        self.adapter = Some(Adapter { down: down.as_tensor().clone(), up: up.as_tensor().clone(), scale });
        let parameter = |end: &str, var| Parameter { name: format!("{name}.{end}"), part: Part::Model, var };
        Ok([parameter("down", down), parameter("up", up)])
    }

    /// `x · weightᵀ`, where x is `[rows, inputs]` and contiguous.
    pub fn product(&self, x: &Tensor) -> CandleResult<Tensor> {
        if self.tensor.is_variable() {
            return x.matmul(&self.tensor.t()?);
        }
        let product = x.apply_op1(Fixed(self.tensor.clone()))?;
        match &self.adapter {
            None => Ok(product),
            Some(Adapter { down, up, scale }) => product + (x.matmul(&down.t()?)?.matmul(&up.t()?)? * *scale)?,
        }
    }

    /// The weight with what an adapter adds.
    pub fn merged(&self) -> CandleResult<Tensor> {
        match &self.adapter {
            None => Ok(self.tensor.detach()),
            Some(Adapter { down, up, scale }) => {
                (&self.tensor + (up.matmul(down)? * *scale)?)?.detach().force_contiguous()
            }
        }
    }

    /// The same weight, which follows its training, but asks for no gradient.
    pub fn at_rest(&self) -> Self {
        let rest = |adapter: &Adapter| Adapter { down: adapter.down.detach(), up: adapter.up.detach(), ..*adapter };
        Self { tensor: self.tensor.detach(), adapter: self.adapter.as_ref().map(rest) }
    }
}

/// A product with a matrix that stays as it is, `[outputs, inputs]`. candle's own would make the gradient of the matrix all the same, and
/// keep it: half as much work again, and as much memory as the model.
struct Fixed(Tensor);

impl Fixed {
    fn product<S: BackendStorage>(x: &S, of_x: &Layout, weight: &S, of_weight: &Layout) -> CandleResult<(S, Shape)> {
        let ((rows, inputs), (outputs, _)) = (of_x.shape().dims2()?, of_weight.shape().dims2()?);
        let product = x.matmul(weight, (1, rows, outputs, inputs), of_x, &of_weight.transpose(0, 1)?)?;
        Ok((product, (rows, outputs).into()))
    }
}

/// What is said where a weight and its input are not in the same memory.
fn apart<T>() -> CandleResult<T> {
    candle_core::bail!("a weight and its input are on different devices")
}

impl CustomOp1 for Fixed {
    fn name(&self) -> &'static str {
        "product with a fixed matrix"
    }

    fn cpu_fwd(&self, x: &CpuStorage, of_x: &Layout) -> CandleResult<(CpuStorage, Shape)> {
        let (weight, of_weight) = self.0.storage_and_layout();
        let Storage::Cpu(weight) = &*weight else { return apart() };
        Self::product(x, of_x, weight, of_weight)
    }

    fn cuda_fwd(&self, x: &CudaStorage, of_x: &Layout) -> CandleResult<(CudaStorage, Shape)> {
        let (weight, of_weight) = self.0.storage_and_layout();
        let Storage::Cuda(weight) = &*weight else { return apart() };
        Self::product(x, of_x, weight, of_weight)
    }

    fn metal_fwd(&self, x: &MetalStorage, of_x: &Layout) -> CandleResult<(MetalStorage, Shape)> {
        let (weight, of_weight) = self.0.storage_and_layout();
        let Storage::Metal(weight) = &*weight else { return apart() };
        Self::product(x, of_x, weight, of_weight)
    }

    fn bwd(&self, _: &Tensor, _: &Tensor, gradient: &Tensor) -> CandleResult<Option<Tensor>> {
        gradient.matmul(&self.0).map(Some)
    }
}
