// The lowest processed logit that top-k, top-p and min-p leave in play, one workgroup a row.
//
// top-k keeps the k highest; top-p, among those, the fewest whose probability reaches p; min-p all within a factor of the most
// likely. Ties at an edge stay in. Each edge is a logit value, found by bisecting the 32 bits of an order-preserving integer
// image of the floats: no sort, any k and p, and the same result for every row count. Oracle: `threshold` in src/sampling/mod.rs.
#import "lib/state.wgsl"
#import "lib/sampling.wgsl"

@group(0) @binding(0) var<uniform> sampling: Sampling;
@group(0) @binding(1) var<storage, read> state: State;
@group(0) @binding(2) var<storage, read> logits: array<vec4f>;           // [rows, vocabulary], processed
@group(0) @binding(3) var<storage, read_write> thresholds: array<f32>;   // [rows]

#import "lib/row.wgsl"

// The float whose order-preserving image is `image`.
fn float_of(image: u32) -> f32 {
  return bitcast<f32>(select(~image, image ^ 0x80000000u, image >= 0x80000000u));
}

// How many logits are at least `edge`, and their mass relative to the highest.
fn count_and_mass(row: u32, thread: u32, edge: f32, highest: f32) -> vec2f {
  var count = vec4f();
  var mass = vec4f();
  for (var quad = thread; quad < sampling.vocabulary_quads; quad += THREADS) {
    let logit = logits[row * sampling.vocabulary_quads + quad];
    let kept = (logit >= vec4f(edge)) & valid(quad);
    count += select(vec4f(0.0), vec4f(1.0), kept);
    mass += select(vec4f(0.0), exp(logit - highest), kept);
  }
  return sum_of_threads(thread, vec2f(sum_of_quad(count), sum_of_quad(mass)));
}

// Bisects for the highest edge that keeps at least `wanted` logits (or mass); `otherwise` where there is none.
fn bisect(row: u32, thread: u32, highest: f32, wanted: f32, by_mass: bool, otherwise: f32) -> f32 {
  var image = 0u;
  for (var bit = 0x80000000u; bit > 0u; bit >>= 1u) {
    let candidate = image | bit;
    let finite = candidate >= 0x00800000u && candidate <= 0xff7fffffu;
    let kept = count_and_mass(row, thread, float_of(select(0x80000000u, candidate, finite)), highest);
    if (finite && select(kept.x, kept.y, by_mass) >= wanted) {
      image = candidate;
    }
  }
  return select(otherwise, max(otherwise, float_of(max(image, 0x00800000u))), image != 0u);
}

@compute @workgroup_size(THREADS)
fn threshold(@builtin(workgroup_id) workgroup: vec3u, @builtin(local_invocation_index) thread: u32) {
  let row = workgroup.x;
  let highest = highest_logit(row, thread);
  var edge = LOWEST;
  if (sampling.top_k > 0u) {
    edge = bisect(row, thread, highest, f32(sampling.top_k), false, edge);
  }
  if (sampling.top_p < 1.0) {
    edge = bisect(row, thread, highest, sampling.top_p * count_and_mass(row, thread, edge, highest).y, true, edge);
  }
  if (sampling.min_p > 0.0) {
    edge = max(edge, highest + log(sampling.min_p));
  }
  if (thread == 0u) {
    thresholds[row] = edge;
  }
}
