// What the kernels of draft heads share: sizes, and the lists between them. A *slot* holds the candidates for the children of one node,
// or of all nodes of a depth (`slots` in src/speculate/heads.rs numbers them).

// Candidates kept of a row of draft logits, and nodes that recurrent heads go on from at a depth; mirrored by the constants of
// these names in src/speculate/heads.rs.
const TOP_K = 10u;
const BEAM = 4u;

// Mirrored by `HeadShape` in src/backend/gpu/layout.rs.
struct HeadShape {
  hidden_quads: u32,   // vec4f of a hidden row
  normed_stride: u32,  // vec4f from one normed row of the pass to the next
  input_stride: u32,   // from one input of a block to the next
  row_stride: u32,     // from one output of a block to the next
  vocabulary: u32,     // rows of the correction that are tokens; drafts follow
  drafts: u32,         // draft vocabulary
  logit_stride: u32,   // vec4f from one row of draft logits to the next
  chunks: u32,         // chunks of one of them
  is_recurrent: u32,
  depths: u32,
  depth: u32,          // of the nodes whose children this launch ranks
  first_slot: u32,     // of that depth
  parents: u32,        // slots of the depth above
  first_parent: u32,   // the first of them
  rows: u32,           // rows of logits that one launch ranks
  nodes: u32,          // nodes that a correction ranks them for
  taps: u32,           // layers that are read besides the hidden row
}

// A token that a draft head proposes, in descending order of probability.
struct HeadCandidate {
  token: u32,            // NO_TOKEN behind the last one
  log_probability: f32,
  next_slot: u32,        // the slot of its own children, where slots are not depths
}

// The best draft id of a chunk, and what the others of the chunk weigh, relative to it.
struct ChunkBest {
  score: f32,  // LOWEST where no id may be drafted
  draft: u32,
  rest: f32,
}

// The best draft ids of a row of logits, highest score first, before corrections.
struct Kept {
  rest: f32,  // what all others weigh, relative to the first
  scores: array<f32, TOP_K>,
  tokens: array<u32, TOP_K>,
  drafts: array<u32, TOP_K>,
}

// A slot that does not exist.
const NO_SLOT = 0xffffffffu;
