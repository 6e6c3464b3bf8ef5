// @ts-check
/**
 * The one error type of the commands, and the way every command ends.
 *
 * A `Failure` has a stable `code`. Codes of the package itself (`bad_model_file`, `no_adapter`, …, see `src/error.rs`) pass
 * through unchanged; the commands add `setup_failed`, `registry_unreachable`, `build_failed`, `browser_failed` and `browser_timeout`.
 */

export class Failure extends Error {
  /** @param {string} code @param {string} message @param {ErrorOptions} [options] */
  constructor(code, message, options) {
    super(message, options);
    this.name = 'Failure';
    this.code = code;
  }
}

/**
 * Code and message of anything thrown.
 * @param {unknown} error
 * @returns {{ code: string, message: string }}
 */
export function describe(error) {
  if (error instanceof Error) {
    const code = /** @type {{ code?: unknown }} */ (error).code;
    const known = error.name === 'Failure' || error.name === 'DraftreeError';
    const message = error.message || error.name;
    return { code: known && typeof code === 'string' ? code : 'internal', message };
  }
  return { code: 'internal', message: String(error) };
}

/**
 * Runs a command's main function: exit status 0, or the error and exit status 1.
 * A person gets `code: message`; `report` may print it differently. An unforeseen error keeps its stack trace.
 * @param {() => Promise<number | void>} main returns the exit status
 * @param {(error: { code: string, message: string }) => void} [report]
 */
export async function runMain(main, report) {
  try {
    process.exitCode = (await main()) ?? 0;
  } catch (error) {
    const described = describe(error);
    if (report) report(described);
    else console.error(`${described.code}: ${described.message}`);
    if (described.code === 'internal' && error instanceof Error) console.error(error.stack);
    process.exitCode = 1;
  }
}
