//! What a file of our own format says about how its heads draft: measured trees, and how far probabilities are to be believed.

use std::collections::BTreeMap;

use super::MAX_DEPTHS;
use crate::error::{Error, ErrorCode, Result};

/// Rank paths of a file at most: a pass has 64 rows, one of them the root's.
const MAX_PATHS: usize = 63;
/// Ranks lie below this.
const MAX_RANK: usize = 64;

/// How the estimated probability of a candidate becomes the probability that it is right, at one depth.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct DepthCalibration {
    /// Factor of the logarithm, above 0.
    pub slope: f32,
    /// What is added to it.
    pub offset: f32,
}

impl DepthCalibration {
    /// Changes nothing.
    pub const IDENTITY: Self = Self { slope: 1.0, offset: 0.0 };

    /// The logarithm of the probability that a candidate is right, from that of its estimated probability.
    pub fn apply(self, log_probability: f32) -> f32 {
        (self.slope * log_probability + self.offset).min(0.0)
    }
}

/// Rank paths, the best first: the first n - 1 make the best tree of n nodes. Empty where the file has none.
pub(super) fn trees(metadata: &BTreeMap<String, String>) -> Result<Vec<Vec<usize>>> {
    let Some(text) = metadata.get("trees") else { return Ok(Vec::new()) };
    let paths: Vec<Vec<usize>> = serde_json::from_str(text).map_err(|error| bad("trees", text, &error.to_string()))?;
    if paths.len() > MAX_PATHS {
        return Err(bad("trees", text, &format!("{} paths, expected at most {MAX_PATHS}", paths.len())));
    }
    for (at, path) in paths.iter().enumerate() {
        let Some((_, above)) = path.split_last() else { return Err(bad("trees", text, "a path is empty")) };
        if path.len() > MAX_DEPTHS || path.iter().any(|&rank| rank >= MAX_RANK) {
            return Err(bad("trees", text, &format!("{path:?} is too long or has a rank of {MAX_RANK} or more")));
        }
        if paths[..at].contains(path) || !(above.is_empty() || paths[..at].iter().any(|earlier| earlier == above)) {
            return Err(bad("trees", text, &format!("{path:?} stands twice or before its parent")));
        }
    }
    Ok(paths)
}

/// One calibration a depth. Empty where the file has none.
pub(super) fn calibration(metadata: &BTreeMap<String, String>, depths: usize) -> Result<Vec<DepthCalibration>> {
    let Some(text) = metadata.get("calibration") else { return Ok(Vec::new()) };
    let pairs: Vec<[f32; 2]> =
        serde_json::from_str(text).map_err(|error| bad("calibration", text, &error.to_string()))?;
    if pairs.len() != depths {
        return Err(bad(
            "calibration",
            text,
            &format!("{} pairs, expected one for each of {depths} depths", pairs.len()),
        ));
    }
    if pairs.iter().any(|&[slope, offset]| !(slope > 0.0 && slope.is_finite() && offset.is_finite())) {
        return Err(bad("calibration", text, "a slope is not above 0, or a value is no number"));
    }
    Ok(pairs.into_iter().map(|[slope, offset]| DepthCalibration { slope, offset }).collect())
}

/// Tokens a pass to expect of the best trees of 1, 2, … nodes. Empty where the file has none.
pub(super) fn tree_tokens(metadata: &BTreeMap<String, String>) -> Result<Vec<f64>> {
    let Some(text) = metadata.get("tree_tokens") else { return Ok(Vec::new()) };
    let tokens: Vec<f64> = serde_json::from_str(text).map_err(|error| bad("tree_tokens", text, &error.to_string()))?;
    let rises = tokens.is_sorted() && tokens.first().is_some_and(|&first| first >= 1.0);
    if !rises || tokens.iter().enumerate().any(|(at, &tokens)| !tokens.is_finite() || tokens > (at + 1) as f64) {
        return Err(bad(
            "tree_tokens",
            text,
            "expected 1, then numbers that rise, each at most the number of its nodes",
        ));
    }
    Ok(tokens)
}

fn bad(key: &str, text: &str, why: &str) -> Error {
    let start: String = text.chars().take(40).collect();
    Error::new(
        ErrorCode::BadModelFile,
        format!("{key} is {start:?} in the metadata of the heads: {why}; calibrate the heads again"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(key: &str, text: &str) -> BTreeMap<String, String> {
        BTreeMap::from([(key.to_owned(), text.to_owned())])
    }

    #[test]
    fn trees_and_calibrations_are_read_or_refused_with_the_reason() {
        let none = BTreeMap::new();
        assert!(trees(&none).unwrap().is_empty() && calibration(&none, 2).unwrap().is_empty());
        assert_eq!(trees(&with("trees", "[[0],[0,0],[1]]")).unwrap(), [vec![0], vec![0, 0], vec![1]]);
        let read = calibration(&with("calibration", "[[1,0],[0.5,-0.25]]"), 2).unwrap();
        assert_eq!(read[1], DepthCalibration { slope: 0.5, offset: -0.25 });
        let many = format!("{:?}", (0..64).map(|rank| vec![rank]).collect::<Vec<_>>());
        for (text, reason) in [
            ("[[0,0],[0]]", "before its parent"),
            ("[[0],[0]]", "twice"),
            ("[[]]", "empty"),
            ("[[64]]", "64 or more"),
            ("[0]", "invalid type"),
            (many.as_str(), "at most 63"),
        ] {
            let error = trees(&with("trees", text)).unwrap_err();
            assert_eq!(error.code(), ErrorCode::BadModelFile);
            assert!(error.to_string().contains(reason), "{error}");
        }
        for (text, reason) in [("[[1,0]]", "each of 2"), ("[[0,0],[1,0]]", "above 0"), ("[[1e999,0],[1,0]]", "")] {
            let error = calibration(&with("calibration", text), 2).unwrap_err();
            assert!(error.to_string().contains(reason), "{error}");
        }
        assert!(tree_tokens(&none).unwrap().is_empty());
        assert_eq!(tree_tokens(&with("tree_tokens", "[1,1.5,1.75]")).unwrap(), [1.0, 1.5, 1.75]);
        for text in ["[]", "[0.5]", "[1,2.5]", "[1,1.5,1.25]", "[1,1e999]", "1"] {
            assert_eq!(tree_tokens(&with("tree_tokens", text)).unwrap_err().code(), ErrorCode::BadModelFile, "{text}");
        }
    }

    #[test]
    fn a_calibrated_probability_is_at_most_one() {
        let calibration = DepthCalibration { slope: 0.5, offset: 0.1 };
        assert_eq!(calibration.apply(-0.1), 0.0);
        assert!((calibration.apply(-2.0) + 0.9).abs() < 1e-6);
        assert_eq!(DepthCalibration::IDENTITY.apply(-0.75), -0.75);
    }
}
