//! From logits to the gradient of a loss, in the place of the logits: one pass over each row on the CPU, tensor operations elsewhere.

use std::f32::consts::{LN_2, LOG2_E};
use std::sync::Mutex;

use candle_core::{CpuStorage, D, InplaceOp1, Layout, Result as CandleResult, Storage, Tensor};
use rayon::prelude::*;

use super::loss::{Loss, Targets};
use super::vocabulary::NOT_DRAFTED;

/// The gradient of the weighted losses with respect to the logits `[pairs, drafts]`, which are used up, and the loss of every pair,
/// without its weight.
///
/// # Errors
/// None for logits of these targets.
pub fn gradient(logits: Tensor, targets: &Targets, loss: Loss) -> CandleResult<(Tensor, Vec<f32>)> {
    if logits.device().is_cpu() {
        let op = InPlace { targets, loss, losses: Mutex::new(Vec::new()) };
        logits.inplace_op1(&op)?;
        let losses = op.losses.into_inner().unwrap_or_default();
        return Ok((logits, losses));
    }
    by_tensors(&logits, targets, loss)
}

/// On the CPU.
struct InPlace<'a> {
    targets: &'a Targets,
    loss: Loss,
    losses: Mutex<Vec<f32>>,
}

impl InplaceOp1 for InPlace<'_> {
    fn name(&self) -> &'static str {
        "gradient of a loss"
    }

    fn cpu_fwd(&self, storage: &mut CpuStorage, layout: &Layout) -> CandleResult<()> {
        let (CpuStorage::F32(values), Some((start, end))) = (storage, layout.contiguous_offsets()) else {
            candle_core::bail!("logits are float32 and contiguous");
        };
        let (pairs, drafts) = layout.shape().dims2()?;
        let rows = values[start..end].par_chunks_exact_mut(drafts);
        let losses: Vec<f32> = rows.enumerate().map(|(pair, row)| self.row(pair, row)).collect();
        if losses.len() != pairs || pairs != self.targets.len() {
            candle_core::bail!("{pairs} rows of logits for {} places", self.targets.len());
        }
        if let Ok(mut place) = self.losses.lock() {
            *place = losses;
        }
        Ok(())
    }
}

impl InPlace<'_> {
    fn row(&self, pair: usize, row: &mut [f32]) -> f32 {
        let inverse = 1.0 / exponentials(row);
        let found = self.loss.gradient(self.targets.pair(pair), |draft| row[draft as usize] * inverse);
        let weight = self.targets.weights[pair];
        let factor = weight * found.scale * inverse;
        row.iter_mut().for_each(|value| *value *= factor);
        for (draft, added) in found.added {
            row[draft as usize] += weight * added;
        }
        found.loss
    }
}

/// Makes of every value the exponential of its distance from the largest; gives their sum.
fn exponentials(row: &mut [f32]) -> f32 {
    const LANES: usize = 16;
    let (lanes, rest) = row.as_chunks::<LANES>();
    let mut most = [f32::MIN; LANES];
    for chunk in lanes {
        most.iter_mut().zip(chunk).for_each(|(most, &value)| *most = if value > *most { value } else { *most });
    }
    let most = most.iter().chain(rest).copied().fold(f32::MIN, f32::max);
    let mut sums = [0.0; LANES];
    let (lanes, rest) = row.as_chunks_mut::<LANES>();
    for chunk in lanes {
        for (sum, value) in sums.iter_mut().zip(chunk) {
            *value = exp(*value - most);
            *sum += *value;
        }
    }
    let rest = rest.iter_mut().map(|value| {
        *value = exp(*value - most);
        *value
    });
    rest.sum::<f32>() + sums.iter().sum::<f32>()
}

/// The exponential of a number that is not above 0, to within 3e-7 of itself near 0 and 1e-5 far from it; 0 for what would be below the
/// smallest normal number. Without branches and calls, so that the compiler makes vector instructions of it.
#[inline(always)]
fn exp(x: f32) -> f32 {
    // 2^t = 2^i * 2^f, i whole and f in ±1/2. Adding ROUND leaves i in the low bits of the mantissa.
    const ROUND: f32 = 12_582_912.0;
    let t = if x > -87.0 { x * LOG2_E } else { -126.0 };
    let rounded = t + ROUND;
    let f = t - (rounded - ROUND);
    let power = f32::from_bits((rounded.to_bits().wrapping_add(127)) << 23);
    // Taylor's coefficients of 2^f: ln(2)^n / n!.
    let series = [0.000_154_035_3, 0.001_333_355_8, 0.009_618_129, 0.055_504_11, 0.240_226_5, LN_2, 1.0];
    let value = power * series.into_iter().fold(0.0, |sum: f32, term| sum * f + term);
    if x > -87.0 { value } else { 0.0 }
}

