// 16-bit floats: two weights a word, the lower k in the lower half; no scales.

const STEPS_PER_BLOCK = 1u;
const WORDS_PER_STEP = 4u;
const SCALE_WORDS = 0u;
const LOW_FACTORS = vec4f(1.0);
const HIGH_FACTORS = vec4f(1.0);

fn unpack_step(at: u32) -> Step {
  let a = pair(weights[at]);
  let b = pair(weights[at + LANES]);
  let c = pair(weights[at + 2u * LANES]);
  let d = pair(weights[at + 3u * LANES]);
  return Step(a.even, a.odd, b.even, b.odd, c.even, c.odd, d.even, d.odd);
}

struct Pair { even: vec4f, odd: vec4f }

fn pair(word: vec4u) -> Pair {
  let x = unpack2x16float(word.x);
  let y = unpack2x16float(word.y);
  let z = unpack2x16float(word.z);
  let w = unpack2x16float(word.w);
  return Pair(vec4f(x.x, y.x, z.x, w.x), vec4f(x.y, y.y, z.y, w.y));
}

fn load_scale(at: u32) -> Scale {
  return Scale(vec4f(1.0), vec4f(0.0));
}

fn quant_in_step(at: u32, output: u32, k: u32) -> f32 {
  return unpack2x16float(weights[at + (k >> 1u) * LANES][output])[k & 1u];
}
