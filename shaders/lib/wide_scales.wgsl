// 32-bit scales and minimums, one word each a block.

fn load_scales(at: u32) -> Scales {
  let scales = weights[at];
  let minimums = weights[at + TILES];
  return Scales(
    Scale(bitcast<vec4f>(scales.q[0]), bitcast<vec4f>(minimums.q[0])),
    Scale(bitcast<vec4f>(scales.q[1]), bitcast<vec4f>(minimums.q[1])),
    Scale(bitcast<vec4f>(scales.q[2]), bitcast<vec4f>(minimums.q[2])),
    Scale(bitcast<vec4f>(scales.q[3]), bitcast<vec4f>(minimums.q[3])));
}

fn row_scale(at: u32, quad: u32, output: u32) -> vec2f {
  return bitcast<vec2f>(vec2u(weights[at].q[quad][output], weights[at + TILES].q[quad][output]));
}
