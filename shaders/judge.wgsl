// Judges every drafted token by the row before it: its probability there, and whether the lossy rules let it pass. Typical acceptance
// asks for p > min(epsilon, alpha * exp(-entropy)) (Cai et al. 2024), top-k acceptance for a rank and a gap to the best
// (Xia et al. 2023); the rule that is not in force asks for what every token has. One workgroup a node.
// Oracle: `judge` in src/speculate/lenient.rs.
#import "lib/state.wgsl"
#import "lib/sampling.wgsl"
#import "lib/judgement.wgsl"

// Written when a generation begins. Mirrored by `RuleShape` in src/backend/gpu/layout.rs.
struct Rule {
  epsilon: f32,
  alpha: f32,
  k: u32,
  tolerance: f32,
}

@group(0) @binding(0) var<uniform> sampling: Sampling;
@group(0) @binding(1) var<uniform> rule: Rule;
@group(0) @binding(2) var<storage, read> state: State;
@group(0) @binding(3) var<storage, read> logits: array<vec4f>;                // [rows, vocabulary], processed
@group(0) @binding(4) var<storage, read> thresholds: array<f32>;              // [rows], read when a filter is on
@group(0) @binding(5) var<storage, read_write> judgements: array<Judgement>;  // [nodes]

#import "lib/row.wgsl"
#import "lib/edge.wgsl"

@compute @workgroup_size(THREADS)
fn judge(@builtin(workgroup_id) workgroup: vec3u, @builtin(local_invocation_index) thread: u32) {
  let node = workgroup.x;
  if (node == 0u || node >= pass_rows() || state.finish != 0u) {
    return;
  }
  let row = state.parents[node];
  let token = state.tokens[node];
  let edge = edge_of(row);
  let own = logits[row * sampling.vocabulary_quads + token / 4u][token % 4u];
  let highest = highest_logit(row, thread);
  var total = vec4f();
  var weighted = vec4f();
  var rank = vec4f();
  for (var quad = thread; quad < sampling.vocabulary_quads; quad += THREADS) {
    let logit = logits[row * sampling.vocabulary_quads + quad];
    let in_play = (logit >= vec4f(edge)) & valid(quad);
    let gap = logit - highest;
    let weight = select(vec4f(0.0), exp(gap), in_play);
    total += weight;
    weighted += select(vec4f(0.0), weight * gap, in_play);
    let is_lower_id = vec4u(4u * quad) + vec4u(0u, 1u, 2u, 3u) < vec4u(token);
    let is_ahead = (logit > vec4f(own)) | ((logit == vec4f(own)) & is_lower_id);
    rank += select(vec4f(0.0), vec4f(1.0), is_ahead & valid(quad));
  }
  let mass = sum_of_threads(thread, vec2f(sum_of_quad(total), sum_of_quad(weighted)));
  let before = sum_of_threads(thread, vec2f(sum_of_quad(rank), 0.0)).x;
  if (thread != 0u) {
    return;
  }
  if (token >= sampling.valid_tokens || own < edge) {
    judgements[node] = Judgement(LOWEST, 0u);
    return;
  }
  let log_probability = own - highest - log(mass.x);
  let entropy = log(mass.x) - mass.y / mass.x;
  let is_typical = exp(log_probability) > min(rule.epsilon, rule.alpha * exp(-entropy));
  let is_near_the_top = before < f32(rule.k) && highest - own <= rule.tolerance;
  judgements[node] = Judgement(log_probability, u32(is_typical && is_near_the_top));
}
