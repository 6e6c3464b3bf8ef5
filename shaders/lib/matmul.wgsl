// outputs[row] = weights . inputs[row] for a few rows: the one matrix product of the project, for one row as for many.
//
// A thread keeps a register tile of ROWS rows x QUADS quads (a quad = 4 neighbouring outputs) and walks k from front to back,
// eight weights (a step) at a time. There is no barrier and no workgroup memory: on software adapters both cost more than
// the arithmetic, and a row's order of summation cannot depend on how many rows there are.
//
// A quantised block contributes scale * sum(quant * x) + minimum * sum(x), so scale and minimum are applied once a block.
//
// Expects from its importer: `shape`, `state`, `weights`, and `fn emit(row: u32, quad: u32, value: vec4f)`; and the
// imports `weights` (format), `input` (plain or normed), `quads` and `rows` (the tile).
#import "lib/packed.wgsl"

// Eight consecutive inputs of a row.
struct Octet { low: vec4f, high: vec4f }
// What is summed of a row's inputs on the way: of the current block, and of the squares of all of them.
struct Moment { sum: f32, squares: f32 }
struct Input { octet: Octet, moment: Moment }

#import input
#import quads
#import rows

fn dot_step(sum: vec4f, w: Step, x: Octet) -> vec4f {
  return sum + w.k0 * x.low.x + w.k1 * x.low.y + w.k2 * x.low.z + w.k3 * x.low.w
    + w.k4 * x.high.x + w.k5 * x.high.y + w.k6 * x.high.z + w.k7 * x.high.w;
}

fn apply_scale(total: vec4f, block: vec4f, scale: Scale, input_sum: f32) -> vec4f {
  if (SCALE_WORDS == 0u) {
    return total + block;
  }
  return total + block * scale.scale + scale.minimum * input_sum;
}

fn emit_if_inside(row: u32, quad: u32, value: vec4f) {
  if (quad < shape.quads) {
    emit(row, shape.first_quad + quad, value);
  }
}

fn emit_row(row: u32, quad: u32, outputs: Outputs, moment: Moment) {
  if (row < state.rows) {
    emit_outputs(row, quad, outputs, input_factor(moment));
  }
}

// The tile of thread `tile` (along the outputs) for the rows from `row` on.
fn matmul(tile: u32, row: u32) {
  let quad = tile * QUADS;
  if (quad >= shape.quads || row >= state.rows || state.finish != 0u) {
    return;
  }
  let base = quad / LANES * shape.group_stride + quad % LANES;
  let scales = base + shape.blocks * STEPS_PER_BLOCK * WORDS_PER_STEP * LANES;
  var total = Sums();
  var moments = Moments();
  for (var block = 0u; block < shape.blocks; block++) {
    var sums = Sums();
    for (var s = 0u; s < STEPS_PER_BLOCK; s++) {
      let step = block * STEPS_PER_BLOCK + s;
      add_step(&sums, &moments, row, step, load_weights(base + step * WORDS_PER_STEP * LANES), load_gain(step));
    }
    finish_block(&total, &sums, &moments, load_scales(scales + block * SCALE_WORDS * LANES));
  }
  emit_rows(total, moments, row, quad);
}
