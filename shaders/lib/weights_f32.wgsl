// 32-bit floats: one weight a word, no scales.

const STEPS_PER_BLOCK = 1u;
const WORDS_PER_STEP = 8u;
const SCALE_WORDS = 0u;
const LOW_FACTORS = vec4f(1.0);
const HIGH_FACTORS = vec4f(1.0);

fn load_weights(at: u32) -> Weights {
  let a = weights[at];
  let b = weights[at + TILES];
  let c = weights[at + 2u * TILES];
  let d = weights[at + 3u * TILES];
  let e = weights[at + 4u * TILES];
  let f = weights[at + 5u * TILES];
  let g = weights[at + 6u * TILES];
  let h = weights[at + 7u * TILES];
  return Weights(
    unpack(a.q[0], b.q[0], c.q[0], d.q[0], e.q[0], f.q[0], g.q[0], h.q[0]),
    unpack(a.q[1], b.q[1], c.q[1], d.q[1], e.q[1], f.q[1], g.q[1], h.q[1]),
    unpack(a.q[2], b.q[2], c.q[2], d.q[2], e.q[2], f.q[2], g.q[2], h.q[2]),
    unpack(a.q[3], b.q[3], c.q[3], d.q[3], e.q[3], f.q[3], g.q[3], h.q[3]));
}

fn unpack(a: vec4u, b: vec4u, c: vec4u, d: vec4u, e: vec4u, f: vec4u, g: vec4u, h: vec4u) -> Step {
  return Step(
    bitcast<vec4f>(a), bitcast<vec4f>(b), bitcast<vec4f>(c), bitcast<vec4f>(d),
    bitcast<vec4f>(e), bitcast<vec4f>(f), bitcast<vec4f>(g), bitcast<vec4f>(h));
}

fn load_scales(at: u32) -> Scales {
  let one = Scale(vec4f(1.0), vec4f(0.0));
  return Scales(one, one, one, one);
}

fn row_scale(at: u32, quad: u32, output: u32) -> vec2f {
  return vec2f(1.0, 0.0);
}

fn add_top(sum: f32, x: Octet) -> f32 {
  return sum;
}

fn row_quants(at: u32, quad: u32, output: u32) -> Octet {
  return Octet(floats_of(at, quad, output), floats_of(at + 4u * TILES, quad, output));
}

fn floats_of(at: u32, quad: u32, output: u32) -> vec4f {
  return bitcast<vec4f>(vec4u(
    weights[at].q[quad][output], weights[at + TILES].q[quad][output],
    weights[at + 2u * TILES].q[quad][output], weights[at + 3u * TILES].q[quad][output]));
}
