// residual += weights . inputs: the projection that ends the attention block, and the one that ends the feed-forward block.
// Oracle: `project` in src/backend/cpu/ops.rs.
#import "lib/matmul.wgsl"

@group(0) @binding(0) var<uniform> shape: MatmulShape;
@group(0) @binding(1) var<storage, read> state: State;
@group(0) @binding(2) var<storage, read> weights: array<Words>;        // packed [hidden, columns]
@group(0) @binding(3) var<storage, read> inputs: array<Octet>;         // [rows, columns]
@group(0) @binding(4) var<storage, read_write> residual: array<vec4f>; // [rows, hidden]

override WORKGROUP: u32 = 8u;

fn emit(row: u32, quad: u32, value: vec4f) {
  residual[row * shape.output_stride + quad] += value;
}

@compute @workgroup_size(WORKGROUP)
fn project(@builtin(global_invocation_id) id: vec3u, @builtin(workgroup_id) workgroup: vec3u) {
  matmul(id.x, workgroup.y * ROWS);
}
