// @ts-check
/** A model over the stand-in for the core: both ends of the protocol run, and messages are copied as between threads. */
import { Channel } from '../../pkg/channel.js';
import { Host } from '../../pkg/host.js';
import { Model } from '../../pkg/model.js';
import { core } from './fake_core.mjs';

/** @returns {Promise<import('../../pkg/index.js').Model>} */
export async function echoModel() {
  /** @type {any} */
  const port = { close() {} };
  port.connect = (/** @type {(message: unknown) => void} */ receive) => {
    const host = new Host((message) => setImmediate(() => receive(structuredClone(message))), /** @type {any} */ (core));
    port.post = (/** @type {any} */ message) => setImmediate(() => host.receive(structuredClone(message)));
  };
  const channel = new Channel(port);
  return new /** @type {any} */ (Model)(channel, await channel.load({ source: { kind: 'local', files: [] }, heads: null, cache: false }).info);
}
