// What token recycling proposes: the successors of a token as they would be chosen at a position, with the noise of that choice,
// unless tokens pass by rejection: that knows another noise, and drafting must know none of it. Expects
// `drafting` and `successors: array<Successor>`. Oracle: `ranked` in src/speculate/recycling.rs.
#import "lib/successors.wgsl"

// Successor number `rank` of `token`, and the logarithm of its share of the probability of all; NO_TOKEN where there is none.
fn recycled(token: u32, position: u32, rank: u32) -> Candidate {
  var tokens: array<u32, SUCCESSORS>;
  var scores: array<f32, SUCCESSORS>;
  var count = 0u;
  var highest = LOWEST;
  for (var i = 0u; i < SUCCESSORS; i++) {
    let successor = successors[token * SUCCESSORS + i];
    if (successor.token != 0u) {
      tokens[count] = successor.token - 1u;
      scores[count] = successor.score + select(noise_of(position, tokens[count]), 0.0, drafting.rejects != 0u);
      highest = max(highest, scores[count]);
      count += 1u;
    }
  }
  var found = Candidate(LOWEST, NO_TOKEN);
  var total = 0.0;
  for (var i = 0u; i < count; i++) {
    total += exp(scores[i] - highest);
    var better = 0u;
    for (var j = 0u; j < count; j++) {
      better += u32(scores[j] > scores[i] || (scores[j] == scores[i] && j < i));
    }
    if (better == rank) {
      found = Candidate(scores[i], tokens[i]);
    }
  }
  if (found.token != NO_TOKEN) {
    found.score -= highest + log(total);
  }
  return found;
}
