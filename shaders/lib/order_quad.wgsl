// Weights lie in the order in which lanes_quad.wgsl hands the inputs round: that of `k` at k ^ (tile & 3), of four.

// Four weights of a tile in the order of k.
fn in_order(stored: vec4f, tile: u32) -> vec4f {
  let swapped = select(stored, stored.yxwz, (tile & 1u) != 0u);
  return select(swapped, swapped.zwxy, (tile & 2u) != 0u);
}
