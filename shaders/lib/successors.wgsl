// The table of token recycling. Expects `sampling`, and the import lib/noise.wgsl.

// Successors kept of a token; mirrored by `SUCCESSORS` in src/speculate/recycling.rs.
const SUCCESSORS = 8u;

// Its size is in src/backend/gpu/drafting.rs.
struct Successor {
  token: u32,   // plus one; 0 where nothing is known
  score: f32,   // processed logit, without noise
}

// Whether chance decides.
override NOISY: bool = false;

// The noise that the choice of a token at a position gets.
fn noise_of(position: u32, token: u32) -> f32 {
  if (NOISY) {
    return gumbel(vec2u(sampling.seed_low, sampling.seed_high), position, token);
  }
  return 0.0;
}
