// @ts-check
/**
 * The built package writes the reference's tokens, in both browsers, for every format of stories260K.
 *
 * With the reference models beside the project all six GGUF files and the folder of safetensors run; a clone alone runs the embedded file.
 */
import assert from 'node:assert/strict';
import { existsSync } from 'node:fs';
import path from 'node:path';
import { after, before, describe, test } from 'node:test';
import { readGolden, runCase } from '../../scripts/golden.mjs';
import { browserNames, HeadlessModel, openSession, root } from './browsers.mjs';

/** @typedef {import('../../scripts/headless.mjs').Session} Session */

const references = path.join(root, '..', 'shared', 'models', 'stories260K');
const models = existsSync(references)
  ? [
      { place: '/reference/stories260K-f32.gguf', golden: 'stories260K' },
      { place: '/reference/', golden: 'stories260K' },
      ...['f16', 'q8_0', 'q5_0', 'q4_1', 'q4_0'].map((format) => ({
        place: `/reference/stories260K-${format}.gguf`,
        golden: `stories260K-${format}`,
      })),
    ]
  : [{ place: '/models/stories260K/stories260K-q8_0.gguf', golden: 'stories260K-q8_0' }];

for (const browser of browserNames) {
  describe(`golden tokens in ${browser}`, () => {
    /** @type {Session} */
    let session;
    before(async () => {
      session = await openSession({ browser, mounts: { '/reference/': references } });
    });
    after(() => session?.close());

    for (const { place, golden } of models) {
      test(`${place} writes the tokens of ${golden}`, async () => {
        const model = await HeadlessModel.load(session, session.server.url + place);
        const faults = [];
        for (const prompt of await readGolden(golden)) {
          const { name, fault } = await runCase(model, prompt);
          if (fault) faults.push(`${name}: ${fault}`);
        }
        assert.deepEqual(faults, []);
        assert.deepEqual(session.page.errors, []);
      });
    }
  });
}
