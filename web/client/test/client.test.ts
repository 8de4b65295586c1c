/** The public face over real sockets, against a tiny router. */
import assert from "node:assert/strict";
import { afterEach, beforeEach, describe, test } from "node:test";

import {
  connect,
  ClosedError,
  InvalidArgumentError,
  LimitError,
  RefusedError,
  type Client,
  type Json,
  type JsonChange,
  type JsonDocument,
  type SynclineError,
  type WebSocketConstructor,
} from "../src/index.js";
import { first, NodeSocket, reaches, SocketRouter } from "./socket-router.js";

let router: SocketRouter;
beforeEach(async () => {
  router = await SocketRouter.start();
});
afterEach(async () => {
  await router.stop();
});

function changed(document: JsonDocument, isWanted: (change: JsonChange) => boolean): Promise<JsonChange> {
  return first((listener) => document.on("change", listener), isWanted);
}

async function live(client: Client, name = "plan"): Promise<JsonDocument> {
  const document = client.document(name);
  await reaches(document, "live");
  return document;
}

const LIMIT = { timeout: 60_000 };

describe("editing together", LIMIT, () => {
  test("a change is saved and reaches the other", async () => {
    const [ann, bob] = [await live(router.connect()), await live(router.connect())];
    const arrived = changed(bob, ({ origin }) => origin === "remote");
    const change = ann.change({ nodes: { a: { x: 1 } } });
    assert.deepEqual(ann.state, { nodes: { a: { x: 1 } } });
    assert.deepEqual(await change.saved, { clock: 1, seq: 1 });
    const { patch, client, seq, state } = await arrived;
    assert.deepEqual({ patch, seq, state }, { patch: { nodes: { a: { x: 1 } } }, seq: 1, state: { nodes: { a: { x: 1 } } } });
    assert.equal(client, router.tiny.document("plan").log[0]?.client);
    assert.equal(ann.unsavedCount, 0);
  });

  test("nothing that was changed is lost when the router is killed", async () => {
    const [ann, bob] = [await live(router.connect()), await live(router.connect())];
    router.tiny.isStuck = true;
    const changes = [1, 2, 3].map((x) => ann.change({ [`n${x}`]: x }));
    await router.kill();
    const later = ann.change({ n4: 4 });
    router.tiny.isStuck = false;
    await router.listen();
    await Promise.all([...changes, later].map(({ saved }) => saved));
    await ann.flush();
    const all = { n1: 1, n2: 2, n3: 3, n4: 4 };
    assert.deepEqual(router.tiny.document("plan").state, all);
    assert.deepEqual(router.tiny.document("plan").log.map(({ clock }) => clock), [1, 2, 3, 4]);
    if (bob.seq < 4) await changed(bob, ({ seq }) => seq === 4);
    assert.deepEqual(bob.state, all);
  });

  test("a refused change is undone and its promise says why", async () => {
    const ann = await live(router.connect());
    await ann.change({ a: 1 }).saved;
    router.tiny.refuse = (mutation) => ("bad" in (mutation as object) ? "invalid_mutation" : null);
    const errors: SynclineError[] = [];
    ann.on("error", (error) => errors.push(error));
    const bad = ann.change({ a: 2, bad: true });
    const good = ann.change({ b: 2 });
    await assert.rejects(bad.saved, (error) => error instanceof RefusedError && error.code === "invalid_mutation" && error.clock === 2);
    await good.saved;
    assert.deepEqual(ann.state, { a: 1, b: 2 });
    assert.deepEqual(errors.map(({ code }) => code), ["invalid_mutation"]);
  });

  test("a receipt that lets somebody else's change show is told as a change", async () => {
    const ann = router.connect({ client: "ann" });
    const document = await live(ann);
    router.tiny.isStuck = true;
    document.change({ a: "mine" });
    router.tiny.isStuck = false;
    const { log } = router.tiny.document("plan");
    log.push({ seq: 1, client: "ann", clock: 1, mutation: { a: "mine" } }, { seq: 2, client: "bob", clock: 1, mutation: { a: "later" } });
    const seen = changed(document, ({ state }) => (state as { a: string }).a === "later");
    document.reload();
    assert.deepEqual((await seen).patch, null);
  });

  test("presence comes, changes and goes", async () => {
    const [ann, bob] = [router.connect({ client: "ann" }), router.connect({ client: "bob" })];
    const there = await live(ann);
    there.setPresence({ cursor: 1 });
    const here = bob.document("plan");
    const presence = (wanted: Json): Promise<unknown> =>
      first(
        (listener: (map: ReadonlyMap<string, Json>) => void) => here.on("presence", listener),
        (map) => JSON.stringify([...map]) === JSON.stringify(wanted),
      );
    await presence([["ann", { cursor: 1 }]]);
    there.setPresence({ cursor: 2 });
    await presence([["ann", { cursor: 2 }]]);
    ann.close();
    await presence([]);
  });

  test("a document that was closed hears nothing, and goes on when opened again", async () => {
    const [ann, bob] = [router.connect(), await live(router.connect())];
    const once = await live(ann);
    const heard: unknown[] = [];
    once.on("change", (change) => heard.push(change));
    once.close();
    assert.equal(once.status, "closed");
    assert.throws(() => once.change({ a: 1 }), ClosedError);
    await bob.change({ b: 1 }).saved;
    const again = ann.document("plan");
    assert.notEqual(again, once);
    await reaches(again, "live");
    assert.deepEqual(again.state, { b: 1 });
    assert.deepEqual(heard, []);
    assert.deepEqual(await again.change({ c: 1 }).saved, { clock: 1, seq: 2 });
  });

  test("closed and opened in a listener are two documents", async () => {
    const ann = router.connect();
    const old = ann.document("plan");
    const fresh = await new Promise<JsonDocument>((resolve) => {
      old.on("status", ({ status }) => {
        if (status !== "live") return;
        old.close();
        resolve(ann.document("plan"));
      });
    });
    await reaches(fresh, "live");
    assert.equal(old.status, "closed");
    assert.equal(fresh.isClosed, false);
  });

  test("what is unsaved when the document closes is said so", async () => {
    const ann = router.connect();
    const document = await live(ann);
    router.tiny.isStuck = true;
    const { saved } = document.change({ a: 1 });
    const flushed = document.flush();
    document.close();
    await assert.rejects(saved, ClosedError);
    await assert.rejects(flushed, ClosedError);
  });

  test("updates of bytes are handed on, the state as all of them", async () => {
    const [ann, bob] = [router.connect(), router.connect()];
    const there = ann.document("blob", { kind: "bytes" });
    await there.send(new Uint8Array([0, 255])).saved;
    const here = bob.document("blob", { kind: "bytes" });
    const updates = here.changes();
    assert.deepEqual((await updates.next()).value, { origin: "state", seq: 1, client: null, updates: [new Uint8Array([0, 255])] });
    await there.send(new Uint8Array([1])).saved;
    assert.deepEqual((await updates.next()).value, { origin: "remote", seq: 2, client: ann.id, updates: [new Uint8Array([1])] });
    bob.close();
    assert.deepEqual(await updates.next(), { done: true, value: undefined });
  });
});

