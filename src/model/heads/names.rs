//! What the tensors of draft heads are called by those who publish them.
//!
//! | naming | block | output | read from |
//! |---|---|---|---|
//! | Medusa | `{h}.{l}.linear.{weight,bias}` | `{h}.{L}.weight` | FasterDecoding/Medusa v0.1, "version 2" (no output), TGI; with `medusa_head.` before it Medusa-1.0 models and MLC |
//! | ModelOpt | `medusa_heads.{h}.medusa_layers.{l}.linear.{weight,bias}` | `medusa_heads.{h}.lm_head.weight` | NVIDIA ModelOpt, TensorRT-LLM |
//! | vLLM | `blocks.{h}.layers.{l}.{weight,bias}` | `lm_heads.{h}.weight` or `lm_head.weight` | vLLM `medusa.py`; `medusa_heads.` may stand before every name |
//! | draftree | `blocks.{h}.{l}.{weight,bias}` | `head.weight` | `docs/heads.md` |

/// A convention.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Naming {
    /// FasterDecoding's own: v0.1, version 2, Medusa-1.0, TGI, MLC.
    Medusa,
    /// NVIDIA's.
    ModelOpt,
    /// vLLM's.
    Vllm,
    /// This project's.
    Draftree,
}

/// What a tensor is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Slot {
    Block { head: usize, layer: usize },
    Bias { head: usize, layer: usize },
    Output(usize),
    SharedOutput,
    TokenMap,
    Previous,
    Correction,
    Fusion,
    FusionBias,
    ContextQuery,
    Context,
    ContextBias,
}

/// Words before the names that say nothing.
const PREFIXES: [&str; 2] = ["medusa_heads.", "medusa_head."];

impl Naming {
    pub(super) const ALL: [Self; 4] = [Self::Medusa, Self::ModelOpt, Self::Vllm, Self::Draftree];

    /// The publisher's name.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Medusa => "Medusa",
            Self::ModelOpt => "ModelOpt",
            Self::Vllm => "vLLM",
            Self::Draftree => "draftree",
        }
    }

    /// What the tensor of this name is for, if it is one of heads named like this. The second number of a Medusa output, which
    /// is the count of layers, is added to `layers` where it is larger.
    pub(super) fn slot(self, name: &str, layers: &mut usize) -> Option<Slot> {
        let name = PREFIXES.iter().find_map(|prefix| name.strip_prefix(prefix)).unwrap_or(name);
        let parts: Vec<&str> = name.split('.').collect();
        let (head, layer) = match (self, &parts[..]) {
            (Self::Medusa, [head, layer, "linear", _]) => (head, layer),
            (Self::Medusa, [head, layer, "weight"]) => {
                *layers = (*layers).max(index(layer)?);
                return Some(Slot::Output(index(head)?));
            }
            (Self::ModelOpt, [head, "medusa_layers", layer, "linear", _]) => (head, layer),
            (Self::ModelOpt, [head, "lm_head", "weight"]) => return Some(Slot::Output(index(head)?)),
            (Self::Vllm, ["blocks", head, "layers", layer, _]) => (head, layer),
            (Self::Vllm, ["lm_heads", head, "weight"]) => return Some(Slot::Output(index(head)?)),
            (Self::Vllm, ["lm_head", "weight"]) | (Self::Draftree, ["head", "weight"]) => {
                return Some(Slot::SharedOutput);
            }
            (Self::Vllm | Self::Draftree, ["token_map"]) => return Some(Slot::TokenMap),
            (Self::Draftree, ["blocks", head, layer, _]) => (head, layer),
            (Self::Draftree, ["previous", "weight"]) => return Some(Slot::Previous),
            (Self::Draftree, ["correction", "weight"]) => return Some(Slot::Correction),
            (Self::Draftree, ["fusion", "weight"]) => return Some(Slot::Fusion),
            (Self::Draftree, ["fusion", "bias"]) => return Some(Slot::FusionBias),
            (Self::Draftree, ["context", "query", "weight"]) => return Some(Slot::ContextQuery),
            (Self::Draftree, ["context", "weight"]) => return Some(Slot::Context),
            (Self::Draftree, ["context", "bias"]) => return Some(Slot::ContextBias),
            _ => return None,
        };
        let (head, layer) = (index(head)?, index(layer)?);
        match parts.last() {
            Some(&"weight") => {
                *layers = (*layers).max(layer + 1);
                Some(Slot::Block { head, layer })
            }
            Some(&"bias") => Some(Slot::Bias { head, layer }),
            _ => None,
        }
    }

    /// The name, without a prefix, of a tensor of heads with `layers` layers.
    pub(super) fn name(self, slot: Slot, layers: usize) -> String {
        let block = |head: usize, layer: usize, end: &str| match self {
            Self::Medusa => format!("{head}.{layer}.linear.{end}"),
            Self::ModelOpt => format!("medusa_heads.{head}.medusa_layers.{layer}.linear.{end}"),
            Self::Vllm => format!("blocks.{head}.layers.{layer}.{end}"),
            Self::Draftree => format!("blocks.{head}.{layer}.{end}"),
        };
        match slot {
            Slot::Block { head, layer } => block(head, layer, "weight"),
            Slot::Bias { head, layer } => block(head, layer, "bias"),
            Slot::Output(head) => match self {
                Self::Medusa => format!("{head}.{layers}.weight"),
                Self::ModelOpt => format!("medusa_heads.{head}.lm_head.weight"),
                _ => format!("lm_heads.{head}.weight"),
            },
            Slot::SharedOutput if self == Self::Draftree => "head.weight".to_owned(),
            Slot::SharedOutput => "lm_head.weight".to_owned(),
            Slot::TokenMap => "token_map".to_owned(),
            Slot::Previous => "previous.weight".to_owned(),
            Slot::Correction => "correction.weight".to_owned(),
            Slot::Fusion => "fusion.weight".to_owned(),
            Slot::FusionBias => "fusion.bias".to_owned(),
            Slot::ContextQuery => "context.query.weight".to_owned(),
            Slot::Context => "context.weight".to_owned(),
            Slot::ContextBias => "context.bias".to_owned(),
        }
    }
}

