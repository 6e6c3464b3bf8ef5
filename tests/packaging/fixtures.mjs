// @ts-check
/**
 * The small apps of this folder with the package installed into them: each is copied to `.cache/packaging`, where its modules stay from
 * one run to the next, and gets what `npm pack` makes of `pkg`, by `npm install`.
 */
import { spawn } from 'node:child_process';
import { existsSync } from 'node:fs';
import { cp, mkdir, readdir, rm, stat } from 'node:fs/promises';
import path from 'node:path';
import { Failure, describe } from '../../scripts/failure.mjs';
import { installModules } from '../../scripts/modules.mjs';
import { cacheFolder, root, runProgram, say } from '../../scripts/programs.mjs';

const workFolder = path.join(cacheFolder, 'packaging');
const npmInstall = ['install', '--no-save', '--offline', '--ignore-scripts', '--no-audit', '--no-fund', '--loglevel=error'];

/** What every app loads, as it lies in the project. */
export const modelFolder = path.join(root, 'models', 'stories260K');

/** Makes the tarball, says its size, and returns its place. */
export async function pack() {
  await mkdir(workFolder, { recursive: true });
  for (const file of await readdir(workFolder)) if (file.endsWith('.tgz')) await rm(path.join(workFolder, file));
  await runProgram('npm', ['pack', path.join(root, 'pkg'), '--pack-destination', workFolder, '--loglevel=error'], { quiet: true });
  const name = (await readdir(workFolder)).find((file) => file.endsWith('.tgz'));
  if (name === undefined) throw new Failure('internal', `npm pack left no tarball in ${workFolder}; run it by hand in pkg/ to see why.`);
  const tarball = path.join(workFolder, name);
  say(`The tarball ${name} has ${(await stat(tarball)).size.toLocaleString('en')} bytes.`);
  return tarball;
}

/**
 * The folder of an app, ready to build or serve; nothing, having said so loudly, where its modules are not here and cannot be had.
 * @param {string} name a folder beside this file @param {string} tarball
 */
export async function install(name, tarball) {
  const folder = path.join(workFolder, name);
  await mkdir(folder, { recursive: true });
  for (const entry of await readdir(folder)) if (entry !== 'node_modules') await rm(path.join(folder, entry), { recursive: true });
  await cp(path.join(root, 'tests', 'packaging', name), folder, { recursive: true });
  try {
    if (existsSync(path.join(folder, 'package-lock.json'))) await installModules(folder, `the modules of the packaging test "${name}"`);
  } catch (error) {
    if (describe(error).code !== 'registry_unreachable') throw error;
    say(`\nNOT TESTED: ${describe(error).message}\n`);
    return undefined;
  }
  await rm(path.join(folder, 'node_modules', 'draftree'), { recursive: true, force: true });
  await runProgram('npm', [...npmInstall, tarball], { cwd: folder, quiet: true });
  return folder;
}

/** The files of the model, for apps whose tool serves a `public` folder. @param {string} folder of the app */
export async function addModel(folder) {
  await cp(path.join(modelFolder, 'stories260K-q8_0.gguf'), path.join(folder, 'public', 'model', 'stories260K-q8_0.gguf'));
}

/**
 * Runs a program of an app's modules to its end.
 * @param {string} folder @param {string} file below node_modules @param {string[]} args
 */
export async function runTool(folder, file, ...args) {
  const env = { NEXT_TELEMETRY_DISABLED: '1', NO_COLOR: '1' };
  await runProgram(process.execPath, [path.join(folder, 'node_modules', file), ...args], { cwd: folder, env, quiet: true });
}

/**
 * Starts Vite's development server, as after a fresh installation.
 * @param {string} folder of the app
 * @returns {Promise<{ url: string, close: () => Promise<void> }>}
 */
export async function startVite(folder) {
  const args = [path.join(folder, 'node_modules', 'vite', 'bin', 'vite.js'), '--host', '127.0.0.1', '--force'];
  const child = spawn(process.execPath, args, { cwd: folder, env: { ...process.env, NO_COLOR: '1' }, stdio: ['ignore', 'pipe', 'pipe'] });
  const leave = () => child.kill('SIGKILL');
  process.once('exit', leave);
  const ended = new Promise((resolve) => child.once('close', resolve));
  let output = '';
  const url = await new Promise((resolve, reject) => {
    for (const stream of [child.stdout, child.stderr]) {
      stream.on('data', (text) => {
        output += text;
        const found = /http:\/\/127\.0\.0\.1:\d+/.exec(output);
        if (found) resolve(found[0]);
      });
    }
    void ended.then((status) => reject(new Failure('internal', `Vite's server ended with status ${status}: ${output}`)));
  });
  const close = async () => {
    child.kill();
    await ended;
    process.off('exit', leave);
  };
  return { url, close };
}
