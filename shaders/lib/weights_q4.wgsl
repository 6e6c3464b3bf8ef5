// 4-bit blocks of 32 with a 16-bit scale and minimum in one word: weight = quant * scale + minimum (GGUF Q4_0, Q4_1).
#import "lib/nibbles.wgsl"

const STEPS_PER_BLOCK = 4u;
const SCALE_WORDS = 1u;

fn load_scales(at: u32) -> Scales {
  let words = weights[at];
  return Scales(scale_of(words.q[0]), scale_of(words.q[1]), scale_of(words.q[2]), scale_of(words.q[3]));
}

fn row_scale(at: u32, quad: u32, output: u32) -> vec2f {
  return unpack2x16float(weights[at].q[quad][output]);
}

fn scale_of(word: vec4u) -> Scale {
  let x = unpack2x16float(word.x);
  let y = unpack2x16float(word.y);
  let z = unpack2x16float(word.z);
  let w = unpack2x16float(word.w);
  return Scale(vec4f(x.x, y.x, z.x, w.x), vec4f(x.y, y.y, z.y, w.y));
}
