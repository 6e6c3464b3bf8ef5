// 16-bit floats: two weights a word, the lower k in the lower half; no scales.
#import "lib/halves.wgsl"

fn even(word: vec4u) -> vec4f {
  return vec4f(
    unpack2x16float(word.x).x, unpack2x16float(word.y).x, unpack2x16float(word.z).x, unpack2x16float(word.w).x);
}

fn odd(word: vec4u) -> vec4f {
  return vec4f(
    unpack2x16float(word.x).y, unpack2x16float(word.y).y, unpack2x16float(word.z).y, unpack2x16float(word.w).y);
}
