//! Which layers of the target heads read besides its last hidden row.

use std::collections::BTreeMap;

use crate::error::{Error, ErrorCode, Result};

/// Layers that heads read at most.
pub const MAX_TAPS: usize = 4;

/// Layers whose output heads read besides the last hidden row, counted from 0, ascending.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub struct Taps {
    layers: [u16; MAX_TAPS],
    count: usize,
}

impl Taps {
    /// The last hidden row alone.
    pub const NONE: Self = Self { layers: [0; MAX_TAPS], count: 0 };

    /// These layers.
    ///
    /// # Errors
    /// `InvalidOption` where they do not ascend, or are too many.
    pub fn new(layers: &[usize]) -> Result<Self> {
        let mut taps = Self { count: layers.len(), ..Self::NONE };
        let ascend = layers.windows(2).all(|pair| pair[0] < pair[1]);
        if layers.len() > MAX_TAPS || !ascend || layers.iter().any(|&layer| layer > usize::from(u16::MAX)) {
            return Err(Error::new(
                ErrorCode::InvalidOption,
                format!("heads read the layers {layers:?}, expected at most {MAX_TAPS}, ascending"),
            ));
        }
        for (to, &layer) in taps.layers.iter_mut().zip(layers) {
            *to = layer as u16;
        }
        Ok(taps)
    }

    /// Those that a file of heads names.
    pub(super) fn read(metadata: &BTreeMap<String, String>) -> Result<Self> {
        let Some(text) = metadata.get("taps") else { return Ok(Self::NONE) };
        let layers = serde_json::from_str::<Vec<usize>>(text).ok();
        layers.and_then(|layers| Self::new(&layers).ok()).ok_or_else(|| {
            let message = format!(
                "taps is {text:?} in the metadata of the heads, expected at most {MAX_TAPS} layers, ascending, as [1,3]"
            );
            Error::new(ErrorCode::BadModelFile, message)
        })
    }

    /// The layers.
    pub fn layers(&self) -> impl Iterator<Item = usize> + use<> {
        self.layers.into_iter().take(self.count).map(usize::from)
    }

    /// How many there are.
    pub const fn len(&self) -> usize {
        self.count
    }

    /// Whether heads read the last hidden row alone.
    pub const fn is_empty(&self) -> bool {
        self.count == 0
    }
}

impl std::fmt::Debug for Taps {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.layers()).finish()
    }
}

impl std::fmt::Display for Taps {
    /// As the metadata of a file have them.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let layers: Vec<String> = self.layers().map(|layer| layer.to_string()).collect();
        write!(f, "[{}]", layers.join(","))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layers_ascend_and_are_written_as_they_are_read() {
        let taps = Taps::new(&[1, 20]).unwrap();
        assert_eq!((taps.len(), taps.layers().collect::<Vec<_>>()), (2, vec![1, 20]));
        assert_eq!(Taps::read(&BTreeMap::from([("taps".to_owned(), taps.to_string())])).unwrap(), taps);
        assert_eq!(Taps::read(&BTreeMap::new()).unwrap(), Taps::NONE);
        for layers in [&[2, 1][..], &[1, 1], &[0, 1, 2, 3, 4], &[70_000]] {
            assert_eq!(Taps::new(layers).unwrap_err().code(), ErrorCode::InvalidOption, "{layers:?}");
            let file = BTreeMap::from([("taps".to_owned(), format!("{layers:?}"))]);
            assert_eq!(Taps::read(&file).unwrap_err().code(), ErrorCode::BadModelFile, "{layers:?}");
        }
    }
}
