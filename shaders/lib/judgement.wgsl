// What the row before a drafted token says of it. Mirrored by `Judgement` in src/speculate/lenient.rs.

struct Judgement {
  log_probability: f32,  // at the temperature, among the tokens in play
  passes: u32,           // whether the rule lets it pass
}
