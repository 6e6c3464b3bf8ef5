// For every row, head and chunk of 16 positions: weights = exp(q . k / sqrt(head_dim) - chunk maximum), and (maximum, sum) of
// the chunk, which attention_values.wgsl joins (the online softmax of Milakov & Gimelshein 2018, split as in flash decoding).
// A thread takes one chunk for all query heads that share a key head, four heads at a time, so that a loaded key serves four.
// Loops test their condition at the end (ARCHITECTURE.md). Oracle: `attention` in src/backend/cpu/ops.rs.
#import "lib/state.wgsl"
#import "lib/attention_shape.wgsl"

@group(0) @binding(0) var<uniform> attention: AttentionShape;
@group(0) @binding(1) var<storage, read> state: State;
@group(0) @binding(2) var<storage, read> queries: array<vec4f>;       // [rows, q]
@group(0) @binding(3) var<storage, read> cache: array<vec4f>;         // [slot, keys then values]
@group(0) @binding(4) var<storage, read_write> scores: array<vec4f>;  // [rows, heads, positions]
@group(0) @binding(5) var<storage, read_write> chunks: array<vec2f>;  // [rows, heads, chunks]: maximum, sum

override WORKGROUP: u32 = 8u;

// Below every score; finite, since WGSL has no infinity.
const LOWEST = -3.0e38;

fn score_quad(row: u32, kv_head: u32, first: u32, end: u32) {
  let kv_stride = 2u * attention.kv_quads;
  let key = kv_head * attention.head_quads;
  // Positions past the end read the last one; their scores are overwritten below.
  let key0 = slot_of(row, first) * kv_stride + key;
  let key1 = slot_of(row, min(first + 1u, end - 1u)) * kv_stride + key;
  let key2 = slot_of(row, min(first + 2u, end - 1u)) * kv_stride + key;
  let key3 = slot_of(row, min(first + 3u, end - 1u)) * kv_stride + key;
  let inside = vec4u(first, first + 1u, first + 2u, first + 3u) < vec4u(end);
  let heads = attention.heads_per_kv;
  var h = 0u;
  loop {
    let head = kv_head * heads + h;
    let last = heads - 1u - h;
    let query = row * attention.query_stride + head * attention.head_quads;
    let query1 = query + min(1u, last) * attention.head_quads;
    let query2 = query + min(2u, last) * attention.head_quads;
    let query3 = query + min(3u, last) * attention.head_quads;
    var s0 = vec4f();
    var s1 = vec4f();
    var s2 = vec4f();
    var s3 = vec4f();
    var d = 0u;
    loop {
      let keys = mat4x4f(cache[key0 + d], cache[key1 + d], cache[key2 + d], cache[key3 + d]);
      s0 += queries[query + d] * keys;
      s1 += queries[query1 + d] * keys;
      s2 += queries[query2 + d] * keys;
      s3 += queries[query3 + d] * keys;
      continuing {
        d++;
        break if d >= attention.head_quads;
      }
    }
    let to = (row * attention.kv_heads * heads + head) * attention.score_stride + first / 4u;
    scores[to] = select(vec4f(LOWEST), s0 * attention.scale, inside);
    if (last >= 1u) { scores[to + attention.score_stride] = select(vec4f(LOWEST), s1 * attention.scale, inside); }
    if (last >= 2u) { scores[to + 2u * attention.score_stride] = select(vec4f(LOWEST), s2 * attention.scale, inside); }
    if (last >= 3u) { scores[to + 3u * attention.score_stride] = select(vec4f(LOWEST), s3 * attention.scale, inside); }
    continuing {
      h += 4u;
      break if h >= heads;
    }
  }
}

@compute @workgroup_size(WORKGROUP)
fn attention_scores(@builtin(global_invocation_id) id: vec3u) {
  let chunk = id.x;
  let kv_head = id.y;
  let row = id.z;
  if (row >= pass_rows() || state.finish != 0u) {
    return;
  }
  let first = chunk * CHUNK;
  let end = state.context_length + state.depths[row] + 1u;
  if (first >= end) {
    return;
  }
  let quads = (min(end - first, CHUNK) + 3u) / 4u;
  var next = 0u;
  loop {
    score_quad(row, kv_head, first + 4u * next, end);
    continuing {
      next++;
      break if next >= quads;
    }
  }
  var h = 0u;
  loop {
    let head = (row * attention.kv_heads + kv_head) * attention.heads_per_kv + h;
    let begin = head * attention.score_stride + first / 4u;
    var highest = vec4f(LOWEST);
    var quad = 0u;
    loop {
      highest = max(highest, scores[begin + quad]);
      continuing {
        quad++;
        break if quad >= quads;
      }
    }
    let maximum = max(max(highest.x, highest.y), max(highest.z, highest.w));
    var sum = 0.0;
    quad = 0u;
    loop {
      let weight = exp(scores[begin + quad] - maximum);
      scores[begin + quad] = weight;
      sum += (weight.x + weight.y) + (weight.z + weight.w);
      continuing {
        quad++;
        break if quad >= quads;
      }
    }
    chunks[head * attention.chunk_stride + chunk] = vec2f(maximum, sum);
    continuing {
      h++;
      break if h >= attention.heads_per_kv;
    }
  }
}
