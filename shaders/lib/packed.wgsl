// A packed matrix as the kernels see it (src/model/packing.rs writes it).
//
// Outputs come in groups of 64 = 4 tiles x 4 quads x 4. In a group, word j of a tile is at [j * TILES + tile], then the scales of
// block b at [(b * SCALE_WORDS + s) * TILES + tile]; component o of q[i] belongs to output 16 * tile + 4 * i + o.
//
// Expects `weights: array<Words>` and the import `weights`, the format.
#import "lib/state.wgsl"

// Tiles in a group: the step from one word of a tile to the next.
const TILES = 4u;
// Quads of outputs in a tile: what one thread computes. Every loaded activation serves all of them.
const QUADS = 4u;

// Mirrored by `MatmulShape` in src/backend/gpu/layout.rs.
struct MatmulShape {
  quads: u32,         // quads of outputs in this part of the matrix
  first_quad: u32,    // where this part begins in the whole matrix
  blocks: u32,        // blocks along k
  group_stride: u32,  // Words from one group to the next
  input_stride: u32,  // octets from one row of inputs to the next
  output_stride: u32, // vec4f from one row of outputs to the next
  columns: u32,       // inputs of the product
  epsilon: f32,       // of the norm
  output_offset: u32, // vec4f before the first column of a row of outputs
}

// One word of each output of a tile. Loaded whole: one address for 16 words.
struct Words { q: array<vec4u, 4> }
// Eight consecutive k of one quad: component o of k<i> is the weight of output o.
struct Step { k0: vec4f, k1: vec4f, k2: vec4f, k3: vec4f, k4: vec4f, k5: vec4f, k6: vec4f, k7: vec4f }
struct Weights { q0: Step, q1: Step, q2: Step, q3: Step }
struct Scale { scale: vec4f, minimum: vec4f }
struct Scales { q0: Scale, q1: Scale, q2: Scale, q3: Scale }
// Eight consecutive inputs of a row.
struct Octet { low: vec4f, high: vec4f }
#import weights

// The first word of a tile.
fn tile_base(tile: u32) -> u32 {
  return tile / TILES * shape.group_stride + tile % TILES;
}
