// Inputs of a matrix product after RMSNorm (Zhang & Sennrich 2019), without a pass of its own: the gain is applied on the way
// in, the squares are summed along, and 1/rms multiplies the finished outputs. Costs two multiplications an input and row,
// saves a dispatch and a round trip through memory. Expects `vectors: array<vec4f>` (gain first).

fn load_gain(step: u32) -> Part {
  return part_of(vectors[step * 2u], vectors[step * 2u + 1u]);
}

fn load_input(at: u32, gain: Part, sums: InputSums) -> Input {
  let x = load_part(at);
  let gained = product(x, gain);
  return Input(gained, InputSums(add_part(sums.sum, gained), add_part(sums.squares, product(x, x))));
}

fn input_factor(squares: f32) -> f32 {
  return inverseSqrt(joined(squares) / f32(shape.columns) + shape.epsilon);
}
