import { cut, TONES } from "./model.js";
const NAME_LENGTH_MAX = 24;
export function readPerson(shown) {
    if (typeof shown !== "object" || shown === null)
        return null;
    const { name, tone, x, y } = shown;
    return {
        name: typeof name === "string" ? cut(name, NAME_LENGTH_MAX) : "Somebody",
        tone: typeof tone === "number" ? Math.abs(Math.trunc(tone)) % TONES : 0,
        at: typeof x === "number" && typeof y === "number" ? { x, y } : null,
    };
}