describe("reading changes one by one", LIMIT, () => {
  test("a loop gets every change in order and ends with the document", async () => {
    const ann = await live(router.connect());
    const bob = await live(router.connect());
    const seen: unknown[] = [];
    const reading = (async () => {
      for await (const { origin, patch } of ann.changes()) {
        seen.push([origin, patch]);
        if (seen.length === 3) ann.close();
      }
    })();
    ann.change({ a: 1 });
    await ann.flush();
    await bob.change({ b: 2 }).saved;
    await bob.change({ c: 3 }).saved;
    await reading;
    assert.deepEqual(seen, [["local", { a: 1 }], ["remote", { b: 2 }], ["remote", { c: 3 }]]);
  });

  test("a reader that falls behind is told", async () => {
    const ann = await live(router.connect());
    const unread = ann.changes({ unreadMax: 2 });
    for (const x of [1, 2, 3]) ann.change({ x });
    await assert.rejects(unread.next(), LimitError);
    assert.equal((await unread.next()).done, true);
  });

  test("a loop that is left takes nothing with it", async () => {
    const ann = await live(router.connect());
    ann.change({ a: 1 });
    const left = ann.changes({ unreadMax: 1 });
    ann.change({ b: 1 });
    for await (const change of left) {
      assert.deepEqual(change.patch, { b: 1 });
      break;
    }
    for (const x of [1, 2, 3]) ann.change({ x });
    assert.equal((await left.next()).done, true);
  });
});

