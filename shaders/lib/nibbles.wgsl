// Unpacking of 4-bit weights: eight in a word, the lowest k in the lowest bits, unsigned.
// A nibble is not shifted down but converted where it stands, 16^i times too large; the activations carry the factor 16^-i
// (a power of two, so nothing is rounded). That and the signed conversion (one instruction where the unsigned one takes
// several) made a product on a software adapter 1.7 times faster. The topmost nibble would be negative from 8 on, and a shift costs
// such an adapter 35 instructions: its highest bit is flipped instead, which makes it 8 too small, and `add_top` tells which input
// the product must add eight times.

const WORDS_PER_STEP = 1u;
const LOW_FACTORS = vec4f(1.0, 0x1p-4, 0x1p-8, 0x1p-12);
const HIGH_FACTORS = vec4f(0x1p-16, 0x1p-20, 0x1p-24, 0x1p-28);
const TOP = -0x80000000;
const TOP_NIBBLE = -0x10000000;

fn load_weights(at: u32) -> Weights {
  let words = weights[at];
  return Weights(unpack(words.q[0]), unpack(words.q[1]), unpack(words.q[2]), unpack(words.q[3]));
}

fn unpack(word: vec4u) -> Step {
  let q = bitcast<vec4i>(word);
  return Step(
    vec4f(q & vec4i(0xf)), vec4f(q & vec4i(0xf0)), vec4f(q & vec4i(0xf00)), vec4f(q & vec4i(0xf000)),
    vec4f(q & vec4i(0xf0000)), vec4f(q & vec4i(0xf00000)), vec4f(q & vec4i(0xf000000)),
    vec4f((q & vec4i(TOP_NIBBLE)) ^ vec4i(TOP)));
}

fn add_top(sum: f32, x: Octet) -> f32 {
  return sum + x.high.w;
}

fn row_quants(at: u32, quad: u32, output: u32) -> Octet {
  let word = weights[at].q[quad][output];
  return Octet(nibbles_of(word & 0xffffu), nibbles_of(word >> 16u));
}

fn nibbles_of(word: u32) -> vec4f {
  return vec4f(vec4i((vec4u(word) >> vec4u(0u, 4u, 8u, 12u)) & vec4u(0xfu)));
}
