//! What passes cost on this device, by their number of rows: measured once, in a fraction of a second.
//!
//! The device's own clock tells, where there is one: a page may hear of the end of a pass 100 ms late (Firefox), which would make passes of all
//! sizes look alike. Every size runs twice in a row, since the first pass of a size may wait for its kernels, and as many rounds as there is
//! time for; the fastest pass of a size counts, because whatever else the machine does can only add to it. Browsers show that clock in
//! steps of 0.1 ms, so of passes that are short against such a step the mean counts, the first left out.
//! Sizes whose kernels would first have to be compiled at length are left to what is usual.

use super::Clock;
use crate::backend::Backend;
use crate::error::Result;

/// Milliseconds that may be spent on measuring, unless one row and four take longer.
const BUDGET_MS: f64 = 300.0;
const MAX_ROUNDS: usize = 5;
/// Passes that take less are not told apart by single readings of the clock.
const COARSE_MS: f64 = 1.0;

/// Milliseconds of passes by their number of rows, ascending.
///
/// # Errors
/// `OutOfMemory`, `DeviceLost`.
pub async fn measure<B: Backend>(backend: &mut B, clock: Clock) -> Result<Vec<(usize, f64)>> {
    let mut rows = vec![1, 1];
    let mut ms = time(backend, &rows, clock).await?;
    let plan = plan(ms[0].min(ms[1]), backend.sizes_to_measure());
    ms.extend(time(backend, &plan, clock).await?);
    rows.extend(plan);
    Ok(costs(&rows, &ms))
}

/// Milliseconds of a pass for each of `rows`.
async fn time<B: Backend>(backend: &mut B, rows: &[usize], clock: Clock) -> Result<Vec<f64>> {
    if let Some(ms) = backend.time_passes(rows, 1).await? {
        return Ok(ms);
    }
    let mut ms = Vec::with_capacity(rows.len());
    for &rows in rows {
        let began_ms = clock();
        backend.run_passes(rows, 1, 1).await?;
        ms.push(clock() - began_ms);
    }
    Ok(ms)
}

/// The passes that the budget has room for where one row takes `one_ms`: of one row, and of some of `sizes`.
fn plan(one_ms: f64, sizes: &[usize]) -> Vec<usize> {
    let mut round = vec![1, 1];
    let mut expected_ms = 2.0 * one_ms;
    for &rows in sizes {
        // A row among others costs about half of what it costs alone.
        let more_ms = (rows as f64 * one_ms).max(2.0 * one_ms);
        if rows == sizes[0] || expected_ms + more_ms <= BUDGET_MS {
            round.extend([rows, rows]);
            expected_ms += more_ms;
        }
    }
    if expected_ms > BUDGET_MS {
        round.drain(..2);
    }
    let rounds = (BUDGET_MS / expected_ms.max(1e-3)) as usize;
    round.repeat(rounds.clamp(1, MAX_ROUNDS))
}

/// The cost of every size. More rows never take less time than fewer: where they seem to, the smaller size was disturbed.
fn costs(rows: &[usize], ms: &[f64]) -> Vec<(usize, f64)> {
    let mut costs: Vec<(usize, f64)> = Vec::new();
    let mut larger_ms = f64::INFINITY;
    for size in [16, 8, 4, 2, 1].into_iter().filter(|size| rows.contains(size)) {
        larger_ms = cost(size, rows, ms).min(larger_ms);
        costs.push((size, larger_ms));
    }
    costs.reverse();
    costs
}

fn cost(size: usize, rows: &[usize], ms: &[f64]) -> f64 {
    let of_size: Vec<f64> = rows.iter().zip(ms).filter(|&(&rows, _)| rows == size).map(|(_, &ms)| ms).collect();
    let fastest = of_size.iter().copied().fold(f64::INFINITY, f64::min);
    let later = of_size.get(1..).filter(|later| !later.is_empty()).unwrap_or(&of_size);
    let cost = if fastest < COARSE_MS { later.iter().sum::<f64>() / later.len() as f64 } else { fastest };
    cost.max(1e-3)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slow_device_measures_two_sizes_and_a_fast_one_all_of_them_several_times() {
        let sizes = [4, 8, 2, 16];
        assert_eq!(plan(112.0, &sizes), [4, 4]);
        assert_eq!(plan(20.0, &sizes), [1, 1, 4, 4, 8, 8]);
        assert_eq!(plan(3.0, &sizes), [1, 1, 4, 4, 8, 8, 2, 2, 16, 16].repeat(3));
        assert_eq!(plan(0.0, &sizes).len(), 10 * MAX_ROUNDS);
        assert_eq!(plan(3.0, &[4]), [1, 1, 4, 4].repeat(MAX_ROUNDS));
    }

    #[test]
    fn the_fastest_pass_counts_and_more_rows_never_cost_less() {
        assert_eq!(costs(&[1, 1, 4, 4, 1], &[9.0, 3.0, 8.0, 7.0, 4.0]), [(1, 3.0), (4, 7.0)]);
        assert_eq!(costs(&[1, 4, 2, 2], &[9.0, 8.0, 4.0, 12.0]), [(1, 4.0), (2, 4.0), (4, 8.0)]);
    }

    #[test]
    fn of_passes_too_short_for_the_clock_the_mean_counts() {
        assert_eq!(costs(&[1, 1, 1, 4, 4], &[9.0, 0.0, 0.1, 0.5, 0.2]), [(1, 0.05), (4, 0.2)]);
        assert!(costs(&[1, 4], &[0.0, 0.0]).iter().all(|&(_, ms)| ms > 0.0));
    }
}
