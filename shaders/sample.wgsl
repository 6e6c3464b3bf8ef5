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

fn better(best: Candidate, logit: f32, token: u32, edge: f32, position: u32) -> Candidate {
  if (token >= sampling.valid_tokens || logit < edge) {
    return best;
  }
  var score = logit;
  if (sampling.inverse_temperature > 0.0) {
    score += gumbel(vec2u(sampling.seed_low, sampling.seed_high), position, token);
  }
  if (score > best.score) {
    return Candidate(score, token);
  }
  return best;
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
  var best = Candidate(LOWEST, 4u * first);
  for (var quad = first; quad < min(first + CHUNK_QUADS, sampling.vocabulary_quads); quad++) {
    let logit = logits[row * sampling.vocabulary_quads + quad];
    best = better(best, logit.x, 4u * quad, edge, position);
    best = better(best, logit.y, 4u * quad + 1u, edge, position);
    best = better(best, logit.z, 4u * quad + 2u, edge, position);
    best = better(best, logit.w, 4u * quad + 3u, edge, position);
  }
  candidates[row * sampling.chunks + chunk] = best;
}
