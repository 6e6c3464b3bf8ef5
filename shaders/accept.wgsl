// Ends a step: chooses every row's token from the candidates, emits, decides whether the text ends, and leaves the tree of the
// next step and this step's record. The root's keys and values become part of the context by counting it in.
// One workgroup; thread i reduces row i, thread 0 does the rest. Oracle: `accept` in src/backend/cpu/mod.rs.
#import "lib/state.wgsl"
#import "lib/sampling.wgsl"

const RECORD_SLOTS = 64u;
const RECORD_TOKENS = 60u;

// Why a generation ended; 0 while it runs. Mirrored by `FinishReason` in src/backend/mod.rs.
const FINISH_STOP = 1u;
const FINISH_LENGTH = 2u;
const FINISH_CONTEXT = 3u;

// 256 bytes, all that the CPU reads of a step. Mirrored by `RawRecord` in src/backend/gpu/layout.rs.
struct Record {
  step: u32,
  count: u32,            // tokens emitted by this step
  finish: u32,
  context_length: u32,   // after the step
  tokens: array<u32, RECORD_TOKENS>,
}

@group(0) @binding(0) var<uniform> sampling: Sampling;
@group(0) @binding(1) var<storage, read> candidates: array<Candidate>;     // [rows, chunks]
@group(0) @binding(2) var<storage, read_write> state: State;
@group(0) @binding(3) var<storage, read_write> history: array<u32>;        // [vocabulary]
@group(0) @binding(4) var<storage, read_write> records: array<Record, RECORD_SLOTS>;

var<workgroup> chosen: array<u32, MAX_ROWS>;

fn best_of_row(row: u32) -> u32 {
  var best = candidates[row * sampling.chunks];
  for (var chunk = 1u; chunk < sampling.chunks; chunk++) {
    let candidate = candidates[row * sampling.chunks + chunk];
    if (candidate.score > best.score) {
      best = candidate;
    }
  }
  return best.token;
}

fn finish_after(token: u32) -> u32 {
  for (var i = 0u; i < state.end_token_count; i++) {
    if (state.end_tokens[i] == token) {
      return FINISH_STOP;
    }
  }
  if (state.emitted >= state.max_tokens) {
    return FINISH_LENGTH;
  }
  return select(0u, FINISH_CONTEXT, state.context_length >= state.context_limit);
}

@compute @workgroup_size(MAX_ROWS)
fn accept(@builtin(local_invocation_index) thread: u32) {
  let running = state.finish == 0u;
  if (running && thread < state.rows) {
    chosen[thread] = best_of_row(thread);
  }
  workgroupBarrier();
  if (!running || thread != 0u) {
    return;
  }
  let token = chosen[0];
  state.context_length += 1u;
  state.emitted += 1u;
  history[token] += 2u;
  state.finish = finish_after(token);
  state.tokens[0] = token;
  let slot = state.step % RECORD_SLOTS;
  records[slot].step = state.step;
  records[slot].count = 1u;
  records[slot].finish = state.finish;
  records[slot].context_length = state.context_length;
  records[slot].tokens[0] = token;
  state.step += 1u;
}
