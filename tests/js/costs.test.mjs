// @ts-check
/**
 * What is remembered of the cost of passes: what is believed of a record, and when a new one is kept.
 */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { newCosts, readCosts } from '../../pkg/costs.js';

const day = 24 * 3600 * 1000;
const now = 100 * day;
const costs = { version: '1.0.0', adapter: 'a GPU', passMs: { 1: 10.5, 4: 12 } };
const record = { ...costs, measuredAt: now - day };

test('a sound record is believed for a week', () => {
  assert.deepEqual(readCosts(record, now), costs);
  assert.equal(readCosts(record, now + 6 * day + 1), undefined);
  assert.equal(readCosts({ ...record, measuredAt: now + 1 }, now), undefined, 'measured in the future');
});

test('a record that is none is ignored', () => {
  for (const broken of [
    undefined, null, 7, 'x', [], {},
    { ...record, version: 1 }, { ...record, adapter: null }, { ...record, measuredAt: 'today' }, { ...record, measuredAt: NaN },
    { ...record, passMs: null }, { ...record, passMs: 'x' }, { ...record, passMs: { 1: '10' } }, { ...record, passMs: { 1: 0 } },
    { ...record, passMs: { 1: -1 } }, { ...record, passMs: { 1: NaN } }, { ...record, passMs: { one: 1 } }, { ...record, passMs: { 128: 1 } },
  ]) {
    assert.equal(readCosts(broken, now), undefined, JSON.stringify(broken));
  }
});

test('only costs that were not known are kept', () => {
  const info = /** @type {any} */ ({ version: '1.0.0', adapter: { description: 'a GPU', software: false }, passMs: { 4: 12, 1: 10.5 } });
  assert.equal(newCosts(info, readCosts(record, now), now), undefined);
  assert.deepEqual(newCosts(info, undefined, now), { ...costs, measuredAt: now });
  assert.deepEqual(newCosts({ ...info, passMs: { 1: 9 } }, costs, now)?.passMs, { 1: 9 });
  assert.deepEqual(newCosts({ ...info, adapter: { description: 'another' } }, costs, now)?.adapter, 'another');
});
