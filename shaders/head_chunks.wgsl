// The best draft id of every chunk of a row of draft logits, with the noise that the verifier will add at that place, and the weight
// of the others. A chunk takes every n-th group of four ids. Oracle: `rank` in src/speculate/heads.rs.
#import "lib/state.wgsl"
#import "lib/sampling.wgsl"
#import "lib/noise.wgsl"
#import "lib/successors.wgsl"
#import "lib/heads.wgsl"

@group(0) @binding(0) var<uniform> sampling: Sampling;
@group(0) @binding(1) var<uniform> heads: HeadShape;
@group(0) @binding(2) var<storage, read> state: State;                  // of the heads
@group(0) @binding(3) var<storage, read> logits: array<vec4f>;          // [slot, drafts]
@group(0) @binding(4) var<storage, read> token_map: array<u32>;         // [drafts], ascending
@group(0) @binding(5) var<storage, read_write> bests: array<ChunkBest>; // [row of this launch, chunks]

override WORKGROUP: u32 = 8u;

fn with_draft(best: ChunkBest, logit: f32, draft: u32, position: u32) -> ChunkBest {
  if (draft >= heads.drafts) {
    return best;
  }
  var token = draft;
  if (heads.is_mapped != 0u) {
    token = token_map[draft];
  }
  if (token >= sampling.valid_tokens) {
    return best;
  }
  let inverse_temperature = select(1.0, sampling.inverse_temperature, sampling.inverse_temperature > 0.0);
  let score = logit * inverse_temperature + select(0.0, noise_of(position, token), sampling.shares_noise != 0u);
  // Written so that what is no number is left out.
  if (!(abs(score) < -LOWEST)) {
    return best;
  }
  if (best.score == LOWEST) {
    return ChunkBest(score, draft, 0.0);
  }
  if (score <= best.score) {
    return ChunkBest(best.score, best.draft, best.rest + exp(score - best.score));
  }
  return ChunkBest(score, draft, (best.rest + 1.0) * exp(best.score - score));
}

@compute @workgroup_size(WORKGROUP)
fn head_chunks(@builtin(global_invocation_id) id: vec3u) {
  let chunk = id.x;
  let row = id.y;
  if (chunk >= heads.chunks || state.finish != 0u) {
    return;
  }
  // Rows of one launch are all depths, or nodes of one depth.
  let depth = select(row, heads.depth, heads.is_recurrent != 0u);
  let position = state.context_length + depth + 1u;
  let first = (heads.first_slot + row) * heads.logit_stride;
  var best = ChunkBest(LOWEST, 0u, 0.0);
  for (var quad = chunk; 4u * quad < heads.drafts; quad += heads.chunks) {
    let logit = logits[first + quad];
    best = with_draft(best, logit.x, 4u * quad, position);
    best = with_draft(best, logit.y, 4u * quad + 1u, position);
    best = with_draft(best, logit.z, 4u * quad + 2u, position);
    best = with_draft(best, logit.w, 4u * quad + 3u, position);
  }
  bests[row * heads.chunks + chunk] = best;
}
