// A block of four steps, 32 weights of every output, for several rows.

struct Block { s0: Weights, s1: Weights, s2: Weights, s3: Weights }
struct Gains { s0: Part, s1: Part, s2: Part, s3: Part }

fn load_block(at: u32) -> Block {
  const step = WORDS_PER_STEP * TILES;
  return Block(load_weights(at), load_weights(at + step), load_weights(at + 2u * step), load_weights(at + 3u * step));
}

fn load_gains(step: u32) -> Gains {
  return Gains(load_gain(step), load_gain(step + 1u), load_gain(step + 2u), load_gain(step + 3u));
}

fn add_row(row: Row, block: Block, scales: Scales, gains: Gains, at: u32) -> Row {
  let i0 = load_input(at, gains.s0, InputSums(0.0, row.squares));
  let i1 = load_input(at + 1u, gains.s1, i0.sums);
  let i2 = load_input(at + 2u, gains.s2, i1.sums);
  let i3 = load_input(at + 3u, gains.s3, i2.sums);
  let x0 = spread(i0.part);
  let x1 = spread(i1.part);
  let x2 = spread(i2.part);
  let x3 = spread(i3.part);
  let moment = Moment(joined(i3.sums.sum), add_top(add_top(add_top(add_top(0.0, x0), x1), x2), x3) * TOP_BIT);
  return Row(
    apply_scale(row.q0, dot_block(block.s0.q0, block.s1.q0, block.s2.q0, block.s3.q0, x0, x1, x2, x3), scales.q0, moment),
    apply_scale(row.q1, dot_block(block.s0.q1, block.s1.q1, block.s2.q1, block.s3.q1, x0, x1, x2, x3), scales.q1, moment),
    apply_scale(row.q2, dot_block(block.s0.q2, block.s1.q2, block.s2.q2, block.s3.q2, x0, x1, x2, x3), scales.q2, moment),
    apply_scale(row.q3, dot_block(block.s0.q3, block.s1.q3, block.s2.q3, block.s3.q3, x0, x1, x2, x3), scales.q3, moment),
    i3.sums.squares);
}

fn dot_block(w0: Step, w1: Step, w2: Step, w3: Step, x0: Octet, x1: Octet, x2: Octet, x3: Octet) -> vec4f {
  return vec4f(
    dot_x(dot_x(dot_x(dot_x(0.0, w0, x0), w1, x1), w2, x2), w3, x3),
    dot_y(dot_y(dot_y(dot_y(0.0, w0, x0), w1, x1), w2, x2), w3, x3),
    dot_z(dot_z(dot_z(dot_z(0.0, w0, x0), w1, x1), w2, x2), w3, x3),
    dot_w(dot_w(dot_w(dot_w(0.0, w0, x0), w1, x1), w2, x2), w3, x3));
}
