/**
 * One file from a URL into a {@link GrowingFile}: resumed where it stopped, retried when the network fails, checked when complete.
 *
 * It knows nothing of caches. What it is careful about is never to join bytes of two versions of a file: a part is continued only if
 * the server's own validator (ETag or date) says that the file is the same, or a known sha256 will tell at the end.
 */
import { DraftreeError, abortedError } from './errors.js';
import { Sha256 } from './sha256.js';
import type { GrowingFile } from './storage.js';

/** A file on a server, with what is known of it beforehand. */
export interface RemoteFile {
  url: string;
  /** Size in bytes, from a listing one can trust. */
  size?: number;
  /** Lower-case hexadecimal sha256, from such a listing. */
  sha256?: string;
}

/** What a server says that identifies the bytes of a file. */
export interface Version {
  etag?: string;
  lastModified?: string;
  size?: number;
}

/** How to download. */
export interface DownloadOptions {
  /** The version of the bytes that the file already has, if it has some. */
  version?: Version;
  signal?: AbortSignal;
  /** Called with the bytes so far and, when known, of the whole. */
  onProgress?: (loaded: number, total: number | undefined) => void;
  /** Called when the version is known, before its first byte is appended. */
  onVersion?: (version: Version) => void | Promise<void>;
  /** Waits between attempts that brought nothing new, in milliseconds. When they are used up, the download fails. */
  retryDelays?: readonly number[];
  /** Longest silence of a server, in milliseconds, before the attempt counts as failed. */
  stallTimeout?: number;
}

const defaultRetryDelays = [300, 1000, 3000];
const defaultStallTimeout = 30_000;

/** The server answered, and the answer was no. */
export class HttpError extends DraftreeError {
  readonly status: number;

  constructor(url: string, why: string, status: number) {
    super('load_failed', `${url}: ${why}`);
    this.status = status;
  }
}

/** A fault that another attempt may not have. */
class RetryableError extends Error {}

/** Append what `target` lacks of `file`, and return the version it is then a complete copy of. */
export async function download(file: RemoteFile, target: GrowingFile, options: DownloadOptions = {}): Promise<Version> {
  const delays = options.retryDelays ?? defaultRetryDelays;
  const transfer = new Transfer(file, target, options);
  for (let failures = 0; ; ) {
    const sizeBefore = target.size;
    try {
      return await transfer.attempt();
    } catch (error) {
      if (options.signal?.aborted) throw abortedError(options.signal);
      if (!(error instanceof RetryableError)) throw error;
      failures = target.size > sizeBefore ? 1 : failures + 1;
      const delay = delays[failures - 1];
      if (delay === undefined) throw loadFailed(file, error.message, error.cause);
      await sleep(delay, options.signal);
    }
  }
}

/** The answer to a request that need not transfer a body: what a HEAD request says about the file. */
export async function currentVersion(url: string, signal?: AbortSignal): Promise<Version | undefined> {
  const response = await head(url, signal);
  return response.ok ? versionOf(response.headers) : undefined;
}

/** Whether a server has a file. A page in its place, which some servers send for every name, is none. */
export async function exists(url: string, signal?: AbortSignal): Promise<boolean> {
  const { ok, headers } = await head(url, signal);
  return ok && !/^text\/html\b/i.test(headers.get('content-type') ?? '');
}

function head(url: string, signal?: AbortSignal): Promise<Response> {
  return fetch(url, { method: 'HEAD', cache: 'no-store', ...(signal ? { signal } : {}) });
}

/** Whether two descriptions can be of the same bytes. The strongest validator that both have decides. */
export function sameVersion(a: Version, b: Version): boolean {
  if (a.etag !== undefined && b.etag !== undefined) return opaqueTag(a.etag) === opaqueTag(b.etag);
  if (a.lastModified !== undefined && b.lastModified !== undefined) return a.lastModified === b.lastModified;
  return a.size === undefined || b.size === undefined || a.size === b.size;
}

/** A `load_failed` error that names the file's URL. */
export function loadFailed(file: { url: string }, why: string, cause?: unknown): DraftreeError {
  return new DraftreeError('load_failed', `${file.url}: ${why}`, { cause });
}

