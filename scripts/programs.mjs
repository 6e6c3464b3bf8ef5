// @ts-check
/**
 * Running other programs (cargo, npm, apt-get, …) for a command, and the two places every command needs.
 *
 * A child's standard output goes to our standard error: the standard output of a command belongs to its result alone.
 */
import { spawn, spawnSync } from 'node:child_process';
import { accessSync, constants, statSync } from 'node:fs';
import path from 'node:path';
import { fileURLToPath } from 'node:url';
import { Failure } from './failure.mjs';

/** The project's folder. */
export const root = path.resolve(path.dirname(fileURLToPath(import.meta.url)), '..');
/** Downloads and notes that may be deleted at any time. */
export const cacheFolder = path.join(root, '.cache');

/** One line about what is going on. @param {string} line */
export const say = (line) => void process.stderr.write(`${line}\n`);

/**
 * Where a program lies on PATH.
 * @param {string} name
 * @returns {string | undefined}
 */
export function which(name) {
  const extensions = process.platform === 'win32' ? ['.exe', '.cmd', ''] : [''];
  for (const folder of (process.env['PATH'] ?? '').split(path.delimiter)) {
    for (const extension of extensions) {
      const file = path.join(folder, name + extension);
      if (folder && isExecutable(file)) return file;
    }
  }
  return undefined;
}

/** @param {string} file */
export function isExecutable(file) {
  try {
    accessSync(file, constants.X_OK);
    return statSync(file).isFile();
  } catch {
    return false;
  }
}

/**
 * Runs a program to its end. Rejects with a `Failure` if it cannot start or exits with another status than 0.
 * @param {string} program
 * @param {readonly string[]} args
 * @param {{ env?: NodeJS.ProcessEnv, cwd?: string, code?: string, hint?: string, quiet?: boolean, onText?: (text: string) => void }} [options]
 *   `quiet` shows the output only when the program fails; `onText` also hands over both streams as they come.
 * @returns {Promise<void>}
 */
export async function runProgram(program, args, { env, cwd = root, code = 'internal', hint, quiet = false, onText } = {}) {
  const watched = quiet || onText !== undefined;
  const child = spawn(program, args, {
    cwd,
    env: { ...process.env, ...env },
    stdio: ['ignore', watched ? 'pipe' : 2, watched ? 'pipe' : 2],
    shell: process.platform === 'win32' && /^(npm|npx)$/.test(program),
  });
  /** @type {Buffer[]} */
  const held = [];
  for (const stream of [child.stdout, child.stderr]) {
    stream?.on('data', (/** @type {Buffer} */ chunk) => {
      if (quiet) held.push(chunk);
      else process.stderr.write(chunk);
      onText?.(chunk.toString());
    });
  }
  const command = [program, ...args].join(' ');
  const suffix = hint ? ` ${hint}` : '';
  await new Promise((resolve, reject) => {
    child.on('error', (error) => reject(new Failure(code, `\`${command}\` could not be started: ${error.message}.${suffix}`)));
    child.on('close', (status, signal) => {
      if (status === 0) return resolve(undefined);
      if (quiet) process.stderr.write(Buffer.concat(held));
      reject(new Failure(code, `\`${command}\` ended with ${signal ? `signal ${signal}` : `status ${status}`}.${suffix}`));
    });
  });
}

/**
 * The standard output of a program, or `undefined` if it could not be run or failed.
 * @param {string} program @param {readonly string[]} args
 */
export function outputOf(program, args) {
  const result = spawnSync(program, args, { cwd: root, encoding: 'utf8', stdio: ['ignore', 'pipe', 'ignore'], maxBuffer: 1 << 26 });
  return result.status === 0 ? result.stdout : undefined;
}
