// The most probable token of every chunk of 128 of the rows that accept.wgsl visited, and the probability of the whole chunk relative to
// it, at temperature 1: process_logits.wgsl has divided by the temperature, which is multiplied back into differences of logits.
// One thread a chunk; logprobs.wgsl joins the chunks. Oracle: `logprobs` in src/sampling/logprobs.rs.
#import "lib/state.wgsl"
#import "lib/sampling.wgsl"

@group(0) @binding(0) var<uniform> sampling: Sampling;
@group(0) @binding(1) var<storage, read> state: State;
@group(0) @binding(2) var<storage, read> logits: array<vec4f>;            // [rows, vocabulary], processed
@group(0) @binding(3) var<storage, read_write> chunks: array<ChunkMass>;  // [visited, chunks]

#import "lib/logprobs.wgsl"

override WORKGROUP: u32 = 8u;

@compute @workgroup_size(WORKGROUP)
fn logprob_chunks(@builtin(global_invocation_id) id: vec3u) {
  let chunk = id.x;
  let place = id.y;
  if (chunk >= sampling.chunks || place >= state.visited_rows) {
    return;
  }
  let row = state.visited[place];
  let best = best_behind(Candidate(-LOWEST, 0u), row, chunk);
  let first = chunk * CHUNK_QUADS;
  let end = min(first + CHUNK_QUADS, sampling.vocabulary_quads);
  var mass = vec4f();
  for (var quad = first; quad < end; quad++) {
    let logit = logits[row * sampling.vocabulary_quads + quad];
    let is_valid = vec4u(4u * quad) + vec4u(0u, 1u, 2u, 3u) < vec4u(sampling.valid_tokens);
    mass += select(vec4f(0.0), exp((logit - best.score) * sampling.temperature), is_valid);
  }
  chunks[place * sampling.chunks + chunk] = ChunkMass(best, (mass.x + mass.y) + (mass.z + mass.w));
}