describe("the connection", LIMIT, () => {
  test("a client that finds nobody is offline, and comes back when asked", async () => {
    await router.kill();
    const client = router.connect({ maxAttempts: 2 });
    const document = client.document("plan");
    await reaches(client, "offline");
    assert.equal(document.status, "offline");
    const { saved } = document.change({ a: 1 });
    await router.listen();
    client.goOnline();
    assert.equal((await saved).seq, 1);
    assert.equal(client.status, "live");
  });

  test("the second connection with an id displaces the first, which stays away", async () => {
    const one = router.connect({ client: "same" });
    await reaches(one, "live");
    const displaced = first<SynclineError>((listener) => one.on("error", listener));
    const two = router.connect({ client: "same" });
    assert.equal((await displaced).code, "displaced");
    assert.equal(one.status, "closed");
    const document = await live(two);
    await document.change({ a: 1 }).saved;
    assert.deepEqual([one.status, two.status, router.tiny.peers.size], ["closed", "live", 1]);
  });

  test("a token is fetched for each connection and renewed in between", async () => {
    let count = 0;
    const client = router.connect({ client: "ann", token: () => Promise.resolve(`token-${(count += 1)}`) });
    await live(client);
    await client.renewToken();
    await client.document("plan").change({ a: 1 }).saved;
    const tokens = router.tiny.peer("ann").received.flatMap((message) => ("token" in message ? [[message.type, message.token]] : []));
    assert.deepEqual(tokens, [["hello", "token-1"], ["token", "token-2"]]);
    router.cut();
    await reaches(client, "connecting");
    await reaches(client, "live");
    const [hello] = router.tiny.peer("ann").received;
    assert.equal(hello?.type === "hello" && hello.token, "token-3");
  });

  test("a token that cannot be fetched is a failed attempt", async () => {
    const client = router.connect({ maxAttempts: 2, token: () => Promise.reject(new Error("no")) });
    const codes: string[] = [];
    client.on("error", ({ code }) => codes.push(code));
    await reaches(client, "offline");
    assert.deepEqual(codes, ["token", "token"]);
  });

  for (const [what, frame] of [
    ["no JSON", "{"],
    ["a binary frame", new Uint8Array([1])],
    ["an unknown type", '{"type": "surprise"}'],
    ["a field of the wrong type", '{"type": "evicted", "document": "plan", "epoch": "1", "seq": 1}'],
    ["a message that is nested too deeply", `{"type": "pong", "x": ${"[".repeat(2000)}${"]".repeat(2000)}}`],
  ] as const) {
    test(`${what} ends the connection, and the next one works`, async () => {
      const client = router.connect();
      const document = await live(client);
      const error = first<SynclineError>((listener) => client.on("error", listener));
      router.shout(frame);
      assert.equal((await error).code, "malformed");
      await reaches(client, "live");
      assert.equal((await document.change({ a: 1 }).saved).seq, 1);
    });
  }

  test("a listener that throws stops nobody", async (context) => {
    const ann = await live(router.connect());
    const thrown: unknown[] = [];
    context.mock.method(globalThis, "queueMicrotask", (callback: () => void) => {
      assert.throws(callback, /the listener's own/);
      thrown.push(callback);
    });
    ann.on("change", () => {
      throw new Error("the listener's own");
    });
    const heard: unknown[] = [];
    ann.on("change", ({ patch }) => heard.push(patch));
    const { saved } = ann.change({ a: 1 });
    assert.deepEqual(await saved, { clock: 1, seq: 1 });
    assert.deepEqual([heard, thrown.length], [[{ a: 1 }], 1]);
  });

  test("changes made in a listener come after the one it was told", async () => {
    const ann = await live(router.connect());
    ann.on("change", ({ patch }) => {
      if (patch?.["x"] === 1) ann.change({ x: 2 });
    });
    const seen: unknown[] = [];
    ann.on("change", ({ patch }) => seen.push(patch));
    ann.change({ x: 1 });
    await ann.flush();
    assert.deepEqual(seen, [{ x: 1 }, { x: 2 }]);
    assert.deepEqual(router.tiny.document("plan").log.map(({ mutation }) => mutation), [{ x: 1 }, { x: 2 }]);
  });

  test("a document that the router ended can be opened again", async () => {
    const client = router.connect();
    const ended = await live(client);
    router.shout('{"type": "unsubscribed", "document": "plan", "epoch": 1, "code": "deleted", "message": "gone", "retriable": false}');
    await reaches(ended, "closed");
    assert.throws(() => ended.change({ a: 1 }), ClosedError);
    const again = client.document("plan");
    assert.equal((await again.change({ a: 2 }).saved).seq, 1);
    assert.equal(ended.status, "closed");
  });

  test("a token that comes after the client was closed opens nothing", async () => {
    let give: (token: string) => void = () => undefined;
    let socketCount = 0;
    class Counted extends (NodeSocket as new (url: string, protocols: string[]) => object) {
      constructor(url: string, protocols: string[]) {
        super(url, protocols);
        socketCount += 1;
      }
    }
    const token = new Promise<string>((resolve) => {
      give = resolve;
    });
    const client = router.connect({ WebSocket: Counted as unknown as WebSocketConstructor, token: () => token });
    client.close();
    give("late");
    await token;
    await new Promise(setImmediate);
    assert.equal(socketCount, 0);
    router.connect({ WebSocket: Counted as unknown as WebSocketConstructor });
    await new Promise(setImmediate);
    assert.equal(socketCount, 1);
  });

  test("a closed client opens nothing and comes back for nobody", async () => {
    const client = router.connect();
    const document = await live(client);
    client.close();
    assert.deepEqual([client.status, document.status], ["closed", "closed"]);
    assert.throws(() => client.document("other"), ClosedError);
    assert.throws(() => client.goOnline(), ClosedError);
  });
});

describe("bad input is refused before it changes anything", LIMIT, () => {
  const cyclic: Record<string, unknown> = {};
  cyclic["self"] = cyclic;
  const cases: [string, unknown, typeof InvalidArgumentError | typeof LimitError][] = [
    ["undefined", { a: undefined }, InvalidArgumentError],
    ["NaN", { a: { b: Number.NaN } }, InvalidArgumentError],
    ["infinity", { a: [Number.POSITIVE_INFINITY] }, InvalidArgumentError],
    ["a function", { a: () => 1 }, InvalidArgumentError],
    ["a big integer", { a: 1n }, InvalidArgumentError],
    ["a date", { a: new Date(0) }, InvalidArgumentError],
    ["a map", new Map(), InvalidArgumentError],
    ["a list as a patch", [1], InvalidArgumentError],
    ["null as a patch", null, InvalidArgumentError],
    ["half of a surrogate pair", { a: "\ud83d" }, InvalidArgumentError],
    ["half of a surrogate pair as a name", { "\ude00": 1 }, InvalidArgumentError],
    ["a cycle", cyclic, LimitError],
    ["more than a frame takes", { a: "x".repeat(1024 * 1024) }, LimitError],
  ];
  for (const [what, patch, kind] of cases) {
    test(what, async () => {
      const ann = await live(router.connect());
      assert.throws(() => ann.change(patch as object), kind);
      assert.deepEqual([ann.state, ann.unsavedCount], [{}, 0]);
      assert.deepEqual(await ann.change({ fine: "\ud83d\ude00" }).saved, { clock: 1, seq: 1 });
    });
  }

  test("more unsent work than there is room for", () => {
    const client = connect("ws://127.0.0.1:9/sync", { WebSocket: NodeSocket, sendLimits: { count: 2 } });
    const document = client.document("plan");
    document.change({ a: 1 });
    document.change({ a: 2 });
    assert.throws(() => document.change({ a: 3 }), LimitError);
    assert.deepEqual(document.state, { a: 2 });
    client.close();
  });

  test("names, ids and addresses", () => {
    const options = { WebSocket: NodeSocket };
    assert.throws(() => connect("http://127.0.0.1/sync", options), InvalidArgumentError);
    assert.throws(() => connect("nonsense", options), InvalidArgumentError);
    assert.throws(() => connect("ws://127.0.0.1:9/sync", { ...options, client: "a b" }), InvalidArgumentError);
    const client = router.connect();
    for (const name of ["", "a\n", "é".repeat(101)]) assert.throws(() => client.document(name), InvalidArgumentError);
    client.document("é".repeat(100));
    client.document("blob", { kind: "bytes" });
    assert.throws(() => client.document("blob"), InvalidArgumentError);
    assert.equal(client.document("blob", { kind: "bytes" }), client.document("blob", { kind: "bytes" }));
  });

  test("a platform without WebSocket is told what to do", { skip: "WebSocket" in globalThis && "this Node has one" }, () => {
    assert.throws(() => connect("ws://127.0.0.1:9/sync"), /hand one in as the option `WebSocket`/);
  });

  test("nobody can change a state or a patch from outside", async () => {
    const ann = await live(router.connect());
    const patch = { nodes: { a: { x: 1 } }, list: [{ y: 1 }] };
    const wanted = structuredClone(patch);
    ann.change(patch);
    patch.nodes.a.x = 2;
    const state = ann.state as typeof patch;
    for (const part of [state, state.nodes, state.nodes.a, state.list, state.list[0]]) assert.ok(Object.isFrozen(part));
    await ann.flush();
    assert.deepEqual(ann.state, wanted);
    assert.deepEqual(router.tiny.document("plan").state, wanted);
  });

  test("a presence that is too large", async () => {
    router.tiny.limits = { presence_bytes: 10 };
    const ann = await live(router.connect({ client: "ann" }));
    assert.throws(() => ann.setPresence("more than ten"), LimitError);
    ann.setPresence("ten");
    await ann.change({ a: 1 }).saved;
    assert.deepEqual([...router.tiny.document("plan").presence], [["ann", "ten"]]);
  });

  test("a change that this router has no room for is refused here", async () => {
    router.tiny.limits = { frame_bytes: 4096 };
    const client = router.connect();
    const early = client.document("plan").change({ a: "x".repeat(3000) });
    const next = client.document("plan").change({ b: 1 });
    await assert.rejects(early.saved, (error) => error instanceof RefusedError && error.code === "limit");
    await next.saved;
    assert.deepEqual(client.document("plan").state, { b: 1 });
    assert.equal(client.status, "live");
  });
});
