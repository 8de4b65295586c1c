import { inverse } from "./model.js";
const STEPS_MAX = 200;
/** Moves of one drag are one step. */
const SAME_STEP_MS = 700;
export class History {
    steps = [];
    /** Remembers an edit before it is made. Edits with the same key in a row become one step. */
    record(before, patch, key, now) {
        const last = this.steps.at(-1);
        if (last !== undefined && key !== "" && last.key === key && now - last.at < SAME_STEP_MS) {
            last.at = now;
            return;
        }
        this.steps.push({ undo: inverse(before, patch), key, at: now });
        if (this.steps.length > STEPS_MAX)
            this.steps.shift();
    }
    get isEmpty() {
        return this.steps.length === 0;
    }
    /** The patch that takes the last step back. */
    pop() {
        return this.steps.pop()?.undo;
    }
}
