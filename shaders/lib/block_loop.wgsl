// The steps of a block as a loop: for many rows, whose written-out steps would take most of a second to compile.

fn add_block(sums: ptr<function, Sums>, moments: ptr<function, Moments>, at: u32, input: u32, stride: u32, step: u32) {
  for (var s = 0u; s < STEPS_PER_BLOCK; s++) {
    let weights_at = at + s * WORDS_PER_STEP * TILES;
    add_step(sums, moments, input + s, stride, load_weights(weights_at), load_gain(step + s));
  }
}
