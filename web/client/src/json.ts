/**
 * JSON values that nobody can change.
 *
 * What the application hands in is copied, what it gets to see is frozen, so that the replica alone decides
 * what a document is.
 */
import { InvalidArgumentError, LimitError, ProtocolError } from "./errors.js";

export type Json = null | boolean | number | string | readonly Json[] | JsonObject;
export interface JsonObject {
  readonly [name: string]: Json;
}

/** Objects and lists within one another; a router refuses more. */
export const DEPTH_MAX = 64;

// A half of a surrogate pair has no UTF-8, so no router could read it.
const LONE_SURROGATE = /[\uD800-\uDBFF](?![\uDC00-\uDFFF])|(?<![\uD800-\uDBFF])[\uDC00-\uDFFF]/;

export function isJsonObject(value: unknown): value is JsonObject {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}

/** A frozen copy. Throws InvalidArgumentError with the place of what is no JSON, LimitError if it is too deep. */
export function frozenCopy(value: unknown, place = "the value", depthLeft = DEPTH_MAX): Json {
  switch (typeof value) {
    case "boolean":
      return value;
    case "string":
      return checkedText(value, place);
    case "number":
      if (Number.isFinite(value)) return value;
      throw new InvalidArgumentError(`${place} is ${value}, which JSON does not have; use null or a text`);
    case "object":
      break;
    default:
      throw new InvalidArgumentError(
        `${place} is ${typeof value === "undefined" ? "undefined" : `a ${typeof value}`}, which JSON does not have; ` +
          "use null or leave it out",
      );
  }
  if (value === null) return null;
  if (depthLeft === 0) {
    throw new LimitError("the depth of a JSON value", DEPTH_MAX + 1, DEPTH_MAX, "make it flatter");
  }
  if (Array.isArray(value)) {
    return Object.freeze(value.map((part, index) => frozenCopy(part, `${place}[${index}]`, depthLeft - 1)));
  }
  const prototype: unknown = Object.getPrototypeOf(value);
  if (prototype !== null && Object.getPrototypeOf(prototype) !== null) {
    throw new InvalidArgumentError(`${place} is an instance of a class; hand in plain objects`);
  }
  const copy: Record<string, Json> = {};
  for (const [name, part] of Object.entries(value)) {
    setName(copy, checkedText(name, `a name in ${place}`), frozenCopy(part, `${place}.${name}`, depthLeft - 1));
  }
  return Object.freeze(copy);
}

// Far above what a router takes in, far below what a stack can take.
const READ_DEPTH_MAX = 1000;

/** Freezes what was just parsed and belongs to nobody else. */
export function deepFreeze(value: Json, depthLeft = READ_DEPTH_MAX): Json {
  if (typeof value !== "object" || value === null) return value;
  if (depthLeft === 0) throw new ProtocolError("the router sent a message that is nested too deeply");
  for (const part of Object.values(value)) deepFreeze(part, depthLeft - 1);
  return Object.freeze(value);
}

/** Sets a name as JSON means it: `__proto__` is a name like any other. */
export function setName(object: Record<string, Json>, name: string, value: Json): void {
  if (name === "__proto__") {
    Object.defineProperty(object, name, { value, configurable: true, enumerable: true, writable: true });
  } else {
    object[name] = value;
  }
}

export function utf8Length(text: string): number {
  return encoder.encode(text).length;
}

const encoder = new TextEncoder();

function checkedText(text: string, place: string): string {
  if (LONE_SURROGATE.test(text)) {
    throw new InvalidArgumentError(`${place} has half of a surrogate pair; cut texts between whole characters`);
  }
  return text;
}
