// @ts-check
/**
 * One launcher for the two browser engines: stock Chromium and stock Firefox, headless, with WebGPU on, each in a profile of its own.
 *
 * puppeteer-core drives both (Chromium by the DevTools protocol, Firefox by WebDriver BiDi), so that a test written for one runs
 * unchanged in the other. Without a GPU the adapters are software: SwiftShader in Chromium, lavapipe (Mesa) in Firefox.
 * Set `DRAFTREE_ADAPTER=hardware` to let Chromium use the machine's GPU.
 */
import { rm } from 'node:fs/promises';
import { mkdtempSync, rmSync } from 'node:fs';
import os from 'node:os';
import path from 'node:path';
import { Failure } from './failure.mjs';
import { isExecutable, which } from './programs.mjs';

/** @typedef {'chromium' | 'firefox'} BrowserName */
/** @type {readonly BrowserName[]} */
export const browserNames = ['chromium', 'firefox'];

/** @type {Record<BrowserName, { override: string, programs: string[], files: string[] }>} */
const PLACES = {
  chromium: {
    override: 'CHROMIUM_PATH',
    programs: ['chromium', 'chromium-browser', 'google-chrome', 'google-chrome-stable'],
    files: [
      '/Applications/Google Chrome.app/Contents/MacOS/Google Chrome',
      '/Applications/Chromium.app/Contents/MacOS/Chromium',
      'C:\\Program Files\\Google\\Chrome\\Application\\chrome.exe',
    ],
  },
  firefox: {
    override: 'FIREFOX_PATH',
    programs: ['firefox-esr', 'firefox'],
    files: ['/Applications/Firefox.app/Contents/MacOS/firefox', 'C:\\Program Files\\Mozilla Firefox\\firefox.exe'],
  },
};

const CHROMIUM_ARGUMENTS = [
  '--disable-quic',
  '--no-first-run',
  '--disable-background-networking',
  '--disable-component-update',
  '--disable-sync',
  '--disable-dev-shm-usage',
  '--enable-unsafe-webgpu',
  '--enable-features=Vulkan',
];

const MESSAGE_PREFIX = '\u0002message ';

const FIREFOX_PREFERENCES = {
  'dom.webgpu.enabled': true,
  'dom.webgpu.workers.enabled': true,
  'gfx.webgpu.ignore-blocklist': true,
};

/**
 * The program of a browser on this machine, or nothing. CHROMIUM_PATH and FIREFOX_PATH come first.
 * @param {BrowserName} name
 * @returns {string | undefined}
 */
export function findBrowser(name) {
  const { override, programs, files } = PLACES[name];
  const chosen = process.env[override];
  if (chosen) {
    if (isExecutable(chosen)) return chosen;
    throw new Failure('setup_failed', `${override} is ${chosen}, which is no program.`);
  }
  return programs.map(which).find(Boolean) ?? files.find(isExecutable);
}

/**
 * @typedef {object} LaunchOptions
 * @property {number} [timeoutMs] a browser that has neither answered nor sent a message for so long is killed (5 minutes unless told)
 * @property {string[]} [args] more command-line arguments
 * @property {{ width: number, height: number }} [viewport] 1280 × 800 unless told
 */
/**
 * A running browser. `pid` is the process that `close` and the time-out end.
 * @typedef {object} Browser
 * @property {BrowserName} name
 * @property {string} version `Chromium 156.0.1` or `Firefox 153.8`
 * @property {number | undefined} pid
 * @property {() => Promise<Page>} newPage
 * @property {() => Promise<void>} close also removes the profile
 */
/**
 * @typedef {object} Page
 * @property {(url: string) => Promise<void>} goto waits for the load event
 * @property {<A extends unknown[], R>(fn: (...args: A) => R | Promise<R>, ...args: A) => Promise<Awaited<R>>} evaluate runs a function in the page;
 *   arguments and result pass as JSON, and the function sees nothing of this module
 * @property {(listener: (message: any) => void) => void} onMessage what the page says by `sendMessage(value)`, in order
 * @property {string[]} errors uncaught errors and `console.error` lines, in order
 * @property {string[]} console all console lines, `type: text`
 * @property {import('puppeteer-core').Page} puppeteer the driver's own page: viewport, keyboard, screenshot, file choice
 * @property {() => Promise<void>} close
 */

