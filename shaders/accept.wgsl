// Walks the verified tree: emits what the row it stands on has chosen, goes on to the child that holds this token, and decides on
// the way whether the text ends. Leaves the visited rows for commit.wgsl, the next root, and this step's record.
// One workgroup: all threads reduce rows, thread 0 walks. Oracle: `walk` in src/speculate/accept.rs.
#import "lib/state.wgsl"
#import "lib/sampling.wgsl"
#import "lib/record.wgsl"

// Why a generation ended; 0 while it runs. Mirrored by `FinishReason` in src/backend/mod.rs.
const FINISH_STOP = 1u;
const FINISH_LENGTH = 2u;
const FINISH_CONTEXT = 3u;

@group(0) @binding(0) var<uniform> sampling: Sampling;
@group(0) @binding(1) var<storage, read> candidates: array<Candidate>;     // [rows, chunks]
@group(0) @binding(2) var<storage, read_write> state: State;
@group(0) @binding(3) var<storage, read_write> history: array<u32>;        // [vocabulary]
@group(0) @binding(4) var<storage, read_write> text: array<u32>;           // [position]: every token so far
@group(0) @binding(5) var<storage, read_write> records: array<Record, RECORD_SLOTS>;

#import "lib/choice.wgsl"

override WORKGROUP: u32 = 8u;

var<workgroup> chosen: array<u32, MAX_ROWS>;

fn finish_after(token: u32) -> u32 {
  if (is_end_token(token)) {
    return FINISH_STOP;
  }
  if (state.emitted >= state.max_tokens) {
    return FINISH_LENGTH;
  }
  return select(0u, FINISH_CONTEXT, state.context_length >= state.context_limit);
}

struct Children {
  right: u32,   // the child that holds the token, whether this pass computed it or not; 0 if there is none
  offers: u32,  // drafters that have a child among the rows of this pass
}

fn children_of(node: u32, token: u32, rows: u32) -> Children {
  var children = Children();
  for (var child = node + 1u; child < state.rows; child++) {
    if (state.parents[child] == node) {
      if (state.tokens[child] == token) {
        children.right = child;
      }
      if (child < rows) {
        children.offers |= 1u << (state.sources[child] - 1u);
      }
    }
  }
  return children;
}

@compute @workgroup_size(WORKGROUP)
fn accept(@builtin(local_invocation_index) thread: u32) {
  let running = state.finish == 0u;
  let rows = pass_rows();
  if (running) {
    for (var row = thread; row < rows; row += WORKGROUP) {
      chosen[row] = best_of_row(row);
    }
  }
  workgroupBarrier();
  if (thread != 0u) {
    return;
  }
  if (!running) {
    state.visited_rows = 0u;  // nothing for commit.wgsl to move a second time
    return;
  }
  let slot = state.step % RECORD_SLOTS;
  state.commit_start = state.context_length;
  var node = 0u;
  var token = 0u;
  var count = 0u;
  var missed = 0u;
  var offers = 0u;
  for (var i = 0u; i < RECORD_TOKENS / OFFERS_PER_WORD; i++) {
    records[slot].offers[i] = 0u;
  }
  loop {
    token = chosen[node];
    state.visited[count] = node;
    count += 1u;
    state.context_length += 1u;
    state.emitted += 1u;
    history[token] += 2u;
    text[state.context_length] = token;
    state.finish = finish_after(token);
    records[slot].tokens[count - 1u] = token;
    if (state.finish != 0u || count == RECORD_TOKENS) {
      break;
    }
    let children = children_of(node, token, rows);
    let child = children.right;
    let level = count - 1u;
    offers |= children.offers << (OFFER_BITS * (level % OFFERS_PER_WORD));
    if (level % OFFERS_PER_WORD == OFFERS_PER_WORD - 1u) {
      records[slot].offers[level / OFFERS_PER_WORD] = offers;
      offers = 0u;
    }
    if (child == 0u || child >= rows) {
      missed = child;
      break;
    }
    records[slot].tokens[count - 1u] = token | (state.sources[child] << 23u) | (child << 26u);
    node = child;
  }
  if (offers != 0u) {
    records[slot].offers[(count - 1u) / OFFERS_PER_WORD] = offers;
  }
  state.visited_rows = count;
  state.last_row = node;
  records[slot].step = state.step;
  records[slot].count = count;
  records[slot].finish = state.finish;
  records[slot].context_length = state.context_length;
  records[slot].rows = rows;
  records[slot].missed = missed;
  records[slot].drafted = 1u;
  records[slot].match_length = 0u;
  state.step += 1u;
  // The next tree is its root until something is drafted.
  state.rows = 1u;
  state.tokens[0] = token;
}
