/**
 * What the caller named as the model's source, told apart and made absolute.
 *
 * This runs on the page, before anything crosses into the worker, because relative URLs are meant from the page. It reads nothing:
 * which files a repository or folder has is found out by `repository.ts` on the other side.
 */
import { DraftreeError } from './errors.js';
import type { HeadsSource, ModelSource } from './options.js';

/** A model's source without ambiguity; can be posted to a worker. */
export type SourceDescription =
  | { kind: 'file'; url: string }
  | { kind: 'folder'; url: string }
  | { kind: 'hub'; hubUrl: string; repository: string; revision: string; quantisation?: string }
  | { kind: 'local'; files: File[] };

/** Where draft heads come from: beside the model, a source of their own, or nowhere. */
export type HeadsDescription = SourceDescription | 'auto' | null;

const defaultHub = 'https://huggingface.co';

/** `org/name`, optionally `@revision`, optionally `:quantisation`. */
const hubId = /^([\w.-]+\/[\w.-]+)(?:@([\w./-]+))?(?::([\w.-]+))?$/;

/** Tell apart what a source is, or fail with `invalid_option`. */
export function describeSource(source: ModelSource, hubUrl: string | URL = defaultHub): SourceDescription {
  if (typeof source === 'string') {
    const hub = isPath(source) ? null : hubId.exec(source);
    if (hub === null) return describeUrl(absoluteUrl(source));
    const [, repository = '', revision = 'main', quantisation] = hub;
    return {
      kind: 'hub',
      hubUrl: absoluteUrl(hubUrl).href.replace(/\/$/, ''),
      repository,
      revision,
      ...(quantisation === undefined ? {} : { quantisation }),
    };
  }
  if (source instanceof URL) return describeUrl(source);
  const files = Array.isArray(source) ? source : [source];
  if (files.length > 0 && files.every((file) => file instanceof File)) return { kind: 'local', files: modelFiles(files) };
  throw new DraftreeError(
    'invalid_option',
    'the source of a model must be a hub id ("org/name"), a URL, a File, or a non-empty array of File',
  );
}

/** Tell apart what a source of draft heads is, or fail with `invalid_option`. */
export function describeHeads(heads: HeadsSource | null = 'auto', hubUrl?: string | URL): HeadsDescription {
  return heads === null || heads === 'auto' ? heads : describeSource(heads, hubUrl);
}

/** Whether a file of this name holds draft heads and no model. */
export function isHeadFile(name: string): boolean {
  return /(medusa|heads).*\.safetensors$/.test(name);
}

/** The URL at which draft heads of a model in one file are looked for, if there is one. */
export function headsBeside(url: string): string | undefined {
  const found = /^https?:.*(?=\.gguf(?:[?#]|$))/i.exec(url);
  return found === null ? undefined : `${found[0]}.heads.safetensors${url.slice(found[0].length + '.gguf'.length)}`;
}

/** A URL as the page means it. */
export function absoluteUrl(url: string | URL): URL {
  // Outside a page (in a worker of the caller's) relative URLs are meant from the script.
  const base = globalThis.document?.baseURI ?? globalThis.location?.href;
  try {
    return new URL(url, base);
  } catch {
    throw new DraftreeError('invalid_option', `"${String(url)}" is neither a hub id ("org/name") nor a URL`);
  }
}

/** A path is told from a hub id by how it starts or ends. */
function isPath(source: string): boolean {
  return /^(\.{0,2}\/|[a-z][a-z0-9+.-]*:\/\/|blob:|data:)/i.test(source) || /(\.gguf|\.safetensors|\/)$/i.test(source);
}

function describeUrl(url: URL): SourceDescription {
  const isFile = /\.(gguf|safetensors)$/i.test(url.pathname) || url.protocol === 'blob:' || url.protocol === 'data:';
  if (isFile) return { kind: 'file', url: url.href };
  const folder = new URL(url);
  if (!folder.pathname.endsWith('/')) folder.pathname += '/';
  return { kind: 'folder', url: folder.href };
}

/**
 * A chosen folder often has more in it than the model. One GGUF file is a model of its own, perhaps with draft heads beside it;
 * otherwise a GGUF is a bystander.
 */
function modelFiles(files: File[]): File[] {
  const gguf = files.filter((file) => /\.gguf$/i.test(file.name));
  if (gguf.length === 1 && !files.some((file) => file.name === 'config.json')) {
    return [...gguf, ...files.filter((file) => isHeadFile(file.name))];
  }
  if (files.length === 1) return files;
  const folder = files.filter((file) => /\.(json|safetensors|jinja|model)$/i.test(file.name));
  return folder.length > 0 ? folder : files;
}
