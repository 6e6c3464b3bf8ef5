// @ts-check
/** Installing by a lock file: nothing to do, no network, no lock file. */
import assert from 'node:assert/strict';
import { mkdir, mkdtemp, rm, writeFile } from 'node:fs/promises';
import os from 'node:os';
import path from 'node:path';
import { after, before, test } from 'node:test';
import { installModules } from '../../scripts/modules.mjs';

let folder = '';
const environment = { ...process.env };

before(async () => {
  folder = await mkdtemp(path.join(os.tmpdir(), 'draftree-modules-'));
  // A registry where nobody listens, and little patience.
  Object.assign(process.env, { npm_config_registry: 'http://127.0.0.1:1', npm_config_fetch_retry_mintimeout: '1', npm_config_fetch_retry_maxtimeout: '1' });
});
after(async () => {
  process.env = environment;
  await rm(folder, { recursive: true });
});

/** @param {string} name of the file @param {object} content */
const write = (name, content) => writeFile(path.join(folder, name), JSON.stringify(content));

const module = { version: '1.0.0', integrity: `sha512-${'A'.repeat(86)}==` };
const lock = { lockfileVersion: 3, packages: { '': { dependencies: { 'a-module': '1.0.0' } }, 'node_modules/a-module': module } };

test('modules that cannot be had without a network are told by a code of their own', async () => {
  await write('package.json', { dependencies: { 'a-module': '1.0.0' } });
  await write('package-lock.json', lock);
  await assert.rejects(installModules(folder, 'modules of a test'), { code: 'registry_unreachable', message: /^modules of a test could not be installed.*reached/ });
});

test('modules that are there are left alone', async () => {
  await mkdir(path.join(folder, 'node_modules', 'a-module'), { recursive: true });
  await write('node_modules/.package-lock.json', { packages: { 'node_modules/a-module': module } });
  await installModules(folder, 'modules of a test');
});

test('a lock file that is missing is another fault', async () => {
  await rm(path.join(folder, 'package-lock.json'));
  await assert.rejects(installModules(folder, 'modules of a test'), { code: 'setup_failed' });
});
