// Four neighbouring invocations, whose tiles have the same inputs, load a quarter of them each and hand them round.
//
// Place t of the four loads the inputs 4 i + t; a swap with place t ^ j then shows it input 4 i + (t ^ j). So that it need not sort
// them, the weights of a tile at place t are packed in just that order (`PackedLayout::reorder_for_quads`). Where a load costs as
// much as thirty multiplications, as on a software adapter, this makes a product of eight rows a third faster.

// What an invocation loads of a step's inputs: one of each four.
struct Part { low: f32, high: f32 }
var<private> place: u32;

fn take_place(thread: u32) {
  place = thread & 3u;
}

fn load_part(at: u32) -> Part {
  return Part(inputs[at].low[place], inputs[at].high[place]);
}

fn part_of(low: vec4f, high: vec4f) -> Part {
  return Part(low[place], high[place]);
}

fn product(a: Part, b: Part) -> Part {
  return Part(a.low * b.low, a.high * b.high);
}

fn add_part(sum: f32, x: Part) -> f32 {
  return sum + x.low + x.high;
}

// The inputs as the weights of this invocation want them.
fn spread(x: Part) -> Octet {
  let low = vec4f(x.low, quadSwapX(x.low), quadSwapY(x.low), quadSwapDiagonal(x.low));
  let high = vec4f(x.high, quadSwapX(x.high), quadSwapY(x.high), quadSwapDiagonal(x.high));
  return Octet(low * LOW_FACTORS, high * HIGH_FACTORS);
}

// A sum over parts, as a sum over all inputs.
fn joined(sum: f32) -> f32 {
  let pair = sum + quadSwapX(sum);
  return pair + quadSwapY(pair);
}
