// Ranks the candidates kept of a row anew for one node: what the node's own token makes of each is added to its logit
// (the idea of DSpark's Markov head). One workgroup a node. Recurrent heads have ranked a row for every node; parallel
// heads have one row for all nodes of a depth, and the nodes are the candidates kept of the depth above.
// Oracle: `correct` in src/speculate/heads.rs.
#import "lib/packed_row.wgsl"
#import "lib/sampling.wgsl"
#import "lib/heads.wgsl"

@group(0) @binding(0) var<uniform> sampling: Sampling;
@group(0) @binding(1) var<uniform> heads: HeadShape;
@group(0) @binding(2) var<uniform> shape: MatmulShape;
@group(0) @binding(3) var<storage, read> state: State;                               // of the heads
@group(0) @binding(4) var<storage, read> weights: array<Words>;                      // packed [vocabulary + drafts, rank]
@group(0) @binding(5) var<storage, read> kept: array<Kept>;                          // [row of logits]
@group(0) @binding(6) var<storage, read_write> head_candidates: array<HeadCandidate>; // [slot, TOP_K]

const THREADS = 16u;
var<workgroup> scores: array<f32, TOP_K>;

fn correction(token: u32, draft: u32) -> f32 {
  var sum = 0.0;
  for (var step = 0u; step * 8u < shape.columns; step++) {
    let previous = row_octet(token, step);
    let current = row_octet(heads.vocabulary + draft, step);
    for (var k = 0u; k < min(8u, shape.columns - step * 8u); k++) {
      sum += previous[k] * current[k];
    }
  }
  return sum;
}

@compute @workgroup_size(THREADS)
fn head_correct(@builtin(workgroup_id) workgroup: vec3u, @builtin(local_invocation_index) thread: u32) {
  if (state.finish != 0u) {
    return;
  }
  let node = workgroup.x;
  var slot = heads.first_slot + node;
  var row = slot;                  // whose candidates these are
  var previous = 0u;               // the node's token
  var next_slot = NO_SLOT;         // of the first child
  if (heads.is_recurrent != 0u) {
    previous = state.tokens[node];
  } else {
    row = (node + TOP_K - 1u) / TOP_K;
    if (node == 0u) {
      previous = state.tokens[0];
    } else {
      previous = kept[row - 1u].tokens[(node - 1u) % TOP_K];
    }
    if (row + 1u < heads.depths) {
      next_slot = 1u + row * TOP_K;
    }
  }
  if (thread < TOP_K) {
    var score = kept[row].scores[thread];
    if (previous != NO_TOKEN && score > LOWEST) {
      let inverse_temperature = select(1.0, sampling.inverse_temperature, sampling.inverse_temperature > 0.0);
      score += correction(previous, kept[row].drafts[thread]) * inverse_temperature;
    }
    scores[thread] = score;
  }
  workgroupBarrier();
  if (thread >= TOP_K) {
    return;
  }
  let token = kept[row].tokens[thread];
  let score = scores[thread];
  let reference = kept[row].scores[0];
  var top = reference;
  for (var i = 0u; i < TOP_K; i++) {
    top = max(top, scores[i]);
  }
  var total = kept[row].rest * exp(reference - top);
  var rank = 0u;
  for (var i = 0u; i < TOP_K; i++) {
    let other = kept[row].tokens[i];
    if (other != NO_TOKEN) {
      total += exp(scores[i] - top);
    }
    let is_lower = other < token || (other == token && i < thread);
    rank += u32(scores[i] > score || (scores[i] == score && is_lower));
  }
  let found = token != NO_TOKEN;
  head_candidates[slot * TOP_K + rank] = HeadCandidate(
    token,
    select(LOWEST, score - top - log(total), found),
    select(NO_SLOT, next_slot + thread, found && next_slot != NO_SLOT));
}
