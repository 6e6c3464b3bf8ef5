// residual[row] = embedding[token of row]. One thread unpacks eight columns. An embedding split over several bindings is
// dispatched part by part; each writes the rows whose token lies in it. Oracle: `embed` in src/backend/cpu/ops.rs.
#import "lib/packed_row.wgsl"

@group(0) @binding(0) var<uniform> shape: MatmulShape;
@group(0) @binding(1) var<storage, read> state: State;
@group(0) @binding(2) var<storage, read> weights: array<Words>;        // packed [vocabulary, hidden], or a part of it
@group(0) @binding(3) var<storage, read_write> residual: array<vec4f>; // [rows, hidden]

override WORKGROUP: u32 = 8u;

@compute @workgroup_size(WORKGROUP)
fn embed(@builtin(global_invocation_id) id: vec3u) {
  let step = id.x;
  let row = id.y;
  if (step * 8u >= shape.columns || row >= pass_rows() || state.finish != 0u) {
    return;
  }
  let token = state.tokens[row] - 4u * shape.first_quad;  // wraps below the part, and is then beyond it
  if (token >= 4u * shape.quads) {
    return;
  }
  let values = row_octet(token, step);
  let to = row * shape.output_stride + shape.output_offset + step * 2u;
  residual[to] = values.low;
  if (step * 8u + 4u < shape.columns) {
    residual[to + 1u] = values.high;
  }
}