/**
 * @param {BrowserName} name
 * @param {LaunchOptions} [options]
 * @returns {Promise<Browser>}
 */
export async function launch(name, { timeoutMs = 300_000, args = [], viewport = { width: 1280, height: 800 } } = {}) {
  const executablePath = findBrowser(name);
  if (!executablePath) {
    throw new Failure('setup_failed', `${name} is not installed; install it or set ${PLACES[name].override} to its program.`);
  }
  const { default: puppeteer } = await import('puppeteer-core');
  const profile = mkdtempSync(path.join(os.tmpdir(), `draftree-${name}-`));
  /** @type {import('puppeteer-core').Browser | undefined} */
  let driver;
  const leave = () => abandon(driver?.process()?.pid, profile);
  process.once('exit', leave);
  const forget = async () => {
    process.off('exit', leave);
    await rm(profile, { recursive: true, force: true, maxRetries: 10, retryDelay: 100 });
  };
  try {
    driver = await puppeteer.launch({
      executablePath,
      headless: true,
      userDataDir: profile,
      timeout: Math.min(timeoutMs, 120_000),
      protocolTimeout: 0,
      defaultViewport: viewport,
      ...(name === 'firefox'
        ? { browser: 'firefox', extraPrefsFirefox: FIREFOX_PREFERENCES, args }
        : { browser: 'chrome', args: [...chromiumArguments(), ...args] }),
    });
  } catch (error) {
    await forget();
    const reason = error instanceof Error ? error.message : String(error);
    throw new Failure('browser_failed', `${name} (${executablePath}) could not be started: ${reason}`, { cause: error });
  }
  const running = driver;
  const watch = new Watch(name, running, timeoutMs);
  return {
    name,
    version: (await watch.guard('starting', running.version())).replace(/^(?:Headless)?Chrome\//, 'Chromium ').replace(/^[Ff]irefox\//, 'Firefox '),
    pid: running.process()?.pid,
    newPage: () => newPage(running, watch),
    close: async () => {
      watch.stop();
      const ended = hasEnded(running.process());
      await Promise.race([running.close().catch(() => undefined), sleep(10_000)]);
      killGroup(running.process()?.pid);
      await Promise.race([ended, sleep(5_000)]);
      await forget();
    },
  };
}

const sleep = (/** @type {number} */ milliseconds) => new Promise((resolve) => setTimeout(resolve, milliseconds).unref());

/** Kills a browser with all its processes: puppeteer makes a process group of them. @param {number | undefined} pid */
function killGroup(pid) {
  try {
    if (pid !== undefined) process.kill(process.platform === 'win32' ? pid : -pid, 'SIGKILL');
  } catch {
    // It has ended already.
  }
}

/**
 * For the case that this process ends while a browser runs: kills it, and removes its profile once the last of its processes has
 * stopped writing there.
 * @param {number | undefined} pid @param {string} profile
 */
function abandon(pid, profile) {
  killGroup(pid);
  for (let tries = 0; tries < 20; tries++) {
    try {
      return rmSync(profile, { recursive: true, force: true });
    } catch {
      Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, 50);
    }
  }
}

/** @param {import('node:child_process').ChildProcess | null} child */
async function hasEnded(child) {
  if (child && child.exitCode === null && child.signalCode === null) await new Promise((resolve) => child.once('exit', resolve));
}

function chromiumArguments() {
  const list = [...CHROMIUM_ARGUMENTS];
  if (process.env['DRAFTREE_ADAPTER'] !== 'hardware') list.push('--use-webgpu-adapter=swiftshader');
  if (process.getuid?.() === 0) list.push('--no-sandbox'); // Chromium refuses to run as root otherwise
  return list;
}

/** Kills a browser that shows no sign of life while something is awaited from it. */
class Watch {
  /** @type {Set<(error: Failure) => void>} */
  #waiting = new Set();
  /** @type {NodeJS.Timeout | undefined} */
  #timer;
  #closing = false;

