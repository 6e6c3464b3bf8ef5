// The rows of a register tile: each thread carries 4 rows, so that every weight is loaded and unpacked once for all of them.
// Swapped against its siblings by import; a row's sum is the same in each.
#import block

const ROWS = 4u;

struct Sums { r0: Row, r1: Row, r2: Row, r3: Row }

fn add_block(sums: ptr<function, Sums>, scales: Scales, weights_at: u32, step: u32, at: u32, stride: u32) {
  let block = load_block(weights_at);
  let gains = load_gains(step);
  (*sums).r0 = add_row((*sums).r0, block, scales, gains, at);
  (*sums).r1 = add_row((*sums).r1, block, scales, gains, at + stride);
  (*sums).r2 = add_row((*sums).r2, block, scales, gains, at + 2u * stride);
  (*sums).r3 = add_row((*sums).r3, block, scales, gains, at + 3u * stride);
}

fn emit_rows(sums: Sums, row: u32, quad: u32) {
  let f0 = input_factor(sums.r0.squares);
  let f1 = input_factor(sums.r1.squares);
  let f2 = input_factor(sums.r2.squares);
  let f3 = input_factor(sums.r3.squares);
  var outputs = array<vec4f, ROWS * QUADS>(
    sums.r0.q0 * f0, sums.r0.q1 * f0, sums.r0.q2 * f0, sums.r0.q3 * f0,
    sums.r1.q0 * f1, sums.r1.q1 * f1, sums.r1.q2 * f1, sums.r1.q3 * f1,
    sums.r2.q0 * f2, sums.r2.q1 * f2, sums.r2.q2 * f2, sums.r2.q3 * f2,
    sums.r3.q0 * f3, sums.r3.q1 * f3, sums.r3.q2 * f3, sums.r3.q3 * f3);
  emit_tile(&outputs, row, quad);
}
