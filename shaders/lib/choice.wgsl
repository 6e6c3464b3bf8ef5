// What a row chooses: the best of its candidates. Expects `sampling` and `candidates: array<Candidate>` [rows, chunks].

fn best_of_row(row: u32) -> u32 {
  var best = candidates[row * sampling.chunks];
  for (var chunk = 1u; chunk < sampling.chunks; chunk++) {
    let candidate = candidates[row * sampling.chunks + chunk];
    if (candidate.score > best.score) {
      best = candidate;
    }
  }
  return best.token;
}
