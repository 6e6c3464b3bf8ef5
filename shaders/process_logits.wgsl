// Logits of every row after penalties, bias and temperature, in place. A node's own path counts: tokens emitted so far are in
// `history` (the root among them), the drafted ones between root and node are read from the tree.
// Oracle: `process_logits` in src/sampling/mod.rs.
#import "lib/state.wgsl"
#import "lib/sampling.wgsl"

@group(0) @binding(0) var<uniform> sampling: Sampling;
@group(0) @binding(1) var<storage, read> state: State;
@group(0) @binding(2) var<storage, read> history: array<vec4u>;       // [vocabulary]: times emitted * 2 + (1 if in the prompt)
@group(0) @binding(3) var<storage, read> bias: array<vec4f>;          // [vocabulary]
@group(0) @binding(4) var<storage, read_write> logits: array<vec4f>;  // [rows, vocabulary]

override WORKGROUP: u32 = 8u;

@compute @workgroup_size(WORKGROUP)
fn process_logits(@builtin(global_invocation_id) id: vec3u) {
  let quad = id.x;
  let row = id.y;
  if (quad >= sampling.vocabulary_quads || row >= pass_rows() || state.finish != 0u) {
    return;
  }
  var seen = history[quad];
  for (var depth = 1u; depth <= state.depths[row]; depth++) {
    let token = state.tokens[state.paths[row * MAX_ROWS + depth]];
    seen += select(vec4u(0u), vec4u(2u), vec4u(4u * quad) + vec4u(0u, 1u, 2u, 3u) == vec4u(token));
  }
  let emitted = vec4f(seen >> vec4u(1u));
  let logit = logits[row * sampling.vocabulary_quads + quad];
  let repeated = select(logit * sampling.repetition_penalty, logit / sampling.repetition_penalty, logit > vec4f(0.0));
  let penalised = select(logit, repeated, seen > vec4u(0u))
    - emitted * sampling.frequency_penalty
    - select(vec4f(0.0), vec4f(sampling.presence_penalty), emitted > vec4f(0.0));
  let inverse_temperature = select(1.0, sampling.inverse_temperature, sampling.inverse_temperature > 0.0);
  logits[row * sampling.vocabulary_quads + quad] = (penalised + bias[quad]) * inverse_temperature;
}
