// The longest and, among those, latest earlier place whose tokens are the last tokens of the text. Expects `text`.
// Oracle: `longest_match` in src/speculate/ngram.rs.

// Tokens compared at most; mirrored by `MAX_MATCH` in src/speculate/ngram.rs.
const MAX_MATCH = 16u;
// A match as one number that orders by length, then position.
const LENGTH_SHIFT = 26u;

fn match_length(position: u32, end: u32) -> u32 {
  var length = 0u;
  while (length < MAX_MATCH && length <= position && text[position - length] == text[end - length]) {
    length += 1u;
  }
  return length;
}

// The best match among every `stride`-th position from `first` on; 0 if there is none. `end` is where the last token stands.
fn best_match(first: u32, stride: u32, end: u32) -> u32 {
  var best = 0u;
  for (var position = first; position < end; position += stride) {
    let length = match_length(position, end);
    if (length > 0u) {
      best = max(best, (length << LENGTH_SHIFT) | position);
    }
  }
  return best;
}

// Token `index` of what followed a match. At the end of the text it goes on with itself.
fn continuation(found: u32, end: u32, index: u32) -> u32 {
  let position = found & ((1u << LENGTH_SHIFT) - 1u);
  return text[position + 1u + index % (end - position)];
}

// What acceptance is estimated for; the classes of src/speculate/ngram.rs.
fn class_of_match(length: u32) -> u32 {
  if (length <= 3u) {
    return max(length, 1u) - 1u;
  }
  return 3u + u32(length > 6u) + u32(length > 11u);
}
