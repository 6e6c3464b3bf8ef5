// The rows of a register tile: each thread carries 8 rows, so that every weight is loaded and unpacked once for all of them.
// Swapped against its siblings by import; a row's sum is the same in each.

const ROWS = 8u;

struct Sums { r0: Outputs, r1: Outputs, r2: Outputs, r3: Outputs, r4: Outputs, r5: Outputs, r6: Outputs, r7: Outputs }
struct Moments { r0: Moment, r1: Moment, r2: Moment, r3: Moment, r4: Moment, r5: Moment, r6: Moment, r7: Moment }

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
  let x4 = load_input(at + 4u * stride, gain, (*moments).r4);
  (*sums).r4 = multiply((*sums).r4, weights, x4.octet);
  (*moments).r4 = x4.moment;
  let x5 = load_input(at + 5u * stride, gain, (*moments).r5);
  (*sums).r5 = multiply((*sums).r5, weights, x5.octet);
  (*moments).r5 = x5.moment;
  let x6 = load_input(at + 6u * stride, gain, (*moments).r6);
  (*sums).r6 = multiply((*sums).r6, weights, x6.octet);
  (*moments).r6 = x6.moment;
  let x7 = load_input(at + 7u * stride, gain, (*moments).r7);
  (*sums).r7 = multiply((*sums).r7, weights, x7.octet);
  (*moments).r7 = x7.moment;
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
  (*total).r4 = apply_scales((*total).r4, (*block).r4, scales, (*moments).r4.sum);
  (*moments).r4.sum = 0.0;
  (*total).r5 = apply_scales((*total).r5, (*block).r5, scales, (*moments).r5.sum);
  (*moments).r5.sum = 0.0;
  (*total).r6 = apply_scales((*total).r6, (*block).r6, scales, (*moments).r6.sum);
  (*moments).r6.sum = 0.0;
  (*total).r7 = apply_scales((*total).r7, (*block).r7, scales, (*moments).r7.sum);
  (*moments).r7.sum = 0.0;
}

fn emit_rows(total: Sums, moments: Moments, row: u32, quad: u32) {
  var outputs = array<Outputs, ROWS>(total.r0, total.r1, total.r2, total.r3, total.r4, total.r5, total.r6, total.r7);
  let factors = array<f32, ROWS>(input_factor(moments.r0), input_factor(moments.r1), input_factor(moments.r2), input_factor(moments.r3), input_factor(moments.r4), input_factor(moments.r5), input_factor(moments.r6), input_factor(moments.r7));
  emit_tile(&outputs, factors, row, quad);
}
