// Speculative sampling with rejection: decides which token follows every row, a child that passes or one drawn from what the
// rejected ones leave, and makes it the row's choice. accept.wgsl then walks as ever. src/speculate/rejection.rs has the rules.
//
// One workgroup a row. Logits make way for what is left of p, to scale; a thread reads and writes the quads that are its own alone.
// Oracle: `decide` in src/speculate/rejection.rs.
#import "lib/state.wgsl"
#import "lib/sampling.wgsl"
#import "lib/noise.wgsl"
#import "lib/drafting.wgsl"

@group(0) @binding(0) var<uniform> sampling: Sampling;
@group(0) @binding(1) var<uniform> drafting: Drafting;
@group(0) @binding(2) var<storage, read> state: State;
@group(0) @binding(3) var<storage, read> thresholds: array<f32>;              // [rows], read when a filter is on
@group(0) @binding(4) var<storage, read> head_logits: array<f32>;             // [slot, draft vocabulary], read where heads draw
@group(0) @binding(5) var<storage, read> draft_ids: array<u32>;               // [vocabulary], NO_DRAFT_ID where there is none; likewise
@group(0) @binding(6) var<storage, read_write> logits: array<vec4f>;          // [rows, vocabulary], processed
@group(0) @binding(7) var<storage, read_write> candidates: array<Candidate>;  // [rows, chunks]

#import "lib/row.wgsl"
#import "lib/edge.wgsl"
#import "lib/choose.wgsl"

const NO_DRAFT_ID = 0xffffffffu;
const NO_CHOICE = 0xffffffffu;
// Totals are divided by no less than this: what is left after a rejection that had no probability is rounding.
const LEAST_TOTAL = 1e-30;
// What turns the high word of the seed into that of the uniforms and of the last draw; as in src/sampling/noise.rs.
const ACCEPTANCE = 0xa1ce0000u;
const RESIDUAL = 0xb2de0000u;

var<workgroup> verdict: u32;
var<workgroup> bests: array<Candidate, THREADS>;
// What the children of the row were drawn from.
var<private> draws: bool;
var<private> slot: u32;
var<private> highest_draw: f32;
// Draft ids of the children rejected so far.
var<private> rejected: array<u32, MAX_ROWS>;
var<private> rejected_count: u32;

fn stream(key: u32) -> vec2u {
  return vec2u(sampling.seed_low, sampling.seed_high ^ key);
}

// Whether a draft id cannot be drawn any more once another is a child.
fn excludes(child: u32, id: u32) -> bool {
  switch (drafting.drawing) {
    case DRAWS_WITHOUT_REPLACEMENT: { return child == id; }
    case DRAWS_CHUNKS: {
      return child != NO_DRAFT_ID && (child / 4u) % drafting.draw_chunks == (id / 4u) % drafting.draw_chunks;
    }
    default: { return false; }
  }
}

// The probability that a token is drawn next, to scale.
fn draw_weight(token: u32) -> f32 {
  if (!draws || token >= sampling.valid_tokens || draft_ids[token] == NO_DRAFT_ID) {
    return 0.0;
  }
  let id = draft_ids[token];
  for (var i = 0u; i < rejected_count; i++) {
    if (excludes(rejected[i], id)) {
      return 0.0;
    }
  }
  return exp(head_logits[slot * drafting.draft_vocabulary + id] * sampling.inverse_temperature - highest_draw);
}

fn draw_weights(quad: u32) -> vec4f {
  let token = 4u * quad;
  return vec4f(draw_weight(token), draw_weight(token + 1u), draw_weight(token + 2u), draw_weight(token + 3u));
}

// The highest logit that children of the row were drawn by.
fn highest_draw_logit(thread: u32) -> f32 {
  var highest = LOWEST;
  for (var id = thread; id < drafting.draft_vocabulary; id += THREADS) {
    highest = max(highest, head_logits[slot * drafting.draft_vocabulary + id]);
  }
  return max_of_threads(thread, highest) * sampling.inverse_temperature;
}

