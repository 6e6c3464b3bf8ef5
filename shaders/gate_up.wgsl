// activations = silu(gate) * up, with gate and up rows alternating in weights . normed: SwiGLU (Shazeer 2020).
// Oracle: `gate_up` in src/backend/cpu/ops.rs.
#import "lib/matmul.wgsl"

@group(0) @binding(0) var<uniform> shape: MatmulShape;
@group(0) @binding(1) var<storage, read> state: State;
@group(0) @binding(2) var<storage, read> weights: array<Words>;           // packed [2 ffn, hidden]: gate 0, up 0, gate 1, up 1, ...
@group(0) @binding(3) var<storage, read> inputs: array<Octet>;            // normed residual [rows, hidden]
@group(0) @binding(4) var<storage, read_write> activations: array<vec2f>; // [rows, ffn]

override WORKGROUP: u32 = 8u;

fn emit(row: u32, quad: u32, value: vec4f) {
  let gate = value.xz;
  activations[row * shape.output_stride * 2u + quad] = gate / (1.0 + exp(-gate)) * value.yw;
}

@compute @workgroup_size(WORKGROUP)
fn gate_up(@builtin(global_invocation_id) id: vec3u, @builtin(workgroup_id) workgroup: vec3u) {
  matmul(id.x, workgroup.y * ROWS);
}
