// @ts-check
/**
 * `node scripts/site.mjs`, part of `npm run build`: what www/ needs besides its own files, so that the folder is a site as it is.
 *
 *     pkg/ → www/pkg · models/ → www/models · the charting library → www/vendor · the list of all files → www/site.json
 *
 * The copies are made by this step alone and are not part of the repository. `site.json` is what the service worker keeps for visits
 * without a network. The pages' own JavaScript may be 60 kB with gzip, the charting library included and the package not.
 */
import { createHash } from 'node:crypto';
import { copyFile, mkdir, readFile, readdir, rm, stat, writeFile } from 'node:fs/promises';
import path from 'node:path';
import { pathToFileURL } from 'node:url';
import { promisify } from 'node:util';
import zlib from 'node:zlib';
import { Failure, runMain } from './failure.mjs';
import { parseOptions } from './options.mjs';
import { root, say } from './programs.mjs';

/** The folder that is served. */
export const siteFolder = path.join(root, 'www');
export const pageNames = ['index.html', 'bench.html'];

/** The model, and its draft heads, that the pages begin with. */
const EMBEDDED = 'models/stories260K/stories260K-q8_0.';
const LIMIT_PAGE_BYTES = 60_000;
const COPIED = { pkg: /\.(js|wasm|d\.ts)$/, models: /\.(gguf|safetensors)$/ };
const chartFolder = path.join(root, 'node_modules', 'uplot', 'dist');

/** Copies what changed, and removes copies of what is gone. */
export async function assembleSite() {
  for (const [folder, wanted] of Object.entries(COPIED)) await mirror(path.join(root, folder), path.join(siteFolder, folder), wanted);
  const vendor = path.join(siteFolder, 'vendor');
  await mkdir(vendor, { recursive: true });
  // The minified form is a script that leaves a global; one line makes a module of it.
  const script = await readFile(path.join(chartFolder, 'uPlot.iife.min.js'), 'utf8');
  await writeFile(path.join(vendor, 'uplot.js'), `${script.trimEnd()}\nexport default uPlot;\n`);
  await copyFile(path.join(chartFolder, 'uPlot.d.ts'), path.join(vendor, 'uplot.d.ts'));
  await copyFile(path.join(chartFolder, 'uPlot.min.css'), path.join(vendor, 'uplot.css'));
  await copyFile(path.join(chartFolder, '..', 'LICENSE'), path.join(vendor, 'LICENSE-uplot'));
  await writeFile(path.join(siteFolder, 'site.json'), `${JSON.stringify(await listSite(), null, 1)}\n`);
}

/** @param {string} from @param {string} to @param {RegExp} wanted */
async function mirror(from, to, wanted) {
  const names = (await filesUnder(from)).filter((name) => wanted.test(name));
  for (const name of names) {
    const [source, target] = [path.join(from, name), path.join(to, name)];
    const [there, here] = await Promise.all([stat(source), stat(target).catch(() => undefined)]);
    if (here && here.size === there.size && here.mtimeMs >= there.mtimeMs) continue;
    await mkdir(path.dirname(target), { recursive: true });
    await copyFile(source, target);
  }
  for (const name of await filesUnder(to)) if (!names.includes(name)) await rm(path.join(to, name));
}

/** What a visitor may ask for without a network: all but the models that a page does not load by itself; and a digest of it all. */
async function listSite() {
  const isServed = (/** @type {string} */ name) => /\.(html|js|css|svg|wasm|jsonl|gguf|safetensors)$/.test(name) && name !== 'sw.js';
  const isOther = (/** @type {string} */ name) => name.startsWith('models/') && !name.startsWith(EMBEDDED);
  const files = (await filesUnder(siteFolder)).filter((name) => isServed(name) && !isOther(name));
  const hash = createHash('sha256');
  for (const name of files) hash.update(name).update(await readFile(path.join(siteFolder, name)));
  return { digest: hash.digest('hex'), files };
}

/** Paths below a folder with `/`, sorted; none if there is no such folder. @param {string} folder @returns {Promise<string[]>} */
async function filesUnder(folder) {
  const entries = await readdir(folder, { withFileTypes: true, recursive: true }).catch(() => []);
  const files = entries.filter((entry) => entry.isFile()).map((entry) => path.relative(folder, path.join(entry.parentPath, entry.name)));
  return files.map((name) => name.replaceAll(path.sep, '/')).sort();
}

/**
 * The JavaScript of a page: the scripts it names and all that they import, without the package.
 * @param {string} page
 * @returns {Promise<{ page: string, files: number, raw: number, gzip: number }>}
 */
export async function measurePage(page) {
  const html = await readFile(path.join(siteFolder, page), 'utf8');
  const waiting = [...html.matchAll(/<script[^>]+src="([^"]+)"/g)].map(([, source = '']) => path.posix.normalize(source));
  /** @type {Map<string, Buffer>} */
  const found = new Map();
  for (let name = waiting.pop(); name !== undefined; name = waiting.pop()) {
    if (found.has(name) || name.startsWith('pkg/')) continue;
    const bytes = await readFile(path.join(siteFolder, name));
    found.set(name, bytes);
    for (const [, imported = ''] of bytes.toString().matchAll(/^(?:import|export)[^;]*?from '(\.[^']+)'/gm)) {
      waiting.push(path.posix.join(path.posix.dirname(name), imported));
    }
  }
  const sizes = [...found.values()];
  const sum = (/** @type {(bytes: Buffer) => number} */ size) => sizes.reduce((total, bytes) => total + size(bytes), 0);
  return { page, files: sizes.length, raw: sum(({ length }) => length), gzip: sum((bytes) => zlib.gzipSync(bytes, { level: 9 }).length) };
}

/**
 * Bytes of a first visit to a page, compressed where a server would: markup, styles, its own JavaScript, the package, the embedded model.
 * @param {string} page
 */
async function measureVisit(page) {
  const html = await readFile(path.join(siteFolder, page), 'utf8');
  const styles = [...html.matchAll(/<link rel="stylesheet" href="([^"]+)"/g)].map(([, name = '']) => name);
  const { files } = await listSite();
  const shared = files.filter((name) => name.startsWith('pkg/') || name.startsWith('models/'));
  const sizes = await Promise.all([page, ...styles, ...shared].map(async (name) => {
    const bytes = await readFile(path.join(siteFolder, name));
    return name.startsWith('models/') ? bytes.length : (await promisify(zlib.gzip)(bytes, { level: 9 })).length;
  }));
  return sizes.reduce((sum, size) => sum + size, (await measurePage(page)).gzip);
}

/** Prints what a visit and the pages' own JavaScript come to, and fails if the latter is too much. */
export async function reportPages() {
  for (const name of pageNames) {
    const { files, raw, gzip } = await measurePage(name);
    const visit = await measureVisit(name);
    say(
      `www/${name}: ${files} modules, ${raw.toLocaleString('en')} bytes, ${gzip.toLocaleString('en')} with gzip, beside the package; ` +
        `a first visit downloads ${(visit / 1e6).toFixed(2)} MB, package and embedded model included`,
    );
    if (gzip > LIMIT_PAGE_BYTES) {
      throw new Failure('build_failed', `The JavaScript of www/${name} is ${gzip} bytes with gzip; the limit is ${LIMIT_PAGE_BYTES}.`);
    }
  }
}

if (import.meta.url === pathToFileURL(process.argv[1] ?? '').href) {
  await runMain(async () => {
    parseOptions(process.argv.slice(2), {});
    await assembleSite();
    await reportPages();
  });
}
