// outputs[row] = weights . inputs[row] for a few rows: the one matrix product of the project, for one row as for many.
//
// A thread keeps a register tile of ROWS rows x 16 outputs (four quads) and walks k from front to back, a block at a time: the
// block's weights are loaded and unpacked once, then each row's inputs are loaded and multiplied by them. There is no barrier and
// no workgroup memory: on software adapters both cost more than the arithmetic, and a row's order of summation cannot depend on
// how many rows there are.
//
// A quantised block contributes scale * sum(quant * x) + minimum * sum(x), so scale and minimum are applied once a block.
//
// The shape of the code is that of a product on a software adapter, where it matters most (ARCHITECTURE.md has the reasons):
// sums are written output by output and in scalars, every row is written out, and the loops test their condition at the end.
//
// Expects from its importer: `shape`, `state`, `weights`, `inputs: array<Octet>`, and
// `fn emit(row: u32, quad: u32, value: vec4f)`; and the imports `weights` (format), `lanes` (who loads the inputs), `input`
// (plain or normed) and `rows` (rows of the tile).
#import "lib/packed.wgsl"

// A row's 16 outputs so far, and the sum of the squares of its inputs.
struct Row { q0: vec4f, q1: vec4f, q2: vec4f, q3: vec4f, squares: f32 }

// What a block needs of a row's inputs besides their products: their sum, and 2^31 times the sum of those whose quants are converted
// as signed numbers (`add_top` in bytes.wgsl and nibbles.wgsl).
struct Moment { sum: f32, top: f32 }
const TOP_BIT = 0x1p31;

// What is summed of a row's inputs on the way: those of the block, and the squares of all.
struct InputSums { sum: f32, squares: f32 }
// A step's inputs as they are loaded, and the sums up to them. Sums are chains, not trees: a compiler may rearrange a tree, and not
// alike for every number of rows.
struct Input { part: Part, sums: InputSums }

#import lanes
#import input

// The sum of one output of a quad, over the eight k of a step.
fn dot_x(sum: f32, w: Step, x: Octet) -> f32 {
  return sum + w.k0.x * x.low.x + w.k1.x * x.low.y + w.k2.x * x.low.z + w.k3.x * x.low.w
    + w.k4.x * x.high.x + w.k5.x * x.high.y + w.k6.x * x.high.z + w.k7.x * x.high.w;
}

fn dot_y(sum: f32, w: Step, x: Octet) -> f32 {
  return sum + w.k0.y * x.low.x + w.k1.y * x.low.y + w.k2.y * x.low.z + w.k3.y * x.low.w
    + w.k4.y * x.high.x + w.k5.y * x.high.y + w.k6.y * x.high.z + w.k7.y * x.high.w;
}

fn dot_z(sum: f32, w: Step, x: Octet) -> f32 {
  return sum + w.k0.z * x.low.x + w.k1.z * x.low.y + w.k2.z * x.low.z + w.k3.z * x.low.w
    + w.k4.z * x.high.x + w.k5.z * x.high.y + w.k6.z * x.high.z + w.k7.z * x.high.w;
}

fn dot_w(sum: f32, w: Step, x: Octet) -> f32 {
  return sum + w.k0.w * x.low.x + w.k1.w * x.low.y + w.k2.w * x.low.z + w.k3.w * x.low.w
    + w.k4.w * x.high.x + w.k5.w * x.high.y + w.k6.w * x.high.z + w.k7.w * x.high.w;
}

fn apply_scale(total: vec4f, block: vec4f, scale: Scale, moment: Moment) -> vec4f {
  if (SCALE_WORDS == 0u) {
    return total + block;
  }
  return total + (block + moment.top) * scale.scale + scale.minimum * moment.sum;
}

#import rows

// Hands every output of the tile to `emit`. A loop, not one call for each: `emit` is compiled once, which on a software adapter is
// most of a second less at load.
fn emit_tile(outputs: ptr<function, array<vec4f, ROWS * QUADS>>, row: u32, quad: u32) {
  let count = min(ROWS, pass_rows() - row) * QUADS;
  var i = 0u;
  loop {
    let at = quad + (i & (QUADS - 1u));
    if (at < shape.quads) {
      emit(row + i / QUADS, shape.first_quad + at, (*outputs)[i]);
    }
    continuing {
      i++;
      break if i >= count;
    }
  }
}

// The tile of thread `thread` (along the outputs) for the rows from `row` on, which must be the same for the whole workgroup.
fn matmul(thread: u32, row: u32) {
  if (row >= pass_rows() || state.finish != 0u) {
    return;
  }
  // Threads past the last tile take it too and emit nothing: all of them must reach the exchanges of lanes_quad.wgsl.
  let tile = min(thread, (shape.quads - 1u) / QUADS);
  take_place(thread);
  // Read once: a load costs as much in the loop as the weights it serves.
  let blocks = shape.blocks;
  let stride = shape.input_stride;
  let base = tile_base(tile);
  let scales = base + blocks * STEPS_PER_BLOCK * WORDS_PER_STEP * TILES;
  var sums = Sums();
  var block = 0u;
  loop {
    let step = block * STEPS_PER_BLOCK;
    let scale = load_scales(scales + block * SCALE_WORDS * TILES);
    add_block(&sums, scale, base + step * WORDS_PER_STEP * TILES, step, row * stride + step, stride);
    continuing {
      block++;
      break if block >= blocks;
    }
  }
  emit_rows(sums, row, thread * QUADS);
}
