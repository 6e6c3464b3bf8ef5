// The rows of a register tile: each thread carries 4 rows, so that every weight is loaded and unpacked once for all of them.
// Swapped against its siblings by import; a row's sum is the same in each.

const ROWS = 4u;

struct Sums { r0: Outputs, r1: Outputs, r2: Outputs, r3: Outputs }
struct Moments { r0: Moment, r1: Moment, r2: Moment, r3: Moment }

fn add_step(sums: ptr<function, Sums>, moments: ptr<function, Moments>, at: u32, stride: u32, weights: Weights, gain: Octet) {
  let x0 = load_input(at, gain, (*moments).r0);
  (*sums).r0 = multiply((*sums).r0, weights, x0.octet);
  (*moments).r0 = x0.moment;
  let x1 = load_input(at + stride, gain, (*moments).r1);
  (*sums).r1 = multiply((*sums).r1, weights, x1.octet);
  (*moments).r1 = x1.moment;
  let x2 = load_input(at + 2u * stride, gain, (*moments).r2);
  (*sums).r2 = multiply((*sums).r2, weights, x2.octet);
  (*moments).r2 = x2.moment;
  let x3 = load_input(at + 3u * stride, gain, (*moments).r3);
  (*sums).r3 = multiply((*sums).r3, weights, x3.octet);
  (*moments).r3 = x3.moment;
}

#import "lib/block_loop.wgsl"

fn finish_block(total: ptr<function, Sums>, block: ptr<function, Sums>, moments: ptr<function, Moments>, scales: Scales) {
  (*total).r0 = apply_scales((*total).r0, (*block).r0, scales, (*moments).r0.sum);
  (*moments).r0.sum = 0.0;
  (*total).r1 = apply_scales((*total).r1, (*block).r1, scales, (*moments).r1.sum);
  (*moments).r1.sum = 0.0;
  (*total).r2 = apply_scales((*total).r2, (*block).r2, scales, (*moments).r2.sum);
  (*moments).r2.sum = 0.0;
  (*total).r3 = apply_scales((*total).r3, (*block).r3, scales, (*moments).r3.sum);
  (*moments).r3.sum = 0.0;
}

fn emit_rows(total: Sums, moments: Moments, row: u32, quad: u32) {
  var outputs = array<Outputs, ROWS>(total.r0, total.r1, total.r2, total.r3);
  let factors = array<f32, ROWS>(input_factor(moments.r0), input_factor(moments.r1), input_factor(moments.r2), input_factor(moments.r3));
  emit_tile(&outputs, factors, row, quad);
}
