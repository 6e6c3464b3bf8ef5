// bfloat16: two weights a word, the lower k in the lower half; the upper half of a 32-bit float each; no scales.

const STEPS_PER_BLOCK = 1u;
const WORDS_PER_STEP = 4u;
const SCALE_WORDS = 0u;
const LOW_FACTORS = vec4f(1.0);
const HIGH_FACTORS = vec4f(1.0);

fn unpack_step(at: u32) -> Step {
  let a = weights[at];
  let b = weights[at + LANES];
  let c = weights[at + 2u * LANES];
  let d = weights[at + 3u * LANES];
  return Step(even(a), odd(a), even(b), odd(b), even(c), odd(c), even(d), odd(d));
}

fn even(word: vec4u) -> vec4f {
  return bitcast<vec4f>(word << vec4u(16u));
}

fn odd(word: vec4u) -> vec4f {
  return bitcast<vec4f>(word & vec4u(0xffff0000u));
}

fn load_scale(at: u32) -> Scale {
  return Scale(vec4f(1.0), vec4f(0.0));
}

fn quant_in_step(at: u32, output: u32, k: u32) -> f32 {
  let word = weights[at + (k >> 1u) * LANES][output];
  return bitcast<f32>(select(word << 16u, word & 0xffff0000u, (k & 1u) == 1u));
}
