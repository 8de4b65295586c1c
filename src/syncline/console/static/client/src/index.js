/** The client of a Syncline router (docs/formats/sync.md). */
export { Client, connect } from "./client.js";
export { ByteDocument, JsonDocument, } from "./document.js";
export { ClosedError, InvalidArgumentError, LimitError, ProtocolError, RefusedError, StorageError, SynclineError, } from "./errors.js";
export { mergePatch } from "./merge-patch.js";
export { claimClient, webStorage } from "./storage.js";
