// Learns the successors of every verified token: of the best of all chunks of its row, the eight best, best first, without their noise.
// One thread a row: a row has a few hundred chunks, most of which change nothing. Where two rows hold the same token the later one counts, so that nothing depends on the order of execution.
// Oracle: `learn` in src/speculate/recycling.rs.
#import "lib/state.wgsl"
#import "lib/sampling.wgsl"
#import "lib/noise.wgsl"
#import "lib/successors.wgsl"

@group(0) @binding(0) var<uniform> sampling: Sampling;
@group(0) @binding(1) var<storage, read> state: State;
@group(0) @binding(2) var<storage, read> candidates: array<Candidate>;           // [rows, chunks]
@group(0) @binding(3) var<storage, read_write> successors: array<Successor>;     // [vocabulary, SUCCESSORS]

override WORKGROUP: u32 = 8u;

fn is_known_later(row: u32) -> bool {
  for (var later = row + 1u; later < pass_rows(); later++) {
    if (state.tokens[later] == state.tokens[row]) {
      return true;
    }
  }
  return false;
}

@compute @workgroup_size(WORKGROUP)
fn recycle(@builtin(global_invocation_id) id: vec3u) {
  let row = id.x;
  if (row >= pass_rows() || state.finish != 0u || is_known_later(row)) {
    return;
  }
  var best: array<Candidate, SUCCESSORS>;
  for (var rank = 0u; rank < SUCCESSORS; rank++) {
    best[rank] = Candidate(LOWEST, NO_TOKEN);
  }
  for (var chunk = 0u; chunk < sampling.chunks; chunk++) {
    let candidate = candidates[row * sampling.chunks + chunk];
    var rank = SUCCESSORS;
    while (rank > 0u && candidate.score > LOWEST && is_before(candidate, best[rank - 1u])) {
      rank -= 1u;
      if (rank + 1u < SUCCESSORS) {
        best[rank + 1u] = best[rank];
      }
      best[rank] = candidate;
    }
  }
  let position = state.context_length + state.depths[row] + 1u;
  for (var rank = 0u; rank < SUCCESSORS; rank++) {
    var successor = Successor(0u, 0.0);
    if (best[rank].score > LOWEST) {
      successor = Successor(best[rank].token + 1u, best[rank].score - noise_of(position, best[rank].token));
    }
    successors[state.tokens[row] * SUCCESSORS + rank] = successor;
  }
}
