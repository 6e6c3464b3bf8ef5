/**
 * Which files make a model, and those files opened for the core.
 *
 * A hub repository is listed, with sizes and digests, by one request to the hub; a plain folder cannot be listed, so the names that
 * every such folder uses are asked for. What is in the files is the core's business.
 */
import { DraftreeError } from './errors.js';
import { HttpError } from './download.js';
import type { RemoteFile } from './download.js';
import { Library } from './library.js';
import type { Notes } from './library.js';
import type { LoadProgress } from './results.js';
import { headsBeside, isHeadFile } from './source.js';
import type { HeadsDescription, SourceDescription } from './source.js';
import { BlobFile } from './storage.js';
import type { StoredFile } from './storage.js';

/** Random access to the files of a model; made here, called by the core while it loads. */
export interface ByteSource {
  files: { name: string; size: number }[];
  read(file: number, offset: number, length: number): Uint8Array | Promise<Uint8Array>;
}

/** A model's files as the core reads them; to be closed when it has. */
export interface OpenSource extends ByteSource {
  /** What is remembered with the model; nothing for files of the user's. */
  notes?: Notes;
  close(): void;
}

/** How files are found and brought here. */
interface Context {
  library: Library;
  onProgress: (progress: LoadProgress) => void;
}

/** A file with the name that the core knows it by. */
interface NamedFile {
  name: string;
  file: StoredFile;
}

/** The weights of a repository: what to fetch, under which names. */
interface Weights {
  name: string;
  remote: RemoteFile;
  /** Go on without the file if the server has none. */
  isOptional?: boolean;
}

/** Settings beside the weights. All but the first may be missing; the core says so if it needs one that is. */
const settingsNames = ['config.json', 'tokenizer_config.json', 'generation_config.json', 'chat_template.jinja'];
const tokenizerName = 'tokenizer.json';
const weightsName = 'model.safetensors';
const weightsIndexName = 'model.safetensors.index.json';

/** Of several quantisations in one repository, the ones to prefer: small first, as long as the text stays good. */
const preferredQuantisations = ['Q4_K_M', 'Q4_1', 'Q4_0', 'Q5_K_M', 'Q5_0', 'Q6_K', 'Q8_0', 'F16', 'BF16', 'F32'];

/** Names under which draft heads lie in a folder. */
const headNames = ['medusa_lm_head.safetensors', 'heads.safetensors'];

/** A model's files, and where its draft heads are: among them (`'auto'`), in files of their own, or nowhere. */
export interface OpenModel {
  model: OpenSource;
  heads: OpenSource | 'auto' | null;
}

/** What a source has: files that are here, and weights that may have to be downloaded. */
interface Found {
  here: NamedFile[];
  weights: Weights[];
}

/** Open every file of a model and of its draft heads, downloading what is not here. */
export async function openModel(
  source: SourceDescription,
  heads: HeadsDescription,
  useCache: boolean,
  signal: AbortSignal,
  onProgress: (progress: LoadProgress) => void,
): Promise<OpenModel> {
  const context = { library: await Library.open(useCache, signal), onProgress };
  const model = await findModel(source, heads === 'auto', context);
  const own: Found = heads === null || heads === 'auto' ? { here: [], weights: [] } : await findHeads(heads, context);
  const fetched = await fetchWeights([...model.weights, ...own.weights], context);
  const opened = ({ here }: Found, from: number, to: number): OpenSource =>
    byteSource([...here, ...fetched.slice(from, to).filter((file) => file !== undefined)]);
  const end = model.weights.length;
  // The last file has weights; the tokenizer, which models may share, comes first.
  const last = model.weights.filter(({ name }) => !isHeadFile(name)).at(-1);
  const notes = last && context.library.notes(last.remote.url);
  return {
    model: { ...opened(model, 0, end), ...(notes && { notes }) },
    heads: heads === null || heads === 'auto' ? heads : opened(own, end, fetched.length),
  };
}

/** What makes a model, with the draft heads beside it where they are wanted. */
async function findModel(source: SourceDescription, withHeads: boolean, context: Context): Promise<Found> {
  switch (source.kind) {
    case 'local':
      return { here: localFiles(source.files), weights: [] };
    case 'file': {
      const weights: Weights[] = [{ name: lastPart(source.url), remote: { url: source.url } }];
      const beside = withHeads ? headsBeside(source.url) : undefined;
      if (beside !== undefined && (await context.library.has(beside))) weights.push({ name: lastPart(beside), remote: { url: beside } });
      return { here: [], weights };
    }
    case 'folder':
      return findInFolder(source.url, withHeads, context);
    case 'hub':
      return findInHub(source, withHeads, context);
  }
}

