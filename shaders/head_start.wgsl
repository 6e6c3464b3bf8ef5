// Tells the draft heads where the text stands: the hidden row of the last visited node becomes their input, with what other layers
// say of that node behind it where heads read that too, and the token that it decided the root.
// Attention to the context stands at that node, the last of the committed positions.
// Oracle: `fuse` in src/backend/cpu/heads.rs.
#import "lib/state.wgsl"
#import "lib/heads.wgsl"

@group(0) @binding(0) var<uniform> heads: HeadShape;
@group(0) @binding(1) var<storage, read> state: State;
@group(0) @binding(2) var<storage, read> normed: array<vec4f>;         // [rows, hidden]: what lm_head.wgsl has read in this pass
@group(0) @binding(3) var<storage, read> taps: array<vec4f>;           // [taps, MAX_ROWS, hidden]: the output of those layers, normed
@group(0) @binding(4) var<storage, read_write> head_state: State;      // a row for every node whose children are ranked
@group(0) @binding(5) var<storage, read_write> context_state: State;   // one row, which looks at the context
@group(0) @binding(6) var<storage, read_write> inputs: array<vec4f>;   // [rows, columns]: the first is written

const THREADS = 64u;

@compute @workgroup_size(THREADS)
fn head_start(@builtin(local_invocation_index) thread: u32) {
  if (thread == 0u) {
    head_state.context_length = state.context_length;
    head_state.finish = state.finish;
    head_state.tokens[0] = state.tokens[0];
    context_state.context_length = max(state.context_length, 1u) - 1u;
    context_state.finish = state.finish;
  }
  let row = state.last_row * heads.normed_stride;
  for (var quad = thread; quad < heads.hidden_quads; quad += THREADS) {
    inputs[quad] = normed[row + quad];
  }
  for (var i = thread; i < heads.taps * heads.hidden_quads; i += THREADS) {
    let tap = i / heads.hidden_quads;
    let quad = i % heads.hidden_quads;
    inputs[heads.hidden_quads + i] = taps[tap * MAX_ROWS * heads.normed_stride + row + quad];
  }
}
