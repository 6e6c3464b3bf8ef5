// @ts-check
/**
 * The page without a network: a service worker keeps the site's files once the page was loaded. Models are kept by the package.
 */

/** Registers the service worker, where the browser has them and the page is served safely. */
export function keepForOffline() {
  // Without it the page works as well, but needs the network: in private windows of some browsers, say.
  navigator.serviceWorker?.register(new URL('./sw.js', import.meta.url)).catch(() => {});
}
