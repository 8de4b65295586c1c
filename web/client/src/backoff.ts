/** How long to wait before the next attempt. */

const FIRST_MS = 250;
const MOST_MS = 30_000;

/**
 * `min(30 s, 0.25 s * 2^n)`, of which up to a half is taken off by chance, so that clients which lost the
 * same router do not all come back in the same moment. `random` gives 0 to 1; with 1 nothing is taken off.
 */
export function waitMs(n: number, random: () => number): number {
  const whole = Math.min(MOST_MS, FIRST_MS * 2 ** Math.min(n, 30));
  return whole * (0.5 + 0.5 * random());
}
