// @ts-check
/**
 * `npm run docs`: the reference of the package's API, from its declarations and their comments, into docs/api.
 *
 * A name that is used and not exported, has no comment, or is linked and not there, is an error; `npm test` looks for those too. The
 * generator needs TypeScript's old programming interface, which version 7 has not, so it has a folder of modules of its own.
 */
import { cp, mkdir } from 'node:fs/promises';
import path from 'node:path';
import { pathToFileURL } from 'node:url';
import { build } from './build.mjs';
import { runMain } from './failure.mjs';
import { installModules } from './modules.mjs';
import { parseOptions } from './options.mjs';
import { cacheFolder, root, runProgram, say } from './programs.mjs';
import { setup } from './setup.mjs';

/**
 * Reads the declarations in pkg, and writes the reference unless told otherwise.
 * @param {{ isWritten: boolean }} options
 */
export async function documentPackage({ isWritten }) {
  const source = path.join(root, 'scripts', 'reference');
  const modules = path.join(cacheFolder, 'reference');
  await mkdir(modules, { recursive: true });
  for (const file of ['package.json', 'package-lock.json']) await cp(path.join(source, file), path.join(modules, file));
  await installModules(modules, 'the generator of the API reference');
  const typedoc = path.join(modules, 'node_modules', 'typedoc', 'bin', 'typedoc');
  const args = ['--options', path.join(source, 'typedoc.json'), '--emit', isWritten ? 'docs' : 'none'];
  await runProgram(process.execPath, [typedoc, ...args], {
    env: { NO_COLOR: '1' },
    code: 'build_failed',
    hint: 'What is exported from src/js/index.ts and src/js/ai_sdk.ts needs a comment, and so does what it mentions.',
    quiet: true,
  });
}

if (import.meta.url === pathToFileURL(process.argv[1] ?? '').href) {
  await runMain(async () => {
    parseOptions(process.argv.slice(2), {});
    await setup();
    await build();
    await documentPackage({ isWritten: true });
    say('docs/api/index.html has the reference.');
  });
}
