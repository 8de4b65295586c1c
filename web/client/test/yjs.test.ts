/** Y.Docs tied to documents, over real sockets. */
import assert from "node:assert/strict";
import { afterEach, beforeEach, test } from "node:test";
import * as Y from "yjs";

import type { ByteChange, ByteDocument, ConnectOptions, SynclineError } from "../src/index.js";
import { bindYjs, type YjsBinding } from "../src/yjs.js";
import { first, reaches, SocketRouter } from "./socket-router.js";

let router: SocketRouter;
beforeEach(async () => {
  router = await SocketRouter.start();
});
afterEach(async () => {
  await router.stop();
});

const LIMIT = { timeout: 15_000 };

interface Editor {
  document: ByteDocument;
  ydoc: Y.Doc;
  text: Y.Text;
  binding: YjsBinding;
}

function edit(ydoc = new Y.Doc(), options: ConnectOptions = {}): Editor {
  const document = router.connect(options).document("notes", { kind: "yjs" });
  return { document, ydoc, text: ydoc.getText("t"), binding: bindYjs(document, ydoc, Y) };
}

async function reads(editor: Editor, wanted: string): Promise<void> {
  if (String(editor.text) === wanted) return;
  await first<unknown>(
    (listener) => {
      editor.ydoc.on("update", listener);
      return () => editor.ydoc.off("update", listener);
    },
    () => String(editor.text) === wanted,
  );
}

function stored(): string {
  const ydoc = new Y.Doc();
  for (const { mutation } of router.tiny.document("notes").log) Y.applyUpdate(ydoc, Buffer.from(mutation as string, "base64"));
  return String(ydoc.getText("t"));
}

test("two editors see one text", LIMIT, async () => {
  const [ann, bob] = [edit(), edit()];
  ann.text.insert(0, "hello");
  await reads(bob, "hello");
  bob.text.insert(5, " world");
  await reads(ann, "hello world");
  await Promise.all([ann.document.flush(), bob.document.flush()]);
  assert.equal(stored(), "hello world");
  assert.equal(router.tiny.document("notes").log.length, 2);
});

test("edits made while the router is away come together", LIMIT, async () => {
  const [ann, bob] = [edit(), edit()];
  ann.text.insert(0, "-");
  await Promise.all([reads(bob, "-"), ann.document.flush()]);
  await router.kill();
  ann.text.insert(0, "a");
  bob.text.insert(1, "b");
  await router.listen();
  await Promise.all([reads(ann, "a-b"), reads(bob, "a-b"), ann.document.flush(), bob.document.flush()]);
  assert.equal(stored(), "a-b");
});

test("what a Y.Doc held before is sent, also what it had deleted", LIMIT, async () => {
  const first = edit();
  first.text.insert(0, "abc");
  await first.document.flush();
  const copy = new Y.Doc();
  Y.applyUpdate(copy, Y.encodeStateAsUpdate(first.ydoc));
  copy.getText("t").delete(1, 1);
  const second = edit(copy);
  await reads(first, "ac");
  await second.document.flush();
  assert.equal(stored(), "ac");
});

test("a state that says nothing new is not answered", LIMIT, async () => {
  const ann = edit();
  ann.text.insert(0, "abc");
  ann.text.delete(1, 1);
  await ann.document.flush();
  const before = router.tiny.document("notes").log.length;
  ann.document.reload();
  await reaches(ann.document, "connecting");
  await reaches(ann.document, "live");
  assert.equal(ann.document.unsavedCount, 0);
  assert.equal(router.tiny.document("notes").log.length, before);
});

test("a document that is live already fills the Y.Doc", LIMIT, async () => {
  const ann = edit();
  ann.text.insert(0, "abc");
  await ann.document.flush();
  const document = router.connect().document("notes", { kind: "yjs" });
  await reaches(document, "live");
  const ydoc = new Y.Doc();
  const late: Editor = { document, ydoc, text: ydoc.getText("t"), binding: bindYjs(document, ydoc, Y) };
  await reads(late, "abc");
});

test("what there was no room for is made up for", LIMIT, async () => {
  const ann = edit(new Y.Doc(), { sendLimits: { count: 1 } });
  const errors: SynclineError[] = [];
  ann.document.on("error", (error) => errors.push(error));
  await reaches(ann.document, "live");
  for (const letter of "abc") ann.text.insert(ann.text.length, letter);
  assert.equal(errors[0]?.code, "limit");
  const bob = edit();
  await reads(bob, "abc");
  assert.equal(stored(), "abc");
});

test("once untied neither hears of the other", LIMIT, async () => {
  const [ann, bob] = [edit(), edit()];
  ann.text.insert(0, "a");
  await reads(bob, "a");
  bob.binding.destroy();
  bob.text.insert(1, "b");
  assert.equal(bob.document.unsavedCount, 0);
  const update = first<ByteChange>((listener) => bob.document.on("update", listener));
  ann.text.insert(1, "c");
  assert.equal((await update).origin, "remote");
  assert.equal(String(bob.text), "ab");
});
