// @ts-check
/**
 * `npm test`: everything, in this order: build · checks (format, lints, types, comments) · Rust natively · the package's JavaScript in
 * Node · both browsers · the packed package in projects of each kind. Each check counts as one test. A stage that fails does not stop the
 * ones after it, except the build.
 *
 * The last line is the sum, `123 passed, 0 failed, 2 skipped`, read from the runners' own summaries. GPU tests run on Mesa's software
 * driver, on every machine alike; a missing adapter or browser is a failure, never a skip. Only what needs a download that cannot be had is
 * skipped. `--only STAGE` runs one stage.
 */
import { existsSync } from 'node:fs';
import { mkdtemp, readdir, readFile, rm } from 'node:fs/promises';
import os from 'node:os';
import path from 'node:path';
import { pathToFileURL } from 'node:url';
import { browserNames } from './browsers.mjs';
import { build, reportSizes } from './build.mjs';
import { documentPackage } from './docs.mjs';
import { describe, runMain } from './failure.mjs';
import { parseOptions } from './options.mjs';
import { root, runProgram, say } from './programs.mjs';
import { chromiumVulkanDriver, setup, softwareVulkanDriver } from './setup.mjs';
import { reportPages } from './site.mjs';

/** @typedef {{ passed: number, failed: number, skipped: number }} Counts */

const WASM = ['--lib', '--target', 'wasm32-unknown-unknown'];
const DENY = ['--', '-D', 'warnings'];
const tsc = path.join(root, 'node_modules', 'typescript', 'bin', 'tsc');

/** @returns {[string, string, string[]][]} */
function checkCommands() {
  const typed = ['scripts', 'www', 'tests'].filter((folder) => existsSync(path.join(root, folder, 'tsconfig.json')));
  return [
    ['format of the Rust code', 'cargo', ['fmt', '--all', '--check']],
    ['lints, native', 'cargo', ['clippy', '--release', '--all-targets', '--features', 'cli', ...DENY]],
    ['lints, wasm', 'cargo', ['clippy', '--release', ...WASM, ...DENY]],
    ['documentation of the crate', 'cargo', ['rustdoc', '--release', '--features', 'cli', '--lib', ...DENY]],
    ['lints, xtask', 'cargo', ['clippy', '-p', 'xtask', '--all-targets', ...DENY]],
    ...typed.map((folder) => /** @type {[string, string, string[]]} */ ([`types of ${folder}`, process.execPath, [tsc, '--noEmit', '-p', folder]])),
  ];
}

/** @returns {Promise<Counts>} */
async function runChecks() {
  const counts = { passed: 0, failed: 0, skipped: 0 };
  for (const [title, program, args] of checkCommands()) {
    try {
      await runProgram(program, args, { quiet: true });
      say(`ok: ${title}`);
      counts.passed++;
    } catch (error) {
      say(`FAILED: ${title}: ${describe(error).message}`);
      counts.failed++;
    }
  }
  return sum(counts, await checkReference());
}

/** That everything exported is documented; the generator that knows is a download. @returns {Promise<Counts>} */
async function checkReference() {
  const title = 'comments of the API';
  try {
    await documentPackage({ isWritten: false });
    say(`ok: ${title}`);
    return { passed: 1, failed: 0, skipped: 0 };
  } catch (error) {
    const { code, message } = describe(error);
    const isMissing = code === 'registry_unreachable';
    say(`${isMissing ? 'NOT CHECKED' : 'FAILED'}: ${title}: ${message}`);
    return { passed: 0, failed: isMissing ? 0 : 1, skipped: isMissing ? 1 : 0 };
  }
}

/** The sum of the lines `test result: ok. 3 passed; 0 failed; 1 ignored; …` of a cargo run. @param {string} output */
export function cargoCounts(output) {
  const counts = { passed: 0, failed: 0, skipped: 0 };
  for (const [, passed, failed, ignored] of output.matchAll(/^test result: \w+\. (\d+) passed; (\d+) failed; (\d+) ignored;/gm)) {
    counts.passed += Number(passed);
    counts.failed += Number(failed);
    counts.skipped += Number(ignored);
  }
  return counts;
}

/** The sums at the end of a TAP report of Node's test runner. @param {string} report */
export function tapCounts(report) {
  const value = (/** @type {string} */ key) => Number(new RegExp(`^# ${key} (\\d+)$`, 'm').exec(report)?.[1] ?? 0);
  return { passed: value('pass'), failed: value('fail') + value('cancelled'), skipped: value('skipped') + value('todo') };
}

/**
 * All Rust tests on Mesa's driver; and on Chromium's, which runs the same shaders through another compiler, those that compare a row
 * alone with the same row among others, bit for bit.
 * @returns {Promise<Counts>}
 */
