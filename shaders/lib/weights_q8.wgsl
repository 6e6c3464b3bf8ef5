// 8-bit blocks of 32 with a 32-bit scale: weight = (quant - 128) * scale (GGUF Q8_0, Q5_0).
#import "lib/bytes.wgsl"

const STEPS_PER_BLOCK = 4u;
const SCALE_WORDS = 1u;

fn load_scale(at: u32, quad: u32) -> Scale {
  let scale = bitcast<vec4f>(weights[at].q[quad]);
  return Scale(scale, -128.0 * scale);
}
