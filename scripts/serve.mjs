// @ts-check
/**
 * A static file server for the page, the tests and the headless commands; nothing of it is part of the package.
 *
 *     node scripts/serve.mjs [FOLDER] [--port N] [--isolate]
 *
 * Serves what a real static host serves: types, HEAD, ETag and 304, byte ranges (one per request). It never leaves the folders
 * it was given: a path is resolved first, symbolic links included, and refused unless it lies inside. Tests ask it for faults
 * (no ranges, slow, cut short, a status), because a loader has to meet those before a user does.
 */
import { createReadStream } from 'node:fs';
import { realpath, stat } from 'node:fs/promises';
import http from 'node:http';
import path from 'node:path';
import { pipeline } from 'node:stream/promises';
import { pathToFileURL } from 'node:url';
import { Failure, runMain } from './failure.mjs';
import { parseOptions } from './options.mjs';
import { root } from './programs.mjs';

/** @type {Record<string, string>} */
const TYPES = {
  '.html': 'text/html; charset=utf-8',
  '.js': 'text/javascript; charset=utf-8',
  '.mjs': 'text/javascript; charset=utf-8',
  '.css': 'text/css; charset=utf-8',
  '.json': 'application/json',
  '.map': 'application/json',
  '.md': 'text/markdown; charset=utf-8',
  '.txt': 'text/plain; charset=utf-8',
  '.ts': 'text/plain; charset=utf-8',
  '.wasm': 'application/wasm',
  '.svg': 'image/svg+xml',
  '.png': 'image/png',
  '.ico': 'image/x-icon',
  '.webmanifest': 'application/manifest+json',
};

/**
 * What may go wrong on purpose, for the paths that `match` accepts.
 * @typedef {object} Fault
 * @property {RegExp} match tested against the decoded path
 * @property {number} [status] answer with this status and no file
 * @property {boolean} [noRange] ignore Range: the whole file with status 200, and no Accept-Ranges
 * @property {number} [truncate] the connection ends after this many bytes of the body, although more were promised
 * @property {number} [bytesPerSecond] send no faster than this
 * @property {number} [delayMs] wait before answering
 * @property {boolean} [noLength] send without Content-Length
 */
/**
 * @typedef {object} ServeOptions
 * @property {number} [port] 0 (any free one) unless told
 * @property {string} [host] 127.0.0.1 unless told
 * @property {Record<string, string>} [headers] sent with every answer
 * @property {boolean} [isolate] send COOP and COEP, which cross-origin isolation needs
 * @property {Record<string, string>} [mounts] more files and folders: path prefix (`/model/a.gguf`, or `/model/` for a folder) → place on disk
 * @property {Record<string, string>} [pages] generated HTML documents by path
 * @property {Fault[]} [faults]
 * @property {(line: string) => void} [log] one line per request
 */

/**
 * @param {string} folder what `/` stands for
 * @param {ServeOptions} [options]
 * @returns {Promise<{ url: string, port: number, faults: Fault[], close: () => Promise<void> }>}
 *   `url` has no slash at its end; `faults` may be changed while serving.
 */
export async function serve(folder, options = {}) {
  const site = { folder, mounts: options.mounts ?? {}, pages: options.pages ?? {}, faults: options.faults ?? [] };
  const server = http.createServer((request, response) => {
    if (options.log) response.on('finish', () => options.log?.(`${response.statusCode} ${request.method} ${request.url}`));
    for (const [name, value] of Object.entries(options.headers ?? {})) response.setHeader(name, value);
    if (options.isolate) {
      response.setHeader('Cross-Origin-Opener-Policy', 'same-origin');
      response.setHeader('Cross-Origin-Embedder-Policy', 'require-corp');
      response.setHeader('Cross-Origin-Resource-Policy', 'same-origin');
    }
    answer(site, request, response).catch(() => {
      if (response.headersSent) response.destroy();
      else end(response, 500, 'The file could not be read.\n');
    });
  });
  const host = options.host ?? '127.0.0.1';
  await new Promise((resolve, reject) => {
    server.once('error', reject);
    server.listen(options.port ?? 0, host, () => resolve(undefined));
  });
  const address = server.address();
  const port = typeof address === 'object' && address ? address.port : 0;
  return {
    url: `http://${host}:${port}`,
    port,
    faults: site.faults,
    close: () =>
      new Promise((resolve) => {
        server.close(() => resolve());
        server.closeAllConnections();
      }),
  };
}

