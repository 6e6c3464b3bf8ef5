// @ts-check
/**
 * `npm run fetch-model -- NAME…`: brings known models into .cache/models, size and sha256 checked. Run again, it goes on where it
 * stopped; a file that is there and right is left alone. Without a name it lists the models.
 */
import path from 'node:path';
import { runMain } from './failure.mjs';
import { fetchModel, knownModels } from './models.mjs';
import { parseOptions } from './options.mjs';
import { say } from './programs.mjs';

await runMain(async () => {
  const { positionals } = parseOptions(process.argv.slice(2), {}, { positionals: Infinity });
  if (positionals.length === 0) {
    say('npm run fetch-model -- NAME…\n');
    for (const [name, { title, licence, size }] of Object.entries(knownModels)) {
      say(`  ${name.padEnd(28)} ${size ? `${(size / 1e6).toFixed(0)} MB` : 'embedded'} · ${licence} · ${title}`);
    }
    return;
  }
  for (const name of positionals) console.log(path.relative(process.cwd(), await fetchModel(name)));
});
