// Ranks the candidates kept of a row anew for one node: what the node's own token makes of each is added to its logit
// (the idea of DSpark's Markov head). One thread a node. Recurrent heads have ranked a row for every node; parallel
// heads have one row for all nodes of a depth, and the nodes are the candidates kept of the depth above.
// Oracle: `correct` in src/speculate/heads.rs.
#import "lib/packed_row.wgsl"
#import "lib/sampling.wgsl"
#import "lib/heads.wgsl"
#import "lib/ranked.wgsl"

@group(0) @binding(0) var<uniform> sampling: Sampling;
@group(0) @binding(1) var<uniform> heads: HeadShape;
@group(0) @binding(2) var<uniform> shape: MatmulShape;
@group(0) @binding(3) var<storage, read> state: State;                               // of the heads
@group(0) @binding(4) var<storage, read> weights: array<Words>;                      // packed [vocabulary + drafts, rank]
@group(0) @binding(5) var<storage, read> kept: array<Kept>;                          // [row of logits]
@group(0) @binding(6) var<storage, read_write> head_candidates: array<HeadCandidate>; // [slot, TOP_K]

override WORKGROUP: u32 = 8u;

// A candidate's key has its token, and below that, in so many bits, its place before the correction.
const PLACE_BITS = 4u;

fn correction(token: u32, draft: u32) -> f32 {
  var sum = 0.0;
  var step = 0u;
  loop {
    let previous = row_octet(token, step);
    let current = row_octet(heads.vocabulary + draft, step);
    sum += dot(previous.low, current.low) + dot(previous.high, current.high);
    step += 1u;
    if (step * 8u >= shape.columns) {
      break;
    }
  }
  return sum;
}

@compute @workgroup_size(WORKGROUP)
fn head_correct(@builtin(global_invocation_id) id: vec3u) {
  let node = id.x;
  if (node >= heads.nodes || state.finish != 0u) {
    return;
  }
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
  let inverse_temperature = select(1.0, sampling.inverse_temperature, sampling.inverse_temperature > 0.0);
  var list = none_ranked();
  for (var place = 0u; place < TOP_K; place++) {
    let token = kept[row].tokens[place];
    let score = kept[row].scores[place];
    let added = correction(previous, kept[row].drafts[place]) * inverse_temperature;
    let key = select((token << PLACE_BITS) | place, NO_TOKEN, token == NO_TOKEN);
    list = with_ranked(list, score + select(0.0, added, previous != NO_TOKEN && token != NO_TOKEN), key);
  }
  let reference = kept[row].scores[0];
  let top = max(reference, list.s0.x);
  let log_total = log(kept[row].rest * exp(reference - top) + weight_of(list, top));
  var scores = scores_of(list);
  var keys = keys_of(list);
  for (var rank = 0u; rank < TOP_K; rank++) {
    let found = keys[rank] != NO_TOKEN;
    let place = keys[rank] & ((1u << PLACE_BITS) - 1u);
    head_candidates[slot * TOP_K + rank] = HeadCandidate(
      select(NO_TOKEN, keys[rank] >> PLACE_BITS, found),
      select(LOWEST, scores[rank] - top - log_total, found),
      select(NO_SLOT, next_slot + place, found && next_slot != NO_SLOT));
  }
}
