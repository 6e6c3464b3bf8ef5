// A packed matrix as the kernels see it (src/model/packing.rs writes it).
//
// Groups of 64 outputs = 16 lanes x 4; in a group, word j of lane l at [j * 16 + l],
// then the scales of block b at [(b * SCALE_WORDS + s) * 16 + l], as vec4u over the lane's four outputs.
//
// Expects `weights: array<vec4u>` and the import `weights`, the format.
#import "lib/state.wgsl"

const LANES = 16u;

// Mirrored by `MatmulShape` in src/backend/gpu/layout.rs.
struct MatmulShape {
  quads: u32,         // quads of outputs in this part of the matrix
  first_quad: u32,    // where this part begins in the whole matrix
  blocks: u32,        // blocks along k
  group_stride: u32,  // vec4u from one group of 64 outputs to the next
  input_stride: u32,  // vec4f from one row of inputs to the next
  output_stride: u32, // vec4f from one row of outputs to the next
  columns: u32,       // inputs of the product
  epsilon: f32,       // of the norm
}

// Eight consecutive k of one quad: component o of k<i> is the weight of output o.
struct Step { k0: vec4f, k1: vec4f, k2: vec4f, k3: vec4f, k4: vec4f, k5: vec4f, k6: vec4f, k7: vec4f }
struct Scale { scale: vec4f, minimum: vec4f }
#import weights
