// Learns the successors of every verified token: of the best of all chunks of its row, the eight best, best first, without their noise.
// One workgroup a row. Where two rows hold the same token the later one counts, so that nothing depends on the order of execution.
// Oracle: `learn` in src/speculate/recycling.rs.
#import "lib/state.wgsl"
#import "lib/sampling.wgsl"
#import "lib/noise.wgsl"
#import "lib/successors.wgsl"

@group(0) @binding(0) var<uniform> sampling: Sampling;
@group(0) @binding(1) var<storage, read> state: State;
@group(0) @binding(2) var<storage, read> candidates: array<Candidate>;           // [rows, chunks]
@group(0) @binding(3) var<storage, read_write> successors: array<Successor>;     // [vocabulary, SUCCESSORS]

const THREADS = 64u;
var<workgroup> bests: array<Candidate, THREADS>;

fn is_known_later(row: u32) -> bool {
  for (var later = row + 1u; later < pass_rows(); later++) {
    if (state.tokens[later] == state.tokens[row]) {
      return true;
    }
  }
  return false;
}

@compute @workgroup_size(THREADS)
fn recycle(@builtin(workgroup_id) workgroup: vec3u, @builtin(local_invocation_index) thread: u32) {
  let row = workgroup.x;
  if (row >= pass_rows() || state.finish != 0u || is_known_later(row)) {
    return;
  }
  let position = state.context_length + state.depths[row] + 1u;
  var last = Candidate(-LOWEST, 0u);
  for (var rank = 0u; rank < SUCCESSORS; rank++) {
    var best = Candidate(LOWEST, NO_TOKEN);
    for (var chunk = thread; chunk < sampling.chunks; chunk += THREADS) {
      let candidate = candidates[row * sampling.chunks + chunk];
      if (is_before(last, candidate) && is_before(candidate, best) && candidate.score > LOWEST) {
        best = candidate;
      }
    }
    bests[thread] = best;
    workgroupBarrier();
    for (var t = 0u; t < THREADS; t++) {
      if (is_before(bests[t], best)) {
        best = bests[t];
      }
    }
    workgroupBarrier();
    last = best;
    if (thread == 0u) {
      var successor = Successor(0u, 0.0);
      if (best.score > LOWEST) {
        successor = Successor(best.token + 1u, best.score - noise_of(position, best.token));
      }
      successors[state.tokens[row] * SUCCESSORS + rank] = successor;
    }
  }
}
