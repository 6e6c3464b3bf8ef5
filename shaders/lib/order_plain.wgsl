// Weights lie in the order of k.

// Four weights of a tile in the order of k.
fn in_order(stored: vec4f, tile: u32) -> vec4f {
  return stored;
}
