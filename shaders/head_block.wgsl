// outputs = x + silu(weights . inputs + bias), with x the first columns of the inputs: a residual block of a draft head, the first
// blocks of all heads on the one hidden row (more outputs than inputs: every head's are a row of their own), or the update of
// the recurrent state, whose inputs are the state and then the embedding of a token.
// Oracle: `residual_block` in src/backend/cpu/heads.rs.
#import "lib/matmul.wgsl"

@group(0) @binding(0) var<uniform> shape: MatmulShape;
@group(0) @binding(1) var<storage, read> state: State;                // of the heads
@group(0) @binding(2) var<storage, read> weights: array<Words>;       // packed [outputs, columns]
@group(0) @binding(3) var<storage, read> inputs: array<Octet>;        // [rows, columns]
@group(0) @binding(4) var<storage, read> bias: array<vec4f>;          // [outputs], zeros where the block has none
@group(0) @binding(5) var<storage, read_write> outputs: array<vec4f>; // [rows, hidden]

override WORKGROUP: u32 = 8u;

fn emit(row: u32, quad: u32, value: vec4f) {
  let width = shape.columns / 4u;
  let column = quad % width;
  let octet = inputs[row * shape.input_stride + column / 2u];
  let x = select(octet.low, octet.high, column % 2u == 1u);
  let biased = value + bias[quad];
  outputs[(row + quad / width) * shape.output_stride + column] = x + biased / (1.0 + exp(-biased));
}

@compute @workgroup_size(WORKGROUP)
fn head_block(@builtin(global_invocation_id) id: vec3u, @builtin(workgroup_id) workgroup: vec3u) {
  matmul(id.x, workgroup.y * ROWS);
}
