// The best of a sequence in order. Whole vectors are compared, without memory, conditions or barriers: that is what software adapters
// run fast, and the four invocations that they run at once rank four sequences.
// Expects the imports lib/sampling.wgsl and lib/heads.wgsl.

const_assert TOP_K == 10u;

// Places that are kept, of which TOP_K count: highest score first, of equal ones the lower key first.
struct Ranked {
  s0: vec4f,  // scores, LOWEST behind the last one
  s1: vec4f,
  s2: vec4f,
  k0: vec4u,  // keys
  k1: vec4u,
  k2: vec4u,
}

fn none_ranked() -> Ranked {
  let none = vec4f(LOWEST);
  let key = vec4u(NO_TOKEN);
  return Ranked(none, none, none, key, key, key);
}

// Which of four places come before a new one.
fn stays(scores: vec4f, keys: vec4u, score: f32, key: u32) -> vec4<bool> {
  return (scores > vec4f(score)) | ((scores == vec4f(score)) & (keys < vec4u(key)));
}

// With one more.
fn with_ranked(list: Ranked, score: f32, key: u32) -> Ranked {
  let b0 = stays(list.s0, list.k0, score, key);
  let b1 = stays(list.s1, list.k1, score, key);
  let b2 = stays(list.s2, list.k2, score, key);
  // Behind a place that stays comes the new one, behind any other what stood there.
  let a0 = vec4<bool>(true, b0.x, b0.y, b0.z);
  let a1 = vec4<bool>(b0.w, b1.x, b1.y, b1.z);
  let a2 = vec4<bool>(b1.w, b2.x, b2.y, b2.z);
  let s = vec4f(score);
  let k = vec4u(key);
  return Ranked(
    select(select(vec4f(score, list.s0.xyz), s, a0), list.s0, b0),
    select(select(vec4f(list.s0.w, list.s1.xyz), s, a1), list.s1, b1),
    select(select(vec4f(list.s1.w, list.s2.xyz), s, a2), list.s2, b2),
    select(select(vec4u(key, list.k0.xyz), k, a0), list.k0, b0),
    select(select(vec4u(list.k0.w, list.k1.xyz), k, a1), list.k1, b1),
    select(select(vec4u(list.k1.w, list.k2.xyz), k, a2), list.k2, b2));
}

// What the first TOP_K weigh relative to a score.
fn weight_of(list: Ranked, reference: f32) -> f32 {
  let w = exp(list.s0 - reference) + exp(list.s1 - reference);
  let last = exp(list.s2.xy - reference);
  return w.x + w.y + w.z + w.w + last.x + last.y;
}

// Scores and keys by place.
fn scores_of(list: Ranked) -> array<f32, 12> {
  return array<f32, 12>(
    list.s0.x, list.s0.y, list.s0.z, list.s0.w, list.s1.x, list.s1.y, list.s1.z, list.s1.w, list.s2.x, list.s2.y, list.s2.z, list.s2.w);
}

fn keys_of(list: Ranked) -> array<u32, 12> {
  return array<u32, 12>(
    list.k0.x, list.k0.y, list.k0.z, list.k0.w, list.k1.x, list.k1.y, list.k1.z, list.k1.w, list.k2.x, list.k2.y, list.k2.z, list.k2.w);
}
