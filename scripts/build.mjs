// @ts-check
/**
 * `npm run build`: pkg/, the installable npm package, and the sizes of what goes over the wire.
 *
 *     cargo (wasm) → xtask (bindings, pkg/core) → tsc (src/js → pkg) → package.json, README, licences → www/ (see site.mjs)
 *
 * cargo and tsc decide themselves what is up to date. The bindings are made again only when the module, the lock file or
 * xtask changed, and compressed sizes are remembered by the hash of the file: a build without changes takes about a second.
 * `npm run build` and `npm test` fail when wasm and JavaScript together exceed the limit; the commands that only use the package go on.
 */
import { createHash } from 'node:crypto';
import { existsSync } from 'node:fs';
import { copyFile, mkdir, readFile, readdir, rm, writeFile } from 'node:fs/promises';
import path from 'node:path';
import { pathToFileURL } from 'node:url';
import { promisify } from 'node:util';
import zlib from 'node:zlib';
import { Failure, runMain } from './failure.mjs';
import { parseOptions } from './options.mjs';
import { cacheFolder, outputOf, root, runProgram, say } from './programs.mjs';
import { setup } from './setup.mjs';
import { assembleSite, reportPages } from './site.mjs';

/** The profile `web` is made for size. cargo leaves link-time optimisation out, silently, unless the crate is a cdylib alone. */
const CARGO_BUILD = ['rustc', '--profile', 'web', '--lib', '--crate-type', 'cdylib', '--target', 'wasm32-unknown-unknown'];
const LIMIT_GZIP_BYTES = 1_150_000;
const packageFolder = path.join(root, 'pkg');
const coreFolder = path.join(packageFolder, 'core');
const CORE_FILES = ['core.js', 'core.d.ts', 'core_bg.wasm', 'core_bg.wasm.d.ts'];
const recordFile = path.join(cacheFolder, 'build.json');

/** @typedef {{ bindings?: string, sizes: Record<string, { gzip: number, brotli: number }> }} BuildRecord what the last build left */
/** @typedef {{ file: string, raw: number, gzip: number, brotli: number }} Size */

/**
 * @returns {Promise<Size[]>} the sizes of the package's wasm and JavaScript files
 */
export async function build() {
  const record = await readRecord();
  await runProgram('cargo', CARGO_BUILD, { code: 'build_failed' });
  await makeBindings(record);
  await compileTypeScript();
  await describePackage();
  await assembleSite();
  const sizes = await measure(record);
  await mkdir(cacheFolder, { recursive: true });
  await writeFile(recordFile, JSON.stringify(record));
  return sizes;
}

/** @returns {Promise<BuildRecord>} */
async function readRecord() {
  try {
    const record = JSON.parse(await readFile(recordFile, 'utf8'));
    return { ...record, sizes: record.sizes ?? {} };
  } catch {
    return { sizes: {} };
  }
}

/** @param {...(string | Buffer)} parts */
function sha256(...parts) {
  const hash = createHash('sha256');
  for (const part of parts) hash.update(part);
  return hash.digest('hex');
}

/** @param {BuildRecord} record */
async function makeBindings(record) {
  const metadata = outputOf('cargo', ['metadata', '--format-version', '1', '--no-deps', '--offline']) ?? outputOf('cargo', ['metadata', '--format-version', '1', '--no-deps']);
  if (!metadata) throw new Failure('build_failed', '`cargo metadata` failed; run it by hand to see why.');
  const module = path.join(JSON.parse(metadata).target_directory, 'wasm32-unknown-unknown', 'web', 'draftree.wasm');
  const inputs = [module, ...['Cargo.lock', 'xtask/Cargo.toml', 'xtask/src/main.rs'].map((file) => path.join(root, file))];
  const hash = sha256(...(await Promise.all(inputs.map((file) => readFile(file)))));
  if (record.bindings === hash && CORE_FILES.every((file) => existsSync(path.join(coreFolder, file)))) return;
  say('Making the bindings …');
  await rm(coreFolder, { recursive: true, force: true });
  await runProgram('cargo', ['run', '--quiet', '-p', 'xtask', '--', 'bindgen', module, coreFolder], { code: 'build_failed' });
  record.bindings = hash;
}

/** What is downloaded goes without comments; editors show those of the declarations. */
const TSC_RUNS = [
  ['--declaration', 'false', '--removeComments'],
  ['--declaration', '--emitDeclarationOnly'],
];

