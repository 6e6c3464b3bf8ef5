// logits = weights . normed. Oracle: `lm_head` in src/backend/cpu/ops.rs.
#import "lib/matmul.wgsl"

@group(0) @binding(0) var<uniform> shape: MatmulShape;
@group(0) @binding(1) var<storage, read> state: State;
@group(0) @binding(2) var<storage, read> weights: array<Words>;      // packed [vocabulary, hidden], or a part of it
@group(0) @binding(3) var<storage, read> inputs: array<Octet>;       // normed residual [rows, hidden]
@group(0) @binding(4) var<storage, read_write> logits: array<vec4f>; // [rows, vocabulary]

override WORKGROUP: u32 = 8u;

fn emit(row: u32, quad: u32, value: vec4f) {
  logits[row * shape.output_stride + quad] = value;
}

@compute @workgroup_size(WORKGROUP)
fn lm_head(@builtin(global_invocation_id) id: vec3u, @builtin(workgroup_id) workgroup: vec3u) {
  matmul(id.x, workgroup.y * ROWS);
}
