/**
 * The nearest known name to a misspelt one, for error messages.
 */

/**
 * The known name that takes the fewest edits to reach from `name`, letter case aside, or `undefined` when even that one has less than
 * half of the name in common.
 */
export function nearestName(name: string, known: readonly string[]): string | undefined {
  let nearest: string | undefined;
  let fewest = Infinity;
  const wanted = plain(name);
  for (const candidate of known) {
    const other = plain(candidate);
    const edits = editDistance(wanted, other);
    if (edits < fewest && edits <= Math.max(wanted.length, other.length) / 2) {
      nearest = candidate;
      fewest = edits;
    }
  }
  return nearest;
}

/** `max_tokens`, `max-tokens` and `maxTokens` are the same name with other conventions, so they are compared without them. */
function plain(name: string): string {
  return name.toLowerCase().replace(/[^a-z0-9]/g, '');
}

/** Levenshtein distance, one row of the table at a time. */
function editDistance(from: string, to: string): number {
  let row = Array.from({ length: to.length + 1 }, (_, column) => column);
  for (let i = 1; i <= from.length; i++) {
    const next = [i];
    for (let j = 1; j <= to.length; j++) {
      const substitution = (row[j - 1] ?? 0) + (from[i - 1] === to[j - 1] ? 0 : 1);
      next.push(Math.min(substitution, (row[j] ?? 0) + 1, (next[j - 1] ?? 0) + 1));
    }
    row = next;
  }
  return row[to.length] ?? 0;
}
