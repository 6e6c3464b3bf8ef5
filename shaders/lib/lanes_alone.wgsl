// Every invocation loads the inputs of its rows itself.

// What an invocation loads of a step's inputs: all eight.
alias Part = Octet;

fn take_place(thread: u32) {}

fn load_part(at: u32) -> Part {
  return inputs[at];
}

fn part_of(low: vec4f, high: vec4f) -> Part {
  return Octet(low, high);
}

fn product(a: Part, b: Part) -> Part {
  return Octet(a.low * b.low, a.high * b.high);
}

fn add_part(sum: f32, x: Part) -> f32 {
  let pairs = x.low + x.high;
  return sum + pairs.x + pairs.y + pairs.z + pairs.w;
}

// The inputs as the weights of this invocation want them.
fn spread(x: Part) -> Octet {
  return Octet(x.low * LOW_FACTORS, x.high * HIGH_FACTORS);
}

// A sum over parts, as a sum over all inputs.
fn joined(sum: f32) -> f32 {
  return sum;
}
