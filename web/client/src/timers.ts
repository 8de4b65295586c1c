/** Time, to be replaced in tests. */
export interface Timers {
  /** Milliseconds since some moment; never goes back. */
  now(): number;
  setTimeout(callback: () => void, ms: number): unknown;
  clearTimeout(timer: unknown): void;
}

/** A longer wait overflows the timers of browsers and Node, and would end at once. */
export const TIMER_MS_MAX = 2 ** 31 - 1;

export const SYSTEM_TIMERS: Timers = {
  now: () => performance.now(),
  setTimeout: (callback, ms) => setTimeout(callback, ms),
  clearTimeout: (timer) => clearTimeout(timer as ReturnType<typeof setTimeout>),
};
