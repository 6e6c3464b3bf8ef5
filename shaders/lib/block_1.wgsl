// A block of one step: 8 weights of every output, for formats without scales.

struct Block { s0: Weights }
struct Gains { s0: Part }

fn load_block(at: u32) -> Block {
  return Block(load_weights(at));
}

fn load_gains(step: u32) -> Gains {
  return Gains(load_gain(step));
}

fn add_row(row: Row, block: Block, scales: Scales, gains: Gains, at: u32) -> Row {
  let i0 = load_input(at, gains.s0);
  let x0 = spread(i0.part);
  let input_sum = joined(i0.sum);
  let start = (top(x0)) * TOP_BIT;
  return Row(
    apply_scale(row.q0, dot_block(start, block.s0.q0, x0), scales.q0, input_sum),
    apply_scale(row.q1, dot_block(start, block.s0.q1, x0), scales.q1, input_sum),
    apply_scale(row.q2, dot_block(start, block.s0.q2, x0), scales.q2, input_sum),
    apply_scale(row.q3, dot_block(start, block.s0.q3, x0), scales.q3, input_sum),
    row.squares + i0.squares);
}

fn dot_block(start: f32, w0: Step, x0: Octet) -> vec4f {
  return vec4f(
    dot_x(start, w0, x0),
    dot_y(start, w0, x0),
    dot_z(start, w0, x0),
    dot_w(start, w0, x0));
}