/**
 * @typedef {{ folder: string, mounts: Record<string, string>, pages: Record<string, string>, faults: Fault[] }} Site
 * @param {Site} site @param {http.IncomingMessage} request @param {http.ServerResponse} response
 */
async function answer(site, request, response) {
  if (request.method !== 'GET' && request.method !== 'HEAD') {
    response.setHeader('Allow', 'GET, HEAD');
    return end(response, 405, 'Only GET and HEAD.\n');
  }
  const pathname = decodedPath(request.url ?? '/');
  if (pathname === undefined) return end(response, 400, 'The path is malformed.\n');
  const fault = site.faults.find((candidate) => candidate.match.test(pathname));
  if (fault?.delayMs) await new Promise((resolve) => setTimeout(resolve, fault.delayMs));
  if (fault?.status) return end(response, fault.status, `Status ${fault.status}.\n`);
  const page = site.pages[pathname];
  if (page !== undefined) {
    response.setHeader('Content-Type', /** @type {string} */ (TYPES['.html']));
    return end(response, 200, page);
  }
  const found = await locate(site, pathname);
  if (found === 'folder') {
    response.setHeader('Location', `${pathname.split('/').map(encodeURIComponent).join('/')}/`);
    return end(response, 301, 'A folder.\n');
  }
  if (!found) return end(response, 404, 'Not found.\n');
  return sendFile(found, fault ?? {}, request, response);
}

/** @param {string} url @returns {string | undefined} */
function decodedPath(url) {
  try {
    const pathname = decodeURIComponent(new URL(url, 'http://localhost').pathname);
    return pathname.includes('\0') ? undefined : pathname;
  } catch {
    return undefined;
  }
}

/**
 * The file behind a path, `'folder'` for a folder asked for without its slash, or nothing.
 * @param {Site} site @param {string} pathname
 * @returns {Promise<{ file: string, size: number, mtimeMs: number } | 'folder' | undefined>}
 */
async function locate(site, pathname) {
  if (/\/\./.test(pathname)) return undefined; // .git, .cache: never part of a site
  const prefix = Object.keys(site.mounts).find((key) => pathname === key || (key.endsWith('/') && pathname.startsWith(key)));
  const base = prefix === undefined ? site.folder : /** @type {string} */ (site.mounts[prefix]);
  const wanted = path.join(base, prefix === undefined ? pathname : pathname.slice(prefix.length));
  try {
    const [realBase, real] = await Promise.all([realpath(base), realpath(wanted)]);
    if (real !== realBase && !real.startsWith(realBase + path.sep)) return undefined;
    const info = await stat(real);
    if (info.isFile()) return { file: real, size: info.size, mtimeMs: info.mtimeMs };
    if (!info.isDirectory()) return undefined;
    if (!pathname.endsWith('/')) return 'folder';
    const index = path.join(real, 'index.html');
    const indexInfo = await stat(index);
    return indexInfo.isFile() ? { file: index, size: indexInfo.size, mtimeMs: indexInfo.mtimeMs } : undefined;
  } catch {
    return undefined;
  }
}

/**
 * @param {{ file: string, size: number, mtimeMs: number }} found @param {Partial<Fault>} fault
 * @param {http.IncomingMessage} request @param {http.ServerResponse} response
 */
