// What the filters leave in play. Expects `sampling` and `thresholds: array<f32>` [rows], read where a filter is on.

fn edge_of(row: u32) -> f32 {
  if (sampling.top_k > 0u || sampling.top_p < 1.0 || sampling.min_p > 0.0) {
    return thresholds[row];
  }
  return LOWEST;
}