// Puts weights in the place of logits; returns the totals of p and q.
fn weigh(row: u32, thread: u32) -> vec2f {
  let edge = edge_of(row);
  let highest = highest_logit(row, thread);
  var totals = vec2f();
  for (var quad = thread; quad < sampling.vocabulary_quads; quad += THREADS) {
    let logit = logits[row * sampling.vocabulary_quads + quad];
    let p = select(vec4f(0.0), exp(logit - highest), (logit >= vec4f(edge)) & valid(quad));
    logits[row * sampling.vocabulary_quads + quad] = p;
    totals += vec2f(sum_of_quad(p), sum_of_quad(draw_weights(quad)));
  }
  return sum_of_threads(thread, totals);
}

// Takes from p what a rejected child stood for, and from q what cannot be drawn any more; returns the new totals.
fn reject_child(row: u32, thread: u32, token: u32, is_drawn: bool, before: vec2f) -> vec2f {
  let child = select(NO_DRAFT_ID, draft_ids[token], draws);
  var totals = vec2f();
  for (var quad = thread; quad < sampling.vocabulary_quads; quad += THREADS) {
    var p = logits[row * sampling.vocabulary_quads + quad];
    let q = draw_weights(quad);
    let tokens = vec4u(4u * quad) + vec4u(0u, 1u, 2u, 3u);
    if (is_drawn) {
      p = max(vec4f(0.0), p / before.x - q / before.y);
    } else {
      p = select(p, vec4f(0.0), tokens == vec4u(token));
    }
    logits[row * sampling.vocabulary_quads + quad] = p;
    totals.x += sum_of_quad(p);
    for (var i = 0u; i < 4u; i++) {
      if (q[i] > 0.0 && !excludes(child, draft_ids[tokens[i]])) {
        totals.y += q[i];
      }
    }
  }
  rejected[rejected_count] = child;
  rejected_count += 1u;
  totals = sum_of_threads(thread, totals);
  return vec2f(max(totals.x, LEAST_TOTAL), totals.y);
}

// A draw from what is left of p; `otherwise` should rounding have left nothing.
fn draw(row: u32, thread: u32, position: u32, otherwise: u32) -> u32 {
  var best = Candidate(LOWEST, otherwise);
  for (var quad = thread; quad < sampling.vocabulary_quads; quad += THREADS) {
    let p = logits[row * sampling.vocabulary_quads + quad];
    for (var i = 0u; i < 4u; i++) {
      let token = 4u * quad + i;
      if (p[i] > 0.0) {
        let candidate = Candidate(log(p[i]) + gumbel(stream(RESIDUAL), position, token), token);
        if (is_before(candidate, best)) {
          best = candidate;
        }
      }
    }
  }
  bests[thread] = best;
  workgroupBarrier();
  for (var t = 0u; t < THREADS; t++) {
    if (is_before(bests[t], best)) {
      best = bests[t];
    }
  }
  return best.token;
}

@compute @workgroup_size(THREADS)
fn reject(@builtin(workgroup_id) workgroup: vec3u, @builtin(local_invocation_index) thread: u32) {
  let row = workgroup.x;
  let rows = pass_rows();
  if (row >= rows || state.finish != 0u) {
    return;
  }
  let position = state.context_length + state.depths[row] + 1u;
  slot = state.slots[row];
  draws = drafting.drawing != 0u && slot < drafting.head_slots;
  if (drafting.drawing != 0u && state.slots[row] < drafting.head_slots) {
    highest_draw = highest_draw_logit(thread);
  }
  var totals = weigh(row, thread);
  var choice = NO_CHOICE;
  var last = 0u;
  var ordinal = 0u;
  for (var node = row + 1u; node < rows; node++) {
    if (state.parents[node] != row) {
      continue;
    }
    let token = state.tokens[node];
    var weight = 0.0;
    if (state.sources[node] == HEADS) {
      weight = draw_weight(token);
    }
    if (thread == (token / 4u) % THREADS) {
      let p = logits[row * sampling.vocabulary_quads + token / 4u][token % 4u] / totals.x;
      let q = select(1.0, weight / totals.y, weight > 0.0);
      verdict = u32(uniform_draw(stream(ACCEPTANCE), position, ordinal) * q < p);
    }
    if (workgroupUniformLoad(&verdict) != 0u) {
      choice = token;
      break;
    }
    totals = reject_child(row, thread, token, weight > 0.0, totals);
    last = token;
    ordinal += 1u;
  }
  if (choice == NO_CHOICE) {
    choice = draw(row, thread, position, last);
  }
  if (thread == 0u) {
    choose(row, choice);
  }
}
