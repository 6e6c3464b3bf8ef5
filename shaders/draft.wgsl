// Drafts the next tree: merges what the drafters propose, best first or in a fixed shape, and writes it where the next pass reads it.
//
// One workgroup: all threads look for the n-gram, thread 0 grows. Every drafter has one proposal pending at a node, its best child not yet
// taken; the most probable of all pending ones becomes a node. Oracle: `grow` in src/speculate/grow.rs.
#import "lib/state.wgsl"
#import "lib/sampling.wgsl"
#import "lib/noise.wgsl"
#import "lib/record.wgsl"
#import "lib/drafting.wgsl"
#import "lib/heads.wgsl"

@group(0) @binding(0) var<uniform> sampling: Sampling;
@group(0) @binding(1) var<uniform> drafting: Drafting;
@group(0) @binding(2) var<storage, read_write> state: State;
@group(0) @binding(3) var<storage, read> text: array<u32>;                      // [position]
@group(0) @binding(4) var<storage, read> successors: array<Successor>;          // [vocabulary, SUCCESSORS]
@group(0) @binding(5) var<storage, read> head_candidates: array<HeadCandidate>; // [slot, head_width]
@group(0) @binding(6) var<storage, read> listed: array<vec2u>;                  // fixed shape: parent and rank of nodes 1 and up
@group(0) @binding(7) var<storage, read_write> records: array<Record, RECORD_SLOTS>;

#import "lib/ngram.wgsl"
#import "lib/recycling.wgsl"

const MAX_THREADS = 64u;
const DRAFTERS = 3u;
const ALL_DRAFTERS = 7u;
const NONE = 0xffffffffu;

// What became of a proposal, where it is no new node: its parent had such a child, or it was passed over.
const KNOWN = 0xfffffffeu;
const PASSED_OVER = 0xfffffffdu;

// A drafter's best child of a node that is not taken yet; score LOWEST where it has none.
struct Pending {
  token: u32,
  score: f32,         // logarithm of the probability of the whole path
  rank: u32,
  continuation: u32,  // where its own children are found: index in the n-gram continuation
  slot: u32,          // and slot of head candidates
}

override WORKGROUP: u32 = 8u;
// Whether the tree has a fixed shape.
override LISTED: bool = false;

var<workgroup> matches: array<u32, MAX_THREADS>;
var<private> found: u32;
var<private> end: u32;
var<private> max_depth: u32;
var<private> nodes: u32;
var<workgroup> pending: array<Pending, MAX_ROWS * DRAFTERS>;
var<workgroup> scores: array<f32, MAX_ROWS>;
var<workgroup> continuations: array<u32, MAX_ROWS>;

fn from_heads(node: u32, rank: u32) -> Pending {
  let slot = state.slots[node];
  if (slot >= drafting.head_slots || rank >= drafting.head_width) {
    return Pending(NO_TOKEN, LOWEST, rank, NONE, NONE);
  }
  let candidate = head_candidates[slot * drafting.head_width + rank];
  // Whether a draw is verified must not depend on what was drawn.
  let drawn = f32(rank + 1u) * DRAW_LOG_PROBABILITY;
  let believed = head_log_probability(state.depths[node], candidate.log_probability);
  let log_probability = select(believed, drawn, drafting.drawing != 0u);
  return Pending(candidate.token, log_probability, rank, NONE, candidate.next_slot);
}

fn from_ngram(node: u32, rank: u32) -> Pending {
  let index = continuations[node];
  if (rank > 0u || index == NONE) {
    return Pending(NO_TOKEN, LOWEST, rank, NONE, NONE);
  }
  let log_probability = ngram_log_probability(class_of_match((found >> LENGTH_SHIFT) + index));
  return Pending(continuation(found, end, index), log_probability, rank, index + 1u, NONE);
}

fn from_recycling(node: u32, rank: u32) -> Pending {
  let token = state.tokens[node];
  if (rank == 0u) {
    rank_successors(node, token, end + state.depths[node] + 1u);
  }
  let ranked = recycled(node, token, rank);
  return Pending(ranked.token, ranked.score + drafting.recycling_log_probability, rank, NONE, NONE);
}

// What a drafter proposes as its child number `rank` of a node.
fn propose(node: u32, drafter: u32, rank: u32) {
  var proposal = Pending(NO_TOKEN, LOWEST, rank, NONE, NONE);
  if ((drafting.sources & (1u << drafter)) != 0u && state.depths[node] < max_depth) {
    switch (drafter) {
      case 0u: { proposal = from_heads(node, rank); }
      case 1u: { proposal = from_ngram(node, rank); }
      default: { proposal = from_recycling(node, rank); }
    }
  }
  if (proposal.token == NO_TOKEN) {
    proposal.score = LOWEST;
  } else {
    proposal.score += scores[node];
  }
  pending[node * DRAFTERS + drafter] = proposal;
}

// Has a drafter propose its next child of `node`, and those of a set their first one of `child`. All proposals are made here, in one
// place, since devices copy a function to wherever it is called.
fn propose_after(node: u32, drafter: u32, rank: u32, child: u32, of_child: u32) {
  for (var i = 0u; i <= DRAFTERS; i++) {
    if (i == DRAFTERS) {
      if (node != NONE) {
        propose(node, drafter, rank);
      }
    } else if ((of_child & (1u << i)) != 0u) {
      propose(child, i, 0u);
    }
  }
}

