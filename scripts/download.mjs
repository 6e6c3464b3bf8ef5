// @ts-check
/**
 * Files whose size and sha256 are known beforehand, brought to disk whole or not at all.
 *
 * Bytes go to `FILE.partial`; only when size and sha256 are right does it get its name, in one rename. A partial file is resumed where
 * the server has ranges: since the sha256 decides at the end, joining bytes of different versions cannot go unnoticed.
 */
import { createHash } from 'node:crypto';
import { createReadStream } from 'node:fs';
import { mkdir, open, readFile, rename, rm, stat, writeFile } from 'node:fs/promises';
import path from 'node:path';
import { Failure } from './failure.mjs';

const RETRIES = 3;
const STALL_MS = 30_000;

/** @typedef {{ size: number, sha256: string }} Checksum */
/** @typedef {(loaded: number, total: number) => void} OnProgress */

/**
 * Whether the file is there and right. The sum is computed once for a given size and time of change and then remembered beside the file.
 * @param {string} file @param {Checksum} checksum
 */
export async function isIntact(file, checksum) {
  const info = await stat(file).catch(() => undefined);
  if (info?.size !== checksum.size) return false;
  const note = `${checksum.sha256} ${info.size} ${info.mtimeMs}\n`;
  if ((await readFile(`${file}.checked`, 'utf8').catch(() => '')) === note) return true;
  if ((await sha256OfFile(file)) !== checksum.sha256) return false;
  await writeFile(`${file}.checked`, note);
  return true;
}

/** @param {string} file */
export async function sha256OfFile(file) {
  const hash = createHash('sha256');
  for await (const chunk of createReadStream(file, { highWaterMark: 1 << 20 })) hash.update(chunk);
  return hash.digest('hex');
}

/**
 * Downloads `url` to `file`.
 * @param {string} url @param {string} file @param {Checksum} checksum @param {OnProgress} [onProgress]
 */
export async function downloadFile(url, file, checksum, onProgress) {
  const partial = `${file}.partial`;
  await mkdir(path.dirname(file), { recursive: true });
  for (let failures = 0; ; ) {
    const before = (await stat(partial).catch(() => undefined))?.size ?? 0;
    try {
      await continueDownload(url, partial, before, checksum.size, onProgress);
      break;
    } catch (error) {
      if (error instanceof Failure) throw error;
      const after = (await stat(partial).catch(() => undefined))?.size ?? 0;
      failures = after > before ? 1 : failures + 1;
      if (failures > RETRIES) {
        const cause = /** @type {Error} */ (error).cause;
        const reason = cause instanceof Error ? cause.message : /** @type {Error} */ (error).message;
        throw new Failure('load_failed', `${url}: ${reason} (after ${after} of ${checksum.size} bytes)`, { cause: error });
      }
      await new Promise((resolve) => setTimeout(resolve, 300 * failures));
    }
  }
  await keepIfIntact(partial, file, checksum);
}

/** @param {string} url @param {string} partial @param {number} start @param {number} size @param {OnProgress | undefined} onProgress */
async function continueDownload(url, partial, start, size, onProgress) {
  if (start > size) await rm(partial);
  const offset = start > size ? 0 : start;
  if (offset === size) return;
  const controller = new AbortController();
  const stalled = () => controller.abort(new Error(`no answer for ${STALL_MS / 1000} s`));
  let timer = setTimeout(stalled, STALL_MS);
  try {
    const response = await fetch(url, { headers: offset > 0 ? { Range: `bytes=${offset}-` } : {}, signal: controller.signal });
    if (response.status >= 500 || response.status === 429) throw new Error(`the server answered ${response.status}`);
    if (!response.ok || !response.body) throw new Failure('load_failed', `${url}: the server answered ${response.status}`);
    const begin = response.status === 206 ? offset : 0;
    const promised = begin + Number(response.headers.get('content-length') ?? size - begin);
    if (promised !== size) throw new Failure('load_failed', `${url}: ${promised} bytes are offered, expected ${size}`);
    const output = await open(partial, begin > 0 ? 'r+' : 'w');
    let at = begin;
    try {
      for await (const chunk of response.body) {
        clearTimeout(timer);
        timer = setTimeout(stalled, STALL_MS);
        await output.write(chunk, 0, chunk.length, at);
        at += chunk.length;
        onProgress?.(at, size);
      }
    } finally {
      await output.close();
    }
    if (at < size) throw new Error('the connection ended early');
  } finally {
    clearTimeout(timer);
  }
}

/**
 * Joins pieces into `file`.
 * @param {Iterable<AsyncIterable<Buffer>>} pieces @param {string} file @param {Checksum} checksum
 */
export async function joinPieces(pieces, file, checksum) {
  const partial = `${file}.partial`;
  await mkdir(path.dirname(file), { recursive: true });
  const output = await open(partial, 'w');
  try {
    for (const piece of pieces) for await (const chunk of piece) await output.write(chunk);
  } finally {
    await output.close();
  }
  await keepIfIntact(partial, file, checksum);
}

/** Gives a complete file its name, or removes it. @param {string} partial @param {string} file @param {Checksum} checksum */
async function keepIfIntact(partial, file, { size, sha256 }) {
  const found = { size: (await stat(partial)).size, sha256: await sha256OfFile(partial) };
  if (found.size !== size || found.sha256 !== sha256) {
    await rm(partial);
    throw new Failure(
      'load_failed',
      `${path.basename(file)} is not what was expected and was removed: ${found.size} bytes with sha256 ${found.sha256}, expected ${size} with ${sha256}.`,
    );
  }
  await rename(partial, file);
  const { mtimeMs } = await stat(file);
  await writeFile(`${file}.checked`, `${sha256} ${size} ${mtimeMs}\n`);
}
