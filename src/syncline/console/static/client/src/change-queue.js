/** An async iterator over what happens, with a bound: a reader that falls behind is told so instead of filling the memory. */
import { LimitError } from "./errors.js";
export class ChangeQueue {
    countMax;
    onEnd;
    waiting = [];
    wakeReader = null;
    isEnded = false;
    error = null;
    constructor(countMax, onEnd) {
        this.countMax = countMax;
        this.onEnd = onEnd;
    }
    push(item) {
        if (this.isEnded)
            return;
        if (this.waiting.length >= this.countMax) {
            const advice = "read faster, ask for more room, or begin again with the state";
            this.error = new LimitError("the number of unread changes", this.waiting.length + 1, this.countMax, advice);
            this.waiting.length = 0;
            this.end();
        }
        else {
            this.waiting.push(item);
        }
        this.wakeReader?.();
    }
    /** What is unread is still handed out. */
    end() {
        if (this.isEnded)
            return;
        this.isEnded = true;
        this.onEnd();
        this.wakeReader?.();
    }
    /** Throws LimitError once if more was unread than there is room for. One reader at a time. */
    async next() {
        while (this.waiting.length === 0 && !this.isEnded) {
            await new Promise((resolve) => {
                this.wakeReader = resolve;
            });
        }
        this.wakeReader = null;
        if (this.waiting.length > 0)
            return { done: false, value: this.waiting.shift() };
        const error = this.error;
        this.error = null;
        if (error !== null)
            throw error;
        return { done: true, value: undefined };
    }
    return() {
        this.waiting.length = 0;
        this.end();
        return Promise.resolve({ done: true, value: undefined });
    }
    [Symbol.asyncIterator]() {
        return this;
    }
}
