// What token recycling proposes: the successors of a token as they would be chosen at a position, with the noise of that choice,
// unless tokens pass by rejection: that knows another noise, and drafting must know none of it. Expects
// `drafting` and `successors: array<Successor>`. Oracle: `ranked` in src/speculate/recycling.rs.
#import "lib/successors.wgsl"

// The order of a token's successors, found once for a node.
struct Ranking {
  order: u32,     // four bits a rank, from the lowest on: the index of the successor
  count: u32,     // successors that are known
  log_sum: f32,   // logarithm of the sum of their exponentiated scores
}

var<workgroup> rankings: array<Ranking, MAX_ROWS>;
var<workgroup> successor_scores: array<f32, MAX_ROWS * SUCCESSORS>;

// `index` in the place of its rank: behind those with a higher score, and behind equals of a lower index.
fn in_order(index: u32, score: f32, low: vec4f, high: vec4f) -> u32 {
  let indices = vec4u(0u, 1u, 2u, 3u);
  let before_low = (low > vec4f(score)) | ((low == vec4f(score)) & (indices < vec4u(index)));
  let before_high = (high > vec4f(score)) | ((high == vec4f(score)) & (indices + 4u < vec4u(index)));
  let before = vec4u(before_low) + vec4u(before_high);
  return index << (4u * (before.x + before.y + before.z + before.w));
}

fn rank_successors(node: u32, token: u32, position: u32) {
  let begin = node * SUCCESSORS;
  var count = 0u;
  for (var i = 0u; i < SUCCESSORS; i++) {
    let successor = successors[token * SUCCESSORS + i];
    var score = LOWEST;
    if (successor.token != 0u) {
      score = successor.score;
      if (drafting.rejects == 0u) {
        score += noise_of(position, successor.token - 1u);
      }
      count += 1u;
    }
    successor_scores[begin + i] = score;
  }
  let low = vec4f(
    successor_scores[begin], successor_scores[begin + 1u], successor_scores[begin + 2u], successor_scores[begin + 3u]);
  let high = vec4f(
    successor_scores[begin + 4u], successor_scores[begin + 5u], successor_scores[begin + 6u], successor_scores[begin + 7u]);
  let order = in_order(0u, low.x, low, high) | in_order(1u, low.y, low, high) | in_order(2u, low.z, low, high) |
    in_order(3u, low.w, low, high) | in_order(4u, high.x, low, high) | in_order(5u, high.y, low, high) |
    in_order(6u, high.z, low, high) | in_order(7u, high.w, low, high);
  let both = max(low, high);
  let highest = max(max(both.x, both.y), max(both.z, both.w));
  let shares = exp(low - highest) + exp(high - highest);
  rankings[node] = Ranking(order, count, highest + log(shares.x + shares.y + shares.z + shares.w));
}

// Successor number `rank` of a ranked node's token, and the logarithm of its share of the probability of all; NO_TOKEN where there is none.
fn recycled(node: u32, token: u32, rank: u32) -> Candidate {
  if (rank >= rankings[node].count) {
    return Candidate(LOWEST, NO_TOKEN);
  }
  let index = (rankings[node].order >> (4u * rank)) & 7u;
  let score = successor_scores[node * SUCCESSORS + index] - rankings[node].log_sum;
  return Candidate(score, successors[token * SUCCESSORS + index].token - 1u);
}
