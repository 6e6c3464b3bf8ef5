// Inputs of a matrix product as they are.

// A step's inputs on the way in: what is multiplied by the weights, and the sums that are taken along.
struct Input { part: Part, sum: f32, squares: f32 }

fn load_gain(step: u32) -> Part {
  return part_of(vec4f(1.0), vec4f(1.0));
}

fn load_input(at: u32, gain: Part) -> Input {
  let x = load_part(at);
  return Input(x, part_sum(x), 0.0);
}

fn input_factor(squares: f32) -> f32 {
  return 1.0;
}
