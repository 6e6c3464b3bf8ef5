// Unpacking of 8-bit weights: four in a word, the lowest k in the lowest bits, unsigned (a signed value is stored plus 128).
// As with nibbles.wgsl, bytes are converted where they stand and the activations carry the factor 256^-i.

const WORDS_PER_STEP = 2u;
const LOW_FACTORS = vec4f(1.0, 0x1p-8, 0x1p-16, 1.0);
const HIGH_FACTORS = LOW_FACTORS;

fn unpack_step(at: u32) -> Step {
  let low = weights[at];
  let high = weights[at + LANES];
  let p = bitcast<vec4i>(low);
  let q = bitcast<vec4i>(high);
  return Step(
    vec4f(p & vec4i(0xff)), vec4f(p & vec4i(0xff00)), vec4f(p & vec4i(0xff0000)), vec4f(bitcast<vec4i>(low >> vec4u(24u))),
    vec4f(q & vec4i(0xff)), vec4f(q & vec4i(0xff00)), vec4f(q & vec4i(0xff0000)), vec4f(bitcast<vec4i>(high >> vec4u(24u))));
}

fn quant_in_step(at: u32, output: u32, k: u32) -> f32 {
  return f32((weights[at + (k >> 2u) * LANES][output] >> (8u * (k & 3u))) & 0xffu);
}
