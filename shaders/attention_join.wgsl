// mixed[row, head] = sum over positions of softmax weight * value: joins the chunks of attention_chunks.wgsl, from first to last.
// A thread takes four quads of a head. Loops test their condition at the end (ARCHITECTURE.md).
// Oracle: `attention` in src/backend/cpu/ops.rs.
#import "lib/state.wgsl"
#import "lib/attention_shape.wgsl"

@group(0) @binding(0) var<uniform> attention: AttentionShape;
@group(0) @binding(1) var<storage, read> state: State;
@group(0) @binding(2) var<storage, read> parts: array<vec4f>;        // [rows, heads, chunks, head_dim]
@group(0) @binding(3) var<storage, read> chunks: array<vec2f>;       // [rows, heads, chunks]: maximum, sum
@group(0) @binding(4) var<storage, read_write> mixed: array<vec4f>;  // [rows, q]

override WORKGROUP: u32 = 8u;

@compute @workgroup_size(WORKGROUP)
fn attention_join(@builtin(global_invocation_id) id: vec3u) {
  let blocks = (attention.head_quads + 3u) / 4u;
  let head = id.x / blocks;
  let row = id.y;
  if (head * attention.head_quads >= attention.query_quads || row >= pass_rows() || state.finish != 0u) {
    return;
  }
  // Quads past the end are the last one again.
  let quad = min((id.x % blocks) * 4u + vec4u(0u, 1u, 2u, 3u), vec4u(attention.head_quads - 1u));
  let heads = attention.query_quads / attention.head_quads;
  let begin = (row * heads + head) * attention.chunk_stride;
  let end = begin + (state.context_length + state.depths[row] + CHUNK) / CHUNK;
  var maximum = chunks[begin].x;
  var at = begin;
  loop {
    maximum = max(maximum, chunks[at].x);
    continuing {
      at++;
      break if at >= end;
    }
  }
  var total = 0.0;
  var sum0 = vec4f();
  var sum1 = vec4f();
  var sum2 = vec4f();
  var sum3 = vec4f();
  at = begin;
  loop {
    let chunk = chunks[at];
    let factor = exp(chunk.x - maximum);
    let part = at * attention.head_quads + quad;
    total += chunk.y * factor;
    sum0 += parts[part.x] * factor;
    sum1 += parts[part.y] * factor;
    sum2 += parts[part.z] * factor;
    sum3 += parts[part.w] * factor;
    continuing {
      at++;
      break if at >= end;
    }
  }
  let to = row * attention.query_stride + head * attention.head_quads + quad;
  let factor = 1.0 / total;
  mixed[to.x] = sum0 * factor;
  mixed[to.y] = sum1 * factor;
  mixed[to.z] = sum2 * factor;
  mixed[to.w] = sum3 * factor;
}