/** One download across its attempts. */
class Transfer {
  readonly #file: RemoteFile;
  readonly #target: GrowingFile;
  readonly #options: DownloadOptions;
  #version: Version | undefined;
  #hash: Sha256 | undefined;
  #mismatches = 0;

  constructor(file: RemoteFile, target: GrowingFile, options: DownloadOptions) {
    this.#file = file;
    this.#target = target;
    this.#options = options;
    this.#version = options.version;
  }

  /** One request, from the first missing byte to the last. */
  async attempt(): Promise<Version> {
    if (this.#target.size > 0 && !this.#canResume()) this.#startOver();
    if (this.#target.size > 0 && this.#target.size === this.#file.size) return this.#complete(this.#version ?? {});
    const watchdog = new Watchdog(this.#options.signal, this.#options.stallTimeout ?? defaultStallTimeout);
    try {
      const response = await this.#request(watchdog);
      const total = await this.#begin(response);
      await this.#receive(response, total, watchdog);
      return await this.#complete({ ...this.#version, size: this.#target.size });
    } finally {
      watchdog.stop();
    }
  }

  #canResume(): boolean {
    return this.#file.sha256 !== undefined || validatorOf(this.#version) !== undefined;
  }

  #startOver(): void {
    this.#target.clear();
    this.#hash = undefined;
    this.#version = undefined;
  }

  async #request(watchdog: Watchdog): Promise<Response> {
    const headers: Record<string, string> = {};
    if (this.#target.size > 0) {
      headers['Range'] = `bytes=${this.#target.size}-`;
      const validator = validatorOf(this.#version);
      // On another origin If-Range would need the server's consent (a CORS preflight), which file hosts do not give. The versions are
      // compared after the answer in any case.
      if (validator !== undefined && isSameOrigin(this.#file.url)) headers['If-Range'] = validator;
    }
    try {
      return await fetch(this.#file.url, { headers, cache: 'no-store', signal: watchdog.signal });
    } catch (error) {
      throw new RetryableError(watchdog.stalled ? 'the server does not answer' : 'the network request failed', { cause: error });
    }
  }

  /** Decide from the head of the answer where its body belongs. Returns the size of the whole file, if it can be known. */
  async #begin(response: Response): Promise<number | undefined> {
    const { headers, status } = response;
    const range = /^bytes (?:(\d+)-\d+|\*)\/(\d+|\*)$/.exec(headers.get('content-range') ?? '');
    const version = versionOf(headers);
    delete version.size; // the length of this body, which may be a part
    const isOurs = this.#version === undefined || sameVersion(this.#version, version);
    if (status === 416) {
      // Nothing follows our last byte: the file is complete, or it is another one.
      if (isOurs && Number(range?.[2]) === this.#target.size) return this.#target.size;
      this.#startOver();
      throw new RetryableError('the file became shorter on the server while it was being downloaded');
    }
    if (!response.ok) {
      const why = `the server answered HTTP ${status}${response.statusText && ` ${response.statusText}`}`;
      if (status === 408 || status === 429 || status >= 500) throw new RetryableError(why);
      throw new HttpError(this.#file.url, why, status);
    }
    if (status === 206 && this.#target.size > 0) {
      const start = range?.[1] === undefined ? this.#target.size : Number(range[1]);
      if (start !== this.#target.size || !isOurs) {
        this.#startOver();
        throw new RetryableError('the file changed on the server while it was being downloaded');
      }
    } else if (this.#target.size > 0) {
      this.#startOver();
    }
    this.#version = { ...this.#version, ...version };
    await this.#options.onVersion?.(this.#version);
    if (range?.[2] !== undefined && range[2] !== '*') return Number(range[2]);
    const length = headers.get('content-length');
    // A compressed body has another length than the file.
    return length === null || headers.has('content-encoding') ? undefined : this.#target.size + Number(length);
  }

  async #receive(response: Response, total: number | undefined, watchdog: Watchdog): Promise<void> {
    if (response.status === 416) return;
    const expected = this.#file.size ?? total;
    const reader = response.body?.getReader();
    await this.#hashUpTo();
    while (reader !== undefined) {
      this.#options.onProgress?.(this.#target.size, expected);
      let piece;
      try {
        piece = await reader.read();
      } catch (error) {
        const why = watchdog.stalled ? 'the server went silent' : 'the connection broke';
        throw new RetryableError(`${why} after ${this.#target.size} of ${expected ?? 'unknown'} bytes`, { cause: error });
      }
      if (piece.done) break;
      watchdog.feed();
      await this.#target.append(piece.value);
      this.#hash?.update(piece.value);
    }
    if (expected !== undefined && this.#target.size < expected) {
      throw new RetryableError(`the file ended after ${this.#target.size} of ${expected} bytes`);
    }
  }

  /** Take bytes of an earlier attempt or visit into the digest. */
  async #hashUpTo(): Promise<void> {
    if (this.#file.sha256 === undefined) return;
    this.#hash ??= new Sha256();
    while (this.#hash.length < this.#target.size) {
      const length = Math.min(1 << 20, this.#target.size - this.#hash.length);
      this.#hash.update(await this.#target.read(this.#hash.length, length));
    }
  }

  /** Compare the finished file with what the listing promised. Damage is retried once from the start. */
  async #complete(version: Version): Promise<Version> {
    await this.#hashUpTo();
    const size = this.#target.size;
    const digest = this.#hash?.hex();
    const damage =
      this.#file.size !== undefined && size !== this.#file.size
        ? `the file has ${size} bytes, its listing says ${this.#file.size}`
        : digest !== this.#file.sha256
          ? `the file has sha256 ${digest}, its listing says ${this.#file.sha256}`
          : undefined;
    if (damage === undefined) return { ...version, size };
    this.#startOver();
    if (this.#mismatches++ > 0) throw loadFailed(this.#file, damage);
    throw new RetryableError(damage);
  }
}

/** Ends a request when the caller aborts or the server is silent for too long. */
class Watchdog {
  readonly #controller = new AbortController();
  readonly #timeout: number;
  readonly #outer: AbortSignal | undefined;
  readonly #abort = (): void => this.#controller.abort(this.#outer?.reason);
  #timer: ReturnType<typeof setTimeout> | undefined;
  stalled = false;

  constructor(outer: AbortSignal | undefined, timeout: number) {
    this.#outer = outer;
    this.#timeout = timeout;
    if (outer?.aborted) this.#abort();
    outer?.addEventListener('abort', this.#abort, { once: true });
    this.feed();
  }

  get signal(): AbortSignal {
    return this.#controller.signal;
  }

  feed(): void {
    clearTimeout(this.#timer);
    this.#timer = setTimeout(() => {
      this.stalled = true;
      this.#controller.abort();
    }, this.#timeout);
  }

  /** Also lets go of a body that was not read to its end. */
  stop(): void {
    clearTimeout(this.#timer);
    this.#outer?.removeEventListener('abort', this.#abort);
    this.#controller.abort();
  }
}

function versionOf(headers: Headers): Version {
  const version: Version = {};
  const etag = headers.get('etag');
  const lastModified = headers.get('last-modified');
  const length = headers.get('content-length');
  if (etag !== null) version.etag = etag;
  if (lastModified !== null) version.lastModified = lastModified;
  if (length !== null && !headers.has('content-encoding')) version.size = Number(length);
  return version;
}

/** What If-Range accepts: a strong ETag, else a date. */
function validatorOf(version: Version | undefined): string | undefined {
  const etag = version?.etag;
  return etag !== undefined && !etag.startsWith('W/') ? etag : version?.lastModified;
}

function opaqueTag(etag: string): string {
  return etag.replace(/^W\//, '');
}

function isSameOrigin(url: string): boolean {
  const here = globalThis.location?.origin;
  return here === undefined || new URL(url).origin === here;
}

function sleep(milliseconds: number, signal?: AbortSignal): Promise<void> {
  return new Promise((resolve, reject) => {
    const stop = (): void => {
      clearTimeout(timer);
      reject(abortedError(signal));
    };
    const timer = setTimeout(() => {
      signal?.removeEventListener('abort', stop);
      resolve();
    }, milliseconds);
    signal?.addEventListener('abort', stop, { once: true });
  });
}
