/** Unsent work across a reload. */
import assert from "node:assert/strict";
import { afterEach, beforeEach, test } from "node:test";

import { claimClient, webStorage, type ClientStorage, type Locks, type SynclineError, type WebStorageArea } from "../src/index.js";
import { reaches, SocketRouter } from "./socket-router.js";

class MemoryArea implements WebStorageArea {
  readonly items = new Map<string, string>();
  isFull = false;

  getItem(key: string): string | null {
    return this.items.get(key) ?? null;
  }

  setItem(key: string, value: string): void {
    if (this.isFull) throw new Error("the quota is used up");
    this.items.set(key, value);
  }

  removeItem(key: string): void {
    this.items.delete(key);
  }
}

let router: SocketRouter;
let area: MemoryArea;
let storage: ClientStorage;
beforeEach(async () => {
  router = await SocketRouter.start();
  area = new MemoryArea();
  storage = webStorage(area);
});
afterEach(async () => {
  await router.stop();
});

const LIMIT = { timeout: 15_000 };

/** A page that edits while nobody answers, and is left. */
async function leaveUnsent(): Promise<string> {
  router.tiny.isStuck = true;
  const client = router.connect({ storage });
  const document = client.document("a/b é");
  await reaches(document, "live");
  document.change({ a: 1 });
  document.change({ b: 2 });
  client.close();
  router.tiny.isStuck = false;
  return client.id;
}

test("unsent work is there after a reload, and is sent once", LIMIT, async () => {
  const id = await leaveUnsent();
  const client = router.connect({ storage });
  assert.equal(client.id, id);
  const document = client.document("a/b é");
  assert.deepEqual(document.state, { a: 1, b: 2 });
  document.change({ c: 3 });
  await document.flush();
  assert.deepEqual(router.tiny.document("a/b é").log.map(({ client: by, clock, mutation }) => [by, clock, mutation]), [
    [id, 1, { a: 1 }],
    [id, 2, { b: 2 }],
    [id, 3, { c: 3 }],
  ]);
  const left = [...area.items.keys()].filter((key) => /\/\d+$/.test(key));
  assert.deepEqual(left, []);
});

test("what reached the router before the reload is not stored again", LIMIT, async () => {
  const id = await leaveUnsent();
  router.tiny.document("a/b é").log.push({ seq: 1, client: id, clock: 1, mutation: { a: 1 } });
  const document = router.connect({ storage }).document("a/b é");
  await document.flush();
  assert.deepEqual(router.tiny.document("a/b é").log.map(({ clock }) => clock), [1, 2]);
  assert.deepEqual(document.state, { a: 1, b: 2 });
});

test("clocks go on after a reload though nothing is unsent", LIMIT, async () => {
  const before = router.connect({ storage });
  await before.document("plan").change({ a: 1 }).saved;
  before.close();
  const { saved } = router.connect({ storage }).document("plan").change({ b: 2 });
  assert.deepEqual(await saved, { clock: 2, seq: 2 });
});

test("a damaged entry costs that entry and is reported", LIMIT, async () => {
  const id = await leaveUnsent();
  area.items.set(`syncline/${id}/a%2Fb%20%C3%A9/1`, "{");
  const client = router.connect({ storage });
  const codes: string[] = [];
  client.on("error", ({ code }) => codes.push(code));
  const document = client.document("a/b é");
  assert.deepEqual([codes, document.state], [["storage"], { b: 2 }]);
  await document.flush();
});

test("a damaged range is reported, and nothing is made of it", LIMIT, async () => {
  const id = await leaveUnsent();
  for (const range of ["{", '{"first": "x", "last": 1}', '{"first": 1, "last": 1e300}', "null"]) {
    area.items.set(`syncline/${id}/a%2Fb%20%C3%A9`, range);
    const client = router.connect({ storage });
    const errors: SynclineError[] = [];
    client.on("error", (error) => errors.push(error));
    const document = client.document("a/b é");
    assert.deepEqual([errors.map(({ code }) => code), document.unsavedCount], [["storage"], 0], range);
    client.close();
  }
});

test("a full storage is reported and stops nothing", LIMIT, async () => {
  const client = router.connect({ storage });
  const codes: string[] = [];
  client.on("error", ({ code }) => codes.push(code));
  area.isFull = true;
  const { saved } = client.document("plan").change({ a: 1 });
  assert.equal((await saved).seq, 1);
  assert.ok(codes.length > 0 && codes.every((code) => code === "storage"));
});

/** Locks that a page lets go when it is left. */
class FakeLocks implements Locks {
  readonly held = new Set<string>();

  async request(name: string, _: { ifAvailable: true }, callback: (lock: object | null) => Promise<void>): Promise<void> {
    if (this.held.has(name)) return callback(null);
    this.held.add(name);
    await callback({ name });
  }
}

test("tabs of one storage have ids of their own, and a closed tab's is taken over", async () => {
  const locks = new FakeLocks();
  const [one, two] = [await claimClient(storage, locks), await claimClient(storage, locks)];
  assert.notEqual(one, two);
  locks.held.delete(`syncline/${one}`);
  assert.equal(await claimClient(storage, locks), one);
  assert.match(one, /^[0-9a-f]{32}$/);
});
