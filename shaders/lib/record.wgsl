// What the CPU reads of a step, and nothing else: 256 bytes. Mirrored by `RawRecord` in src/backend/gpu/layout.rs.

const RECORD_SLOTS = 64u;
// Tokens that one step emits at most.
const RECORD_TOKENS = 48u;
// Visited nodes whose offers share a word, and bits of each.
const OFFERS_PER_WORD = 8u;
const OFFER_BITS = 4u;

struct Record {
  step: u32,
  count: u32,            // tokens emitted by this step
  finish: u32,
  context_length: u32,   // after the step
  rows: u32,             // nodes the pass computed
  missed: u32,           // the drafted node beyond them that would have been visited next; 0 if none
  drafted: u32,          // nodes drafted for the next step, the root included
  match_length: u32,     // of the n-gram match among them
  // token | source << 23 | node << 26, where node of the next visited row holds the token; 0 for the model's own.
  tokens: array<u32, RECORD_TOKENS>,
  // For every visited node, which drafters had a child of it in the pass: bit 0 heads, bit 1 n-grams, bit 2 recycling.
  offers: array<u32, RECORD_TOKENS / OFFERS_PER_WORD>,
  padding: vec2u,
}