fn by_tensors(logits: &Tensor, targets: &Targets, loss: Loss) -> CandleResult<(Tensor, Vec<f32>)> {
    let (pairs, width) = (targets.len(), targets.named + 1);
    let p = candle_nn::ops::softmax(logits, D::Minus1)?;
    // The few probabilities that the loss depends on come to the CPU: those of the named tokens and the label.
    let ids: Vec<u32> = (0..pairs)
        .flat_map(|pair| {
            let target = targets.pair(pair);
            let named = target.drafts.iter().copied().chain([target.label]);
            named.map(|draft| if draft == NOT_DRAFTED { 0 } else { draft }).collect::<Vec<_>>()
        })
        .collect();
    let index = Tensor::from_vec(ids.clone(), (pairs, width), logits.device())?;
    let gathered: Vec<Vec<f32>> = p.gather(&index, 1)?.to_vec2()?;
    let (mut scales, mut added) = (Vec::with_capacity(pairs), vec![0.0f32; pairs * width]);
    let mut losses = Vec::with_capacity(pairs);
    for (pair, gathered) in gathered.iter().enumerate() {
        let ids = &ids[pair * width..(pair + 1) * width];
        let place = |draft: u32| ids.iter().position(|&id| id == draft).unwrap_or(0);
        let found = loss.gradient(targets.pair(pair), |draft| gathered[place(draft)]);
        let weight = targets.weights[pair];
        for (draft, value) in found.added {
            added[pair * width + place(draft)] += weight * value;
        }
        scales.push(weight * found.scale);
        losses.push(found.loss);
    }
    let scales = Tensor::from_vec(scales, (pairs, 1), logits.device())?;
    let added = Tensor::from_vec(added, (pairs, width), logits.device())?;
    Ok((p.broadcast_mul(&scales)?.scatter_add(&index, &added, 1)?, losses))
}

/// How many draft ids have a higher logit than the label, or the same and a lower id; none where the label is not drafted. `logits` are
/// `[pairs, drafts]`, labels `[pairs]`.
///
/// # Errors
/// None for logits of these labels.
pub fn ranks(logits: &Tensor, labels: &[u32]) -> CandleResult<Vec<Option<u32>>> {
    let rank = |(row, &label): (&[f32], &u32)| (label != NOT_DRAFTED).then(|| rank_of(row, label as usize) as u32);
    with_rows(logits, |rows| rows.zip(labels).map(rank).collect())
}

/// The same among those `count` draft ids alone that rank best by other logits of the same shape; none where the label is not one of them.
///
/// # Errors
/// None for logits of these labels.
pub fn ranks_of_best(
    choosing: &Tensor,
    logits: &Tensor,
    labels: &[u32],
    count: usize,
) -> CandleResult<Vec<Option<u32>>> {
    let rank = |((choosing, row), &label): ((&[f32], &[f32]), &u32)| {
        let label = label as usize;
        if label >= row.len() || rank_of(choosing, label) >= count {
            return None;
        }
        let mut best: Vec<usize> = (0..row.len()).collect();
        if count < best.len() {
            best.select_nth_unstable_by(count, |&a, &b| choosing[b].total_cmp(&choosing[a]).then(a.cmp(&b)));
            best.truncate(count);
        }
        let before = |&&id: &&usize| row[id] > row[label] || (row[id] == row[label] && id < label);
        Some(best.iter().filter(before).count() as u32)
    };
    with_rows(choosing, |choosing| with_rows(logits, |rows| choosing.zip(rows).zip(labels).map(rank).collect()))?
}

/// How many values are higher than this one, or the same and before it.
fn rank_of(row: &[f32], place: usize) -> usize {
    let own = row[place];
    let (before, behind) = row.split_at(place);
    let higher = behind.iter().filter(|&&value| value > own).count();
    higher + before.iter().filter(|&&value| value >= own).count()
}

