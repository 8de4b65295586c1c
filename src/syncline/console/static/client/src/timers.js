/** A longer wait overflows the timers of browsers and Node, and would end at once. */
export const TIMER_MS_MAX = 2 ** 31 - 1;
export const SYSTEM_TIMERS = {
    now: () => performance.now(),
    setTimeout: (callback, ms) => setTimeout(callback, ms),
    clearTimeout: (timer) => clearTimeout(timer),
};
