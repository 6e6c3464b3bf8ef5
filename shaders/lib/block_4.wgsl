// A block of four steps: 32 weights of every output.

struct Block { s0: Weights, s1: Weights, s2: Weights, s3: Weights }
struct Gains { s0: Part, s1: Part, s2: Part, s3: Part }

fn load_block(at: u32) -> Block {
  return Block(load_weights(at), load_weights(at + WORDS_PER_STEP * TILES), load_weights(at + 2u * WORDS_PER_STEP * TILES), load_weights(at + 3u * WORDS_PER_STEP * TILES));
}

fn load_gains(step: u32) -> Gains {
  return Gains(load_gain(step), load_gain(step + 1u), load_gain(step + 2u), load_gain(step + 3u));
}

fn add_row(row: Row, block: Block, scales: Scales, gains: Gains, at: u32) -> Row {
  let i0 = load_input(at, gains.s0);
  let i1 = load_input(at + 1u, gains.s1);
  let i2 = load_input(at + 2u, gains.s2);
  let i3 = load_input(at + 3u, gains.s3);
  let x0 = spread(i0.part);
  let x1 = spread(i1.part);
  let x2 = spread(i2.part);
  let x3 = spread(i3.part);
  let input_sum = joined(i0.sum + i1.sum + i2.sum + i3.sum);
  let start = (top(x0) + top(x1) + top(x2) + top(x3)) * TOP_BIT;
  return Row(
    apply_scale(row.q0, dot_block(start, block.s0.q0, block.s1.q0, block.s2.q0, block.s3.q0, x0, x1, x2, x3), scales.q0, input_sum),
    apply_scale(row.q1, dot_block(start, block.s0.q1, block.s1.q1, block.s2.q1, block.s3.q1, x0, x1, x2, x3), scales.q1, input_sum),
    apply_scale(row.q2, dot_block(start, block.s0.q2, block.s1.q2, block.s2.q2, block.s3.q2, x0, x1, x2, x3), scales.q2, input_sum),
    apply_scale(row.q3, dot_block(start, block.s0.q3, block.s1.q3, block.s2.q3, block.s3.q3, x0, x1, x2, x3), scales.q3, input_sum),
    row.squares + (i0.squares + i1.squares + i2.squares + i3.squares));
}

fn dot_block(start: f32, w0: Step, w1: Step, w2: Step, w3: Step, x0: Octet, x1: Octet, x2: Octet, x3: Octet) -> vec4f {
  return vec4f(
    dot_x(dot_x(dot_x(dot_x(start, w0, x0), w1, x1), w2, x2), w3, x3),
    dot_y(dot_y(dot_y(dot_y(start, w0, x0), w1, x1), w2, x2), w3, x3),
    dot_z(dot_z(dot_z(dot_z(start, w0, x0), w1, x1), w2, x2), w3, x3),
    dot_w(dot_w(dot_w(dot_w(start, w0, x0), w1, x1), w2, x2), w3, x3));
}
