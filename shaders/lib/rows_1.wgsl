// The register tile of one row.
// Swapped against its siblings by import; a row's sum is the same in each.
#import block

const ROWS = 1u;

struct Sums { r0: Row }

fn add_block(sums: ptr<function, Sums>, scales: Scales, weights_at: u32, step: u32, at: u32, stride: u32) {
  let block = load_block(weights_at);
  let gains = load_gains(step);
  (*sums).r0 = add_row((*sums).r0, block, scales, gains, at);
}

fn emit_rows(sums: Sums, row: u32, quad: u32) {
  let f0 = input_factor(sums.r0.squares);
  var outputs = array<vec4f, ROWS * QUADS>(
    sums.r0.q0 * f0, sums.r0.q1 * f0, sums.r0.q2 * f0, sums.r0.q3 * f0);
  emit_tile(&outputs, row, quad);
}
