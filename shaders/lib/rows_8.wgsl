// The rows of a register tile: each thread carries 8 rows, so that every weight is loaded and unpacked once for all of them.
// Swapped against its siblings by import; a row's sum is the same in each.
#import block

const ROWS = 8u;

struct Sums { r0: Row, r1: Row, r2: Row, r3: Row, r4: Row, r5: Row, r6: Row, r7: Row }

fn add_block(sums: ptr<function, Sums>, scales: Scales, weights_at: u32, step: u32, at: u32, stride: u32) {
  let block = load_block(weights_at);
  let gains = load_gains(step);
  (*sums).r0 = add_row((*sums).r0, block, scales, gains, at);
  (*sums).r1 = add_row((*sums).r1, block, scales, gains, at + stride);
  (*sums).r2 = add_row((*sums).r2, block, scales, gains, at + 2u * stride);
  (*sums).r3 = add_row((*sums).r3, block, scales, gains, at + 3u * stride);
  (*sums).r4 = add_row((*sums).r4, block, scales, gains, at + 4u * stride);
  (*sums).r5 = add_row((*sums).r5, block, scales, gains, at + 5u * stride);
  (*sums).r6 = add_row((*sums).r6, block, scales, gains, at + 6u * stride);
  (*sums).r7 = add_row((*sums).r7, block, scales, gains, at + 7u * stride);
}

fn emit_rows(sums: Sums, row: u32, quad: u32) {
  let f0 = input_factor(sums.r0.squares);
  let f1 = input_factor(sums.r1.squares);
  let f2 = input_factor(sums.r2.squares);
  let f3 = input_factor(sums.r3.squares);
  let f4 = input_factor(sums.r4.squares);
  let f5 = input_factor(sums.r5.squares);
  let f6 = input_factor(sums.r6.squares);
  let f7 = input_factor(sums.r7.squares);
  var outputs = array<vec4f, ROWS * QUADS>(
    sums.r0.q0 * f0, sums.r0.q1 * f0, sums.r0.q2 * f0, sums.r0.q3 * f0,
    sums.r1.q0 * f1, sums.r1.q1 * f1, sums.r1.q2 * f1, sums.r1.q3 * f1,
    sums.r2.q0 * f2, sums.r2.q1 * f2, sums.r2.q2 * f2, sums.r2.q3 * f2,
    sums.r3.q0 * f3, sums.r3.q1 * f3, sums.r3.q2 * f3, sums.r3.q3 * f3,
    sums.r4.q0 * f4, sums.r4.q1 * f4, sums.r4.q2 * f4, sums.r4.q3 * f4,
    sums.r5.q0 * f5, sums.r5.q1 * f5, sums.r5.q2 * f5, sums.r5.q3 * f5,
    sums.r6.q0 * f6, sums.r6.q1 * f6, sums.r6.q2 * f6, sums.r6.q3 * f6,
    sums.r7.q0 * f7, sums.r7.q1 * f7, sums.r7.q2 * f7, sums.r7.q3 * f7);
  emit_tile(&outputs, row, quad);
}
