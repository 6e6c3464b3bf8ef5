// One workgroup looks at one row of processed logits. Expects `sampling` and `logits: array<vec4f>` [rows, vocabulary].

const THREADS = 64u;
var<workgroup> partial: array<vec2f, THREADS>;

// Which tokens of a quad there are: the others are padding of the head.
fn valid(quad: u32) -> vec4<bool> {
  return vec4u(4u * quad) + vec4u(0u, 1u, 2u, 3u) < vec4u(sampling.valid_tokens);
}

// The sums of what every thread has found.
fn sum_of_threads(thread: u32, own: vec2f) -> vec2f {
  partial[thread] = own;
  workgroupBarrier();
  var result = vec2f();
  for (var t = 0u; t < THREADS; t++) {
    result += partial[t];
  }
  workgroupBarrier();
  return result;
}

fn max_of_threads(thread: u32, own: f32) -> f32 {
  partial[thread] = vec2f(own, 0.0);
  workgroupBarrier();
  var result = LOWEST;
  for (var t = 0u; t < THREADS; t++) {
    result = max(result, partial[t].x);
  }
  workgroupBarrier();
  return result;
}

fn sum_of_quad(quad: vec4f) -> f32 {
  return (quad.x + quad.y) + (quad.z + quad.w);
}

fn highest_logit(row: u32, thread: u32) -> f32 {
  var highest = vec4f(LOWEST);
  for (var quad = thread; quad < sampling.vocabulary_quads; quad += THREADS) {
    highest = max(highest, select(vec4f(LOWEST), logits[row * sampling.vocabulary_quads + quad], valid(quad)));
  }
  return max_of_threads(thread, max(max(highest.x, highest.y), max(highest.z, highest.w)));
}
