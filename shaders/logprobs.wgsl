// The log-probabilities of the token emitted at every row that accept.wgsl visited, and of the most probable tokens there, the highest
// first; of equals the lowest id. One workgroup a row. Oracle: `logprobs` in src/sampling/logprobs.rs.
//
// A thread owns every sixteenth chunk. All agree on the best of their bests, and the owner of its chunk looks there for the next one:
// a rank costs one barrier and a chunk, not a pass over the vocabulary.
#import "lib/state.wgsl"
#import "lib/sampling.wgsl"

// Mirrored by `RawLogprob` in src/backend/gpu/layout.rs.
struct Logprob {
  token: u32,  // NO_TOKEN where there are fewer tokens than were asked for
  logprob: f32,
}

@group(0) @binding(0) var<uniform> sampling: Sampling;
@group(0) @binding(1) var<storage, read> state: State;
@group(0) @binding(2) var<storage, read> logits: array<vec4f>;            // [rows, vocabulary], processed
@group(0) @binding(3) var<storage, read> text: array<u32>;                // [position]: every token so far
@group(0) @binding(4) var<storage, read_write> chunks: array<ChunkMass>;  // [visited, chunks]
@group(0) @binding(5) var<storage, read_write> results: array<Logprob>;      // [visited, 1 + top]: the emitted token, then the others

#import "lib/logprobs.wgsl"

// Every rank takes a comparison with each thread's best, so few of them are faster, on any device.
const THREADS = 16u;
// What threads show each other, in two places by turns: nobody then writes what another may still be reading.
var<workgroup> bests: array<Candidate, 2u * THREADS>;
var<workgroup> masses: array<f32, THREADS>;

// The best of the chunks that a thread owns.
fn best_of_own(place: u32, thread: u32) -> Candidate {
  var best = Candidate(LOWEST, NO_TOKEN);
  for (var chunk = thread; chunk < sampling.chunks; chunk += THREADS) {
    best = first_of(best, chunks[place * sampling.chunks + chunk].best);
  }
  return best;
}

fn best_of_threads(turn: u32) -> Candidate {
  var best = bests[turn * THREADS];
  for (var t = 1u; t < THREADS; t++) {
    best = first_of(best, bests[turn * THREADS + t]);
  }
  return best;
}

@compute @workgroup_size(THREADS)
fn logprobs(@builtin(workgroup_id) workgroup: vec3u, @builtin(local_invocation_index) thread: u32) {
  let place = workgroup.x;
  if (place >= state.visited_rows) {
    return;
  }
  let row = state.visited[place];
  var own = best_of_own(place, thread);
  bests[thread] = own;
  workgroupBarrier();
  var best = best_of_threads(0u);
  let highest = best.score;
  var mass = 0.0;
  for (var chunk = thread; chunk < sampling.chunks; chunk += THREADS) {
    let part = chunks[place * sampling.chunks + chunk];
    mass += select(0.0, part.mass * exp((part.best.score - highest) * sampling.temperature), part.best.token != NO_TOKEN);
  }
  masses[thread] = mass;
  workgroupBarrier();
  var total = 0.0;
  for (var t = 0u; t < THREADS; t++) {
    total += masses[t];
  }
  let log_total = log(total);
  let first = place * (1u + sampling.top_logprobs);
  if (thread == 0u) {
    let token = text[state.commit_start + 1u + place];
    let logit = logits[row * sampling.vocabulary_quads + token / 4u][token % 4u];
    results[first] = Logprob(token, (logit - highest) * sampling.temperature - log_total);
  }
  for (var rank = 0u; rank < sampling.top_logprobs; rank++) {
    let turn = (rank + 1u) % 2u;
    let chunk = best.token / CHUNK_TOKENS;
    if (best.token != NO_TOKEN && chunk % THREADS == thread) {
      results[first + 1u + rank] = Logprob(best.token, (best.score - highest) * sampling.temperature - log_total);
      chunks[place * sampling.chunks + chunk].best = best_behind(best, row, chunk);
      own = best_of_own(place, thread);
    } else if (best.token == NO_TOKEN && thread == 0u) {
      results[first + 1u + rank] = Logprob(NO_TOKEN, LOWEST);
    }
    bests[turn * THREADS + thread] = own;
    workgroupBarrier();
    best = best_of_threads(turn);
  }
}