/// A number below any count of heads that a file could mean.
fn index(text: &str) -> Option<usize> {
    text.parse::<u16>().ok().filter(|index| index.to_string() == text).map(usize::from)
}

/// Whether a tensor beside a model's belongs to draft heads: those of Medusa-1.0 models lie in the same files.
pub(in crate::model) fn is_head_tensor(name: &str) -> bool {
    PREFIXES.iter().any(|prefix| name.starts_with(prefix))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_leads_back_to_its_slot() {
        let slots = [
            Slot::Block { head: 3, layer: 1 },
            Slot::Bias { head: 0, layer: 0 },
            Slot::Output(4),
            Slot::SharedOutput,
            Slot::TokenMap,
        ];
        for naming in Naming::ALL {
            for slot in slots {
                let shared = matches!(slot, Slot::SharedOutput | Slot::TokenMap);
                if (shared && matches!(naming, Naming::Medusa | Naming::ModelOpt))
                    || (slot == Slot::Output(4) && naming == Naming::Draftree)
                {
                    continue;
                }
                assert_eq!(naming.slot(&naming.name(slot, 2), &mut 0), Some(slot), "{naming:?}");
            }
        }
        let fused = [Slot::Fusion, Slot::FusionBias, Slot::ContextQuery, Slot::Context, Slot::ContextBias];
        for slot in [Slot::Previous, Slot::Correction].into_iter().chain(fused) {
            assert_eq!(Naming::Draftree.slot(&Naming::Draftree.name(slot, 1), &mut 0), Some(slot));
        }
        let mut layers = 0;
        assert_eq!(Naming::Medusa.slot("medusa_head.1.2.weight", &mut layers), Some(Slot::Output(1)));
        assert_eq!(layers, 2);
        assert_eq!(Naming::Medusa.slot("01.0.linear.weight", &mut layers), None);
        assert_eq!(Naming::Medusa.slot("model.layers.0.mlp.up_proj.weight", &mut layers), None);
    }
}
