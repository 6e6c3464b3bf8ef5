// What is known of the distribution of a visited row, chunk by chunk. Expects `sampling`, and `logits: array<vec4f>` [rows, vocabulary],
// processed.

const CHUNK_TOKENS = 4u * CHUNK_QUADS;

struct ChunkMass {
  best: Candidate,  // the most probable token of the chunk that has not been ranked; NO_TOKEN if there is none
  mass: f32,        // probability of all tokens of the chunk, relative to that of the most probable
}

// The most probable token of a chunk behind `last`, which is one of the chunk or before all tokens. Padding of the head has none.
fn best_behind(last: Candidate, row: u32, chunk: u32) -> Candidate {
  let first = chunk * CHUNK_QUADS;
  let end = min(first + CHUNK_QUADS, sampling.vocabulary_quads);
  var score = vec4f(LOWEST);
  var token = vec4u(NO_TOKEN);
  for (var quad = first; quad < end; quad++) {
    let logit = logits[row * sampling.vocabulary_quads + quad];
    let tokens = vec4u(4u * quad) + vec4u(0u, 1u, 2u, 3u);
    let is_behind = (logit < vec4f(last.score)) | ((logit == vec4f(last.score)) & (tokens > vec4u(last.token)));
    let wins = is_behind & (tokens < vec4u(sampling.valid_tokens)) & (logit > score);
    score = select(score, logit, wins);
    token = select(token, tokens, wins);
  }
  let low = first_of(Candidate(score.x, token.x), Candidate(score.y, token.y));
  let high = first_of(Candidate(score.z, token.z), Candidate(score.w, token.w));
  return first_of(low, high);
}
