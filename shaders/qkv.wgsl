// queries, keys, values = rope(weights . norm(residual) + bias): queries to a buffer of their own, keys and values straight into
// the cache's scratch rows (slot context_length + row). Row order of the weights: queries, keys, values; rotary pairs adjacent.
// Oracle: `qkv` in src/backend/cpu/ops.rs.
#import "lib/matmul.wgsl"
#import "lib/attention_shape.wgsl"

@group(0) @binding(0) var<uniform> shape: MatmulShape;
@group(0) @binding(1) var<uniform> attention: AttentionShape;
@group(0) @binding(2) var<storage, read> state: State;
@group(0) @binding(3) var<storage, read> weights: array<Words>;       // packed [q + 2 kv, hidden]
@group(0) @binding(4) var<storage, read> vectors: array<vec4f>;       // norm gain [hidden], then bias [q + 2 kv]
@group(0) @binding(5) var<storage, read> inputs: array<Octet>;        // residual [rows, hidden]
@group(0) @binding(6) var<storage, read> rotations: array<vec4f>;     // [position, head_dim / 4]: cos, sin, cos, sin of two pairs
@group(0) @binding(7) var<storage, read_write> queries: array<vec4f>; // [rows, q]
@group(0) @binding(8) var<storage, read_write> cache: array<vec4f>;   // [slot, keys then values]

override WORKGROUP: u32 = 8u;

fn emit(row: u32, quad: u32, value: vec4f) {
  let biased = value + vectors[attention.bias_offset + quad];
  let q_quads = attention.query_quads;
  let kv_quads = attention.kv_quads;
  let slot = (state.context_length + row) * 2u * kv_quads;
  if (quad >= q_quads + kv_quads) {
    cache[slot + quad - q_quads] = biased;
    return;
  }
  let head_quads = attention.head_quads;
  let r = rotations[(state.context_length + state.depths[row]) * head_quads + quad % head_quads];
  let rotated = vec4f(
    biased.x * r.x - biased.y * r.y, biased.x * r.y + biased.y * r.x,
    biased.z * r.z - biased.w * r.w, biased.z * r.w + biased.w * r.z);
  if (quad < q_quads) {
    queries[row * attention.query_stride + quad] = rotated;
  } else {
    cache[slot + quad - q_quads] = rotated;
  }
}

@compute @workgroup_size(WORKGROUP)
fn qkv(@builtin(global_invocation_id) id: vec3u, @builtin(workgroup_id) workgroup: vec3u) {
  matmul(id.x, workgroup.y * ROWS);
}
