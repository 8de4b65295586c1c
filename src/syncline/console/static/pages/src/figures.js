/** Behind by a third of what is allowed is worth a look, by two thirds is close to eviction. */
export function healthOf(place, relativeLagMs) {
    if (place.is_away)
        return "away";
    if (place.lag_ms > (relativeLagMs * 2) / 3)
        return "bad";
    return place.lag_ms > relativeLagMs / 3 ? "warn" : "good";
}
export const HEALTH_WORDS = {
    good: "keeps up",
    warn: "behind",
    bad: "far behind",
    away: "away, place kept",
};
export function bytes(count) {
    if (count < 1000)
        return `${count} B`;
    const units = ["kB", "MB", "GB", "TB"];
    let value = count;
    let unit = -1;
    while (value >= 999.5 && unit < units.length - 1) {
        value /= 1000;
        unit += 1;
    }
    return `${value.toFixed(value < 10 ? 1 : 0)} ${units[unit]}`;
}
export function duration(ms) {
    if (ms < 1000)
        return `${Math.round(ms)} ms`;
    if (ms < 60_000)
        return `${(ms / 1000).toFixed(1)} s`;
    return `${Math.floor(ms / 60_000)} min ${Math.round((ms % 60_000) / 1000)} s`;
}
/** Events a second between two looks; a router that was started anew counts from zero. */
export function rate(before, now, counter) {
    const elapsed = before === null ? 0 : now.now_ms - before.now_ms;
    if (before === null || elapsed <= 0)
        return 0;
    const grown = (now.counters[counter] ?? 0) - (before.counters[counter] ?? 0);
    return Math.max(0, (grown * 1000) / elapsed);
}
export function sparkline(values, width, height) {
    if (values.length < 2)
        return "";
    const highest = Math.max(1, ...values);
    const step = width / (values.length - 1);
    return values
        .map((value, index) => {
        const y = height - 1 - (value / highest) * (height - 2);
        return `${index === 0 ? "M" : "L"}${(index * step).toFixed(1)} ${y.toFixed(1)}`;
    })
        .join("");
}
