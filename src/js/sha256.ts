/**
 * SHA-256 of bytes as they arrive (FIPS 180-4). The browser's `crypto.subtle.digest` wants the whole file in memory at once, which is
 * what a streamed download is there to avoid.
 */

/** First 32 bits of the fractional parts of the cube roots of the first 64 primes. */
const roundConstants = fractionalRoots(64, 3);

/** The same of square roots, of the first 8 primes: the state before the first block. */
const initialState = fractionalRoots(8, 2);

/** A digest that takes its message piece by piece. */
export class Sha256 {
  readonly #state = initialState.slice();
  readonly #schedule = new Int32Array(64);
  readonly #block = new Uint8Array(64);
  #length = 0;

  /** Bytes taken so far. */
  get length(): number {
    return this.#length;
  }

  /** Append bytes to the message. */
  update(bytes: Uint8Array): this {
    let at = 0;
    const filled = this.#length % 64;
    this.#length += bytes.length;
    if (filled > 0) {
      at = Math.min(64 - filled, bytes.length);
      this.#block.set(bytes.subarray(0, at), filled);
      if (filled + at < 64) return this;
      this.#compress(this.#block, 0);
    }
    for (; at + 64 <= bytes.length; at += 64) this.#compress(bytes, at);
    this.#block.set(bytes.subarray(at));
    return this;
  }

  /** The digest in lower-case hexadecimal. Call once, last. */
  hex(): string {
    const bits = this.#length * 8;
    const padding = new Uint8Array(((this.#length % 64 < 56 ? 56 : 120) - (this.#length % 64)) + 8);
    padding[0] = 0x80;
    const view = new DataView(padding.buffer);
    view.setUint32(padding.length - 8, Math.floor(bits / 2 ** 32));
    view.setUint32(padding.length - 4, bits >>> 0);
    this.update(padding);
    return Array.from(this.#state, (word) => (word >>> 0).toString(16).padStart(8, '0')).join('');
  }

  #compress(bytes: Uint8Array, at: number): void {
    const w = this.#schedule;
    for (let i = 0; i < 16; i++, at += 4) {
      w[i] = (bytes[at]! << 24) | (bytes[at + 1]! << 16) | (bytes[at + 2]! << 8) | bytes[at + 3]!;
    }
    for (let i = 16; i < 64; i++) {
      const x = w[i - 15]!;
      const y = w[i - 2]!;
      const s0 = ((x >>> 7) | (x << 25)) ^ ((x >>> 18) | (x << 14)) ^ (x >>> 3);
      const s1 = ((y >>> 17) | (y << 15)) ^ ((y >>> 19) | (y << 13)) ^ (y >>> 10);
      w[i] = (w[i - 16]! + s0 + w[i - 7]! + s1) | 0;
    }
    const state = this.#state;
    let a = state[0]!, b = state[1]!, c = state[2]!, d = state[3]!;
    let e = state[4]!, f = state[5]!, g = state[6]!, h = state[7]!;
    for (let i = 0; i < 64; i++) {
      const s1 = ((e >>> 6) | (e << 26)) ^ ((e >>> 11) | (e << 21)) ^ ((e >>> 25) | (e << 7));
      const t1 = (h + s1 + ((e & f) ^ (~e & g)) + roundConstants[i]! + w[i]!) | 0;
      const s0 = ((a >>> 2) | (a << 30)) ^ ((a >>> 13) | (a << 19)) ^ ((a >>> 22) | (a << 10));
      const t2 = (s0 + ((a & b) ^ (a & c) ^ (b & c))) | 0;
      h = g; g = f; f = e; e = (d + t1) | 0;
      d = c; c = b; b = a; a = (t1 + t2) | 0;
    }
    state[0]! += a; state[1]! += b; state[2]! += c; state[3]! += d;
    state[4]! += e; state[5]! += f; state[6]! += g; state[7]! += h;
  }
}

/**
 * The standard's constants from their definition. A double is a first guess only: its last bits may differ between engines, so the
 * root is settled in whole numbers.
 */
function fractionalRoots(count: number, degree: 2 | 3): Int32Array {
  const words: number[] = [];
  for (let n = 2; words.length < count; n++) {
    if (!isPrime(n)) continue;
    // floor(root(n) · 2^32) is the integer root of n · 2^(32·degree).
    const scaled = BigInt(n) << BigInt(32 * degree);
    let root = BigInt(Math.floor(n ** (1 / degree) * 2 ** 32));
    while (root ** BigInt(degree) > scaled) root--;
    while ((root + 1n) ** BigInt(degree) <= scaled) root++;
    words.push(Number(BigInt.asIntN(32, root)));
  }
  return Int32Array.from(words);
}

function isPrime(n: number): boolean {
  for (let divisor = 2; divisor * divisor <= n; divisor++) if (n % divisor === 0) return false;
  return true;
}
