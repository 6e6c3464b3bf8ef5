// One row of a packed matrix as it is, eight columns at a time: for rows that are looked up, not multiplied by.
#import "lib/packed.wgsl"
#import order

// Columns 8 step to 8 step + 7 of row `row` of this part of the matrix.
fn row_octet(row: u32, step: u32) -> Octet {
  let quad = row / 4u;
  let tile = quad / QUADS;
  let base = tile_base(tile);
  let scales = base + shape.blocks * STEPS_PER_BLOCK * WORDS_PER_STEP * TILES;
  let scale = row_scale(scales + step / STEPS_PER_BLOCK * SCALE_WORDS * TILES, quad % QUADS, row % 4u);
  let quants = row_quants(base + step * WORDS_PER_STEP * TILES, quad % QUADS, row % 4u);
  return Octet(in_order(quants.low, tile) * scale.x + scale.y, in_order(quants.high, tile) * scale.x + scale.y);
}
