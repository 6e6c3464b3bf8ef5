// 8-bit blocks of 32 with a 32-bit scale: weight = (quant - 128) * scale (GGUF Q8_0, Q5_0).
#import "lib/bytes.wgsl"

const STEPS_PER_BLOCK = 4u;
const SCALE_WORDS = 1u;

fn load_scales(at: u32) -> Scales {
  let words = weights[at];
  return Scales(scale_of(words.q[0]), scale_of(words.q[1]), scale_of(words.q[2]), scale_of(words.q[3]));
}

fn load_scale(at: u32, quad: u32) -> Scale {
  return scale_of(weights[at].q[quad]);
}

fn scale_of(word: vec4u) -> Scale {
  let scale = bitcast<vec4f>(word);
  return Scale(scale, -128.0 * scale);
}
