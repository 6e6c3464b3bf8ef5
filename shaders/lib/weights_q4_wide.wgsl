// 4-bit blocks of 32 with a 32-bit scale and minimum: weight = quant * scale + minimum (GGUF Q4_K).
#import "lib/nibbles.wgsl"

const STEPS_PER_BLOCK = 4u;
const SCALE_WORDS = 2u;

fn load_scale(at: u32, quad: u32) -> Scale {
  return Scale(bitcast<vec4f>(weights[at].q[quad]), bitcast<vec4f>(weights[at + TILES].q[quad]));
}
