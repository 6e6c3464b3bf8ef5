// One row of a packed matrix as it is, eight columns at a time: for rows that are looked up, not multiplied by.
#import "lib/packed.wgsl"
#import order

// Columns 8 step to 8 step + 7 of row `row` of this part of the matrix.
fn row_octet(row: u32, step: u32) -> array<f32, 8> {
  let quad = row / 4u;
  let tile = quad / QUADS;
  let base = tile_base(tile);
  let scales = base + shape.blocks * STEPS_PER_BLOCK * WORDS_PER_STEP * TILES;
  let scale = load_scale(scales + step / STEPS_PER_BLOCK * SCALE_WORDS * TILES, quad % QUADS);
  let at = base + step * WORDS_PER_STEP * TILES;
  let output = row % 4u;
  var values: array<f32, 8>;
  for (var k = 0u; k < 8u; k++) {
    values[k] = quant(at, quad % QUADS, output, slot_of_k(k, tile)) * scale.scale[output] + scale.minimum[output];
  }
  return values;
}