async function runRust() {
  const counts = await runCargoTests(softwareVulkanDriver(), []);
  const chromiumDriver = chromiumVulkanDriver();
  return chromiumDriver ? sum(counts, await runCargoTests(chromiumDriver, ['--test', 'backend_parity', 'a_row_is'])) : counts;
}

/** @param {string | undefined} driver a Vulkan driver's description file @param {string[]} which arguments that choose tests */
async function runCargoTests(driver, which) {
  const env = {
    CARGO_TERM_COLOR: 'never',
    XDG_RUNTIME_DIR: process.env['XDG_RUNTIME_DIR'] ?? os.tmpdir(),
    ...(driver ? { VK_DRIVER_FILES: driver, VK_ICD_FILENAMES: driver } : {}),
  };
  let output = '';
  const args = ['test', '--release', '--features', 'cli', '--no-fail-fast', ...which];
  const failed = await fails(runProgram('cargo', args, { env, onText: (text) => (output += text) }));
  return withStatus(cargoCounts(output), failed);
}

/**
 * The `*.test.mjs` files of a folder, one at a time: they share two cores and one software GPU.
 * @param {string} folder
 * @returns {Promise<Counts>}
 */
async function runNodeTests(folder) {
  const names = (await readdir(path.join(root, folder)).catch(() => [])).filter((name) => name.endsWith('.test.mjs')).sort();
  if (names.length === 0) return withStatus({ passed: 0, failed: 0, skipped: 0 }, `${folder} holds no tests`);
  const scratch = await mkdtemp(path.join(os.tmpdir(), 'draftree-test-'));
  const report = path.join(scratch, 'report.tap');
  const reporters = ['--test-reporter=spec', '--test-reporter-destination=stdout', '--test-reporter=tap', `--test-reporter-destination=${report}`];
  const files = names.map((name) => path.join(folder, name));
  const failed = await fails(runProgram(process.execPath, ['--test', '--test-concurrency=1', ...reporters, ...files]));
  const counts = tapCounts(await readFile(report, 'utf8').catch(() => ''));
  await rm(scratch, { recursive: true });
  return withStatus(counts, failed);
}

/** @param {Counts} a @param {Counts} b @returns {Counts} */
const sum = (a, b) => ({ passed: a.passed + b.passed, failed: a.failed + b.failed, skipped: a.skipped + b.skipped });

/** The message of a failure, or nothing. @param {Promise<void>} run */
const fails = (run) => run.then(() => undefined, (error) => describe(error).message);

/**
 * A runner that failed without counting a failed test (it did not compile, say) counts as one failure, and so does one that ran no test.
 * @param {Counts} counts @param {string | undefined} problem
 * @returns {Counts}
 */
function withStatus(counts, problem) {
  const failed = problem ?? (counts.passed + counts.failed === 0 ? 'no test ran' : undefined);
  if (failed === undefined || counts.failed > 0) return counts;
  say(`FAILED: ${failed}`);
  return { ...counts, failed: 1 };
}

/** The package builds, and package and pages are small enough; without the first nothing else can run. @returns {Promise<Counts>} */
async function runBuild() {
  const sizes = await build();
  let counts = { passed: 1, failed: 0, skipped: 0 };
  for (const report of [Promise.resolve(sizes).then(reportSizes), reportPages()]) {
    const failed = await fails(report);
    counts = sum(counts, withStatus({ passed: failed === undefined ? 1 : 0, failed: 0, skipped: 0 }, failed));
  }
  return counts;
}

/** @type {Record<string, () => Promise<Counts>>} */
const stages = {
  build: runBuild,
  checks: runChecks,
  rust: runRust,
  js: () => runNodeTests('tests/js'),
  browser: () => runNodeTests('tests/browser'),
  packaging: () => runNodeTests('tests/packaging'),
};

/** @param {readonly string[]} argv */
async function main(argv) {
  const { values } = parseOptions(argv, { only: { type: 'text', choices: Object.keys(stages), help: 'one stage' } });
  await setup({ browsers: browserNames, vulkan: true, checks: true });
  let total = { passed: 0, failed: 0, skipped: 0 };
  for (const [name, run] of Object.entries(stages)) {
    const isWanted = values.only === undefined || values.only === name;
    if (!isWanted && !(name === 'build' && values.only !== 'rust')) continue;
    say(`\n— ${name}`);
    const counts = await run().catch((error) => {
      say(`FAILED: ${describe(error).message}`);
      return { passed: 0, failed: 1, skipped: 0 };
    });
    total = sum(total, counts);
    if (name === 'build' && counts.passed === 0) {
      say('Nothing that needs the package can run.');
      break;
    }
  }
  console.log(`\n${total.passed} passed, ${total.failed} failed, ${total.skipped} skipped`);
  return total.failed === 0 ? 0 : 1;
}

if (import.meta.url === pathToFileURL(process.argv[1] ?? '').href) await runMain(() => main(process.argv.slice(2)));
