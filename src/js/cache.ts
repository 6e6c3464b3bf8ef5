/**
 * Downloaded files kept for the next visit, in the origin private file system.
 *
 * An entry is two files: the bytes, called `….partial` until they are complete and checked, and a small JSON record of where they came
 * from. A name without `.partial` is the only sign of completeness, given by an atomic rename, so a closed tab never leaves half a
 * model that looks whole. Only a worker can write (through sync access handles, the one kind of access that is fast and that every
 * browser has); the page can read, list and delete.
 */
import { Sha256 } from './sha256.js';
import type { Version } from './download.js';
import { BlobFile, HandleFile, MemoryFile } from './storage.js';
import type { GrowingFile, StoredFile, SyncAccessHandle } from './storage.js';

const directoryName = 'draftree';

/** What is known of a file in the cache. */
export interface CachedFile {
  /** Where it was downloaded from. */
  url: string;
  /** Bytes here so far. */
  size: number;
  /** Whether the download was finished and checked. An unfinished one is resumed by the next load. */
  complete: boolean;
}

/** The record beside the bytes. */
interface Entry extends Version {
  url: string;
  sha256?: string;
  /** What is remembered with this version of the file. */
  note?: unknown;
}

/** Parts of the file system interface that TypeScript's page library lacks. */
interface FileHandle extends FileSystemFileHandle {
  createSyncAccessHandle?(options?: { mode: 'read-only' }): Promise<SyncAccessHandle>;
  move?(name: string): Promise<void>;
}

/** A complete file of the cache, with the version it is a copy of. */
export interface Hit {
  file: StoredFile;
  version: Version & { sha256?: string };
}

/** The cache of this origin. */
export class ModelCache {
  readonly #directory: FileSystemDirectoryHandle;
  readonly #canWrite = 'createSyncAccessHandle' in FileSystemFileHandle.prototype;

  private constructor(directory: FileSystemDirectoryHandle) {
    this.#directory = directory;
  }

  /** The cache, or nothing where the browser has no private file system or denies it (some private windows do). */
  static async open(): Promise<ModelCache | undefined> {
    try {
      const root = await navigator.storage.getDirectory();
      return new ModelCache(await root.getDirectoryHandle(directoryName, { create: true }));
    } catch {
      return undefined;
    }
  }

