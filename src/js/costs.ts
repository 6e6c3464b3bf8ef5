/**
 * What passes cost on this device, remembered with the model, so that a second load does not measure again.
 *
 * A record holds for one version of the package on one adapter, which the core compares, and for a week, so that a measurement taken
 * while the machine was busy is not believed for ever. What is read back may have been cut off or changed: it is checked like any input.
 */
import type { ModelInfo } from './results.js';

/** Costs as the core takes them. */
export interface KnownCosts {
  version: string;
  adapter: string;
  passMs: Record<string, number>;
}

/** What is kept of a model's costs. */
interface CostRecord extends KnownCosts {
  /** Milliseconds since 1970. */
  measuredAt: number;
}

const maxAge = 7 * 24 * 3600 * 1000;

/** The costs of a record, if it is sound and not too old. */
export function readCosts(record: unknown, now: number = Date.now()): KnownCosts | undefined {
  if (typeof record !== 'object' || record === null) return undefined;
  const { version, adapter, passMs, measuredAt } = record as Partial<Record<keyof CostRecord, unknown>>;
  if (typeof version !== 'string' || typeof adapter !== 'string' || typeof measuredAt !== 'number') return undefined;
  if (!(measuredAt <= now && now - measuredAt < maxAge) || typeof passMs !== 'object' || passMs === null) return undefined;
  const isSound = Object.entries(passMs).every(([rows, ms]) => /^[1-9]\d?$/.test(rows) && Number.isFinite(ms) && ms > 0);
  return isSound ? { version, adapter, passMs: { ...(passMs as Record<string, number>) } } : undefined;
}

/** What to keep of a loaded model's costs, or nothing if that is what was known. */
export function newCosts({ version, adapter, passMs }: ModelInfo, known?: KnownCosts, now: number = Date.now()): CostRecord | undefined {
  const costs = { version, adapter: adapter.description, passMs };
  return JSON.stringify(costs) === JSON.stringify(known) ? undefined : { ...costs, measuredAt: now };
}
