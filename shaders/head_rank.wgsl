// The best draft ids of a row, of the bests of its chunks, highest first, and their probabilities: one thread a row.
// Oracle: `rank` in src/speculate/heads.rs, with `log_probabilities` there.
#import "lib/state.wgsl"
#import "lib/sampling.wgsl"
#import "lib/heads.wgsl"
#import "lib/ranked.wgsl"

@group(0) @binding(0) var<uniform> heads: HeadShape;
@group(0) @binding(1) var<storage, read> state: State;                                // of the heads
@group(0) @binding(2) var<storage, read> bests: array<ChunkBest>;                     // [row of this launch, chunks]
@group(0) @binding(3) var<storage, read> token_map: array<u32>;                       // [drafts], ascending
@group(0) @binding(4) var<storage, read_write> kept: array<Kept>;                     // [slot]
@group(0) @binding(5) var<storage, read_write> head_candidates: array<HeadCandidate>; // [slot, TOP_K]

override WORKGROUP: u32 = 8u;
// Whether the token of a draft id stands in the token map.
override MAPPED: bool = false;

@compute @workgroup_size(WORKGROUP)
fn head_rank(@builtin(global_invocation_id) id: vec3u) {
  let row = id.x;
  if (row >= heads.rows || state.finish != 0u) {
    return;
  }
  let first = row * heads.chunks;
  let end = first + heads.chunks;
  var list = none_ranked();
  for (var chunk = first; chunk < end; chunk++) {
    list = with_ranked(list, bests[chunk].score, bests[chunk].draft);
  }
  let highest = list.s0.x;
  let last = list.s2.y;  // of place TOP_K - 1
  let last_draft = list.k2.y;
  // What is not kept: the others of every chunk, and the bests behind the last one.
  var rest = 0.0;
  for (var chunk = first; chunk < end; chunk++) {
    let found = bests[chunk];
    let is_kept = found.score > last || (found.score == last && found.draft <= last_draft);
    rest += select(0.0, (found.rest + select(1.0, 0.0, is_kept)) * exp(found.score - highest), found.score > LOWEST);
  }
  let log_total = log(rest + weight_of(list, highest));
  var scores = scores_of(list);
  var drafts = keys_of(list);
  let slot = heads.first_slot + row;
  kept[slot].rest = rest;
  for (var rank = 0u; rank < TOP_K; rank++) {
    let score = scores[rank];
    let draft = drafts[rank];
    let found = score > LOWEST;
    var token = draft;
    if (MAPPED) {
      token = token_map[draft];
    }
    token = select(NO_TOKEN, token, found);
    kept[slot].scores[rank] = score;
    kept[slot].tokens[rank] = token;
    kept[slot].drafts[rank] = draft;
    let log_probability = select(LOWEST, score - highest - log_total, found);
    head_candidates[slot * TOP_K + rank] = HeadCandidate(token, log_probability, NO_SLOT);
  }
}
