// 32-bit floats: one weight a word, no scales.

const STEPS_PER_BLOCK = 1u;
const WORDS_PER_STEP = 8u;
const SCALE_WORDS = 0u;
const LOW_FACTORS = vec4f(1.0);
const HIGH_FACTORS = vec4f(1.0);

fn unpack_step(at: u32) -> Step {
  return Step(
    bitcast<vec4f>(weights[at]), bitcast<vec4f>(weights[at + LANES]),
    bitcast<vec4f>(weights[at + 2u * LANES]), bitcast<vec4f>(weights[at + 3u * LANES]),
    bitcast<vec4f>(weights[at + 4u * LANES]), bitcast<vec4f>(weights[at + 5u * LANES]),
    bitcast<vec4f>(weights[at + 6u * LANES]), bitcast<vec4f>(weights[at + 7u * LANES]));
}

fn load_scale(at: u32) -> Scale {
  return Scale(vec4f(1.0), vec4f(0.0));
}

fn quant_in_step(at: u32, output: u32, k: u32) -> f32 {
  return bitcast<f32>(weights[at + k * LANES][output]);
}