async function sendFile({ file, size, mtimeMs }, fault, request, response) {
  const etag = `"${size.toString(16)}-${Math.round(mtimeMs).toString(16)}"`;
  response.setHeader('Content-Type', TYPES[path.extname(file).toLowerCase()] ?? 'application/octet-stream');
  response.setHeader('ETag', etag);
  response.setHeader('Last-Modified', new Date(mtimeMs).toUTCString());
  response.setHeader('Cache-Control', 'no-cache');
  if (!fault.noRange) response.setHeader('Accept-Ranges', 'bytes');
  if (request.headers['if-none-match']?.split(/\s*,\s*/).some((tag) => tag === etag || tag === `W/${etag}` || tag === '*')) {
    response.writeHead(304);
    return response.end();
  }
  const ifRange = request.headers['if-range'];
  const header = fault.noRange || (ifRange !== undefined && ifRange !== etag) ? undefined : request.headers.range;
  const range = readRange(header, size);
  if (range === 'unsatisfiable') {
    response.setHeader('Content-Range', `bytes */${size}`);
    return end(response, 416, '');
  }
  const { start, stop } = range ?? { start: 0, stop: size };
  if (range) response.setHeader('Content-Range', `bytes ${start}-${stop - 1}/${size}`);
  if (!fault.noLength) response.setHeader('Content-Length', stop - start);
  response.writeHead(range ? 206 : 200);
  if (request.method === 'HEAD' || stop === start) return response.end();
  return sendBody(file, start, stop, fault, response);
}

/**
 * One byte range of a Range header as [start, stop); nothing for a header to be ignored (other units, several ranges).
 * @param {string | undefined} header @param {number} size
 * @returns {{ start: number, stop: number } | 'unsatisfiable' | undefined}
 */
function readRange(header, size) {
  const match = header === undefined ? null : /^bytes=(\d*)-(\d*)$/.exec(header.trim());
  if (!match || (!match[1] && !match[2])) return undefined;
  if (!match[1]) {
    const suffix = Math.min(Number(match[2]), size);
    return suffix === 0 ? 'unsatisfiable' : { start: size - suffix, stop: size };
  }
  const start = Number(match[1]);
  const last = match[2] ? Number(match[2]) : size - 1;
  if (last < start && match[2]) return undefined;
  return start >= size ? 'unsatisfiable' : { start, stop: Math.min(last + 1, size) };
}

/**
 * @param {string} file @param {number} start @param {number} stop @param {Partial<Fault>} fault
 * @param {http.ServerResponse} response
 */
async function sendBody(file, start, stop, fault, response) {
  const cut = fault.truncate === undefined ? Infinity : fault.truncate;
  const stream = createReadStream(file, { start, end: stop - 1, highWaterMark: fault.bytesPerSecond ? 1 << 14 : 1 << 18 });
  if (fault.truncate === undefined && !fault.bytesPerSecond) return pipeline(stream, response).catch(() => response.destroy());
  let sent = 0;
  for await (const chunk of stream) {
    const piece = /** @type {Buffer} */ (chunk).subarray(0, Math.max(0, cut - sent));
    if (response.destroyed) return;
    response.write(piece);
    sent += piece.length;
    const pause = fault.bytesPerSecond ? (1000 * piece.length) / fault.bytesPerSecond : 20;
    if (fault.bytesPerSecond || sent >= cut) await new Promise((resolve) => setTimeout(resolve, pause));
    if (sent >= cut) return response.destroy();
  }
  response.end();
}

/** @param {http.ServerResponse} response @param {number} status @param {string} text */
function end(response, status, text) {
  if (!response.hasHeader('Content-Type')) response.setHeader('Content-Type', /** @type {string} */ (TYPES['.txt']));
  response.setHeader('Content-Length', Buffer.byteLength(text));
  response.writeHead(status);
  response.end(response.req.method === 'HEAD' ? undefined : text);
}

if (import.meta.url === pathToFileURL(process.argv[1] ?? '').href) {
  await runMain(async () => {
    const { values, positionals } = parseOptions(
      process.argv.slice(2),
      {
        port: { type: 'integer', min: 0, max: 65535, help: 'the port; any free one unless told' },
        isolate: { type: 'flag', help: 'send the headers of cross-origin isolation' },
      },
      { positionals: 1 },
    );
    const folder = path.resolve(positionals[0] ?? root);
    if (!(await stat(folder).catch(() => undefined))?.isDirectory()) throw new Failure('invalid_option', `${folder} is no folder.`);
    const { url } = await serve(folder, { port: values.port ?? 0, isolate: values.isolate ?? false, log: (line) => console.error(line) });
    console.log(`${folder} at ${url}/`);
  });
}
