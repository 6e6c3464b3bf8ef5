// Weights lie in the order of k.

// Where in its tile's words the weight of `k` is, of the eight of a step.
fn slot_of_k(k: u32, tile: u32) -> u32 {
  return k;
}
