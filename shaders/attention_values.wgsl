// mixed[row, head] = sum over positions of softmax weight * value: joins the chunks of attention_scores.wgsl.
// A thread takes one quad of a head for all query heads that share a value head, four heads at a time, and walks the
// positions from first to last. Loops test their condition at the end (ARCHITECTURE.md).
// Oracle: `attention` in src/backend/cpu/ops.rs.
#import "lib/state.wgsl"
#import "lib/attention_shape.wgsl"

@group(0) @binding(0) var<uniform> attention: AttentionShape;
@group(0) @binding(1) var<storage, read> state: State;
@group(0) @binding(2) var<storage, read> scores: array<vec4f>;       // [rows, heads, positions]: weights within their chunk
@group(0) @binding(3) var<storage, read> chunks: array<vec2f>;       // [rows, heads, chunks]: maximum, sum
@group(0) @binding(4) var<storage, read> cache: array<vec4f>;        // [slot, keys then values]
@group(0) @binding(5) var<storage, read_write> mixed: array<vec4f>;  // [rows, q]

override WORKGROUP: u32 = 8u;

// The maximum over all chunks of a head, and one over the sum relative to it.
fn softmax_frame(at: u32, n_chunks: u32) -> vec2f {
  var maximum = chunks[at].x;
  var c = 0u;
  loop {
    maximum = max(maximum, chunks[at + c].x);
    continuing {
      c++;
      break if c >= n_chunks;
    }
  }
  var sum = 0.0;
  c = 0u;
  loop {
    let chunk = chunks[at + c];
    sum += chunk.y * exp(chunk.x - maximum);
    continuing {
      c++;
      break if c >= n_chunks;
    }
  }
  return vec2f(maximum, 1.0 / sum);
}

@compute @workgroup_size(WORKGROUP)
fn attention_values(@builtin(global_invocation_id) id: vec3u) {
  let d = id.x;
  let kv_head = id.y;
  let row = id.z;
  if (d >= attention.head_quads || row >= pass_rows() || state.finish != 0u) {
    return;
  }
  let end = state.context_length + state.depths[row] + 1u;
  let n_chunks = (end + CHUNK - 1u) / CHUNK;
  let kv_stride = 2u * attention.kv_quads;
  let value = attention.kv_quads + kv_head * attention.head_quads + d;
  let heads = attention.heads_per_kv;
  var h = 0u;
  loop {
    let last = heads - 1u - h;
    let head = (row * attention.kv_heads + kv_head) * heads + h;
    let head1 = head + min(1u, last);
    let head2 = head + min(2u, last);
    let head3 = head + min(3u, last);
    let frame0 = softmax_frame(head * attention.chunk_stride, n_chunks);
    let frame1 = softmax_frame(head1 * attention.chunk_stride, n_chunks);
    let frame2 = softmax_frame(head2 * attention.chunk_stride, n_chunks);
    let frame3 = softmax_frame(head3 * attention.chunk_stride, n_chunks);
    var sum0 = vec4f();
    var sum1 = vec4f();
    var sum2 = vec4f();
    var sum3 = vec4f();
    var chunk = 0u;
    loop {
      var part0 = vec4f();
      var part1 = vec4f();
      var part2 = vec4f();
      var part3 = vec4f();
      let stop = min(end, (chunk + 1u) * CHUNK);
      var first = chunk * CHUNK;
      loop {
        // Positions past the end have weight zero and read the last value.
        let values = mat4x4f(
          cache[slot_of(row, first) * kv_stride + value],
          cache[slot_of(row, min(first + 1u, end - 1u)) * kv_stride + value],
          cache[slot_of(row, min(first + 2u, end - 1u)) * kv_stride + value],
          cache[slot_of(row, min(first + 3u, end - 1u)) * kv_stride + value]);
        let quad = first / 4u;
        part0 += values * scores[head * attention.score_stride + quad];
        part1 += values * scores[head1 * attention.score_stride + quad];
        part2 += values * scores[head2 * attention.score_stride + quad];
        part3 += values * scores[head3 * attention.score_stride + quad];
        continuing {
          first += 4u;
          break if first >= stop;
        }
      }
      sum0 += part0 * exp(chunks[head * attention.chunk_stride + chunk].x - frame0.x);
      sum1 += part1 * exp(chunks[head1 * attention.chunk_stride + chunk].x - frame1.x);
      sum2 += part2 * exp(chunks[head2 * attention.chunk_stride + chunk].x - frame2.x);
      sum3 += part3 * exp(chunks[head3 * attention.chunk_stride + chunk].x - frame3.x);
      continuing {
        chunk++;
        break if chunk >= n_chunks;
      }
    }
    let to = row * attention.query_stride + (kv_head * heads + h) * attention.head_quads + d;
    mixed[to] = sum0 * frame0.y;
    if (last >= 1u) { mixed[to + attention.head_quads] = sum1 * frame1.y; }
    if (last >= 2u) { mixed[to + 2u * attention.head_quads] = sum2 * frame2.y; }
    if (last >= 3u) { mixed[to + 3u * attention.head_quads] = sum3 * frame3.y; }
    continuing {
      h += 4u;
      break if h >= heads;
    }
  }
}
