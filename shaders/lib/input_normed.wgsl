// Inputs of a matrix product after RMSNorm (Zhang & Sennrich 2019), without a pass of its own: the gain is applied on the way
// in, the squares are summed along, and 1/rms multiplies the finished outputs. Costs two multiplications an input and row,
// saves a dispatch and a round trip through memory. Expects `inputs: array<vec4f>` and `vectors: array<vec4f>` (gain first).

fn load_gain(step: u32) -> Octet {
  return Octet(vectors[step * 2u], vectors[step * 2u + 1u]);
}

fn load_input(row: u32, step: u32, gain: Octet, moment: Moment) -> Input {
  let at = row * shape.input_stride + step * 2u;
  let low = inputs[at];
  let high = inputs[at + 1u];
  let low_gained = low * gain.low;
  let high_gained = high * gain.high;
  let sum = low_gained + high_gained;
  let squares = low * low + high * high;
  return Input(
    Octet(low_gained * LOW_FACTORS, high_gained * HIGH_FACTORS),
    Moment(moment.sum + (sum.x + sum.y) + (sum.z + sum.w), moment.squares + (squares.x + squares.y) + (squares.z + squares.w)));
}

fn input_factor(moment: Moment) -> f32 {
  return inverseSqrt(moment.squares / f32(shape.columns) + shape.epsilon);
}