/** Compiles src/js and removes from pkg what an earlier build emitted and this one did not. */
async function compileTypeScript() {
  const emitted = new Set();
  const tsc = path.join(root, 'node_modules', 'typescript', 'bin', 'tsc');
  for (const options of TSC_RUNS) {
    let rest = '';
    await runProgram(process.execPath, [tsc, '-p', root, '--listEmittedFiles', ...options], {
      code: 'build_failed',
      quiet: true,
      onText: (text) => {
        const lines = (rest + text).split('\n');
        rest = lines.pop() ?? '';
        for (const line of lines) if (line.startsWith('TSFILE: ')) emitted.add(path.resolve(root, line.slice(8).trim()));
      },
    });
  }
  for (const file of await filesUnder(packageFolder)) {
    if (/\.(js|d\.ts|map)$/.test(file) && !file.startsWith(coreFolder + path.sep) && !emitted.has(file)) await rm(file);
  }
}

/** pkg/package.json from the project's own, seen from inside pkg and without what only development needs; README and licences. */
async function describePackage() {
  const { scripts: _scripts, devDependencies: _modules, private: _private, files: _files, ...description } = JSON.parse(
    await readFile(path.join(root, 'package.json'), 'utf8'),
  );
  const text = JSON.stringify(description, null, 2).replaceAll('"./pkg/', '"./').replaceAll('"pkg/', '"./');
  await writeIfChanged(path.join(packageFolder, 'package.json'), `${text}\n`);
  for (const file of await readdir(root)) {
    if (/^(README|LICENSE|CHANGELOG)/.test(file)) await copyFile(path.join(root, file), path.join(packageFolder, file));
  }
}

/** @param {string} file @param {string} text */
async function writeIfChanged(file, text) {
  if ((await readFile(file, 'utf8').catch(() => undefined)) !== text) await writeFile(file, text);
}

/** @param {string} folder @returns {Promise<string[]>} */
async function filesUnder(folder) {
  const entries = await readdir(folder, { withFileTypes: true, recursive: true });
  return entries.filter((entry) => entry.isFile()).map((entry) => path.join(entry.parentPath, entry.name)).sort();
}

/** @param {BuildRecord} record @returns {Promise<Size[]>} */
async function measure(record) {
  const files = (await filesUnder(packageFolder)).filter((file) => /\.(wasm|js)$/.test(file));
  /** @type {BuildRecord['sizes']} */
  const remembered = {};
  const sizes = await Promise.all(
    files.map(async (file) => {
      const bytes = await readFile(file);
      const hash = sha256(bytes);
      const { gzip, brotli } = (remembered[hash] = record.sizes[hash] ?? (await compressedSizes(bytes)));
      return { file: path.relative(packageFolder, file), raw: bytes.length, gzip, brotli };
    }),
  );
  record.sizes = remembered;
  return sizes;
}

/** @param {Buffer} bytes */
async function compressedSizes(bytes) {
  const [gzip, brotli] = await Promise.all([
    promisify(zlib.gzip)(bytes, { level: 9 }),
    promisify(zlib.brotliCompress)(bytes, { params: { [zlib.constants.BROTLI_PARAM_SIZE_HINT]: bytes.length } }),
  ]);
  return { gzip: gzip.length, brotli: brotli.length };
}

/** Prints the sizes, and fails if the package is too large. @param {Size[]} sizes */
export function reportSizes(sizes) {
  const total = { file: 'total', raw: 0, gzip: 0, brotli: 0 };
  for (const size of sizes) {
    for (const key of /** @type {const} */ (['raw', 'gzip', 'brotli'])) total[key] += size[key];
  }
  const width = Math.max(...[...sizes, total].map(({ file }) => file.length));
  const columns = (/** @type {(string | number)[]} */ values) => values.map((value) => value.toLocaleString('en').padStart(11)).join('');
  say(`${'pkg/'.padEnd(width)}${columns(['raw', 'gzip', 'brotli'])}`);
  for (const { file, raw, gzip, brotli } of [...sizes, total]) say(`${file.padEnd(width)}${columns([raw, gzip, brotli])}`);
  if (total.gzip > LIMIT_GZIP_BYTES) {
    throw new Failure('build_failed', `The package is ${total.gzip} bytes with gzip; the limit is ${LIMIT_GZIP_BYTES}.`);
  }
}

if (import.meta.url === pathToFileURL(process.argv[1] ?? '').href) {
  await runMain(async () => {
    parseOptions(process.argv.slice(2), {});
    await setup();
    reportSizes(await build());
    await reportPages();
  });
}