/** The files of draft heads that the caller named. */
async function findHeads(source: SourceDescription, { library }: Context): Promise<Found> {
  switch (source.kind) {
    case 'local':
      return { here: localFiles(source.files), weights: [] };
    case 'file':
      return { here: [], weights: [{ name: lastPart(source.url), remote: { url: source.url } }] };
    case 'folder':
      return { here: [], weights: required(await headsInFolder(source.url, library), source.url) };
    case 'hub': {
      const files = await listHub(source, library);
      return { here: [], weights: required(headsOf(files), source.repository) };
    }
  }
}

function required(weights: Weights[], where: string): Weights[] {
  if (weights.length > 0) return weights;
  throw new DraftreeError('load_failed', `looked for draft heads in ${where}, but it has no ${headNames.join(' or ')}`);
}

async function findInFolder(folder: string, withHeads: boolean, context: Context): Promise<Found> {
  const urlOf = (name: string): string => new URL(name, folder).href;
  const here = await fetchSettings(urlOf, (name) => name !== 'config.json', settingsNames, context);
  const weights: Weights[] = [{ name: tokenizerName, remote: { url: urlOf(tokenizerName) }, isOptional: true }];
  const index = await context.library.smallIfAny(urlOf(weightsIndexName));
  for (const name of index === undefined ? [weightsName] : shardNames(index, urlOf(weightsIndexName))) {
    weights.push({ name, remote: { url: urlOf(name) } });
  }
  if (withHeads) weights.push(...(await headsInFolder(folder, context.library)));
  return { here, weights };
}

/** A folder cannot be listed, so the names that heads have are asked for. */
async function headsInFolder(folder: string, library: Library): Promise<Weights[]> {
  const files = headNames.map((name) => ({ name, remote: { url: new URL(name, folder).href } }));
  const present = await Promise.all(files.map(({ remote }) => library.has(remote.url)));
  return files.filter((_, index) => present[index]).slice(0, 1);
}

/** The hub's listing of a repository, as far as it is used. */
interface Listing {
  siblings?: { rfilename: string; size?: number; lfs?: { sha256?: string; size?: number } }[];
}

/** The files of a repository. */
async function listHub(source: SourceDescription & { kind: 'hub' }, library: Library): Promise<Map<string, RemoteFile>> {
  const { hubUrl, repository } = source;
  const revision = encodeURIComponent(source.revision);
  const listingUrl = `${hubUrl}/api/models/${repository}/revision/${revision}?blobs=true`;
  const listing = parseJson<Listing>(await library.small(listingUrl), listingUrl);
  const files = new Map<string, RemoteFile>();
  for (const { rfilename, size, lfs } of listing.siblings ?? []) {
    if (rfilename.includes('/')) continue;
    const url = `${hubUrl}/${repository}/resolve/${revision}/${encodeURIComponent(rfilename)}`;
    const bytes = lfs?.size ?? size;
    files.set(rfilename, { url, ...(bytes !== undefined && { size: bytes }), ...(lfs?.sha256 !== undefined && { sha256: lfs.sha256 }) });
  }
  return files;
}

async function findInHub(source: SourceDescription & { kind: 'hub' }, withHeads: boolean, context: Context): Promise<Found> {
  const { repository, quantisation } = source;
  const files = await listHub(source, context.library);
  const names = [...files.keys()];
  const pick = (chosen: string[]): Weights[] =>
    chosen.flatMap((name) => {
      const remote = files.get(name);
      return remote === undefined ? [] : [{ name, remote }];
    });
  const heads = withHeads ? headsOf(files) : [];
  const safetensors = names.filter((name) => /^model(-\d+-of-\d+)?\.safetensors$/.test(name));
  if (quantisation !== undefined || safetensors.length === 0 || !files.has('config.json')) {
    return { here: [], weights: [...pick([chooseGguf(names, repository, quantisation)]), ...heads] };
  }
  const present = settingsNames.filter((name) => files.has(name));
  const here = await fetchSettings((name) => files.get(name)?.url ?? '', () => false, present, context);
  return { here, weights: [...pick([tokenizerName, ...safetensors]), ...heads] };
}

