// A block of two steps: 16 weights of every output.

struct Block { s0: Weights, s1: Weights }
struct Gains { s0: Part, s1: Part }

fn load_block(at: u32) -> Block {
  return Block(load_weights(at), load_weights(at + WORDS_PER_STEP * TILES));
}

fn load_gains(step: u32) -> Gains {
  return Gains(load_gain(step), load_gain(step + 1u));
}

fn add_row(row: Row, block: Block, scales: Scales, gains: Gains, at: u32) -> Row {
  let i0 = load_input(at, gains.s0);
  let i1 = load_input(at + 1u, gains.s1);
  let x0 = spread(i0.part);
  let x1 = spread(i1.part);
  let input_sum = joined(i0.sum + i1.sum);
  let start = (top(x0) + top(x1)) * TOP_BIT;
  return Row(
    apply_scale(row.q0, dot_block(start, block.s0.q0, block.s1.q0, x0, x1), scales.q0, input_sum),
    apply_scale(row.q1, dot_block(start, block.s0.q1, block.s1.q1, x0, x1), scales.q1, input_sum),
    apply_scale(row.q2, dot_block(start, block.s0.q2, block.s1.q2, x0, x1), scales.q2, input_sum),
    apply_scale(row.q3, dot_block(start, block.s0.q3, block.s1.q3, x0, x1), scales.q3, input_sum),
    row.squares + (i0.squares + i1.squares));
}

fn dot_block(start: f32, w0: Step, w1: Step, x0: Octet, x1: Octet) -> vec4f {
  return vec4f(
    dot_x(dot_x(start, w0, x0), w1, x1),
    dot_y(dot_y(start, w0, x0), w1, x1),
    dot_z(dot_z(start, w0, x0), w1, x1),
    dot_w(dot_w(start, w0, x0), w1, x1));
}
