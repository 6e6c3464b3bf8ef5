// Inputs of a matrix product as they are. Expects `inputs: array<Octet>`.

fn load_gain(step: u32) -> Octet {
  return Octet(LOW_FACTORS, HIGH_FACTORS);
}

fn load_input(at: u32, gain: Octet, moment: Moment) -> Input {
  let x = inputs[at];
  let low = x.low;
  let high = x.high;
  let sum = low + high;
  return Input(Octet(low * gain.low, high * gain.high), Moment(moment.sum + (sum.x + sum.y) + (sum.z + sum.w), 0.0));
}

fn input_factor(moment: Moment) -> f32 {
  return 1.0;
}
