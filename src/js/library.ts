/**
 * Remote files through the cache: each is read from it, resumed into it, or downloaded past it.
 *
 * Two rules, by size. Weights are taken from the cache and one HEAD request asks whether they are still current; small files
 * (configuration, listings) are fetched each time and the cache is only their stand-in when the network is away. Either way a model
 * that was loaded once loads again offline.
 */
import { ModelCache, PartialFile } from './cache.js';
import { HttpError, currentVersion, download, exists, sameVersion } from './download.js';
import type { RemoteFile, Version } from './download.js';
import { abortedError } from './errors.js';
import { MemoryFile } from './storage.js';
import type { StoredFile } from './storage.js';

/** Reports bytes of one file. */
export type FileProgress = (loaded: number, total: number | undefined) => void;

/** What is remembered with a file of the cache. Where nothing is cached, nothing is remembered. */
export interface Notes {
  read(): Promise<unknown>;
  write(note: unknown): Promise<void>;
}

/** The files of the network and the cache, for the length of one load. */
export class Library {
  readonly #cache: ModelCache | undefined;
  readonly #signal: AbortSignal;

  private constructor(cache: ModelCache | undefined, signal: AbortSignal) {
    this.#cache = cache;
    this.#signal = signal;
  }

  /** With `useCache` false nothing is kept, and nothing kept before is used. */
  static async open(useCache: boolean, signal: AbortSignal): Promise<Library> {
    return new Library(useCache ? await ModelCache.open() : undefined, signal);
  }

  /** The bytes of a small file. */
  async small(url: string): Promise<Uint8Array> {
    const kept = await this.#cache?.get(url);
    const file = new MemoryFile();
    try {
      // With a stand-in at hand there is no point in waiting for the network to come back.
      await download({ url }, file, { signal: this.#signal, ...(kept && { retryDelays: [] }) });
    } catch (error) {
      if (kept === undefined || this.#signal.aborted || error instanceof HttpError) throw error;
      return kept;
    }
    const bytes = await file.read(0, file.size);
    await this.#cache?.put(url, bytes);
    return bytes;
  }

  /** The same, or nothing if the server has no such file. Some stores answer 403 for what does not exist. */
  async smallIfAny(url: string): Promise<Uint8Array | undefined> {
    try {
      return await this.small(url);
    } catch (error) {
      if (error instanceof HttpError && (error.status === 404 || error.status === 403)) return undefined;
      throw error;
    }
  }

  /** Whether there is such a file: in the cache, or as far as the server tells. */
  async has(url: string): Promise<boolean> {
    const kept = await this.#cache?.find(url);
    kept?.file.close();
    if (kept !== undefined) return true;
    try {
      return await exists(url, this.#signal);
    } catch {
      if (this.#signal.aborted) throw abortedError(this.#signal);
      return false;
    }
  }

  /** A large file, open for reading; downloaded first if the cache has none that is current. */
  async large(remote: RemoteFile, onProgress: FileProgress): Promise<StoredFile> {
    const kept = await this.#current(remote);
    if (kept !== undefined) return kept;
    const partial = (await this.#cache?.beginWriting(remote.url)) ?? new PartialFile();
    try {
      const version = await download(remote, partial, {
        ...(partial.version && { version: partial.version }),
        signal: this.#signal,
        onProgress,
        onVersion: (found) => this.#cache?.setVersion(remote.url, found),
      });
      return await partial.finish(version, remote.sha256);
    } finally {
      partial.close();
    }
  }

  /** What is remembered with a large file, once it is here. */
  notes(url: string): Notes {
    return {
      read: async () => this.#cache?.note(url),
      write: async (note) => this.#cache?.setNote(url, note),
    };
  }

  /** The cached file, unless the server says that it has another by now. */
  async #current(remote: RemoteFile): Promise<StoredFile | undefined> {
    const kept = await this.#cache?.find(remote.url);
    if (kept === undefined) return undefined;
    if (await this.#isCurrent(remote, kept.version)) return kept.file;
    kept.file.close();
    await this.#cache?.delete(remote.url);
    return undefined;
  }

  async #isCurrent(remote: RemoteFile, kept: Version & { sha256?: string }): Promise<boolean> {
    if (remote.sha256 !== undefined && kept.sha256 !== undefined) return remote.sha256 === kept.sha256;
    try {
      const now = await currentVersion(remote.url, this.#signal);
      return now === undefined || sameVersion(kept, now);
    } catch {
      if (this.#signal.aborted) throw abortedError(this.#signal);
      return true; // Offline: what is here is what there is.
    }
  }
}
