// 8-bit blocks of 16 with a 32-bit scale and minimum: weight = quant * scale + minimum (GGUF Q5_1, Q2_K, Q3_K, Q5_K, Q6_K).
#import "lib/bytes.wgsl"
#import "lib/wide_scales.wgsl"

const STEPS_PER_BLOCK = 2u;
const SCALE_WORDS = 2u;
