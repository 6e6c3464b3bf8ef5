// @ts-check
/**
 * Command-line options: `--name value`, `--name=value`, flags; anything unknown is an error that names the nearest known option.
 *
 * Written here because `util.parseArgs` neither checks numbers nor suggests names, and a wrong option must give the stable
 * code `invalid_option` with a message a person can act on.
 */
import { Failure } from './failure.mjs';

/**
 * @typedef {object} OptionSpec
 * @property {'flag' | 'text' | 'texts' | 'number' | 'integer'} type `texts` may be given several times
 * @property {string} help one line
 * @property {string} [value] what stands for the value in the help, `N`
 * @property {readonly string[]} [choices] the only values allowed
 * @property {number} [min] smallest number allowed
 * @property {number} [max] largest number allowed
 */
/** @typedef {Record<string, OptionSpec>} Specs */
/**
 * @template {Specs} S
 * @typedef {{ [K in keyof S]?: S[K]['type'] extends 'flag' ? boolean : S[K]['type'] extends 'texts' ? string[]
 *   : S[K]['type'] extends 'text' ? string : number }} Values
 */

/**
 * @template {Specs} S
 * @param {readonly string[]} argv
 * @param {S} specs
 * @param {{ positionals?: number }} [settings] how many free arguments are allowed (none unless told)
 * @returns {{ values: Values<S>, positionals: string[] }}
 */
export function parseOptions(argv, specs, { positionals: allowed = 0 } = {}) {
  /** @type {Record<string, boolean | string | number | string[]>} */
  const values = {};
  /** @type {string[]} */
  const positionals = [];
  for (let i = 0; i < argv.length; i++) {
    const argument = /** @type {string} */ (argv[i]);
    if (!argument.startsWith('--') || argument === '--') {
      if (argument !== '--') positionals.push(argument);
      continue;
    }
    const equals = argument.indexOf('=');
    const name = argument.slice(2, equals < 0 ? undefined : equals);
    const spec = Object.hasOwn(specs, name) ? specs[name] : undefined;
    if (!spec) throw unknownOption(name, Object.keys(specs));
    if (spec.type === 'flag') {
      if (equals >= 0) throw new Failure('invalid_option', `--${name} takes no value.`);
      values[name] = true;
      continue;
    }
    const text = equals >= 0 ? argument.slice(equals + 1) : argv[++i];
    if (text === undefined) throw new Failure('invalid_option', `--${name} needs a value.`);
    if (spec.type === 'texts') values[name] = [.../** @type {string[]} */ (values[name] ?? []), text];
    else if (Object.hasOwn(values, name)) throw new Failure('invalid_option', `--${name} is given twice.`);
    else values[name] = readValue(name, spec, text);
  }
  if (positionals.length > allowed) {
    throw new Failure('invalid_option', `Unexpected argument ${JSON.stringify(positionals[allowed])}; options start with --.`);
  }
  return { values: /** @type {Values<S>} */ (values), positionals };
}

/** @param {string} name @param {OptionSpec} spec @param {string} text */
function readValue(name, spec, text) {
  if (spec.type === 'text') {
    if (spec.choices && !spec.choices.includes(text)) {
      throw new Failure('invalid_option', `--${name} is one of ${spec.choices.join(', ')}; found ${JSON.stringify(text)}.`);
    }
    return text;
  }
  const number = text.trim() === '' ? NaN : Number(text);
  const { min = -Infinity, max = Infinity } = spec;
  if (!Number.isFinite(number) || (spec.type === 'integer' && !Number.isSafeInteger(number)) || number < min || number > max) {
    const kind = spec.type === 'integer' ? 'a whole number' : 'a number';
    const range = [min > -Infinity ? `at least ${min}` : '', max < Infinity ? `at most ${max}` : ''].filter(Boolean).join(', ');
    throw new Failure('invalid_option', `--${name} needs ${kind}${range && ` (${range})`}; found ${JSON.stringify(text)}.`);
  }
  return number;
}

/** @param {string} name @param {readonly string[]} known */
function unknownOption(name, known) {
  const near = nearest(name, known);
  const hint = near ? `did you mean --${near}?` : `known: ${known.map((option) => `--${option}`).join(', ')}.`;
  return new Failure('invalid_option', `Unknown option --${name}; ${hint}`);
}

/**
 * The known name closest to a mistyped one, if any is close.
 * @param {string} name @param {readonly string[]} known
 */
export function nearest(name, known) {
  const plain = (/** @type {string} */ s) => s.toLowerCase().replaceAll(/[^a-z0-9]/g, '');
  const ranked = known
    .map((option) => ({ option, distance: editDistance(plain(name), plain(option)) }))
    .sort((a, b) => a.distance - b.distance);
  const best = ranked[0];
  return best && best.distance <= Math.max(1, Math.floor(best.option.length / 3)) ? best.option : undefined;
}

/** Levenshtein distance. @param {string} a @param {string} b */
function editDistance(a, b) {
  let row = Array.from({ length: b.length + 1 }, (_, j) => j);
  for (let i = 1; i <= a.length; i++) {
    const next = [i];
    for (let j = 1; j <= b.length; j++) {
      const substitution = Number(row[j - 1]) + (a[i - 1] === b[j - 1] ? 0 : 1);
      next[j] = Math.min(substitution, Number(row[j]) + 1, Number(next[j - 1]) + 1);
    }
    row = next;
  }
  return Number(row[b.length]);
}

/**
 * The list of options as help text.
 * @param {string} usage @param {Specs} specs
 */
export function helpText(usage, specs) {
  const rows = Object.entries(specs).map(([name, spec]) => {
    const value = spec.type === 'flag' ? '' : ` ${spec.choices?.join('|') ?? spec.value ?? 'VALUE'}`;
    return /** @type {const} */ ([`--${name}${value}${spec.type === 'texts' ? ' …' : ''}`, spec.help]);
  });
  const width = Math.max(...rows.map(([left]) => left.length));
  return [usage, '', ...rows.map(([left, help]) => `  ${left.padEnd(width)}  ${help}`)].join('\n');
}
