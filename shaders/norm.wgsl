// normed = residual / rms(residual) * gain (RMSNorm, Zhang & Sennrich 2019), one workgroup a row.
// A pass of its own where many outputs read the same inputs: gains and squares are then loaded once, not once an output.
// Oracle: `rms_norm` in src/backend/cpu/ops.rs.
#import "lib/state.wgsl"

// Mirrored by `NormShape` in src/backend/gpu/layout.rs.
struct NormShape {
  quads: u32,    // quads of a row
  stride: u32,   // vec4f from one row to the next
  epsilon: f32,
}

@group(0) @binding(0) var<uniform> shape: NormShape;
@group(0) @binding(1) var<storage, read> state: State;
@group(0) @binding(2) var<storage, read> vectors: array<vec4f>;       // gain [hidden]
@group(0) @binding(3) var<storage, read> residual: array<vec4f>;      // [rows, hidden]
@group(0) @binding(4) var<storage, read_write> normed: array<vec4f>;  // [rows, hidden]

// Fixed, since the order of the sum follows it.
const THREADS = 16u;
var<workgroup> squares: array<f32, THREADS>;

@compute @workgroup_size(THREADS)
fn norm(@builtin(workgroup_id) workgroup: vec3u, @builtin(local_invocation_index) thread: u32) {
  let row = workgroup.x * shape.stride;
  var sum = 0.0;
  for (var quad = thread; quad < shape.quads; quad += THREADS) {
    let x = residual[row + quad];
    sum += dot(x, x);
  }
  squares[thread] = sum;
  workgroupBarrier();
  var total = 0.0;
  for (var t = 0u; t < THREADS; t++) {
    total += squares[t];
  }
  let factor = inverseSqrt(total / f32(4u * shape.quads) + shape.epsilon);
  for (var quad = thread; quad < shape.quads; quad += THREADS) {
    normed[row + quad] = residual[row + quad] * factor * vectors[quad];
  }
}
