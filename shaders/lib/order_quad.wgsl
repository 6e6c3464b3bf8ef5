// Weights lie in the order in which lanes_quad.wgsl hands the inputs round.

// Where in its tile's words the weight of `k` is, of the eight of a step.
fn slot_of_k(k: u32, tile: u32) -> u32 {
  return k ^ (tile & 3u);
}
