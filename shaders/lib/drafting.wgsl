// How the next tree is drafted. Written when a generation begins, and again as acceptance becomes known; mirrored by
// `DraftingShape` in src/backend/gpu/layout.rs.

struct Drafting {
  sources: u32,                    // bit 0 heads, bit 1 n-grams, bit 2 recycling
  max_nodes: u32,                  // nodes of a grown tree, the root included
  listed_nodes: u32,               // nodes of a fixed tree, the root included; 0 = grown
  head_slots: u32,                 // slots of head candidates
  head_width: u32,                 // candidates of a slot
  head_slots_are_depths: u32,      // whether slot d belongs to every node of depth d
  recycling_log_probability: f32,  // that one of a token's successors is right
  rejects: u32,                    // whether tokens pass by rejection (reject.wgsl)
  drawing: u32,                    // how heads draw children, for that rule; 0 = theirs count as given
  draft_vocabulary: u32,           // ids that heads draw from
  draw_chunks: u32,                // chunks of them
  padding: u32,
  ngram_log_probabilities: array<vec4f, 2>,  // that the next token of a match is right, by class of its length; every right one makes it longer
  head_calibration: array<vec4f, 8>,         // what probabilities of heads are worth: slope and offset of two depths each
}

// Values of `drawing`. Mirrored by `Drawing` in src/speculate/rejection.rs.
const DRAWS_INDEPENDENTLY = 1u;
const DRAWS_WITHOUT_REPLACEMENT = 2u;
const DRAWS_CHUNKS = 3u;
// A draw of rank r is taken to have the log-probability r + 1 times this; as in src/speculate/grow.rs.
const DRAW_LOG_PROBABILITY = -0.7;
// `Source::Heads` in src/speculate/mod.rs.
const HEADS = 1u;

// The logarithm of the probability that a candidate of the heads is right, below a node at this depth, from what they estimate.
// Mirrored by `DepthCalibration` in src/model/heads/calibration.rs.
fn head_log_probability(depth: u32, estimated: f32) -> f32 {
  let pair = drafting.head_calibration[depth / 2u];
  let line = select(pair.xy, pair.zw, (depth & 1u) != 0u);
  return min(line.x * estimated + line.y, 0.0);
}

fn ngram_log_probability(match_class: u32) -> f32 {
  return drafting.ngram_log_probabilities[match_class / 4u][match_class % 4u];
}
