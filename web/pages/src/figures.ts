/** Numbers as people read them, and what they say about health. */
export interface DocumentLine {
  readonly name: string;
  readonly kind: string;
  readonly head: number;
  readonly first: number;
  readonly snapshot_seq: number;
  readonly state_bytes: number;
  readonly kept_updates: number;
  readonly readers: number;
  readonly lag_ms: number;
  readonly evicted: number;
}

export interface Overview {
  readonly now_ms: number;
  readonly open: number;
  readonly connections: number;
  readonly counters: Readonly<Record<string, number>>;
  readonly documents: readonly DocumentLine[];
}

export interface Place {
  readonly connection: number;
  readonly client: string;
  readonly acked: number;
  readonly sent: number;
  readonly lag_ms: number;
  readonly acknowledges: boolean;
  readonly is_away: boolean;
}

export interface Details extends DocumentLine {
  readonly incarnation: string;
  readonly relative_lag_ms: number;
  readonly connections: readonly Place[];
}

export type Health = "good" | "warn" | "bad" | "away";

/** Behind by a third of what is allowed is worth a look, by two thirds is close to eviction. */
export function healthOf(place: Place, relativeLagMs: number): Health {
  if (place.is_away) return "away";
  if (place.lag_ms > (relativeLagMs * 2) / 3) return "bad";
  return place.lag_ms > relativeLagMs / 3 ? "warn" : "good";
}

export const HEALTH_WORDS: Record<Health, string> = {
  good: "keeps up",
  warn: "behind",
  bad: "far behind",
  away: "away, place kept",
};

export function bytes(count: number): string {
  if (count < 1000) return `${count} B`;
  const units = ["kB", "MB", "GB", "TB"];
  let value = count;
  let unit = -1;
  while (value >= 999.5 && unit < units.length - 1) {
    value /= 1000;
    unit += 1;
  }
  return `${value.toFixed(value < 10 ? 1 : 0)} ${units[unit]}`;
}

export function duration(ms: number): string {
  if (ms < 1000) return `${Math.round(ms)} ms`;
  if (ms < 60_000) return `${(ms / 1000).toFixed(1)} s`;
  return `${Math.floor(ms / 60_000)} min ${Math.round((ms % 60_000) / 1000)} s`;
}

/** Events a second between two looks; a router that was started anew counts from zero. */
export function rate(before: Overview | null, now: Overview, counter: string): number {
  const elapsed = before === null ? 0 : now.now_ms - before.now_ms;
  if (before === null || elapsed <= 0) return 0;
  const grown = (now.counters[counter] ?? 0) - (before.counters[counter] ?? 0);
  return Math.max(0, (grown * 1000) / elapsed);
}

export function sparkline(values: readonly number[], width: number, height: number): string {
  if (values.length < 2) return "";
  const highest = Math.max(1, ...values);
  const step = width / (values.length - 1);
  return values
    .map((value, index) => {
      const y = height - 1 - (value / highest) * (height - 2);
      return `${index === 0 ? "M" : "L"}${(index * step).toFixed(1)} ${y.toFixed(1)}`;
    })
    .join("");
}
