// Unpacking of 8-bit weights: four in a word, the lowest k in the lowest bits, unsigned.
// As with nibbles.wgsl, bytes are converted where they stand and the activations carry the factor 256^-i; the topmost byte is
// 128 too small, and `add_top` tells which inputs the product must add 128 times.

const WORDS_PER_STEP = 2u;
const LOW_FACTORS = vec4f(1.0, 0x1p-8, 0x1p-16, 0x1p-24);
const HIGH_FACTORS = LOW_FACTORS;
const TOP = -0x80000000;
const TOP_BYTE = -0x1000000;

fn load_weights(at: u32) -> Weights {
  let low = weights[at];
  let high = weights[at + TILES];
  return Weights(
    unpack(low.q[0], high.q[0]), unpack(low.q[1], high.q[1]), unpack(low.q[2], high.q[2]), unpack(low.q[3], high.q[3]));
}

fn unpack(low: vec4u, high: vec4u) -> Step {
  let p = bitcast<vec4i>(low);
  let q = bitcast<vec4i>(high);
  return Step(
    vec4f(p & vec4i(0xff)), vec4f(p & vec4i(0xff00)), vec4f(p & vec4i(0xff0000)), vec4f((p & vec4i(TOP_BYTE)) ^ vec4i(TOP)),
    vec4f(q & vec4i(0xff)), vec4f(q & vec4i(0xff00)), vec4f(q & vec4i(0xff0000)), vec4f((q & vec4i(TOP_BYTE)) ^ vec4i(TOP)));
}

fn add_top(sum: f32, x: Octet) -> f32 {
  return sum + x.low.w + x.high.w;
}

fn row_quants(at: u32, quad: u32, output: u32) -> Octet {
  return Octet(bytes_of(weights[at].q[quad][output]), bytes_of(weights[at + TILES].q[quad][output]));
}

fn bytes_of(word: u32) -> vec4f {
  return vec4f(vec4i((vec4u(word) >> vec4u(0u, 8u, 16u, 24u)) & vec4u(0xffu)));
}
