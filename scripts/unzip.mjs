// @ts-check
/**
 * Reads one entry out of a zip archive on disk as a stream: central directory, stored and deflated entries.
 *
 * Enough for the archives that carry model files, without a program besides Node. The caller checks a sha256 of what comes out, so
 * the archive's own checksums are not looked at; zip64 and encryption are refused.
 */
import { open } from 'node:fs/promises';
import { Readable } from 'node:stream';
import zlib from 'node:zlib';
import { Failure } from './failure.mjs';

const END_OF_DIRECTORY = 0x06054b50;
const DIRECTORY_ENTRY = 0x02014b50;
const LOCAL_HEADER = 0x04034b50;
const END_LENGTH = 22;
const LONGEST_COMMENT = 0xffff;

/** @typedef {{ name: string, method: number, flags: number, compressedSize: number, size: number, headerOffset: number }} Entry */

/**
 * The entries of an archive.
 * @param {import('node:fs/promises').FileHandle} archive
 * @param {string} place for messages
 * @returns {Promise<Entry[]>}
 */
async function readDirectory(archive, place) {
  const { size } = await archive.stat();
  const tail = await readExactly(archive, Math.max(0, size - END_LENGTH - LONGEST_COMMENT), Math.min(size, END_LENGTH + LONGEST_COMMENT), place);
  let end = tail.length - END_LENGTH;
  while (end >= 0 && tail.readUInt32LE(end) !== END_OF_DIRECTORY) end--;
  if (end < 0) throw damaged(place, 'it has no directory (is it complete?)');
  const count = tail.readUInt16LE(end + 10);
  const length = tail.readUInt32LE(end + 12);
  const offset = tail.readUInt32LE(end + 16);
  if (offset === 0xffffffff || offset + length > size) throw damaged(place, 'its directory lies outside the file');
  const directory = await readExactly(archive, offset, length, place);
  /** @type {Entry[]} */
  const entries = [];
  for (let at = 0; entries.length < count; ) {
    if (at + 46 > length || directory.readUInt32LE(at) !== DIRECTORY_ENTRY) throw damaged(place, 'its directory is malformed');
    const nameLength = directory.readUInt16LE(at + 28);
    entries.push({
      name: directory.toString('utf8', at + 46, at + 46 + nameLength),
      flags: directory.readUInt16LE(at + 8),
      method: directory.readUInt16LE(at + 10),
      compressedSize: directory.readUInt32LE(at + 20),
      size: directory.readUInt32LE(at + 24),
      headerOffset: directory.readUInt32LE(at + 42),
    });
    at += 46 + nameLength + directory.readUInt16LE(at + 30) + directory.readUInt16LE(at + 32);
  }
  return entries;
}

/**
 * The content of the one entry whose name matches.
 * @param {string} file the archive
 * @param {RegExp} wanted
 * @returns {AsyncGenerator<Buffer>}
 */
export async function* readZipEntry(file, wanted) {
  const archive = await open(file);
  try {
    const found = (await readDirectory(archive, file)).filter(({ name }) => wanted.test(name));
    const entry = found[0];
    if (!entry || found.length > 1) throw damaged(file, `${found.length} entries match ${wanted}, expected one`);
    if (entry.flags & 1 || entry.compressedSize === 0xffffffff) throw damaged(file, `${entry.name} is encrypted or in zip64 form`);
    const header = await readExactly(archive, entry.headerOffset, 30, file);
    if (header.readUInt32LE(0) !== LOCAL_HEADER) throw damaged(file, `${entry.name} has no header`);
    const start = entry.headerOffset + 30 + header.readUInt16LE(26) + header.readUInt16LE(28);
    if (entry.compressedSize === 0) return;
    const stored = archive.createReadStream({ start, end: start + entry.compressedSize - 1, autoClose: false, highWaterMark: 1 << 20 });
    yield* entry.method === 0 ? stored : inflated(stored, entry, file);
  } finally {
    await archive.close();
  }
}

/** @param {Readable} stored @param {Entry} entry @param {string} file */
function inflated(stored, entry, file) {
  if (entry.method !== 8) throw damaged(file, `${entry.name} is compressed by method ${entry.method}, which is not supported`);
  const inflate = zlib.createInflateRaw({ chunkSize: 1 << 18 });
  stored.on('error', (error) => inflate.destroy(error));
  return stored.pipe(inflate);
}

/** @param {import('node:fs/promises').FileHandle} archive @param {number} position @param {number} length @param {string} place */
async function readExactly(archive, position, length, place) {
  const buffer = Buffer.alloc(length);
  const { bytesRead } = await archive.read(buffer, 0, length, position);
  if (bytesRead < length) throw damaged(place, 'it ends too early');
  return buffer;
}

/** @param {string} place @param {string} why */
function damaged(place, why) {
  return new Failure('load_failed', `The archive ${place} cannot be read: ${why}.`);
}
