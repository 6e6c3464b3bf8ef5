// The columns of a register tile: each thread holds 4 quads, 16 outputs.
// Every loaded activation is used 16 times. Swapped against its siblings by import; none changes the order of a sum.

const QUADS = 4u;

struct Outputs { q0: vec4f, q1: vec4f, q2: vec4f, q3: vec4f }
struct Weights { q0: Step, q1: Step, q2: Step, q3: Step }
struct Scales { q0: Scale, q1: Scale, q2: Scale, q3: Scale }

fn load_weights(at: u32) -> Weights {
  return Weights(unpack_step(at), unpack_step(at + 1u), unpack_step(at + 2u), unpack_step(at + 3u));
}

fn load_scales(at: u32) -> Scales {
  return Scales(load_scale(at), load_scale(at + 1u), load_scale(at + 2u), load_scale(at + 3u));
}

fn multiply(sums: Outputs, weights: Weights, x: Octet) -> Outputs {
  return Outputs(
    dot_step(sums.q0, weights.q0, x),
    dot_step(sums.q1, weights.q1, x),
    dot_step(sums.q2, weights.q2, x),
    dot_step(sums.q3, weights.q3, x));
}

fn apply_scales(total: Outputs, block: Outputs, scales: Scales, input_sum: f32) -> Outputs {
  return Outputs(
    apply_scale(total.q0, block.q0, scales.q0, input_sum),
    apply_scale(total.q1, block.q1, scales.q1, input_sum),
    apply_scale(total.q2, block.q2, scales.q2, input_sum),
    apply_scale(total.q3, block.q3, scales.q3, input_sum));
}

fn emit_outputs(row: u32, quad: u32, outputs: Outputs, factor: f32) {
  emit_if_inside(row, quad + 0u, outputs.q0 * factor);
  emit_if_inside(row, quad + 1u, outputs.q1 * factor);
  emit_if_inside(row, quad + 2u, outputs.q2 * factor);
  emit_if_inside(row, quad + 3u, outputs.q3 * factor);
}
