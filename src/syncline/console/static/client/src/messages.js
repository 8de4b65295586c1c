/**
 * The messages of the sync protocol (docs/formats/sync.md), and the check of what a router sent.
 *
 * Bytes stay base64 text here; documents turn them into bytes at their edge.
 */
import { fromBase64 } from "./base64.js";
import { ProtocolError } from "./errors.js";
import { deepFreeze, isJsonObject } from "./json.js";
export const VERSION = 1;
export const SUBPROTOCOL = "syncline.v1.json";
const OF_EPOCH = { document: "string", epoch: "count" };
const FIELDS = {
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
export function readServerMessage(frame) {
    if (typeof frame !== "string")
        throw new ProtocolError("the router sent a binary frame where JSON was agreed on");
    let value;
    try {
        value = JSON.parse(frame);
    }
    catch {
        throw new ProtocolError("the router sent a frame that is no JSON");
    }
    return checkServerMessage(value);
}
/** The same for a frame that is parsed already. */
export function checkServerMessage(value) {
    const type = isJsonObject(value) ? value["type"] : undefined;
    if (!isJsonObject(value) || typeof type !== "string" || !Object.hasOwn(FIELDS, type)) {
        throw new ProtocolError("the router sent a message of an unknown type");
    }
    for (const [name, wanted] of Object.entries(FIELDS[type])) {
        if (!isOfType(Object.hasOwn(value, name) ? value[name] : undefined, wanted)) {
            throw new ProtocolError(`the router sent a message \`${type}\` whose field \`${name}\` is missing or wrong`);
        }
    }
    return deepFreeze(value);
}
/** Whether the body of a `state` or `mutation` suits the kind of its document. */
export function isBodyOf(kind, body, what) {
    if (kind === "json")
        return what === "state" || isJsonObject(body);
    if (kind === "bytes" && what === "state")
        return Array.isArray(body) && body.every(isBase64);
    return isBase64(body);
}
function isBase64(value) {
    if (typeof value !== "string")
        return false;
    try {
        fromBase64(value);
        return true;
    }
    catch {
        return false;
    }
}
function isOfType(value, wanted) {
    switch (wanted) {
        case "any":
            return value !== undefined;
        case "count":
            return Number.isSafeInteger(value) && value >= 0;
        case "object":
            return isJsonObject(value);
        case "strings":
            return Array.isArray(value) && value.every((part) => typeof part === "string");
        case "string":
        case "boolean":
            return typeof value === wanted;
        default:
            return value === undefined || value === null || isOfType(value, wanted.slice(0, -1));
    }
}
