// Makes a token the row's choice, whatever its candidates are. Expects `sampling` and `candidates: array<Candidate>` [rows, chunks].

fn choose(row: u32, token: u32) {
  candidates[row * sampling.chunks] = Candidate(-LOWEST, token);
}
