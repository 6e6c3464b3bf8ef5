// 8-bit blocks of 16 with a 32-bit scale and minimum: weight = quant * scale + minimum (GGUF Q5_1, Q2_K, Q3_K, Q5_K, Q6_K).
#import "lib/bytes.wgsl"

const STEPS_PER_BLOCK = 2u;
const SCALE_WORDS = 2u;

fn load_scale(at: u32, quad: u32) -> Scale {
  return Scale(bitcast<vec4f>(weights[at].q[quad]), bitcast<vec4f>(weights[at + TILES].q[quad]));
}
