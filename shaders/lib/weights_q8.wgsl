// 8-bit blocks of 32 with a 32-bit scale: weight = (quant - 128) * scale (GGUF Q8_0, Q5_0).
#import "lib/bytes.wgsl"

const STEPS_PER_BLOCK = 4u;
const SCALE_WORDS = 1u;

fn load_scales(at: u32) -> Scales {
  let words = weights[at];
  return Scales(scale_of(words.q[0]), scale_of(words.q[1]), scale_of(words.q[2]), scale_of(words.q[3]));
}

fn row_scale(at: u32, quad: u32, output: u32) -> vec2f {
  let scale = bitcast<f32>(weights[at].q[quad][output]);
  return vec2f(scale, -128.0 * scale);
}

fn scale_of(word: vec4u) -> Scale {
  let scale = bitcast<vec4f>(word);
  return Scale(scale, -128.0 * scale);
}
