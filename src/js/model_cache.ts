/**
 * The cache as the package's users see it: look, and delete.
 */
import { ModelCache } from './cache.js';
import type { CachedFile } from './cache.js';
import { describeSource, headsBeside } from './source.js';

/** Models that were downloaded by this origin and kept. Where the browser keeps nothing, there is nothing. */
export const modelCache = {
  /** Every downloaded file. A model of a folder or repository has several. */
  async list(): Promise<CachedFile[]> {
    return (await (await ModelCache.open())?.list()) ?? [];
  },

  /**
   * Delete what was downloaded for a source, draft heads beside it among it: a hub id, the URL of a file, or that of a folder. Returns the number of files deleted.
   * Not while that model is being loaded.
   */
  async delete(source: string | URL): Promise<number> {
    const described = describeSource(source);
    return deleteFiles((url) => {
      switch (described.kind) {
        case 'file':
          return url === described.url || url === headsBeside(described.url);
        case 'folder':
          return url.startsWith(described.url);
        case 'hub':
          return [`/${described.repository}/resolve/`, `/api/models/${described.repository}/`].some((part) => url.includes(part));
        case 'local':
          return false;
      }
    });
  },

  /** Delete everything. Returns the number of files deleted. */
  async clear(): Promise<number> {
    return deleteFiles(() => true);
  },
};

async function deleteFiles(isMeant: (url: string) => boolean): Promise<number> {
  const cache = await ModelCache.open();
  const files = ((await cache?.list()) ?? []).filter(({ url }) => isMeant(url));
  for (const { url } of files) await cache?.delete(url);
  return files.length;
}
