// bfloat16: two weights a word, the lower k in the lower half, each the upper half of a 32-bit float; no scales.
#import "lib/halves.wgsl"

fn even(word: vec4u) -> vec4f {
  return bitcast<vec4f>(word << vec4u(16u));
}

fn odd(word: vec4u) -> vec4f {
  return bitcast<vec4f>(word & vec4u(0xffff0000u));
}
