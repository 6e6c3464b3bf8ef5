// @ts-check
/**
 * A local file server that misbehaves on request, and keeps what it was asked.
 */
import http from 'node:http';

/**
 * What the server does with the next requests.
 * @typedef {object} Behaviour
 * @property {Uint8Array} body
 * @property {string} [etag] sent as ETag, and compared with If-Range
 * @property {string} [lastModified]
 * @property {boolean} [ranges] answer Range with 206 (default), or ignore it
 * @property {boolean} [length] send Content-Length (default)
 * @property {number[]} [statuses] answer these first, one per request, without a body
 * @property {number[]} [cuts] break the connection after so many bytes, one entry per request
 * @property {number} [pause] milliseconds between pieces of 1 kB
 */

/**
 * @typedef {object} TestServer
 * @property {string} url of the one file
 * @property {{ method: string | undefined, range: string | undefined, ifRange: string | undefined }[]} requests
 * @property {Behaviour} behaviour may be changed between requests
 * @property {() => Promise<void>} close
 */

/** @param {Behaviour} behaviour @returns {Promise<TestServer>} */
export async function serveFile(behaviour) {
  /** @type {TestServer} */
  const test = { url: '', requests: [], behaviour, close: async () => {} };
  const server = http.createServer((request, response) => {
    const { headers, method } = request;
    test.requests.push({ method, range: headers.range, ifRange: /** @type {string | undefined} */ (headers['if-range']) });
    answer(test.behaviour, request, response);
  });
  await new Promise((resolve) => server.listen(0, '127.0.0.1', () => resolve(undefined)));
  const address = /** @type {import('node:net').AddressInfo} */ (server.address());
  test.url = `http://127.0.0.1:${address.port}/model.gguf`;
  test.close = () =>
    new Promise((resolve) => {
      server.close(() => resolve());
      server.closeAllConnections();
    });
  return test;
}

/** @param {Behaviour} behaviour @param {http.IncomingMessage} request @param {http.ServerResponse} response */
function answer(behaviour, request, response) {
  const { body, etag, lastModified, ranges = true, length = true } = behaviour;
  const status = behaviour.statuses?.shift();
  if (status !== undefined) return void response.writeHead(status).end();
  if (etag !== undefined) response.setHeader('ETag', etag);
  if (lastModified !== undefined) response.setHeader('Last-Modified', lastModified);
  const start = ranges ? rangeStart(behaviour, request) : undefined;
  if (start !== undefined && start >= body.length) {
    return void response.writeHead(416, { 'Content-Range': `bytes */${body.length}` }).end();
  }
  const part = body.subarray(start ?? 0);
  if (start !== undefined) response.setHeader('Content-Range', `bytes ${start}-${body.length - 1}/${body.length}`);
  if (length) response.setHeader('Content-Length', part.length);
  response.writeHead(start === undefined ? 200 : 206);
  if (request.method === 'HEAD') return void response.end();
  void send(part, behaviour, response);
}

/** @param {Behaviour} behaviour @param {http.IncomingMessage} request */
function rangeStart({ etag, lastModified }, { headers }) {
  const match = /^bytes=(\d+)-$/.exec(headers.range ?? '');
  const condition = headers['if-range'];
  const holds = condition === undefined || condition === etag || condition === lastModified;
  return match !== null && holds ? Number(match[1]) : undefined;
}

/** @param {Uint8Array} part @param {Behaviour} behaviour @param {http.ServerResponse} response */
async function send(part, { cuts, pause }, response) {
  const cut = cuts?.shift();
  const piece = pause === undefined ? 1 << 16 : 1 << 10;
  for (let at = 0; at < part.length && !response.destroyed; at += piece) {
    if (cut !== undefined && at + piece >= cut) {
      response.write(part.subarray(at, cut), () => setTimeout(() => response.destroy(), 20));
      return;
    }
    response.write(part.subarray(at, at + piece));
    if (pause !== undefined) await new Promise((resolve) => setTimeout(resolve, pause));
  }
  response.end();
}
