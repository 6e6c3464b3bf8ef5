// @ts-check
/** Fetching: a file appears whole and right or not at all, whatever the server and the archive do. */
import assert from 'node:assert/strict';
import { createHash } from 'node:crypto';
import { mkdtemp, readFile, readdir, rm, writeFile } from 'node:fs/promises';
import os from 'node:os';
import path from 'node:path';
import { after, before, beforeEach, describe, test } from 'node:test';
import zlib from 'node:zlib';
import { downloadFile, isIntact, joinPieces } from '../../scripts/download.mjs';
import { resolveModel } from '../../scripts/models.mjs';
import { serve } from '../../scripts/serve.mjs';
import { readZipEntry } from '../../scripts/unzip.mjs';

const body = Buffer.from(Array.from({ length: 200_000 }, (_, i) => (i * i) % 253));
const checksum = { size: body.length, sha256: createHash('sha256').update(body).digest('hex') };

/** @type {string} */
let folder;
/** @type {string} */
let file;
before(async () => {
  folder = await mkdtemp(path.join(os.tmpdir(), 'draftree-fetch-'));
  file = path.join(folder, 'out', 'm.gguf');
});
after(() => rm(folder, { recursive: true }));
beforeEach(() => rm(path.join(folder, 'out'), { recursive: true, force: true }));

describe('download', () => {
  /** @type {Awaited<ReturnType<typeof serve>>} */
  let server;
  before(async () => {
    await writeFile(path.join(folder, 'm.gguf'), body);
    server = await serve(folder);
  });
  after(() => server.close());
  beforeEach(() => void (server.faults.length = 0));
  const url = () => `${server.url}/m.gguf`;

  test('whole', async () => {
    await downloadFile(url(), file, checksum);
    assert.deepEqual(await readFile(file), body);
    assert.equal(await isIntact(file, checksum), true);
  });

  test('resumed after each break', async () => {
    server.faults.push({ match: /gguf/, truncate: 70_000 });
    await downloadFile(url(), file, checksum);
    assert.deepEqual(await readFile(file), body);
  });

  test('a server without ranges that breaks gives no file, but a part', async () => {
    server.faults.push({ match: /gguf/, truncate: 70_000, noRange: true });
    await assert.rejects(downloadFile(url(), file, checksum), /ended early|terminated|closed/);
    assert.deepEqual(await readdir(path.dirname(file)), ['m.gguf.partial']);
    server.faults[0] = { match: /gguf/, noRange: true };
    await downloadFile(url(), file, checksum);
    assert.deepEqual(await readFile(file), body);
  });

  test('a part of other bytes is found out and removed; the next try is right', async () => {
    await downloadFile(url(), file, checksum);
    await rm(file);
    await writeFile(`${file}.partial`, Buffer.alloc(50_000, 7));
    await assert.rejects(downloadFile(url(), file, checksum), /not what was expected/);
    assert.equal(await isIntact(file, checksum), false);
    await downloadFile(url(), file, checksum);
    assert.equal(await isIntact(file, checksum), true);
  });

  test('another size, another sum, no such file', async () => {
    await assert.rejects(downloadFile(url(), file, { ...checksum, size: 5 }), /200000 bytes are offered, expected 5/);
    await assert.rejects(downloadFile(url(), file, { ...checksum, sha256: '00' }), /not what was expected/);
    await assert.rejects(downloadFile(`${server.url}/none.gguf`, file, checksum), /answered 404/);
    assert.deepEqual(await readdir(path.dirname(file)), []);
  });

  test('a file that was changed afterwards is not intact', async () => {
    await downloadFile(url(), file, checksum);
    const changed = Buffer.from(body);
    changed[5] = 1 + Number(changed[5]);
    await writeFile(file, changed);
    assert.equal(await isIntact(file, checksum), false);
  });
});

