// A block of one step, 8 weights of every output, for several rows: the formats without scales.

struct Block { s0: Weights }
struct Gains { s0: Part }

fn load_block(at: u32) -> Block {
  return Block(load_weights(at));
}

fn load_gains(step: u32) -> Gains {
  return Gains(load_gain(step));
}

fn add_row(row: Row, block: Block, scales: Scales, gains: Gains, at: u32) -> Row {
  let i0 = load_input(at, gains.s0, InputSums(0.0, row.squares));
  let x0 = spread(i0.part);
  let moment = Moment(joined(i0.sums.sum), add_top(0.0, x0) * TOP_BIT);
  return Row(
    apply_scale(row.q0, dot_block(block.s0.q0, x0), scales.q0, moment),
    apply_scale(row.q1, dot_block(block.s0.q1, x0), scales.q1, moment),
    apply_scale(row.q2, dot_block(block.s0.q2, x0), scales.q2, moment),
    apply_scale(row.q3, dot_block(block.s0.q3, x0), scales.q3, moment),
    i0.sums.squares);
}

fn dot_block(w0: Step, x0: Octet) -> vec4f {
  return vec4f(
    dot_x(0.0, w0, x0),
    dot_y(0.0, w0, x0),
    dot_z(0.0, w0, x0),
    dot_w(0.0, w0, x0));
}
