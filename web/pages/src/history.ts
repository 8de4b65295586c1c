/** Takes back own edits, one after the other, and nobody else's. */
import type { Json, JsonObject } from "../../client/src/index.js";
import { inverse } from "./model.js";

const STEPS_MAX = 200;
/** Moves of one drag are one step. */
const SAME_STEP_MS = 700;

interface Step {
  undo: JsonObject;
  key: string;
  at: number;
}

export class History {
  private readonly steps: Step[] = [];

  /** Remembers an edit before it is made. Edits with the same key in a row become one step. */
  record(before: Json | undefined, patch: JsonObject, key: string, now: number): void {
    const last = this.steps.at(-1);
    if (last !== undefined && key !== "" && last.key === key && now - last.at < SAME_STEP_MS) {
      last.at = now;
      return;
    }
    this.steps.push({ undo: inverse(before, patch), key, at: now });
    if (this.steps.length > STEPS_MAX) this.steps.shift();
  }

  get isEmpty(): boolean {
    return this.steps.length === 0;
  }

  /** The patch that takes the last step back. */
  pop(): JsonObject | undefined {
    return this.steps.pop()?.undo;
  }
}