/** The draft heads of a repository, if it has some. */
function headsOf(files: Map<string, RemoteFile>): Weights[] {
  return [...files].flatMap(([name, remote]) => (isHeadFile(name) ? [{ name, remote }] : [])).slice(0, 1);
}

/** The GGUF file of a repository that was asked for, or the one to prefer. */
export function chooseGguf(names: string[], repository: string, quantisation?: string): string {
  // Files in parts ("…-00001-of-00003.gguf") are not read.
  const candidates = names.filter((name) => /\.gguf$/i.test(name) && !/-\d+-of-\d+\.gguf$/i.test(name));
  const holds = (name: string, kind: string): boolean =>
    name.toLowerCase().split(/[.-]/).includes(kind.toLowerCase());
  for (const kind of quantisation === undefined ? preferredQuantisations : [quantisation]) {
    const found = candidates.find((name) => holds(name, kind));
    if (found !== undefined) return found;
  }
  const [only] = candidates;
  if (only !== undefined && candidates.length === 1 && quantisation === undefined) return only;
  const has = candidates.length === 0 ? 'it has no safetensors with a config.json and no single GGUF file' : `it has ${candidates.join(', ')}`;
  const wanted = quantisation === undefined ? 'a model' : `a GGUF file of kind ${quantisation}`;
  throw new DraftreeError('load_failed', `looked for ${wanted} in the repository ${repository}, but ${has}`);
}

async function fetchSettings(
  urlOf: (name: string) => string,
  isOptional: (name: string) => boolean,
  names: string[],
  { library }: Context,
): Promise<NamedFile[]> {
  const fetched = await Promise.all(
    names.map(async (name) => {
      const bytes = isOptional(name) ? await library.smallIfAny(urlOf(name)) : await library.small(urlOf(name));
      return bytes === undefined ? [] : [{ name, file: new BlobFile(new Blob([bytes.slice()])) }];
    }),
  );
  return fetched.flat();
}

function localFiles(files: File[]): NamedFile[] {
  return files.map((file) => ({ name: file.name, file: new BlobFile(file) }));
}

/** Large files one after the other, with one progress over all of them. Nothing stands for an optional one that there is not. */
async function fetchWeights(weights: Weights[], { library, onProgress }: Context): Promise<(NamedFile | undefined)[]> {
  const sizes = weights.map(({ remote }) => remote.size);
  const opened: (NamedFile | undefined)[] = [];
  let before = 0;
  try {
    for (const [index, { name, remote, isOptional }] of weights.entries()) {
      const report = (loaded: number, size: number | undefined): void => {
        sizes[index] = size !== undefined && size >= loaded ? size : undefined;
        const total = sizes.reduce<number>((sum, each) => sum + (each ?? Infinity), 0);
        onProgress({ stage: 'download', file: name, loaded: before + loaded, total });
      };
      const file = await library.large(remote, report).catch((error: unknown) => {
        if (isOptional && error instanceof HttpError && error.status === 404) return undefined;
        throw error;
      });
      sizes[index] = file?.size ?? 0;
      before += sizes[index];
      opened.push(file && { name, file });
    }
    return opened;
  } catch (error) {
    for (const named of opened) named?.file.close();
    throw error;
  }
}

function byteSource(files: NamedFile[]): OpenSource {
  return {
    files: files.map(({ name, file }) => ({ name, size: file.size })),
    read(index, offset, length) {
      const named = files[index];
      if (named === undefined) throw new DraftreeError('internal', `the core asked for file ${index} of ${files.length}`);
      return named.file.read(offset, length);
    },
    close() {
      for (const { file } of files) file.close();
    },
  };
}

function shardNames(index: Uint8Array, url: string): string[] {
  const { weight_map: map } = parseJson<{ weight_map?: Record<string, string> }>(index, url);
  return [...new Set(Object.values(map ?? {}))].sort();
}

function parseJson<T extends object>(bytes: Uint8Array, url: string): T {
  try {
    const value: unknown = JSON.parse(new TextDecoder().decode(bytes));
    if (typeof value === 'object' && value !== null) return value as T;
  } catch {
    // Reported below, like any other text that is no object.
  }
  throw new DraftreeError('load_failed', `${url}: expected a JSON object; was an HTML page served in its place?`);
}

function lastPart(url: string): string {
  return decodeURIComponent(new URL(url).pathname.split('/').pop() ?? '') || 'model.gguf';
}
