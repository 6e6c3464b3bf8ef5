// Chooses the nodes that recurrent heads go on from: of the candidates below the nodes of the depth above, the most probable by the
// product of probabilities from the root. Their tokens become the rows of the next launches, their parents' states the inputs.
// One workgroup. Oracle: `recurrent` in src/backend/cpu/heads.rs.
#import "lib/state.wgsl"
#import "lib/sampling.wgsl"
#import "lib/heads.wgsl"

@group(0) @binding(0) var<uniform> heads: HeadShape;
@group(0) @binding(1) var<storage, read_write> state: State;                          // of the heads
@group(0) @binding(2) var<storage, read_write> head_candidates: array<HeadCandidate>; // [slot, TOP_K]
@group(0) @binding(3) var<storage, read_write> path_scores: array<f32>;               // [slot]; the root's is 0
@group(0) @binding(4) var<storage, read> states: array<vec4f>;                        // [slot, hidden]
@group(0) @binding(5) var<storage, read_write> inputs: array<vec4f>;                  // [BEAM, state then embedding]

const THREADS = 64u;
var<workgroup> scores: array<f32, BEAM * TOP_K>;
var<workgroup> parents: array<u32, BEAM>;

@compute @workgroup_size(THREADS)
fn head_expand(@builtin(local_invocation_index) thread: u32) {
  let count = heads.parents * TOP_K;
  let place = heads.first_parent * TOP_K + thread;
  let parent = heads.first_parent + thread / TOP_K;
  var candidate = HeadCandidate(NO_TOKEN, LOWEST, NO_SLOT);
  var score = LOWEST;
  if (thread < count) {
    candidate = head_candidates[place];
    if (candidate.token != NO_TOKEN && path_scores[parent] > LOWEST) {
      score = path_scores[parent] + candidate.log_probability;
    }
    scores[thread] = score;
  }
  if (thread < BEAM) {
    parents[thread] = NO_SLOT;
  }
  workgroupBarrier();
  if (score > LOWEST) {
    var rank = 0u;
    for (var i = 0u; i < count; i++) {
      rank += u32(scores[i] > score || (scores[i] == score && i < thread));
    }
    if (rank < BEAM) {
      head_candidates[place].next_slot = heads.first_slot + rank;
      path_scores[heads.first_slot + rank] = score;
      state.tokens[rank] = candidate.token;
      parents[rank] = parent;
    }
  }
  workgroupBarrier();
  // Where there are fewer candidates, nothing leads to the slots that are left.
  if (thread < BEAM && parents[thread] == NO_SLOT) {
    path_scores[heads.first_slot + thread] = LOWEST;
    state.tokens[thread] = NO_TOKEN;
  }
  for (var i = thread; i < BEAM * heads.hidden_quads; i += THREADS) {
    let rank = i / heads.hidden_quads;
    let quad = i % heads.hidden_quads;
    if (parents[rank] != NO_SLOT) {
      inputs[rank * heads.input_stride + quad] = states[parents[rank] * heads.row_stride + quad];
    }
  }
}