// Index in `pending` of the most probable proposal of some nodes, the first of equals; NONE if there is none.
fn best_pending(first: u32, last: u32) -> u32 {
  var best = NONE;
  var highest = LOWEST;
  for (var i = first * DRAFTERS; i < last * DRAFTERS; i++) {
    if (pending[i].score > highest) {
      highest = pending[i].score;
      best = i;
    }
  }
  return best;
}

fn add(parent: u32, proposal: Pending, drafter: u32) {
  let node = nodes;
  let depth = state.depths[parent] + 1u;
  nodes += 1u;
  state.tokens[node] = proposal.token;
  state.parents[node] = parent;
  state.depths[node] = depth;
  state.sources[node] = drafter + 1u;
  for (var d = 0u; d < depth; d++) {
    state.paths[node * MAX_ROWS + d] = state.paths[parent * MAX_ROWS + d];
  }
  state.paths[node * MAX_ROWS + depth] = node;
  scores[node] = proposal.score;
  state.log_probabilities[node] = proposal.score;
  continuations[node] = proposal.continuation;
  state.slots[node] = select(proposal.slot, depth, drafting.head_slots_are_depths != 0u);
}

// The child of a node that holds a token; NONE if there is none.
fn child_with(node: u32, token: u32) -> u32 {
  for (var child = node + 1u; child < nodes; child++) {
    if (state.parents[child] == node && state.tokens[child] == token) {
      return child;
    }
  }
  return NONE;
}

// Takes a pending proposal: as a new node if `keep` and its parent has no such child.
fn take(index: u32, keep: bool) -> u32 {
  let node = index / DRAFTERS;
  let drafter = index % DRAFTERS;
  let proposal = pending[index];
  var child = child_with(node, proposal.token);
  var taken = KNOWN;
  var of_child = 0u;
  if (child != NONE) {
    let gains_continuation = continuations[child] == NONE && proposal.continuation != NONE;
    let gains_slot = state.slots[child] == NONE && proposal.slot != NONE;
    if (gains_continuation) {
      continuations[child] = proposal.continuation;
    }
    if (gains_slot) {
      state.slots[child] = proposal.slot;
    }
    of_child = select(0u, 1u << drafter, gains_continuation || gains_slot);
  } else if (keep) {
    child = nodes;
    taken = nodes;
    of_child = ALL_DRAFTERS;
    add(node, proposal, drafter);
  } else {
    taken = PASSED_OVER;
  }
  propose_after(node, drafter, proposal.rank + 1u, child, of_child);
  return taken;
}

fn grow_best_first() {
  while (nodes < drafting.max_nodes) {
    let best = best_pending(0u, nodes);
    if (best == NONE) {
      return;
    }
    take(best, true);
  }
}

// The child of `node` that has rank `rank` among all its proposals; `ranked` of them have been passed already.
fn take_rank(node: u32, rank: u32, ranked: ptr<function, u32>) -> u32 {
  var taken = PASSED_OVER;
  while (taken == PASSED_OVER || taken == KNOWN) {
    let best = best_pending(node, node + 1u);
    if (best == NONE) {
      return NONE;
    }
    taken = take(best, *ranked == rank);
    *ranked += u32(taken != KNOWN);
  }
  return taken;
}

fn take_listed() {
  var places: array<u32, MAX_ROWS>;  // where each listed node came to stand; NONE where it does not exist
  var ranked: array<u32, MAX_ROWS>;
  for (var i = 1u; i < drafting.listed_nodes; i++) {
    let parent = listed[i].x;
    places[i] = NONE;
    if (places[parent] != NONE) {
      var passed = ranked[parent];
      places[i] = take_rank(places[parent], listed[i].y, &passed);
      ranked[parent] = passed;
    }
  }
}

@compute @workgroup_size(WORKGROUP)
fn draft(@builtin(local_invocation_index) thread: u32) {
  end = state.context_length;
  let running = state.finish == 0u;
  let looks = running && (drafting.sources & 2u) != 0u;
  if (looks) {
    matches[thread] = best_match(thread, WORKGROUP, end);
  }
  workgroupBarrier();
  if (!running || thread != 0u) {
    return;
  }
  found = 0u;
  if (looks) {
    for (var t = 0u; t < WORKGROUP; t++) {
      found = max(found, matches[t]);
    }
  }
  // A node deeper than this would never be visited: the text or the context ends before.
  max_depth = min(state.max_tokens - state.emitted, state.context_limit - end) - 1u;
  nodes = 1u;
  scores[0] = 0.0;
  continuations[0] = select(NONE, 0u, found != 0u);
  state.slots[0] = 0u;
  propose_after(NONE, 0u, 0u, 0u, ALL_DRAFTERS);
  if (LISTED) {
    take_listed();
  } else {
    grow_best_first();
  }
  state.rows = nodes;
  let slot = (state.step - 1u) % RECORD_SLOTS;
  records[slot].drafted = nodes;
  records[slot].match_length = found >> LENGTH_SHIFT;
}
