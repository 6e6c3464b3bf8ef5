// @ts-check
/**
 * `npm start`: builds the package, serves the page and prints its address. PORT chooses the port; otherwise any free one is taken,
 * 8080 if possible. Ctrl-C ends it.
 */
import { build } from './build.mjs';
import { Failure, runMain } from './failure.mjs';
import { parseOptions } from './options.mjs';
import { root, say } from './programs.mjs';
import { serve } from './serve.mjs';
import { setup } from './setup.mjs';

const PREFERRED_PORT = 8080;

await runMain(async () => {
  parseOptions(process.argv.slice(2), {});
  const chosen = process.env['PORT'];
  if (chosen !== undefined && !(/^\d+$/.test(chosen) && Number(chosen) < 65536)) {
    throw new Failure('invalid_option', `PORT is a number below 65536; found ${JSON.stringify(chosen)}.`);
  }
  await setup();
  await build();
  const server = await listen(chosen === undefined ? undefined : Number(chosen));
  say('Serving the page; Ctrl-C ends it. Open this address in a browser with WebGPU:');
  console.log(`${server.url}/www/`);
  await new Promise((resolve) => process.once('SIGINT', resolve).once('SIGTERM', resolve));
  await server.close();
});

/** @param {number | undefined} port */
async function listen(port) {
  for (const candidate of port === undefined ? [PREFERRED_PORT, 0] : [port]) {
    try {
      return await serve(root, { port: candidate });
    } catch (error) {
      if (/** @type {NodeJS.ErrnoException} */ (error).code !== 'EADDRINUSE' || candidate === 0) throw error;
      if (port !== undefined) throw new Failure('setup_failed', `Port ${port} is taken; set PORT to another one.`);
    }
  }
  throw new Failure('setup_failed', 'No port is free.');
}