  /** @param {BrowserName} name @param {import('puppeteer-core').Browser} driver @param {number} timeoutMs */
  constructor(name, driver, timeoutMs) {
    this.name = name;
    this.driver = driver;
    this.timeoutMs = timeoutMs;
    driver.on('disconnected', () => {
      if (!this.#closing) this.#fail(new Failure('browser_failed', `${name} ended unexpectedly.`));
    });
  }

  /** A sign of life: the clock starts again. */
  alive() {
    clearTimeout(this.#timer);
    this.#timer = undefined;
    if (this.#waiting.size === 0 || this.#closing) return;
    this.#timer = setTimeout(() => {
      killGroup(this.driver.process()?.pid);
      const seconds = Math.round(this.timeoutMs / 1000);
      this.#fail(new Failure('browser_timeout', `${this.name} gave no sign of life for ${seconds} s and was killed.`));
    }, this.timeoutMs);
  }

  /**
   * `promise`, or the failure of the browser, whichever comes first.
   * @template T
   * @param {string} what @param {Promise<T>} promise
   * @returns {Promise<T>}
   */
  async guard(what, promise) {
    /** @type {(error: Failure) => void} */
    let fail = () => {};
    const failure = new Promise((_, reject) => (fail = reject));
    failure.catch(() => undefined);
    this.#waiting.add(fail);
    this.alive();
    try {
      return /** @type {T} */ (await Promise.race([promise, failure]));
    } catch (error) {
      if (error instanceof Failure) throw error;
      if (!this.driver.connected) throw new Failure('browser_failed', `${this.name} ended unexpectedly while ${what}.`, { cause: error });
      throw error;
    } finally {
      this.#waiting.delete(fail);
      this.alive();
    }
  }

  /** No more time-outs: the browser is being closed. */
  stop() {
    this.#closing = true;
    clearTimeout(this.#timer);
  }

  /** @param {Failure} error */
  #fail(error) {
    for (const reject of this.#waiting) reject(error);
  }
}

/**
 * @param {import('puppeteer-core').Browser} driver @param {Watch} watch
 * @returns {Promise<Page>}
 */
async function newPage(driver, watch) {
  const page = await watch.guard('opening a page', driver.newPage());
  page.setDefaultTimeout(0);
  /** @type {string[]} */
  const errors = [];
  /** @type {string[]} */
  const lines = [];
  /** @type {Array<(message: any) => void>} */
  const listeners = [];
  page.on('console', (message) => {
    const text = message.text();
    if (text.startsWith(MESSAGE_PREFIX)) {
      watch.alive();
      const value = JSON.parse(text.slice(MESSAGE_PREFIX.length));
      for (const listener of listeners) listener(value);
      return;
    }
    lines.push(`${message.type()}: ${text}`);
    if (message.type() === 'error') errors.push(text);
  });
  page.on('pageerror', (error) => void errors.push(error instanceof Error ? (error.stack ?? error.message) : String(error)));
  // Messages travel as console lines: one way. A function exposed by the driver answers each call, which takes 80 ms in Firefox.
  await watch.guard(
    'preparing a page',
    page.evaluateOnNewDocument(
      `globalThis.sendMessage = (message) => console.debug(${JSON.stringify(MESSAGE_PREFIX)} + JSON.stringify(message));`,
    ),
  );
  return {
    goto: async (url) => void (await watch.guard(`opening ${url}`, page.goto(url))),
    evaluate: async (fn, ...args) => {
      const call = `(async () => { try { return { value: await (${fn})(...${JSON.stringify(args)}) }; } catch (error) { return { error: {
        name: String(error?.name), code: error?.code, message: String(error?.message ?? error), stack: String(error?.stack) } }; } })()`;
      const outcome = /** @type {{ value?: any, error?: PageError }} */ (await watch.guard('running in the page', page.evaluate(call)));
      if (outcome.error) throw revived(outcome.error);
      return outcome.value;
    },
    onMessage: (listener) => void listeners.push(listener),
    errors,
    console: lines,
    puppeteer: page,
    close: () => watch.guard('closing a page', page.close()),
  };
}

/**
 * An error thrown in the page, with its name, code and stack.
 * @typedef {{ name: string, code?: unknown, message: string, stack: string }} PageError
 * @param {PageError} error
 */
function revived({ name, code, message, stack }) {
  const error = new Error(message);
  return Object.assign(error, { name, stack: `${name}: ${message}\n${stack}` }, code === undefined ? {} : { code });
}
