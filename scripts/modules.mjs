// @ts-check
/**
 * npm modules by their lock file: the project's own, and those of folders that need others than it.
 *
 * Modules are installed without their install scripts: none of them needs one.
 */
import { existsSync, readFileSync } from 'node:fs';
import path from 'node:path';
import { Failure } from './failure.mjs';
import { runProgram, say } from './programs.mjs';

/** What npm says when it is the network that fails. */
const NETWORK_FAULT = /\b(ENOTFOUND|EAI_AGAIN|ECONNREFUSED|ECONNRESET|ETIMEDOUT|ENETUNREACH|EHOSTUNREACH|ERR_SOCKET_TIMEOUT)\b/;

/**
 * Brings a folder's node_modules to what its package-lock.json says. Fails with `registry_unreachable` where modules are missing and
 * cannot be had.
 * @param {string} folder @param {string} what for the message, as in "the development modules"
 */
export async function installModules(folder, what) {
  if (modulesAreCurrent(folder)) return;
  say(`Installing ${what} (npm ci) …`);
  let output = '';
  const args = ['ci', '--ignore-scripts', '--no-audit', '--no-fund', '--prefer-offline', '--fetch-retries=1', '--loglevel=error'];
  try {
    await runProgram('npm', args, { cwd: folder, code: 'setup_failed', quiet: true, onText: (text) => (output += text) });
  } catch (error) {
    if (!NETWORK_FAULT.test(output)) throw error;
    throw new Failure('registry_unreachable', `${what} could not be installed: the npm registry cannot be reached. Run this again with a network.`, { cause: error });
  }
}

/**
 * Whether node_modules holds what package-lock.json says: npm keeps a lock of what it installed beside the modules.
 * @param {string} folder
 */
function modulesAreCurrent(folder) {
  /** @param {string} file @returns {Record<string, { version?: string, optional?: boolean }> | undefined} */
  const read = (file) => {
    try {
      return JSON.parse(readFileSync(path.join(folder, file), 'utf8')).packages;
    } catch {
      return undefined;
    }
  };
  const wanted = read('package-lock.json');
  const installed = read('node_modules/.package-lock.json');
  if (!wanted || !installed) return false;
  return Object.entries(wanted).every(([place, { version, optional }]) => {
    if (place === '') return true;
    const found = installed[place];
    return found ? found.version === version && existsSync(path.join(folder, place)) : optional === true;
  });
}
