/**
 * The script of the worker that a model runs in: a {@link Host} behind `postMessage`.
 *
 * Messages that arrive while the host's modules are still loading wait in the browser's queue, because the handler is set when this
 * module runs, after its imports.
 */
import { Host } from './host.js';
import type { FromHost, ToHost } from './protocol.js';

/** What is used of the worker's global scope; TypeScript's page library has another `self`. */
interface WorkerScope {
  postMessage(message: FromHost): void;
  onmessage: ((event: MessageEvent<ToHost>) => void) | null;
}

const scope = globalThis as unknown as WorkerScope;
const host = new Host((message) => scope.postMessage(message));
scope.onmessage = ({ data }) => host.receive(data);
