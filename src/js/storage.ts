/**
 * Bytes of one file, wherever they lie: in the origin private file system, on the user's disk, or in memory.
 *
 * A download appends to a {@link GrowingFile} and, when it is complete, the core reads it as a {@link StoredFile}. Memory means a
 * `Blob` of many parts rather than one array: the browser may keep those on disk, and they are not limited to 2 GiB.
 */
import { DraftreeError } from './errors.js';

/** A complete file. */
export interface StoredFile {
  readonly size: number;
  /** Exactly `length` bytes from `offset`; asking past the end is an error. */
  read(offset: number, length: number): Uint8Array | Promise<Uint8Array>;
  /** Let go of the file. It cannot be read afterwards. */
  close(): void;
}

/** A file that a download appends to. */
export interface GrowingFile {
  readonly size: number;
  append(bytes: Uint8Array): void | Promise<void>;
  read(offset: number, length: number): Uint8Array | Promise<Uint8Array>;
  /** Throw away what was written. */
  clear(): void;
}

/** The part of `FileSystemSyncAccessHandle` used here; TypeScript declares it for worker scripts only. */
export interface SyncAccessHandle {
  getSize(): number;
  read(into: Uint8Array, options: { at: number }): number;
  write(from: Uint8Array, options: { at: number }): number;
  truncate(size: number): void;
  flush(): void;
  close(): void;
}

/** A file of the origin private file system, opened for this worker alone. */
export class HandleFile implements StoredFile, GrowingFile {
  readonly #handle: SyncAccessHandle;
  #isWritten = false;
  #isOpen = true;
  size: number;

  constructor(handle: SyncAccessHandle) {
    this.#handle = handle;
    this.size = handle.getSize();
  }

  append(bytes: Uint8Array): void {
    this.#isWritten = true;
    for (let written = 0; written < bytes.length; ) {
      const count = this.#handle.write(bytes.subarray(written), { at: this.size });
      if (count === 0) throw new DOMException('the file system took no more bytes', 'QuotaExceededError');
      written += count;
      this.size += count;
    }
  }

  read(offset: number, length: number): Uint8Array {
    const into = new Uint8Array(length);
    for (let done = 0; done < length; ) {
      const count = this.#handle.read(into.subarray(done), { at: offset + done });
      if (count === 0) throw endOfFile(offset, length, this.size);
      done += count;
    }
    return into;
  }

  clear(): void {
    this.#handle.truncate(0);
    this.size = 0;
  }

  close(): void {
    if (!this.#isOpen) return;
    this.#isOpen = false;
    if (this.#isWritten) this.#handle.flush();
    this.#handle.close();
  }
}

/** A file on disk that the user chose, or any other `Blob`. */
export class BlobFile implements StoredFile {
  readonly #blob: Blob;

  constructor(blob: Blob) {
    this.#blob = blob;
  }

  get size(): number {
    return this.#blob.size;
  }

  async read(offset: number, length: number): Promise<Uint8Array> {
    if (offset + length > this.size) throw endOfFile(offset, length, this.size);
    try {
      return new Uint8Array(await this.#blob.slice(offset, offset + length).arrayBuffer());
    } catch (error) {
      const name = this.#blob instanceof File ? `"${this.#blob.name}"` : 'the file';
      throw new DraftreeError('load_failed', `${name} can no longer be read; was it moved or changed? Choose it again`, { cause: error });
    }
  }

  close(): void {}
}

/** A download without a place on disk. */
export class MemoryFile implements GrowingFile {
  /** Small chunks are gathered before they become a part, so that a part is worth its overhead. */
  static readonly #partSize = 4 << 20;
  #parts: Blob[] = [];
  #pending: Uint8Array<ArrayBuffer>[] = [];
  #pendingSize = 0;
  size = 0;

  append(bytes: Uint8Array): void {
    this.#pending.push(bytes.slice());
    this.#pendingSize += bytes.length;
    this.size += bytes.length;
    if (this.#pendingSize >= MemoryFile.#partSize) this.#gather();
  }

  async read(offset: number, length: number): Promise<Uint8Array> {
    return this.finish().read(offset, length);
  }

  clear(): void {
    this.#parts = [];
    this.#pending = [];
    this.#pendingSize = 0;
    this.size = 0;
  }

  /** What was appended, as a complete file. */
  finish(): BlobFile {
    this.#gather();
    return new BlobFile(new Blob(this.#parts));
  }

  #gather(): void {
    if (this.#pending.length === 0) return;
    this.#parts.push(new Blob(this.#pending));
    this.#pending = [];
    this.#pendingSize = 0;
  }
}

function endOfFile(offset: number, length: number, size: number): DraftreeError {
  return new DraftreeError('truncated_file', `bytes ${offset} to ${offset + length} were asked of a file of ${size} bytes`);
}