  /** The complete file of this URL, if it is here. */
  async find(url: string): Promise<Hit | undefined> {
    const name = entryName(url);
    const [handle, entry] = await Promise.all([this.#handle(name), this.#entry(name)]);
    if (handle === undefined || entry === undefined) return undefined;
    const file = await openForReading(handle);
    if (file.size === entry.size) return { file, version: entry };
    file.close();
    return undefined;
  }

  /** Where to put the bytes of this URL, after those of an earlier try; or nothing where this thread, or another tab, forbids it. */
  async beginWriting(url: string): Promise<PartialFile | undefined> {
    if (!this.#canWrite) return undefined;
    const name = entryName(url);
    try {
      const version = await this.#entry(name);
      const handle: FileHandle = await this.#directory.getFileHandle(`${name}.partial`, { create: true });
      const access = await handle.createSyncAccessHandle?.();
      if (access === undefined) return undefined;
      return new PartialFile(new HandleFile(access), (complete, sha256) => this.#commit(url, complete, sha256), version);
    } catch {
      return undefined;
    }
  }

  /** Record what is being downloaded, so that it can be resumed. */
  async setVersion(url: string, version: Version): Promise<void> {
    await this.#record(entryName(url), { ...version, url }).catch(ignoreLoss);
  }

  /** What was remembered with a file. Whoever asks must check it: a record may have been changed by anything on this origin. */
  async note(url: string): Promise<unknown> {
    return (await this.#entry(entryName(url)))?.note;
  }

  /** Remember something, as JSON, until the file is deleted or another version of it comes. */
  async setNote(url: string, note: unknown): Promise<void> {
    const name = entryName(url);
    const entry = await this.#entry(name);
    if (entry !== undefined) await this.#record(name, { ...entry, note }).catch(ignoreLoss);
  }

  /** A small file, whole. */
  async get(url: string): Promise<Uint8Array | undefined> {
    const hit = await this.find(url);
    if (hit === undefined) return undefined;
    try {
      return await hit.file.read(0, hit.file.size);
    } finally {
      hit.file.close();
    }
  }

  /** Keep a small file, if there is room. */
  async put(url: string, bytes: Uint8Array): Promise<void> {
    const name = entryName(url);
    try {
      await this.#write(name, bytes);
      await this.#record(name, { size: bytes.length, url });
    } catch (error) {
      ignoreLoss(error);
    }
  }

  /** Every file here, complete or not. */
  async list(): Promise<CachedFile[]> {
    const files: CachedFile[] = [];
    for await (const name of this.#directory.keys()) {
      if (!name.endsWith('.record')) continue;
      const base = name.slice(0, -'.record'.length);
      const [entry, whole, part] = await Promise.all([this.#entry(base), this.#handle(base), this.#handle(`${base}.partial`)]);
      const handle = whole ?? part;
      if (entry === undefined || handle === undefined) continue;
      files.push({ url: entry.url, size: (await handle.getFile()).size, complete: whole !== undefined });
    }
    return files;
  }

  /** Forget one file. */
  async delete(url: string): Promise<void> {
    const name = entryName(url);
    for (const file of [name, `${name}.partial`, `${name}.record`]) {
      await this.#directory.removeEntry(file).catch(ignoreMissing);
    }
  }

  /** Make the partial file of this URL, closed by now, its complete file, and open that. */
  async #commit(url: string, version: Version, sha256: string | undefined): Promise<StoredFile> {
    const name = entryName(url);
    const handle: FileHandle = await this.#directory.getFileHandle(`${name}.partial`);
    try {
      await this.#record(name, { ...version, url, ...(sha256 !== undefined && { sha256 }) });
      await handle.move?.(name);
    } catch (error) {
      ignoreLoss(error); // The bytes are sound; only the next visit will not know it.
    }
    return openForReading((await this.#handle(name)) ?? handle);
  }

  #record(name: string, entry: Entry): Promise<void> {
    return this.#write(`${name}.record`, new TextEncoder().encode(JSON.stringify(entry)));
  }

  async #handle(name: string): Promise<FileHandle | undefined> {
    try {
      return await this.#directory.getFileHandle(name);
    } catch {
      return undefined;
    }
  }

  async #entry(name: string): Promise<Entry | undefined> {
    try {
      const handle = await this.#directory.getFileHandle(`${name}.record`);
      const entry: unknown = JSON.parse(await (await handle.getFile()).text());
      return typeof entry === 'object' && entry !== null && 'url' in entry ? (entry as Entry) : undefined;
    } catch {
      // Absent, or cut off while it was being written: either way there is nothing to go by.
      return undefined;
    }
  }

  async #write(name: string, content: Uint8Array): Promise<void> {
    if (!this.#canWrite) return;
    const handle: FileHandle = await this.#directory.getFileHandle(name, { create: true });
    const access = await handle.createSyncAccessHandle?.();
    if (access === undefined) return;
    const file = new HandleFile(access);
    try {
      file.clear();
      file.append(content);
    } finally {
      file.close();
    }
  }
}

/** Moves a closed partial file to its final name. */
type Commit = (version: Version, sha256: string | undefined) => Promise<StoredFile>;

/** A download in progress: on disk, and from the moment the disk is full, in memory. */
export class PartialFile implements GrowingFile {
  /** The version that the bytes of an earlier try belong to. */
  readonly version: Version | undefined;
  readonly #commit: Commit | undefined;
  #disk: HandleFile | undefined;
  #memory: MemoryFile | undefined;

  /** Without a file on disk it is memory from the start. */
  constructor(disk?: HandleFile, commit?: Commit, version?: Version) {
    this.version = version;
    this.#commit = commit;
    this.#disk = disk;
    if (disk === undefined) this.#memory = new MemoryFile();
  }

  get size(): number {
    return this.#file.size;
  }

  async append(bytes: Uint8Array): Promise<void> {
    if (this.#disk === undefined) return this.#file.append(bytes);
    const sizeBefore = this.#disk.size;
    try {
      this.#disk.append(bytes);
    } catch (error) {
      if (!isNamed(error, 'QuotaExceededError')) throw error;
      await this.#moveToMemory(this.#disk, sizeBefore);
      return this.#file.append(bytes);
    }
  }

  read(offset: number, length: number): Uint8Array | Promise<Uint8Array> {
    return this.#file.read(offset, length);
  }

  clear(): void {
    this.#file.clear();
  }

  /** The complete and checked file, in its final place. */
  async finish(version: Version, sha256?: string): Promise<StoredFile> {
    this.close();
    if (this.#memory !== undefined) return this.#memory.finish();
    if (this.#commit === undefined) throw new Error('a file on disk needs a place to go');
    return this.#commit(version, sha256);
  }

  /** Let go of the file. What lies on disk stays there, for another try. */
  close(): void {
    this.#disk?.close();
    this.#disk = undefined;
  }

  get #file(): HandleFile | MemoryFile {
    const file = this.#memory ?? this.#disk;
    if (file === undefined) throw new Error('a finished file was used');
    return file;
  }

  async #moveToMemory(disk: HandleFile, size: number): Promise<void> {
    const memory = new MemoryFile();
    const pieceSize = 4 << 20;
    for (let at = 0; at < size; at += pieceSize) memory.append(disk.read(at, Math.min(pieceSize, size - at)));
    disk.clear();
    disk.close();
    this.#disk = undefined;
    this.#memory = memory;
  }
}

async function openForReading(handle: FileHandle): Promise<StoredFile> {
  try {
    const access = await handle.createSyncAccessHandle?.({ mode: 'read-only' });
    if (access !== undefined) return new HandleFile(access);
  } catch {
    // Another tab holds the file (NoModificationAllowedError): reading through a File needs no lock.
  }
  return new BlobFile(await handle.getFile());
}

/** A file name for a URL: unique by its digest, readable by its last part. */
function entryName(url: string): string {
  const digest = new Sha256().update(new TextEncoder().encode(url)).hex().slice(0, 16);
  const last = new URL(url).pathname.split('/').pop() ?? '';
  return `${digest}-${last.replace(/[^\w.-]/g, '_').slice(-80)}`;
}

function ignoreMissing(error: unknown): void {
  if (!isNamed(error, 'NotFoundError')) throw error;
}

/** A cache that cannot keep something (no room, another tab is writing) is a cache miss later on, not a fault now. */
function ignoreLoss(error: unknown): void {
  if (!(error instanceof DOMException)) throw error;
}

function isNamed(error: unknown, name: string): boolean {
  return error instanceof DOMException && error.name === name;
}
