// Gumbel noise as a pure function of (seed, position, token): the same token at the same position always draws the same, however
// it was reached, so a seed gives the same text for any draft tree and any number of steps in flight.
// Threefry-2x32 with 20 rounds (Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3").
// Oracle: `gumbel` in src/sampling/noise.rs.

fn mix(x: vec2u, rotation: u32) -> vec2u {
  let sum = x.x + x.y;
  return vec2u(sum, ((x.y << rotation) | (x.y >> (32u - rotation))) ^ sum);
}

fn even_group(x: vec2u) -> vec2u {
  return mix(mix(mix(mix(x, 13u), 15u), 26u), 6u);
}

fn odd_group(x: vec2u) -> vec2u {
  return mix(mix(mix(mix(x, 17u), 29u), 16u), 24u);
}

fn threefry(key: vec2u, counter: vec2u) -> vec2u {
  let third = 0x1bd11bdau ^ key.x ^ key.y;
  var x = counter + key;
  x = even_group(x) + vec2u(key.y, third + 1u);
  x = odd_group(x) + vec2u(third, key.x + 2u);
  x = even_group(x) + vec2u(key.x, key.y + 3u);
  x = odd_group(x) + vec2u(key.y, third + 4u);
  return even_group(x) + vec2u(third, key.x + 5u);
}

// One of the 2^24 multiples of 2^-24 in [0, 1). Oracle: `uniform` in src/sampling/noise.rs.
fn uniform_draw(seed: vec2u, position: u32, index: u32) -> f32 {
  return f32(threefry(seed, vec2u(position, index)).x >> 8u) * 0x1p-24;
}

// -log of an exponential variate. The variate is -log(1 - u) with u uniform and fine near zero, where the winners are.
fn gumbel(seed: vec2u, position: u32, token: u32) -> f32 {
  let u = (f32(threefry(seed, vec2u(position, token)).x) + 0.5) * 0x1p-32;
  let series = u * (1.0 + u * (0.5 + u * (1.0 / 3.0 + u * 0.25)));
  let exponential = select(-log(max(1.0 - u, 0x1p-25)), series, u < 0x1p-7);
  return -log(exponential);
}
