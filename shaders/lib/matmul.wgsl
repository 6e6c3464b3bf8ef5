// outputs[row] = weights . inputs[row] for a few rows: the one matrix product of the project, for one row as for many.
//
// A thread keeps a register tile of ROWS rows x 16 outputs (four quads) and walks k from front to back, eight weights (a step) at
// a time. There is no barrier and no workgroup memory: on software adapters both cost more than
// the arithmetic, and a row's order of summation cannot depend on how many rows there are.
//
// A quantised block contributes scale * sum(quant * x) + minimum * sum(x), so scale and minimum are applied once a block.
//
// Expects from its importer: `shape`, `state`, `weights`, and `fn emit(row: u32, quad: u32, value: vec4f)`; and the
// imports `weights` (format), `input` (plain or normed) and `rows` (rows of the tile).
#import "lib/packed.wgsl"

// Eight consecutive inputs of a row.
struct Octet { low: vec4f, high: vec4f }
// What is summed of a row's inputs on the way: of the current block, and of the squares of all of them.
struct Moment { sum: f32, squares: f32 }
struct Input { octet: Octet, moment: Moment }

#import input

// The sums of a row's 16 outputs.
struct Outputs { q0: vec4f, q1: vec4f, q2: vec4f, q3: vec4f }

#import rows

fn multiply(sums: Outputs, weights: Weights, x: Octet) -> Outputs {
  return Outputs(
    dot_step(sums.q0, weights.q0, x), dot_step(sums.q1, weights.q1, x),
    dot_step(sums.q2, weights.q2, x), dot_step(sums.q3, weights.q3, x));
}

fn dot_step(sum: vec4f, w: Step, x: Octet) -> vec4f {
  return sum + w.k0 * x.low.x + w.k1 * x.low.y + w.k2 * x.low.z + w.k3 * x.low.w
    + w.k4 * x.high.x + w.k5 * x.high.y + w.k6 * x.high.z + w.k7 * x.high.w;
}

fn apply_scales(total: Outputs, block: Outputs, scales: Scales, input_sum: f32) -> Outputs {
  return Outputs(
    apply_scale(total.q0, block.q0, scales.q0, input_sum), apply_scale(total.q1, block.q1, scales.q1, input_sum),
    apply_scale(total.q2, block.q2, scales.q2, input_sum), apply_scale(total.q3, block.q3, scales.q3, input_sum));
}

fn apply_scale(total: vec4f, block: vec4f, scale: Scale, input_sum: f32) -> vec4f {
  if (SCALE_WORDS == 0u) {
    return total + block;
  }
  return total + block * scale.scale + scale.minimum * input_sum;
}

// Hands every output of the tile to `emit`. A loop, not one call for each: `emit` is compiled once, which on a software adapter is
// most of a second less at load.
fn emit_tile(outputs: ptr<function, array<Outputs, ROWS>>, factors: array<f32, ROWS>, row: u32, quad: u32) {
  var factor = factors;
  let rows = min(ROWS, pass_rows() - row);
  let quads = min(QUADS, shape.quads - quad);
  for (var r = 0u; r < rows; r++) {
    let sums = (*outputs)[r];
    var values = array<vec4f, QUADS>(sums.q0, sums.q1, sums.q2, sums.q3);
    for (var q = 0u; q < quads; q++) {
      emit(row + r, shape.first_quad + quad + q, values[q] * factor[r]);
    }
  }
}

// The tile of thread `tile` (along the outputs) for the rows from `row` on.
fn matmul(tile: u32, row: u32) {
  let quad = tile * QUADS;
  if (quad >= shape.quads || row >= pass_rows() || state.finish != 0u) {
    return;
  }
  // Read once: a load costs as much in the loop as the weights it serves.
  let blocks = shape.blocks;
  let stride = shape.input_stride;
  let base = tile_base(tile);
  let scales = base + blocks * STEPS_PER_BLOCK * WORDS_PER_STEP * TILES;
  var total = Sums();
  var moments = Moments();
  for (var block = 0u; block < blocks; block++) {
    var sums = Sums();
    let step = block * STEPS_PER_BLOCK;
    add_block(&sums, &moments, base + step * WORDS_PER_STEP * TILES, row * stride + step, stride, step);
    finish_block(&total, &sums, &moments, load_scales(scales + block * SCALE_WORDS * TILES));
  }
  emit_rows(total, moments, row, quad);
}
