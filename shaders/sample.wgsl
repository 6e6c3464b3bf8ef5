// The best token of every chunk of 128 of a row: highest logit plus, when sampling, the token's Gumbel noise, among those that
// the threshold leaves in play. The lowest id wins a tie. accept.wgsl reduces the chunks. Oracle: `sample` in src/sampling/mod.rs.
#import "lib/state.wgsl"
#import "lib/sampling.wgsl"
#import "lib/noise.wgsl"

@group(0) @binding(0) var<uniform> sampling: Sampling;
@group(0) @binding(1) var<storage, read> state: State;
@group(0) @binding(2) var<storage, read> logits: array<vec4f>;          // [rows, vocabulary], processed
@group(0) @binding(3) var<storage, read> thresholds: array<f32>;        // [rows], read when a filter is on
@group(0) @binding(4) var<storage, read_write> candidates: array<Candidate>; // [rows, chunks]

#import "lib/edge.wgsl"

override WORKGROUP: u32 = 8u;
// Whether chance decides.
override NOISY: bool = false;

// Four of the best at a time, each of the tokens whose ids are the same modulo four.
struct Bests { score: vec4f, token: vec4u }

fn better(bests: Bests, logit: vec4f, token: vec4u, edge: f32, position: u32) -> Bests {
  let kept = (logit >= vec4f(edge)) & (token < vec4u(sampling.valid_tokens));
  var score = logit;
  if (NOISY) {
    let seed = vec2u(sampling.seed_low, sampling.seed_high);
    score += vec4f(
      gumbel(seed, position, token.x),
      gumbel(seed, position, token.y),
      gumbel(seed, position, token.z),
      gumbel(seed, position, token.w));
  }
  let wins = kept & (score > bests.score);
  return Bests(select(bests.score, score, wins), select(bests.token, token, wins));
}

@compute @workgroup_size(WORKGROUP)
fn sample(@builtin(global_invocation_id) id: vec3u) {
  let chunk = id.x;
  let row = id.y;
  if (chunk >= sampling.chunks || row >= pass_rows() || state.finish != 0u) {
    return;
  }
  let edge = edge_of(row);
  let position = state.context_length + state.depths[row] + 1u;
  let first = chunk * CHUNK_QUADS;
  let end = min(first + CHUNK_QUADS, sampling.vocabulary_quads);
  var bests = Bests(vec4f(LOWEST), 4u * first + vec4u(0u, 1u, 2u, 3u));
  for (var quad = first; quad < end; quad++) {
    let token = 4u * quad + vec4u(0u, 1u, 2u, 3u);
    bests = better(bests, logits[row * sampling.vocabulary_quads + quad], token, edge, position);
  }
  let low = first_of(Candidate(bests.score.x, bests.token.x), Candidate(bests.score.y, bests.token.y));
  let high = first_of(Candidate(bests.score.z, bests.token.z), Candidate(bests.score.w, bests.token.w));
  candidates[row * sampling.chunks + chunk] = first_of(low, high);
}
