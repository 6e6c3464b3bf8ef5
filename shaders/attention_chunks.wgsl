// For every query and chunk of 16 positions: weights = exp(q . k / sqrt(head_dim) - chunk maximum), their sum, and the sum of values
// so weighted, which attention_join.wgsl joins (the online softmax of Milakov & Gimelshein 2018, split as in flash decoding).
//
// Chunks of committed positions are the same for every row. The queries of a key head are there those of all rows, one row after the
// other, and a thread takes 4 or 12 of them, so that what it loads of keys and values serves them all. Where the tree begins each row
// has slots of its own, and a thread takes up to four queries of one row.
// Loops test their condition at the end (ARCHITECTURE.md). Oracle: `attention` in src/backend/cpu/ops.rs.
#import "lib/state.wgsl"
#import "lib/attention_shape.wgsl"

@group(0) @binding(0) var<uniform> attention: AttentionShape;
@group(0) @binding(1) var<storage, read> state: State;
@group(0) @binding(2) var<storage, read> queries: array<vec4f>;       // [rows, q]
@group(0) @binding(3) var<storage, read> cache: array<vec4f>;         // [slot, keys then values]
@group(0) @binding(4) var<storage, read_write> parts: array<vec4f>;   // [rows, heads, chunks, head_dim]
@group(0) @binding(5) var<storage, read_write> chunks: array<vec2f>;  // [rows, heads, chunks]: maximum, sum

override WORKGROUP: u32 = 8u;
// Committed chunks only, and twelve queries at once; or all but them.
override COMMITTED: bool = false;
override TREE: bool = false;

// Below every score; finite, since WGSL has no infinity.
const LOWEST = -3.0e38;

// Where the 16 slots of a chunk begin in the cache.
struct Slots { a: vec4u, b: vec4u, c: vec4u, d: vec4u }

// The same quad of 16 keys, or of 16 values.
struct Quads { a: mat4x4f, b: mat4x4f, c: mat4x4f, d: mat4x4f }

// A number for each position of a chunk.
struct Positions { a: vec4f, b: vec4f, c: vec4f, d: vec4f }

// Such numbers for four queries.
struct Four { x: Positions, y: Positions, z: Positions, w: Positions }

// One of a key head's queries.
struct Query {
  row: u32,
  head: u32,  // among the query heads that share the key head
}

// Where four queries are, what a chunk makes of them goes, and which query comes next.
struct Places { query: vec4u, chunk: vec4u, part: vec4u, next: Query }

fn committed_slots(first: u32) -> Slots {
  let stride = 2u * attention.kv_quads;
  let four = (first + vec4u(0u, 1u, 2u, 3u)) * stride;
  return Slots(four, four + 4u * stride, four + 8u * stride, four + 12u * stride);
}

// The same as a row sees them; past its end is the last one again.
fn row_slots(row: u32, first: u32, end: u32) -> Slots {
  return Slots(
    four_slots(row, first, end), four_slots(row, first + 4u, end), four_slots(row, first + 8u, end), four_slots(row, first + 12u, end));
}

fn four_slots(row: u32, first: u32, end: u32) -> vec4u {
  return 2u * attention.kv_quads * vec4u(
    slot_of(row, min(first, end - 1u)),
    slot_of(row, min(first + 1u, end - 1u)),
    slot_of(row, min(first + 2u, end - 1u)),
    slot_of(row, min(first + 3u, end - 1u)));
}

fn quads_at(slots: Slots, quad: u32) -> Quads {
  return Quads(four_quads(slots.a + quad), four_quads(slots.b + quad), four_quads(slots.c + quad), four_quads(slots.d + quad));
}

fn four_quads(at: vec4u) -> mat4x4f {
  return mat4x4f(cache[at.x], cache[at.y], cache[at.z], cache[at.w]);
}

// The query after one; after the last one of `last_row` that one again.
fn following(query: Query, last_row: u32) -> Query {
  let wraps = query.head + 1u >= attention.heads_per_kv;
  let stays = wraps && query.row == last_row;
  return Query(query.row + u32(wraps && !stays), select(select(query.head + 1u, 0u, wraps), query.head, stays));
}

// Four queries from one on. No vector is divided for them: a software adapter divides number by number.
fn places_from(query: Query, last_row: u32, kv_head: u32, chunk: u32) -> Places {
  let second = following(query, last_row);
  let third = following(second, last_row);
  let fourth = following(third, last_row);
  let row = vec4u(query.row, second.row, third.row, fourth.row);
  let head = kv_head * attention.heads_per_kv + vec4u(query.head, second.head, third.head, fourth.head);
  let to_chunk = (row * attention.kv_heads * attention.heads_per_kv + head) * attention.chunk_stride + chunk;
  return Places(
    row * attention.query_stride + head * attention.head_quads,
    to_chunk,
    to_chunk * attention.head_quads,
    following(fourth, last_row));
}

fn add_products(sums: Four, at: vec4u, keys: Quads) -> Four {
  return Four(
    add_product(sums.x, queries[at.x], keys),
    add_product(sums.y, queries[at.y], keys),
    add_product(sums.z, queries[at.z], keys),
    add_product(sums.w, queries[at.w], keys));
}

fn add_product(sum: Positions, query: vec4f, keys: Quads) -> Positions {
  return Positions(sum.a + query * keys.a, sum.b + query * keys.b, sum.c + query * keys.c, sum.d + query * keys.d);
}