/// Hands the rows of logits on, on the CPU.
fn with_rows<T>(logits: &Tensor, read: impl FnOnce(rayon::slice::ChunksExact<'_, f32>) -> T) -> CandleResult<T> {
    let logits = logits.to_device(&candle_core::Device::Cpu)?.contiguous()?;
    let drafts = logits.dim(D::Minus1)?;
    let (storage, layout) = logits.storage_and_layout();
    let (Storage::Cpu(CpuStorage::F32(values)), Some((start, end))) = (&*storage, layout.contiguous_offsets()) else {
        candle_core::bail!("logits are float32");
    };
    Ok(read(values[start..end].par_chunks_exact(drafts)))
}

#[cfg(test)]
mod tests {
    use candle_core::Device;

    use super::*;
    use crate::train::random::Random;

    #[test]
    fn the_exponential_is_close() {
        for i in 0..90_000 {
            let x = -(i as f32) * 1e-3;
            let (found, expected) = (exp(x), x.exp());
            let bound = 3e-7 - x * 1e-7;
            assert!((found - expected).abs() <= bound * expected || (x <= -87.0 && found == 0.0), "{x}: {found}");
        }
        assert_eq!((exp(0.0), exp(f32::MIN), exp(f32::NEG_INFINITY)), (1.0, 0.0, 0.0));
    }

    fn example(drafts: usize) -> (Tensor, Targets) {
        let (pairs, named) = (33, 3);
        let mut random = Random::new(5, 0);
        let logits: Vec<f32> = (0..pairs * drafts).map(|_| 8.0 * random.fraction()).collect();
        let mut targets = Targets { named, ..Targets::default() };
        for pair in 0..pairs {
            let mut ids: Vec<u32> = (0..drafts as u32).collect();
            random.shuffle(&mut ids);
            ids[0] = if pair % 5 == 0 { NOT_DRAFTED } else { ids[0] };
            targets.drafts.extend(&ids[..named]);
            targets.probabilities.extend([0.5, 0.3, 0.1]);
            targets.labels.push(if pair % 7 == 0 { NOT_DRAFTED } else { ids[pair % 5] });
            targets.weights.push(random.fraction());
        }
        (Tensor::from_vec(logits, (pairs, drafts), &Device::Cpu).unwrap(), targets)
    }

    #[test]
    fn one_pass_and_tensor_operations_agree() {
        for text in ["ce", "kl", "tv", "kl+tv+0.1ce"] {
            let loss = text.parse().unwrap();
            let (logits, targets) = example(53);
            let (expected, expected_losses) = by_tensors(&logits, &targets, loss).unwrap();
            let (found, losses) = gradient(logits, &targets, loss).unwrap();
            let difference: f32 = (found - expected).unwrap().abs().unwrap().max_all().unwrap().to_scalar().unwrap();
            assert!(difference < 1e-6, "{text}: {difference}");
            let pairs = losses.iter().zip(&expected_losses);
            assert!(pairs.clone().all(|(a, b)| (a - b).abs() < 1e-4), "{text}: {losses:?}, {expected_losses:?}");
        }
    }

    #[test]
    fn ranks_count_what_stands_before_the_label() {
        let logits = Tensor::new(&[[1.0f32, 3.0, 2.0, 3.0], [0.0, 0.0, 0.0, 0.0]], &Device::Cpu).unwrap();
        let rank = |labels: [u32; 2]| ranks(&logits, &labels).unwrap();
        assert_eq!(rank([1, 0]), [Some(0), Some(0)]);
        assert_eq!(rank([3, 3]), [Some(1), Some(3)], "of equal ones the lower id stands first");
        assert_eq!(rank([0, NOT_DRAFTED]), [Some(3), None]);
        let corrected = Tensor::new(&[[9.0f32, 3.0, 2.0, 4.0], [0.0, 0.0, 0.0, 0.0]], &Device::Cpu).unwrap();
        let among = |labels: [u32; 2]| ranks_of_best(&logits, &corrected, &labels, 3).unwrap();
        assert_eq!(among([1, 2]), [Some(1), Some(2)], "3, then 1: draft id 0 is none of the best");
        assert_eq!(among([0, 3]), [None, None]);
        assert_eq!(among([NOT_DRAFTED, 0]), [None, Some(0)]);
        let (logits, targets) = example(53);
        let first = logits.argmax(1).unwrap().to_vec1::<u32>().unwrap();
        assert!(ranks(&logits, &first).unwrap().iter().all(|&rank| rank == Some(0)));
        let found = ranks(&logits, &targets.labels).unwrap();
        assert!(found.iter().zip(&targets.labels).all(|(rank, &label)| rank.is_none() == (label == NOT_DRAFTED)));
    }
}
