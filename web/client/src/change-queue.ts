/** An async iterator over what happens, with a bound: a reader that falls behind is told so instead of filling the memory. */
import { LimitError } from "./errors.js";

export class ChangeQueue<T> implements AsyncIterableIterator<T> {
  private readonly waiting: T[] = [];
  private wakeReader: (() => void) | null = null;
  private isEnded = false;
  private error: LimitError | null = null;

  constructor(
    private readonly countMax: number,
    private readonly onEnd: () => void,
  ) {}

  push(item: T): void {
    if (this.isEnded) return;
    if (this.waiting.length >= this.countMax) {
      const advice = "read faster, ask for more room, or begin again with the state";
      this.error = new LimitError("the number of unread changes", this.waiting.length + 1, this.countMax, advice);
      this.waiting.length = 0;
      this.end();
    } else {
      this.waiting.push(item);
    }
    this.wakeReader?.();
  }

  /** What is unread is still handed out. */
  end(): void {
    if (this.isEnded) return;
    this.isEnded = true;
    this.onEnd();
    this.wakeReader?.();
  }

  /** Throws LimitError once if more was unread than there is room for. One reader at a time. */
  async next(): Promise<IteratorResult<T>> {
    while (this.waiting.length === 0 && !this.isEnded) {
      await new Promise<void>((resolve) => {
        this.wakeReader = resolve;
      });
    }
    this.wakeReader = null;
    if (this.waiting.length > 0) return { done: false, value: this.waiting.shift() as T };
    const error = this.error;
    this.error = null;
    if (error !== null) throw error;
    return { done: true, value: undefined };
  }

  return(): Promise<IteratorResult<T>> {
    this.waiting.length = 0;
    this.end();
    return Promise.resolve({ done: true, value: undefined });
  }

  [Symbol.asyncIterator](): this {
    return this;
  }
}
