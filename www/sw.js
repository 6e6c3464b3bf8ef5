// @ts-check
/**
 * The service worker of the site: everything comes from the network while there is one, so that a new version is there at once, and from
 * the cache while there is none. What is in the cache is what `site.json`, written by the build, lists.
 */

const worker = /** @type {any} */ (self);
const scope = worker.registration.scope;
const cacheName = `draftree site ${scope}`;

/** Fetches every file of the site anew, and forgets those that are no longer part of it. */
async function keepSite() {
  const cache = await caches.open(cacheName);
  const answer = await fetch(new URL('site.json', scope), { cache: 'no-cache' });
  /** @type {{ files: string[] }} */
  const { files } = await answer.json();
  const urls = ['', ...files].map((file) => new URL(file, scope).href);
  await Promise.all(urls.map((url) => cache.add(new Request(url, { cache: 'no-cache' }))));
  for (const { url } of await cache.keys()) if (!urls.includes(url)) await cache.delete(url);
}

/** @param {Request} request */
async function answerTo(request) {
  const cache = await caches.open(cacheName);
  // Parts of files, and questions about them, are answered with the whole file as it was kept.
  const kept = () => cache.match(request.url, { ignoreSearch: true });
  try {
    const answer = await fetch(request);
    if (answer.status === 200 && request.method === 'GET' && !request.headers.has('range') && (await kept())) await cache.put(request.url, answer.clone());
    return answer;
  } catch (error) {
    const answer = await kept();
    if (answer === undefined) throw error;
    return request.method === 'HEAD' ? new Response(null, { status: answer.status, headers: answer.headers }) : answer;
  }
}

worker.addEventListener('install', (/** @type {any} */ event) => event.waitUntil(keepSite().then(() => worker.skipWaiting())));
worker.addEventListener('activate', (/** @type {any} */ event) => event.waitUntil(worker.clients.claim()));
worker.addEventListener('fetch', (/** @type {any} */ event) => {
  const { request } = event;
  if (request.url.startsWith(scope) && ['GET', 'HEAD'].includes(request.method)) event.respondWith(answerTo(request));
});
