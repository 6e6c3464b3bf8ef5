// Inputs of a matrix product as they are. Expects `inputs: array<vec4f>`.

fn load_gain(step: u32) -> Octet {
  return Octet(LOW_FACTORS, HIGH_FACTORS);
}

fn load_input(row: u32, step: u32, gain: Octet, moment: Moment) -> Input {
  let at = row * shape.input_stride + step * 2u;
  let low = inputs[at];
  let high = inputs[at + 1u];
  let sum = low + high;
  return Input(Octet(low * gain.low, high * gain.high), Moment(moment.sum + (sum.x + sum.y) + (sum.z + sum.w), 0.0));
}

fn input_factor(moment: Moment) -> f32 {
  return 1.0;
}