describe('archives', () => {
  test('stored and deflated entries, joined', async () => {
    const first = path.join(folder, 'a.zip');
    const second = path.join(folder, 'b.zip');
    await writeFile(first, zip([['x/other.py', Buffer.from('no'), false], ['x/data/part0.bin', body.subarray(0, 90_000), true]], 'a comment'));
    await writeFile(second, zip([['y/data/part1.bin', body.subarray(90_000), false]]));
    await joinPieces([readZipEntry(first, /part/), readZipEntry(second, /part/)], file, checksum);
    assert.deepEqual(await readFile(file), body);
  });

  test('what is no archive, cut short, or lacks the entry is refused', async () => {
    const whole = zip([['x/part0.bin', body, true]]);
    const archive = path.join(folder, 'c.zip');
    for (const [bytes, message] of /** @type {[Buffer, RegExp][]} */ ([
      [Buffer.from('hello'), /no directory/],
      [whole.subarray(0, whole.length - 30), /no directory/],
      [whole.subarray(200), /directory|header|outside/],
      [zip([['x/none.bin', body, true]]), /0 entries match/],
      [zip([['part1', body, true], ['part2', body, true]]), /2 entries match/],
    ])) {
      await writeFile(archive, bytes);
      await assert.rejects(joinPieces([readZipEntry(archive, /part/)], file, checksum), message);
      await assert.rejects(readFile(file));
    }
  });
});

describe('what --model means', () => {
  test('names, files, folders, URLs, hub ids', async () => {
    const embedded = await resolveModel('stories260k', '/model/');
    assert.equal(embedded.source('http://h'), 'http://h/model/stories260K-q8_0.gguf');
    await writeFile(path.join(folder, 'a b.gguf'), body);
    assert.equal((await resolveModel(path.join(folder, 'a b.gguf'), '/model/')).source('http://h'), 'http://h/model/a%20b.gguf');
    assert.equal((await resolveModel(folder, '/model/')).source('http://h'), 'http://h/model/');
    assert.equal((await resolveModel('https://x/y.gguf', '/model/')).source('http://h'), 'https://x/y.gguf');
    assert.equal((await resolveModel('owner/name-GGUF:Q4_K_M', '/model/')).source('http://h'), 'owner/name-GGUF:Q4_K_M');
  });
  test('a name that is none', async () => {
    await assert.rejects(resolveModel('storie260k', '/model/'), /did you mean stories260k\?/);
    await assert.rejects(resolveModel('./nothing.gguf', '/model/'), /There is no model/);
  });
});

/**
 * A zip archive of [name, content, deflated] entries.
 * @param {[string, Buffer, boolean][]} entries @param {string} [comment]
 */
function zip(entries, comment = '') {
  /** @type {Buffer[]} */
  const files = [];
  /** @type {Buffer[]} */
  const directory = [];
  let offset = 0;
  for (const [name, content, deflated] of entries) {
    const data = deflated ? zlib.deflateRawSync(content) : content;
    const common = Buffer.alloc(26);
    common.writeUInt16LE(20, 0);
    common.writeUInt16LE(deflated ? 8 : 0, 4);
    common.writeUInt32LE(data.length, 14);
    common.writeUInt32LE(content.length, 18);
    common.writeUInt16LE(name.length, 22);
    const local = Buffer.concat([Buffer.from('PK\x03\x04'), common, Buffer.from(name), data]);
    const tail = Buffer.alloc(14);
    tail.writeUInt32LE(offset, 10);
    files.push(local);
    directory.push(Buffer.from('PK\x01\x02\x14\x00'), common, tail, Buffer.from(name));
    offset += local.length;
  }
  const list = Buffer.concat(directory);
  const end = Buffer.alloc(22);
  end.write('PK\x05\x06', 0, 'latin1');
  end.writeUInt16LE(entries.length, 8);
  end.writeUInt16LE(entries.length, 10);
  end.writeUInt32LE(list.length, 12);
  end.writeUInt32LE(offset, 16);
  end.writeUInt16LE(comment.length, 20);
  return Buffer.concat([...files, list, end, Buffer.from(comment)]);
}
