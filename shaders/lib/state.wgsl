// The state of a generation: what a step reads, and what its last kernel rewrites for the next one.
// Mirrored by `StateHead` in src/backend/gpu/layout.rs, and the offsets behind it; both must keep the same order.

// Rows in one pass at most: the largest tree, and the largest chunk of a prompt.
const MAX_ROWS = 64u;
const MAX_END_TOKENS = 32u;

struct State {
  context_length: u32,  // positions whose keys and values are committed
  rows: u32,            // nodes of the tree that the arrays below describe
  finish: u32,          // 0 while running, else why it ended (FinishReason in src/backend/mod.rs)
  emitted: u32,         // tokens emitted so far
  max_tokens: u32,      // emit no more than this
  context_limit: u32,   // positions the model or the cache has room for
  step: u32,            // records written so far
  row_limit: u32,       // nodes this pass has room for; the CPU writes it before the pass
  visited_rows: u32,    // rows that the last walk visited; `visited` lists them
  commit_start: u32,    // where the keys and values of the first of them stand
  last_row: u32,        // the last of them: what comes next is drafted from its hidden state
  end_token_count: u32,
  end_tokens: array<u32, MAX_END_TOKENS>,
  tokens: array<u32, MAX_ROWS>,             // node 0 is the root: decided, not yet in the cache
  parents: array<u32, MAX_ROWS>,            // parent < child; the root is its own parent
  depths: array<u32, MAX_ROWS>,             // position of a node = context_length + depth
  paths: array<u32, MAX_ROWS * MAX_ROWS>,   // [node, d] = the node's ancestor at depth d (itself at its own depth)
  sources: array<u32, MAX_ROWS>,            // who drafted a node (Source in src/speculate/mod.rs)
  visited: array<u32, MAX_ROWS>,
  slots: array<u32, MAX_ROWS>,              // slot of head candidates that a node's children are drafted from
  log_probabilities: array<f32, MAX_ROWS>,  // that all of a drafted node's path is right, as its drafters estimate it
}

// Nodes that this pass computes: the first ones of the tree. They are a tree too, since a parent stands before its children.
fn pass_rows() -> u32 {
  return min(state.rows, state.row_limit);
}

fn is_end_token(token: u32) -> bool {
  for (var i = 0u; i < state.end_token_count; i++) {
    if (state.end_tokens[i] == token) {
      return true;
    }
  }
  return false;
}

// The cache slot that holds logical position `position` as node `node` sees it: a committed slot, or the scratch row of the
// node's own ancestor. Walking positions this way makes a branch reduce in the order of plain decoding.
fn slot_of(node: u32, position: u32) -> u32 {
  if (position < state.context_length) {
    return position;
  }
  return state.context_length + state.paths[node * MAX_ROWS + position - state.context_length];
}
