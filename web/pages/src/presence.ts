/** What others show of themselves. Any program may show anything, so nothing of it is taken for granted. */
import type { Json } from "../../client/src/index.js";
import type { Identity } from "./identity.js";
import { cut, TONES } from "./model.js";

const NAME_LENGTH_MAX = 24;

export interface Person extends Identity {
  readonly at: { readonly x: number; readonly y: number } | null;
}

export function readPerson(shown: Json): Person | null {
  if (typeof shown !== "object" || shown === null) return null;
  const { name, tone, x, y } = shown as Record<string, Json | undefined>;
  return {
    name: typeof name === "string" ? cut(name, NAME_LENGTH_MAX) : "Somebody",
    tone: typeof tone === "number" ? Math.abs(Math.trunc(tone)) % TONES : 0,
    at: typeof x === "number" && typeof y === "number" ? { x, y } : null,
  };
}
