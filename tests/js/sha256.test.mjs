// @ts-check
import assert from 'node:assert/strict';
import { createHash } from 'node:crypto';
import { test } from 'node:test';
import { Sha256 } from '../../pkg/sha256.js';

const message = Uint8Array.from({ length: 1000 }, (_, index) => index * 31);

test('digests equal those of the reference at every length around a block', () => {
  for (let length = 0; length <= 260; length++) {
    const bytes = message.subarray(0, length);
    assert.equal(new Sha256().update(bytes).hex(), createHash('sha256').update(bytes).digest('hex'), `${length} bytes`);
  }
});

test('the pieces a message comes in do not matter', () => {
  const whole = createHash('sha256').update(message).digest('hex');
  for (const size of [1, 7, 63, 64, 65, 200]) {
    const hash = new Sha256();
    for (let at = 0; at < message.length; at += size) hash.update(message.subarray(at, at + size));
    assert.equal(hash.length, message.length);
    assert.equal(hash.hex(), whole, `pieces of ${size}`);
  }
});
