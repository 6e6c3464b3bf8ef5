// The rows of a register tile: each thread carries 1 row, so that every weight is loaded and unpacked once for it.
// Swapped against its siblings by import; a row's sum is the same in each.

const ROWS = 1u;

struct Sums { r0: Outputs }
struct Moments { r0: Moment }

fn add_step(sums: ptr<function, Sums>, moments: ptr<function, Moments>, at: u32, stride: u32, weights: Weights, gain: Octet) {
  let x0 = load_input(at, gain, (*moments).r0);
  (*sums).r0 = multiply((*sums).r0, weights, x0.octet);
  (*moments).r0 = x0.moment;
}

#import "lib/block_unrolled.wgsl"

fn finish_block(total: ptr<function, Sums>, block: ptr<function, Sums>, moments: ptr<function, Moments>, scales: Scales) {
  (*total).r0 = apply_scales((*total).r0, (*block).r0, scales, (*moments).r0.sum);
  (*moments).r0.sum = 0.0;
}

fn emit_rows(total: Sums, moments: Moments, row: u32, quad: u32) {
  var outputs = array<Outputs, ROWS>(total.r0);
  let factors = array<f32, ROWS>(input_factor(moments.r0));
  emit_tile(&outputs, factors, row, quad);
}
