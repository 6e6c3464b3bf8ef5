// Sizes of the attention block, in quads (vec4f). Mirrored by `AttentionShape` in src/backend/gpu/layout.rs.

// Positions that one thread takes, and whose weights share one maximum. Chunks begin at multiples of it whatever the
// tree, so a row's softmax and sum are always taken in the same order.
const CHUNK = 16u;

struct AttentionShape {
  query_quads: u32,     // quads of all query heads together
  kv_quads: u32,        // quads of all key (or value) heads together
  head_quads: u32,      // quads of one head
  kv_heads: u32,
  heads_per_kv: u32,    // query heads that share a key head
  bias_offset: u32,     // where the bias begins in `vectors`, in vec4f
  chunk_stride: u32,    // chunks of one head that the cache has room for
  query_stride: u32,    // vec4f from one row of queries (or of what attention mixes) to the next
  scale: f32,           // 1 / sqrt(head_dim)
}
