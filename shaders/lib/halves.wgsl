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
  let one = Scale(vec4f(1.0), vec4f(0.0));
  return Scales(one, one, one, one);
}

fn row_scale(at: u32, quad: u32, output: u32) -> vec2f {
  return vec2f(1.0, 0.0);
}

fn add_top(sum: f32, x: Octet) -> f32 {
  return sum;
}

fn row_quants(at: u32, quad: u32, output: u32) -> Octet {
  let words = vec4u(
    weights[at].q[quad][output], weights[at + TILES].q[quad][output],
    weights[at + 2u * TILES].q[quad][output], weights[at + 3u * TILES].q[quad][output]);
  let x = even(words);
  let y = odd(words);
  return Octet(vec4f(x.x, y.x, x.y, y.y), vec4f(x.z, y.z, x.w, y.w));
}
