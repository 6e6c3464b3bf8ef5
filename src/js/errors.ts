/**
 * The one error type of the package and its closed list of codes.
 *
 * The codes are the strings of `ErrorCode` in `src/error.rs`, in the same order; `tests/js/errors.test.mjs` compares the two lists.
 * Messages are written where the fault is found; this file only carries them, also across the worker boundary, where a class does
 * not survive `postMessage` and an error therefore travels as plain data.
 */

/** Every code a {@link DraftreeError} can have. A code is never renamed; new ones may be added. */
export const errorCodes = [
  'webgpu_unavailable',
  'no_adapter',
  'device_lost',
  'device_miscomputes',
  'out_of_memory',
  'bad_model_file',
  'truncated_file',
  'unsupported_model',
  'missing_tensor',
  'shape_mismatch',
  'bad_tokenizer',
  'bad_chat_template',
  'prompt_too_long',
  'empty_prompt',
  'invalid_option',
  'load_failed',
  'busy',
  'aborted',
  'disposed',
  'internal',
] as const;

/** What went wrong, as a stable string. */
export type ErrorCode = (typeof errorCodes)[number];

/** Every error this package throws or rejects with. Decide by `code`; show `message`. */
export class DraftreeError extends Error {
  /** Tells this error from others where it came over a thread's border, and its class was lost. */
  override readonly name = 'DraftreeError';

  /** What went wrong, as a stable string. */
  readonly code: ErrorCode;

  constructor(code: ErrorCode, message: string, options?: { cause?: unknown }) {
    super(message, options);
    this.code = code;
  }
}

/** A {@link DraftreeError} as `postMessage` can carry it. */
export interface ErrorData {
  code: ErrorCode;
  message: string;
}

/** The error of a caller's `AbortSignal`; the signal's reason is kept as `cause`. */
export function abortedError(signal?: AbortSignal): DraftreeError {
  return new DraftreeError('aborted', 'stopped by the AbortSignal given to this call', { cause: signal?.reason });
}

/**
 * Any thrown value as a {@link DraftreeError}. Errors of the wasm core are recognised by name and code, because they are plain
 * `Error` objects made on the other side; everything else is a fault of this package and becomes `internal`.
 */
export function asDraftreeError(thrown: unknown, doing: string): DraftreeError {
  if (thrown instanceof DraftreeError) return thrown;
  if (thrown instanceof Error) {
    const { code } = thrown as { code?: unknown };
    if (thrown.name === 'DraftreeError' && isErrorCode(code)) {
      return new DraftreeError(code, thrown.message, { cause: thrown });
    }
    return new DraftreeError('internal', `${doing}: ${thrown.name}: ${thrown.message}`, { cause: thrown });
  }
  return new DraftreeError('internal', `${doing}: ${String(thrown)}`, { cause: thrown });
}

/** The part of an error that crosses the worker boundary. */
export function errorData(error: DraftreeError): ErrorData {
  return { code: error.code, message: error.message };
}

function isErrorCode(code: unknown): code is ErrorCode {
  return (errorCodes as readonly unknown[]).includes(code);
}
