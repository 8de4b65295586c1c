/**
 * Ties a Y.Doc to a document of kind `yjs`. The functions of Yjs are handed in, so that there is one copy of it
 * in the page:
 *
 *     import * as Y from "yjs";
 *     const binding = bindYjs(client.document("notes", { kind: "yjs" }), ydoc, Y);
 */
import type { ByteDocument } from "./document.js";
import { SynclineError } from "./errors.js";

type UpdateListener = (update: Uint8Array, origin: unknown) => void;

/** As much of a Y.Doc as is used. */
export interface YDocLike {
  on(name: "update", listener: UpdateListener): unknown;
  off(name: "update", listener: UpdateListener): unknown;
  destroy(): void;
}

/** As much of the module `yjs` as is used. */
export interface YModule<Doc extends YDocLike, Snapshot> {
  Doc: new () => Doc;
  applyUpdate(doc: Doc, update: Uint8Array, origin?: unknown): void;
  encodeStateAsUpdate(doc: Doc, stateVector?: Uint8Array): Uint8Array;
  encodeStateVector(doc: Doc): Uint8Array;
  snapshot(doc: Doc): Snapshot;
  equalSnapshots(one: Snapshot, other: Snapshot): boolean;
}

export interface YjsBinding {
  /** Unties the two; neither is closed. */
  destroy(): void;
}

/**
 * From now on every change of `ydoc` is sent, and what others send is applied to it. What it holds already and the
 * router does not have is sent as soon as the router's state is known. What cannot be sent is told as `error` of the
 * document and made up for with the next state.
 */
export function bindYjs<Doc extends YDocLike, Snapshot>(
  document: ByteDocument,
  ydoc: Doc,
  Y: YModule<NoInfer<Doc>, Snapshot>,
): YjsBinding {
  let isBehind = false;
  const send = (update: Uint8Array): void => {
    try {
      document.send(update);
    } catch (error) {
      // The change is in `ydoc` already: whoever made it cannot do anything about it.
      if (!(error instanceof SynclineError)) throw error;
      isBehind = true;
      document.report(error);
    }
  };
  const onLocal: UpdateListener = (update, origin) => {
    if (origin !== binding) send(update);
  };
  const stops = [
    document.on("update", ({ origin, updates }) => {
      for (const update of updates) Y.applyUpdate(ydoc, update, binding);
      const missing = origin === "state" ? missingIn(updates, ydoc, Y) : null;
      if (missing !== null) send(missing);
    }),
    document.on("saved", () => {
      if (!isBehind || document.unsavedCount > 0) return;
      isBehind = false;
      document.reload();
    }),
  ];
  const binding: YjsBinding = {
    destroy: () => {
      ydoc.off("update", onLocal);
      for (const stop of stops) stop();
    },
  };
  ydoc.on("update", onLocal);
  // A state that has been handed out before is not handed out again by itself.
  if (document.seq > 0 || document.status === "live") document.reload();
  return binding;
}

/** What `ydoc` has beyond the updates, or null. */
function missingIn<Doc extends YDocLike, Snapshot>(
  updates: readonly Uint8Array[],
  ydoc: Doc,
  Y: YModule<Doc, Snapshot>,
): Uint8Array | null {
  const known = new Y.Doc();
  try {
    for (const update of updates) Y.applyUpdate(known, update);
    // A snapshot has what was deleted as well, which a state vector does not show.
    if (Y.equalSnapshots(Y.snapshot(known), Y.snapshot(ydoc))) return null;
    return Y.encodeStateAsUpdate(ydoc, Y.encodeStateVector(known));
  } finally {
    known.destroy();
  }
}
