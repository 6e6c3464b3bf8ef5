/**
 * The symbols of `using` and `await using`, also where the browser does not have them yet.
 *
 * Compilers that translate `using` for such browsers look for the same registered symbols, so both meet.
 */

/// <reference lib="esnext.disposable" preserve="true" />

/** `Symbol.dispose`, or its stand-in. */
export const dispose: typeof Symbol.dispose = Symbol.dispose ?? (Symbol.for('Symbol.dispose') as typeof Symbol.dispose);

/** `Symbol.asyncDispose`, or its stand-in. */
export const asyncDispose: typeof Symbol.asyncDispose =
  Symbol.asyncDispose ?? (Symbol.for('Symbol.asyncDispose') as typeof Symbol.asyncDispose);
