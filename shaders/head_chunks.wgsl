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
// Whether the token of a draft id stands in the token map.
override MAPPED: bool = false;

// With the four draft ids from `draft` on.
fn with_quad(best: ChunkBest, scores: vec4f, draft: u32) -> ChunkBest {
  let drafts = draft + vec4u(0u, 1u, 2u, 3u);
  let highest = max(max(scores.x, scores.y), max(scores.z, scores.w));
  let is_higher = highest > best.score;
  let top = select(best.score, highest, is_higher);
  // The first of equal ones.
  let is_highest = scores == vec4f(highest);
  let of_pair = select(vec2u(drafts.w, drafts.y), vec2u(drafts.z, drafts.x), vec2<bool>(is_highest.z, is_highest.x));
  let first = select(of_pair.x, of_pair.y, is_highest.x || is_highest.y);
  let winner = select(best.draft, first, is_higher);
  let counts = (scores > vec4f(LOWEST)) & !((drafts == vec4u(winner)) & vec4<bool>(is_higher));
  let weights = select(vec4f(0.0), exp(scores - top), counts);
  let rest = (best.rest + select(0.0, 1.0, is_higher)) * exp(best.score - top);
  return ChunkBest(top, winner, rest + weights.x + weights.y + weights.z + weights.w);
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
  let inverse_temperature = select(1.0, sampling.inverse_temperature, sampling.inverse_temperature > 0.0);
  let first = (heads.first_slot + row) * heads.logit_stride;
  var best = ChunkBest(LOWEST, 0u, 0.0);
  var quad = chunk;
  loop {
    let drafts = 4u * quad + vec4u(0u, 1u, 2u, 3u);
    var tokens = drafts;
    if (MAPPED) {
      tokens = vec4u(token_map[drafts.x], token_map[drafts.y], token_map[drafts.z], token_map[drafts.w]);
    }
    let noise = vec4f(
      noise_of(position, tokens.x), noise_of(position, tokens.y), noise_of(position, tokens.z), noise_of(position, tokens.w));
    let scores = logits[first + quad] * inverse_temperature + select(vec4f(0.0), noise, sampling.shares_noise != 0u);
    // The last comparison is written so that what is no number is left out.
    let may_be = (drafts < vec4u(heads.drafts)) & (tokens < vec4u(sampling.valid_tokens)) & (abs(scores) < vec4f(-LOWEST));
    best = with_quad(best, select(vec4f(LOWEST), scores, may_be), drafts.x);
    quad += heads.chunks;
    if (4u * quad >= heads.drafts) {
      break;
    }
  }
  bests[row * heads.chunks + chunk] = best;
}
