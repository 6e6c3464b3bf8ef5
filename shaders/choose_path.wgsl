// Turns the choices of rows towards the best path that passes: of the paths of passing nodes the longest, of equally long ones the one
// with the largest sum of log-probabilities. What a row chose itself always passes. accept.wgsl then walks as ever.
// One workgroup: all threads reduce rows, thread 0 looks for the path. Oracle: `choose_paths` in src/speculate/lenient.rs.
#import "lib/state.wgsl"
#import "lib/sampling.wgsl"
#import "lib/judgement.wgsl"

@group(0) @binding(0) var<uniform> sampling: Sampling;
@group(0) @binding(1) var<storage, read> state: State;
@group(0) @binding(2) var<storage, read> judgements: array<Judgement>;        // [nodes]
@group(0) @binding(3) var<storage, read_write> candidates: array<Candidate>;  // [rows, chunks]

#import "lib/choice.wgsl"
#import "lib/choose.wgsl"

override WORKGROUP: u32 = 8u;

var<workgroup> chosen: array<u32, MAX_ROWS>;

@compute @workgroup_size(WORKGROUP)
fn choose_path(@builtin(local_invocation_index) thread: u32) {
  if (state.finish != 0u) {
    return;
  }
  let rows = pass_rows();
  for (var row = thread; row < rows; row += WORKGROUP) {
    chosen[row] = best_of_row(row);
  }
  workgroupBarrier();
  if (thread != 0u) {
    return;
  }
  // Of the best path below every node: its nodes, and their summed log-probabilities.
  var lengths: array<u32, MAX_ROWS>;
  var sums: array<f32, MAX_ROWS>;
  // Children stand behind their parents, so a node's own best is known when it is compared with its siblings.
  for (var node = rows - 1u; node > 0u; node--) {
    let parent = state.parents[node];
    let token = state.tokens[node];
    let judgement = judgements[node];
    if (judgement.passes == 0u && token != chosen[parent]) {
      continue;
    }
    let is_end = is_end_token(token);
    let length = 1u + select(lengths[node], 0u, is_end);
    let sum = judgement.log_probability + select(sums[node], 0.0, is_end);
    // Of equals the first node counts, which comes last.
    if (length > lengths[parent] || (length == lengths[parent] && sum >= sums[parent])) {
      lengths[parent] = length;
      sums[parent] = sum;
      choose(parent, token);
    }
  }
}
