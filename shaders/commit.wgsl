// Moves the keys and values of visited rows into place: row i of the walk becomes position commit_start + i. A thread moves one
// column of a layer and takes the rows in order; a row never moves up, so nothing is overwritten before it is read.
// The cost depends on the rows visited, not on the context. One launch serves up to seven layers.
// Oracle: `commit` in src/backend/cpu/mod.rs.
#import "lib/state.wgsl"

// Mirrored by `CommitShape` in src/backend/gpu/layout.rs.
struct CommitShape {
  slot_quads: u32,  // vec4f of one slot, keys then values
}

@group(0) @binding(0) var<uniform> shape: CommitShape;
@group(0) @binding(1) var<storage, read> state: State;
@group(0) @binding(2) var<storage, read_write> cache_0: array<vec4f>;  // [slot, keys then values]
@group(0) @binding(3) var<storage, read_write> cache_1: array<vec4f>;
@group(0) @binding(4) var<storage, read_write> cache_2: array<vec4f>;
@group(0) @binding(5) var<storage, read_write> cache_3: array<vec4f>;
@group(0) @binding(6) var<storage, read_write> cache_4: array<vec4f>;
@group(0) @binding(7) var<storage, read_write> cache_5: array<vec4f>;
@group(0) @binding(8) var<storage, read_write> cache_6: array<vec4f>;

override WORKGROUP: u32 = 8u;

fn move_quad(layer: u32, to: u32, source: u32) {
  switch (layer) {
    case 0u: { cache_0[to] = cache_0[source]; }
    case 1u: { cache_1[to] = cache_1[source]; }
    case 2u: { cache_2[to] = cache_2[source]; }
    case 3u: { cache_3[to] = cache_3[source]; }
    case 4u: { cache_4[to] = cache_4[source]; }
    case 5u: { cache_5[to] = cache_5[source]; }
    default: { cache_6[to] = cache_6[source]; }
  }
}

@compute @workgroup_size(WORKGROUP)
fn commit(@builtin(global_invocation_id) id: vec3u) {
  let quad = id.x;
  if (quad >= shape.slot_quads) {
    return;
  }
  for (var i = 1u; i < state.visited_rows; i++) {
    let row = state.visited[i];
    if (row != i) {
      let start = state.commit_start;
      move_quad(id.y, (start + i) * shape.slot_quads + quad, (start + row) * shape.slot_quads + quad);
    }
  }
}
