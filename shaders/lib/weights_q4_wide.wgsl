// 4-bit blocks of 32 with a 32-bit scale and minimum: weight = quant * scale + minimum (GGUF Q4_K).
#import "lib/nibbles.wgsl"
#import "lib/wide_scales.wgsl"

const STEPS_PER_BLOCK = 4u;
const SCALE_WORDS = 2u;