// Weights of four queries; stores their frames.
fn softmaxes(products: Four, first: u32, end: u32, to: vec4u) -> Four {
  return Four(
    softmax(products.x, first, end, to.x),
    softmax(products.y, first, end, to.y),
    softmax(products.z, first, end, to.z),
    softmax(products.w, first, end, to.w));
}

fn softmax(products: Positions, first: u32, end: u32, to: u32) -> Positions {
  let a = score(products.a, first, end);
  let b = score(products.b, first + 4u, end);
  let c = score(products.c, first + 8u, end);
  let d = score(products.d, first + 12u, end);
  let highest = max(max(a, b), max(c, d));
  let maximum = max(max(highest.x, highest.y), max(highest.z, highest.w));
  let weights = Positions(exp(a - maximum), exp(b - maximum), exp(c - maximum), exp(d - maximum));
  let sums = (weights.a + weights.b) + (weights.c + weights.d);
  chunks[to] = vec2f(maximum, (sums.x + sums.y) + (sums.z + sums.w));
  return weights;
}

fn score(product: vec4f, first: u32, end: u32) -> vec4f {
  return select(vec4f(LOWEST), product * attention.scale, first + vec4u(0u, 1u, 2u, 3u) < vec4u(end));
}

fn store_mixes(values: Quads, weights: Four, to: vec4u) {
  parts[to.x] = mix_values(values, weights.x);
  parts[to.y] = mix_values(values, weights.y);
  parts[to.z] = mix_values(values, weights.z);
  parts[to.w] = mix_values(values, weights.w);
}

fn mix_values(values: Quads, weights: Positions) -> vec4f {
  return values.a * weights.a + values.b * weights.b + values.c * weights.c + values.d * weights.d;
}

// Four queries, through a chunk that ends before `end` for them.
fn attend_four(slots: Slots, first: u32, end: u32, key: u32, places: Places) {
  var four = Four();
  var d = 0u;
  loop {
    four = add_products(four, places.query + d, quads_at(slots, key + d));
    continuing {
      d++;
      break if d >= attention.head_quads;
    }
  }
  four = softmaxes(four, first, end, places.chunk);
  let value = attention.kv_quads + key;
  d = 0u;
  loop {
    store_mixes(quads_at(slots, value + d), four, places.part + d);
    continuing {
      d++;
      break if d >= attention.head_quads;
    }
  }
}

// Twelve queries, through a chunk of committed positions.
fn attend_twelve(slots: Slots, first: u32, key: u32, x: Places, y: Places, z: Places) {
  var four_x = Four();
  var four_y = Four();
  var four_z = Four();
  var d = 0u;
  loop {
    let keys = quads_at(slots, key + d);
    four_x = add_products(four_x, x.query + d, keys);
    four_y = add_products(four_y, y.query + d, keys);
    four_z = add_products(four_z, z.query + d, keys);
    continuing {
      d++;
      break if d >= attention.head_quads;
    }
  }
  let end = first + CHUNK;
  four_x = softmaxes(four_x, first, end, x.chunk);
  four_y = softmaxes(four_y, first, end, y.chunk);
  four_z = softmaxes(four_z, first, end, z.chunk);
  let value = attention.kv_quads + key;
  d = 0u;
  loop {
    let values = quads_at(slots, value + d);
    store_mixes(values, four_x, x.part + d);
    store_mixes(values, four_y, y.part + d);
    store_mixes(values, four_z, z.part + d);
    continuing {
      d++;
      break if d >= attention.head_quads;
    }
  }
}

// Threads are counted by chunk, then by queries, then by key head; those of committed chunks come first.
@compute @workgroup_size(WORKGROUP)
fn attention_chunks(@builtin(global_invocation_id) id: vec3u) {
  let rows = pass_rows();
  let per_row = attention.heads_per_kv;
  let queries_each = select(4u, 12u, COMMITTED);
  let groups = (rows * per_row + queries_each - 1u) / queries_each;
  let groups_of_row = (per_row + 3u) / 4u;
  let committed = state.context_length / CHUNK;
  let committed_units = select(committed * groups, 0u, TREE);
  let unit = id.x / attention.kv_heads;
  let kv_head = id.x - unit * attention.kv_heads;
  let in_tree = unit >= committed_units;
  let rest = unit - select(0u, committed_units, in_tree);
  let of_chunk = select(groups, rows * groups_of_row, in_tree);
  let group = rest % of_chunk;
  let chunk = select(0u, committed, in_tree) + rest / of_chunk;
  let row = select(group * queries_each / per_row, group / groups_of_row, in_tree);
  let head = select(group * queries_each - row * per_row, 4u * (group - row * groups_of_row), in_tree);
  let last_row = select(rows - 1u, row, in_tree);
  let first = chunk * CHUNK;
  let end = min(first + CHUNK, state.context_length + state.depths[row] + 1u);
  if (first >= end || (COMMITTED && in_tree) || state.finish != 0u) {
    return;
  }
  let key = kv_head * attention.head_quads;
  let four = places_from(Query(row, head), last_row, kv_head, chunk);
  if (COMMITTED) {
    let second = places_from(four.next, last_row, kv_head, chunk);
    attend_twelve(committed_slots(first), first, key, four, second, places_from(second.next, last_row, kv_head, chunk));
  } else {
    attend_four(row_slots(row, first, end), first, end, key, four);
  }
}
