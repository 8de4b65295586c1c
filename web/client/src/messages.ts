/**
 * The messages of the sync protocol (docs/formats/sync.md), and the check of what a router sent.
 *
 * Bytes stay base64 text here; documents turn them into bytes at their edge.
 */
import { fromBase64 } from "./base64.js";
import { ProtocolError } from "./errors.js";
import { deepFreeze, isJsonObject, type Json, type JsonObject } from "./json.js";

export const VERSION = 1;
export const SUBPROTOCOL = "syncline.v1.json";

export type Kind = "json" | "yjs" | "bytes";
export type Policy = "clean" | "intent" | "resume";

export type ClientMessage =
  | { type: "hello"; client: string; version: number; policy: Policy; token?: string }
  | { type: "subscribe"; document: string; kind: Kind; from?: { incarnation: string; seq: number } }
  | { type: "unsubscribe"; document: string; epoch?: number }
  | { type: "mutation"; document: string; epoch: number; clock: number; mutation: Json }
  | { type: "ack"; document: string; epoch: number; seq: number }
  | { type: "presence"; document: string; epoch: number; state: Json }
  | { type: "ping" }
  | { type: "token"; token: string };

export interface Welcome {
  type: "welcome";
  session: string;
  version: number;
  limits: JsonObject;
  heartbeat_ms: number;
  restored: readonly string[];
}
export interface Subscribed {
  type: "subscribed";
  document: string;
  epoch: number;
  incarnation: string;
  seq: number;
  resumed: boolean;
  may_write: boolean;
  clock: number;
}
export interface State {
  type: "state";
  document: string;
  epoch: number;
  seq: number;
  state: Json;
}
export interface Mutation {
  type: "mutation";
  document: string;
  epoch: number;
  seq: number;
  client: string;
  clock: number;
  mutation: Json;
}
export interface Receipt {
  type: "ack";
  document: string;
  epoch: number;
  clock: number;
  seq: number;
}
export interface PresenceStates {
  type: "presence";
  document: string;
  epoch: number;
  states: JsonObject;
}
export interface Unsubscribed {
  type: "unsubscribed";
  document: string;
  epoch: number;
  code?: string | null;
  message?: string | null;
  retriable?: boolean | null;
}
export interface Evicted {
  type: "evicted";
  document: string;
  epoch: number;
  seq: number;
}
export interface Failure {
  type: "error";
  code: string;
  message: string;
  retriable: boolean;
  document?: string | null;
  clock?: number | null;
}
export interface Pong {
  type: "pong";
}

/** What belongs to one subscription and is ignored in another. */
export type OfEpoch = State | Mutation | Receipt | PresenceStates | Unsubscribed | Evicted;
export type ServerMessage = Welcome | Subscribed | OfEpoch | Failure | Pong;

type FieldType = "string" | "count" | "boolean" | "object" | "strings" | "any";
type Fields = Readonly<Record<string, FieldType | `${FieldType}?`>>;

const OF_EPOCH: Fields = { document: "string", epoch: "count" };
const FIELDS: Readonly<Record<ServerMessage["type"], Fields>> = {
  welcome: { session: "string", version: "count", limits: "object", heartbeat_ms: "count", restored: "strings" },
  subscribed: {
    ...OF_EPOCH,
    incarnation: "string",
    seq: "count",
    resumed: "boolean",
    may_write: "boolean",
    clock: "count",
  },
  state: { ...OF_EPOCH, seq: "count", state: "any" },
  mutation: { ...OF_EPOCH, seq: "count", client: "string", clock: "count", mutation: "any" },
  ack: { ...OF_EPOCH, clock: "count", seq: "count" },
  presence: { ...OF_EPOCH, states: "object" },
  unsubscribed: { ...OF_EPOCH, code: "string?", message: "string?", retriable: "boolean?" },
  evicted: { ...OF_EPOCH, seq: "count" },
  error: { code: "string", message: "string", retriable: "boolean", document: "string?", clock: "count?" },
  pong: {},
};

/** Reads one frame of a router; throws ProtocolError if it is no message of this protocol. */
export function readServerMessage(frame: unknown): ServerMessage {
  if (typeof frame !== "string") throw new ProtocolError("the router sent a binary frame where JSON was agreed on");
  let value: Json;
  try {
    value = JSON.parse(frame) as Json;
  } catch {
    throw new ProtocolError("the router sent a frame that is no JSON");
  }
  return checkServerMessage(value);
}

/** The same for a frame that is parsed already. */
export function checkServerMessage(value: Json): ServerMessage {
  const type = isJsonObject(value) ? value["type"] : undefined;
  if (!isJsonObject(value) || typeof type !== "string" || !Object.hasOwn(FIELDS, type)) {
    throw new ProtocolError("the router sent a message of an unknown type");
  }
  for (const [name, wanted] of Object.entries(FIELDS[type as ServerMessage["type"]])) {
    if (!isOfType(Object.hasOwn(value, name) ? value[name] : undefined, wanted)) {
      throw new ProtocolError(`the router sent a message \`${type}\` whose field \`${name}\` is missing or wrong`);
    }
  }
  return deepFreeze(value) as unknown as ServerMessage;
}

/** Whether the body of a `state` or `mutation` suits the kind of its document. */
export function isBodyOf(kind: Kind, body: Json, what: "state" | "mutation"): boolean {
  if (kind === "json") return what === "state" || isJsonObject(body);
  if (kind === "bytes" && what === "state") return Array.isArray(body) && body.every(isBase64);
  return isBase64(body);
}

function isBase64(value: Json): boolean {
  if (typeof value !== "string") return false;
  try {
    fromBase64(value);
    return true;
  } catch {
    return false;
  }
}

function isOfType(value: Json | undefined, wanted: Fields[string]): boolean {
  switch (wanted) {
    case "any":
      return value !== undefined;
    case "count":
      return Number.isSafeInteger(value) && (value as number) >= 0;
    case "object":
      return isJsonObject(value);
    case "strings":
      return Array.isArray(value) && value.every((part) => typeof part === "string");
    case "string":
    case "boolean":
      return typeof value === wanted;
    default:
      return value === undefined || value === null || isOfType(value, wanted.slice(0, -1) as FieldType);
  }
}
