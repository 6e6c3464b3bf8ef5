//! Heads of a file, to be trained on.

use candle_core::{Device, Tensor, Var};

use super::matrices::TargetMatrices;
use super::shapes::{HeadShape, Parameter, TrainHeads};
use super::vocabulary::DraftVocabulary;
use super::{from_candle, hash};
use crate::error::{Error, ErrorCode, Result};
use crate::model::heads::HeadForm;
use crate::model::quantize::dequantize;
use crate::model::source::read_exact;
use crate::model::{ByteSource, Checkpoint, HeadFile};

impl TrainHeads {
    /// The heads that a file has for a model.
    ///
    /// # Errors
    /// `UnsupportedModel` for heads that each have an output matrix of their own, `ShapeMismatch` for those of another model, and whatever
    /// the source reports.
    pub fn read(
        source: &impl ByteSource,
        model: &Checkpoint,
        target: &TargetMatrices,
        device: &Device,
    ) -> Result<Self> {
        let file = pollster::block_on(HeadFile::open(source))?;
        let fitted = file.fit(model)?;
        let vocab_size = model.config.vocab_size;
        let tokens = fitted.token_map.unwrap_or_else(|| (0..fitted.draft_vocab as u32).collect());
        let stored = file.own_tensors().ok_or_else(|| {
            Error::new(
                ErrorCode::UnsupportedModel,
                format!(
                    "these {} heads have output matrices of their own or in another order, expected one for all heads; begin with \
                     new heads",
                    file.naming.as_str()
                ),
            )
        })?;
        let shape = HeadShape {
            form: fitted.form,
            depths: fitted.depths,
            layers: fitted.layers,
            rank: fitted.rank,
            one_block: fitted.form == HeadForm::Recurrent && fitted.one_block,
            frozen_head: !stored.iter().any(|(name, _)| name == "head.weight"),
            taps: fitted.taps,
            context_layer: fitted.context_layer,
        };
        let heads = Self::new(shape, DraftVocabulary::new(tokens, vocab_size)?, target, 0, device)?;
        for (name, entry) in stored {
            let Some(parameter) = heads.parameters.iter().find(|parameter| parameter.name == name) else { continue };
            let (mut bytes, mut values) = (vec![0; entry.bytes as usize], vec![0.0; entry.values() as usize]);
            pollster::block_on(read_exact(source, entry.file, entry.offset, &mut bytes))?;
            dequantize(entry.tensor_type, &bytes, &mut values)?;
            // An output matrix may have more rows than the model has tokens.
            values.truncate(parameter.var.elem_count());
            let tensor = Tensor::from_vec(values, parameter.var.dims(), device);
            tensor.and_then(|tensor| parameter.var.set(&tensor)).map_err(from_candle)?;
        }
        Ok(heads)
    }

    /// The same heads, trained apart from these from now on.
    ///
    /// # Errors
    /// When memory is short.
    pub fn copy(&self) -> Result<Self> {
        let copy = |parameter: &Parameter| {
            let var = Var::from_tensor(&parameter.var.as_tensor().copy()?)?;
            Ok(Parameter { var, ..parameter.clone() })
        };
        let parameters = self.parameters.iter().map(copy).collect::<candle_core::Result<_>>();
        Ok(Self {
            shape: self.shape,
            vocabulary: self.vocabulary.clone(),
            parameters: parameters.map_err(from_candle)?,
            base: self.base.clone(),
            epsilon: self.epsilon,
        })
    }

    /// A hash of what they are: other numbers, another hash.
    ///
    /// # Errors
    /// As above.
    pub fn identity(&self) -> Result<u64> {
        let mut bytes = format!("{:?}", self.vocabulary.tokens).into_bytes();
        for parameter in &self.parameters {
            let values = parameter.var.flatten_all().and_then(|flat| flat.to_vec1::<f32>()).map_err(from_candle)?;
            bytes.extend_from_slice(bytemuck::cast_slice(&values));
        }
        Ok(hash(&bytes))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::model::TensorType;
    use crate::model::files::FileSource;
    use crate::model::heads::Taps;
    use crate::train::random::Random;
    use crate::train::save::{StoredTypes, head_file};

    /// Heads of this shape with numbers of chance, for the embedded model.
    fn heads(shape: HeadShape, tokens: Vec<u32>, target: &TargetMatrices) -> TrainHeads {
        let vocabulary = DraftVocabulary::new(tokens, 512).unwrap();
        let heads = TrainHeads::new(shape, vocabulary, target, 1, &Device::Cpu).unwrap();
        let mut random = Random::new(2, 0);
        for parameter in &heads.parameters {
            let values = (0..parameter.var.elem_count()).map(|_| random.fraction() - 0.5).collect::<Vec<f32>>();
            parameter.var.set(&Tensor::from_vec(values, parameter.var.dims(), &Device::Cpu).unwrap()).unwrap();
        }
        heads
    }

    fn values(tensor: &Tensor) -> Vec<f32> {
        tensor.flatten_all().unwrap().to_vec1().unwrap()
    }

    #[test]
    fn heads_are_read_as_they_were_written() {
        let folder = std::env::temp_dir().join(format!("draftree-trained-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/models/stories260K/stories260K-q8_0.gguf");
        let source = FileSource::open(path).unwrap();
        let checkpoint = pollster::block_on(Checkpoint::open(&source)).unwrap();
        let target = pollster::block_on(TargetMatrices::read(&checkpoint, &source)).unwrap();
        let parallel = HeadShape {
            form: HeadForm::Parallel,
            depths: 3,
            layers: 2,
            rank: 32,
            one_block: false,
            frozen_head: false,
            taps: Taps::NONE,
            context_layer: None,
        };
        let recurrent =
            HeadShape { form: HeadForm::Recurrent, layers: 1, rank: 0, one_block: true, frozen_head: true, ..parallel };
        let fused = HeadShape { taps: Taps::new(&[1, 3]).unwrap(), context_layer: Some(2), ..recurrent };
        let all: Vec<u32> = (0..512).collect();
        let some: Vec<u32> = (0..512).filter(|token| token % 3 != 1).collect();
        for (number, (shape, tokens, ty, tolerance)) in [
            (parallel, all.clone(), TensorType::F32, 0.0),
            (fused, all, TensorType::Q8_0, 0.01),
            (parallel, some.clone(), TensorType::Q8_0, 0.01),
            (recurrent, some, TensorType::F16, 1e-3),
        ]
        .into_iter()
        .enumerate()
        {
            let written = heads(shape, tokens, &target);
            let path = folder.join(format!("{number}.heads.safetensors"));
            head_file(&written, StoredTypes::all(ty), "model", &BTreeMap::new()).unwrap().write(&path).unwrap();
            let file = FileSource::open(&path).unwrap();
            let read = TrainHeads::read(&file, &checkpoint, &target, &Device::Cpu).unwrap();
            assert_eq!((read.shape, &read.vocabulary), (shape, &written.vocabulary));
            assert_eq!(values(&read.base), values(&written.base));
            for (found, expected) in read.parameters.iter().zip(&written.parameters) {
                let (found, expected) = (values(&found.var), values(&expected.var));
                let furthest = found.iter().zip(&expected).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
                assert!(furthest <= tolerance, "{furthest} of {tolerance}");
            }
            let copy = read.copy().unwrap();
            assert_eq!(copy.identity().unwrap(), read.identity().unwrap());
            let bias = &copy.parameters[1].var;
            bias.set(&(bias.as_tensor() + 1.0).unwrap()).unwrap();
            assert_ne!(copy.identity().unwrap(), read.identity().unwrap(), "a copy goes its own way");
        }
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
