// Unpacking of 16-bit weights. Expects `even` and `odd`: the floats in the lower and the upper halves of four words.

const STEPS_PER_BLOCK = 1u;
const WORDS_PER_STEP = 4u;
const SCALE_WORDS = 0u;
const LOW_FACTORS = vec4f(1.0);
const HIGH_FACTORS = vec4f(1.0);

fn load_weights(at: u32) -> Weights {
  let a = weights[at];
  let b = weights[at + TILES];
  let c = weights[at + 2u * TILES];
  let d = weights[at + 3u * TILES];
  return Weights(
    unpack(a.q[0], b.q[0], c.q[0], d.q[0]),
    unpack(a.q[1], b.q[1], c.q[1], d.q[1]),
    unpack(a.q[2], b.q[2], c.q[2], d.q[2]),
    unpack(a.q[3], b.q[3], c.q[3], d.q[3]));
}

fn unpack(a: vec4u, b: vec4u, c: vec4u, d: vec4u) -> Step {
  return Step(even(a), odd(a), even(b), odd(b), even(c), odd(c), even(d), odd(d));
}

fn load_scales(at: u32) -> Scales {
  let one = load_scale(at, 0u);
  return Scales(one, one, one, one);
}

fn load_scale(at: u32, quad: u32) -> Scale {
  return Scale(vec4f(1.0), vec4f(0.0));
}

fn add_top(sum: f32, x: Octet) -> f32 {
  return sum;
}

fn quant(at: u32, quad: u32, output: u32, k: u32) -> f32 {
  let word = weights[at + (k >> 1u) * TILES].q[quad];
  return select(even(word), odd(word), (k & 1u) == 1u)[output];
}
