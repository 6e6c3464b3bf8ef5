// @ts-check
/**
 * Brings what a command needs, says what it does, and does nothing when all is there.
 *
 *     node scripts/setup.mjs [--browsers]
 *
 * Assumed: Node and Rust. Brought: a C linker, Rust's wasm target, the development modules of package-lock.json and, for commands
 * that run a browser, Chromium, Firefox and Mesa's software Vulkan driver (Firefox and the native tests compute on it). System
 * packages come by apt-get on Debian; on other systems a missing one is named, and CHROMIUM_PATH and FIREFOX_PATH point to
 * browsers that lie elsewhere.
 */
import { existsSync, readdirSync } from 'node:fs';
import path from 'node:path';
import { pathToFileURL } from 'node:url';
import { browserNames, findBrowser } from './browsers.mjs';
import { Failure, runMain } from './failure.mjs';
import { installModules } from './modules.mjs';
import { parseOptions } from './options.mjs';
import { outputOf, root, runProgram, say, which } from './programs.mjs';

/** @typedef {import('./browsers.mjs').BrowserName} BrowserName */

const WASM_TARGET = 'wasm32-unknown-unknown';

/**
 * @typedef {object} Needs
 * @property {readonly BrowserName[]} [browsers] none unless told
 * @property {boolean} [vulkan] Mesa's software driver for native GPU tests (Firefox brings this need by itself)
 * @property {boolean} [checks] rustfmt and clippy
 */
/** @param {Needs} [needs] */
export async function setup({ browsers = [], vulkan = browsers.includes('firefox'), checks = false } = {}) {
  if (Number(process.versions.node.split('.')[0]) < 20) {
    throw new Failure('setup_failed', `Node 20 or newer is needed; this is ${process.version}.`);
  }
  if (!which('cargo')) {
    throw new Failure('setup_failed', 'Rust is missing: cargo is not on PATH. Install Rust with rustup, then run this again.');
  }
  /** @type {string[]} */
  const packages = [];
  if (process.platform === 'linux' && !which('cc')) packages.push('gcc', 'libc6-dev');
  for (const name of browsers) {
    if (!findBrowser(name)) packages.push(name === 'chromium' ? 'chromium' : 'firefox-esr');
  }
  if (vulkan && process.platform === 'linux') {
    if (!softwareVulkanDriver()) packages.push('mesa-vulkan-drivers');
    if (!vulkanLoader()) packages.push('libvulkan1');
  }
  await installSystemPackages(packages);
  await installRustParts(checks);
  await installModules(root, 'the development modules');
}

/** The description file of Mesa's software Vulkan driver (lavapipe), if it is installed. */
export function softwareVulkanDriver() {
  for (const folder of ['/usr/share/vulkan/icd.d', '/etc/vulkan/icd.d']) {
    if (!existsSync(folder)) continue;
    const file = readdirSync(folder).find((name) => /^lvp_icd.*\.json$/.test(name) && !name.includes('i686'));
    if (file) return path.join(folder, file);
  }
  return undefined;
}

/** The description file of the software Vulkan driver that Debian's Chromium brings (SwiftShader), if it is there. */
export function chromiumVulkanDriver() {
  const file = '/usr/lib/chromium/vk_swiftshader_icd.json';
  return existsSync(file) ? file : undefined;
}

function vulkanLoader() {
  const folders = ['/usr/lib', '/usr/lib64', `/usr/lib/${process.arch === 'arm64' ? 'aarch64' : 'x86_64'}-linux-gnu`];
  return folders.some((folder) => existsSync(path.join(folder, 'libvulkan.so.1')));
}

/**
 * Installs Debian packages; where that is impossible, says which are missing.
 * @param {readonly string[]} packages
 */
export async function installSystemPackages(packages) {
  if (packages.length === 0) return;
  const list = packages.join(' ');
  const advice = `Install them by hand (on Debian: apt-get install ${list}); CHROMIUM_PATH and FIREFOX_PATH name browsers that lie elsewhere.`;
  if (!which('apt-get')) throw new Failure('setup_failed', `Missing: ${list}. ${advice}`);
  const asRoot = process.getuid?.() === 0;
  if (!asRoot && !which('sudo')) throw new Failure('setup_failed', `Missing: ${list}; installing needs root or sudo. ${advice}`);
  const program = asRoot ? 'apt-get' : 'sudo';
  const first = asRoot ? [] : ['DEBIAN_FRONTEND=noninteractive', 'apt-get'];
  const settings = { env: { DEBIAN_FRONTEND: 'noninteractive' }, code: 'setup_failed', hint: advice, quiet: true };
  say(`Installing system packages: ${list} …`);
  await runProgram(program, [...first, 'update', '-q'], settings);
  await runProgram(program, [...first, 'install', '-y', '-q', '--no-install-recommends', ...packages], settings);
}

/** @param {boolean} checks */
async function installRustParts(checks) {
  const folder = outputOf('rustc', ['--print', 'target-libdir', '--target', WASM_TARGET])?.trim();
  const withRustup = which('rustup') !== undefined;
  if (!folder || !existsSync(folder)) {
    if (!withRustup) {
      throw new Failure('setup_failed', `Rust's target ${WASM_TARGET} is missing, and there is no rustup to add it with.`);
    }
    say(`Adding Rust's target ${WASM_TARGET} …`);
    await runProgram('rustup', ['target', 'add', WASM_TARGET], { code: 'setup_failed' });
  }
  if (!checks) return;
  const missing = ['rustfmt', 'clippy'].filter((part) => !outputOf('cargo', [part === 'rustfmt' ? 'fmt' : part, '--version']));
  if (missing.length === 0) return;
  if (!withRustup) throw new Failure('setup_failed', `${missing.join(' and ')} missing, and there is no rustup to add them with.`);
  say(`Adding ${missing.join(' and ')} …`);
  await runProgram('rustup', ['component', 'add', ...missing], { code: 'setup_failed' });
}

if (import.meta.url === pathToFileURL(process.argv[1] ?? '').href) {
  await runMain(async () => {
    const { values } = parseOptions(process.argv.slice(2), {
      browsers: { type: 'flag', help: 'also what the tests need: both browsers, a software Vulkan driver, rustfmt and clippy' },
    });
    await setup(values.browsers ? { browsers: browserNames, checks: true } : {});
    say('All there.');
  });
}
