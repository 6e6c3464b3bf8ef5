// The best draft ids of a row, of the bests of its chunks, highest first, and their probabilities: one workgroup a row.
// Oracle: `rank` in src/speculate/heads.rs, with `log_probabilities` there.
#import "lib/state.wgsl"
#import "lib/sampling.wgsl"
#import "lib/heads.wgsl"

@group(0) @binding(0) var<uniform> heads: HeadShape;
@group(0) @binding(1) var<storage, read> state: State;                                // of the heads
@group(0) @binding(2) var<storage, read> bests: array<ChunkBest>;                     // [row of this launch, chunks]
@group(0) @binding(3) var<storage, read> token_map: array<u32>;                       // [drafts], ascending
@group(0) @binding(4) var<storage, read_write> kept: array<Kept>;                     // [slot]
@group(0) @binding(5) var<storage, read_write> head_candidates: array<HeadCandidate>; // [slot, TOP_K]

// Every rank takes a comparison with each thread's best, so few of them are faster, on any device; at least TOP_K.
const THREADS = 16u;
var<workgroup> thread_bests: array<ChunkBest, THREADS>;
var<workgroup> weights: array<f32, THREADS>;

// Whether `a` comes before `b`: higher, or equal and of a lower draft id, which is a lower token.
fn before(a: ChunkBest, b: ChunkBest) -> bool {
  return a.score > b.score || (a.score == b.score && a.draft < b.draft);
}

@compute @workgroup_size(THREADS)
fn head_rank(@builtin(workgroup_id) workgroup: vec3u, @builtin(local_invocation_index) thread: u32) {
  let row = workgroup.x;
  if (state.finish != 0u) {
    return;
  }
  let none = ChunkBest(LOWEST, NO_TOKEN, 0.0);
  var last = ChunkBest(-LOWEST, 0u, 0.0);
  var mine = none;  // thread i takes the one of rank i
  var highest = LOWEST;
  for (var rank = 0u; rank < TOP_K; rank++) {
    var best = none;
    for (var chunk = thread; chunk < heads.chunks; chunk += THREADS) {
      let candidate = bests[row * heads.chunks + chunk];
      if (candidate.score > LOWEST && before(last, candidate) && before(candidate, best)) {
        best = candidate;
      }
    }
    thread_bests[thread] = best;
    workgroupBarrier();
    for (var t = 0u; t < THREADS; t++) {
      if (before(thread_bests[t], best)) {
        best = thread_bests[t];
      }
    }
    workgroupBarrier();
    last = best;
    if (rank == 0u) {
      highest = best.score;
    }
    if (rank == thread) {
      mine = best;
    }
  }
  // What is not kept: the others of every chunk, and the bests behind the last one.
  var weight = 0.0;
  for (var chunk = thread; chunk < heads.chunks; chunk += THREADS) {
    let candidate = bests[row * heads.chunks + chunk];
    if (candidate.score > LOWEST) {
      weight += (candidate.rest + select(0.0, 1.0, before(last, candidate))) * exp(candidate.score - highest);
    }
  }
  weights[thread] = weight;
  thread_bests[thread] = mine;
  workgroupBarrier();
  if (thread >= TOP_K) {
    return;
  }
  var rest = 0.0;
  for (var t = 0u; t < THREADS; t++) {
    rest += weights[t];
  }
  var total = rest;
  for (var rank = 0u; rank < TOP_K; rank++) {
    if (thread_bests[rank].score > LOWEST) {
      total += exp(thread_bests[rank].score - highest);
    }
  }
  var token = mine.draft;
  if (heads.is_mapped != 0u && token != NO_TOKEN) {
    token = token_map[mine.draft];
  }
  let slot = heads.first_slot + row;
  if (thread == 0u) {
    kept[slot].rest = rest;
  }
  kept[slot].scores[thread] = mine.score;
  kept[slot].tokens[thread] = token;
  kept[slot].drafts[thread] = mine.draft;
  let log_probability = select(LOWEST, mine.score - highest - log(total), token != NO_TOKEN);
  head_candidates[slot * TOP_K + thread] = HeadCandidate(token, log_probability, NO_SLOT);
}
