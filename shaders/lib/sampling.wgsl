// How a token is chosen. Written once a generation; mirrored by `SamplingShape` in src/backend/gpu/layout.rs.

struct Sampling {
  vocabulary_quads: u32,  // quads of one row of logits
  valid_tokens: u32,      // ids from here on are padding rows of the head, never chosen
  chunks: u32,            // chunks of one row that sample.wgsl reduces
  top_k: u32,             // 0 = off
  seed_low: u32,
  seed_high: u32,
  inverse_temperature: f32, // 0 = greedy
  top_p: f32,             // 1 = off
  min_p: f32,             // 0 = off
  repetition_penalty: f32, // 1 = off
  frequency_penalty: f32,
  presence_penalty: f32,
  shares_noise: u32,      // whether drafters rank with the noise of the choice they guess
  temperature: f32,       // what process_logits.wgsl divides by: 1 where the choice is greedy
  top_logprobs: u32,      // most probable tokens of a row that are told of, where that is asked for
}

// Below every logit; finite, since WGSL has no infinity.
const LOWEST = -3.0e38;
// A token that does not exist.
const NO_TOKEN = 0xffffffffu;
// Quads of logits that one thread of sample.wgsl reduces.
const CHUNK_QUADS = 32u;

struct Candidate {
  score: f32,
  token: u32,
}

// Whether `a` comes before `b`: higher, or equal and of a lower token.
fn is_before(a: Candidate, b: Candidate) -> bool {
  return a.score > b.score || (a.score == b.score && a.token < b.token);
}

fn first_of(a: Candidate, b: Candidate) -> Candidate {
  if (is_before(b, a)) {
    return b;
  }
  return a;
}
