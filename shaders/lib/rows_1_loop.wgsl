// The register tile of one row where neighbours share loads. The steps of a block are a loop, which takes a seventh less time there
// and a third of the time to compile. Elsewhere a compiler may fuse or rearrange what it finds in a loop otherwise than what is
// written out for several rows (Mesa's does); those that share loads do neither.
// Swapped against its siblings by import; a row's sum is the same in each.

const ROWS = 1u;

struct Sums { r0: Row }

fn add_block(sums: ptr<function, Sums>, scales: Scales, weights_at: u32, step: u32, at: u32, stride: u32) {
  var q0 = vec4f();
  var q1 = vec4f();
  var q2 = vec4f();
  var q3 = vec4f();
  let row = (*sums).r0;
  var input_sums = InputSums(0.0, row.squares);
  var top = 0.0;
  var s = 0u;
  loop {
    let w = load_weights(weights_at + s * WORDS_PER_STEP * TILES);
    let input = load_input(at + s, load_gain(step + s), input_sums);
    let x = spread(input.part);
    q0 = dot_quad(q0, w.q0, x);
    q1 = dot_quad(q1, w.q1, x);
    q2 = dot_quad(q2, w.q2, x);
    q3 = dot_quad(q3, w.q3, x);
    input_sums = input.sums;
    top = add_top(top, x);
    continuing {
      s++;
      break if s >= STEPS_PER_BLOCK;
    }
  }
  let moment = Moment(joined(input_sums.sum), top * TOP_BIT);
  (*sums).r0 = Row(
    apply_scale(row.q0, q0, scales.q0, moment), apply_scale(row.q1, q1, scales.q1, moment),
    apply_scale(row.q2, q2, scales.q2, moment), apply_scale(row.q3, q3, scales.q3, moment),
    input_sums.squares);
}

fn dot_quad(sum: vec4f, w: Step, x: Octet) -> vec4f {
  return vec4f(dot_x(sum.x, w, x), dot_y(sum.y, w, x), dot_z(sum.z, w, x), dot_w(sum.w, w, x));
}

fn emit_rows(sums: Sums, row: u32, quad: u32) {
  let f0 = input_factor(sums.r0.squares);
  var outputs = array<vec4f, ROWS * QUADS>(
    sums.r0.q0 * f0, sums.r0.q1 * f0, sums.r0.q2 * f0, sums.r0.q3 * f0);
  emit_tile(&outputs, row, quad);
}
