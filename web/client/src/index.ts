/** The client of a Syncline router (docs/formats/sync.md). */
export { Client, connect, type ClientEvents, type ConnectOptions } from "./client.js";
export type { WebSocketConstructor, WebSocketLike } from "./connection.js";
export {
  ByteDocument,
  JsonDocument,
  type ByteChange,
  type ByteDocumentEvents,
  type DocumentEvents,
  type JsonChange,
  type JsonDocumentEvents,
  type PendingChange,
  type Saved,
  type StatusChange,
} from "./document.js";
export {
  ClosedError,
  InvalidArgumentError,
  LimitError,
  ProtocolError,
  RefusedError,
  StorageError,
  SynclineError,
} from "./errors.js";
export type { Json, JsonObject } from "./json.js";
export { mergePatch } from "./merge-patch.js";
export type { Kind, Policy } from "./messages.js";
export type { Status } from "./replica.js";
export type { SendLimits } from "./send-buffer.js";
export type { SessionStatus } from "./session.js";
export { claimClient, webStorage, type ClientStorage, type Locks, type WebStorageArea } from "./storage.js";
export type { Timers } from "./timers.js";
export type { Token, TokenSource } from "./token.js";
