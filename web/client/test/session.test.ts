/** What the session does with time, beside the scenarios: heartbeats, silence and attempts that hang. */
import assert from "node:assert/strict";
import { test } from "node:test";

import { Session, type Action } from "../src/session.js";

const HEARTBEAT_MS = 20_000;

function makeSession(): Session {
  const session = new Session({ client: "me", policy: "clean", attemptsMax: 3, holdBackMax: 10, random: () => 1 });
  session.start(0);
  session.take();
  return session;
}

function welcomed(version = 1): Session {
  const session = makeSession();
  session.opened(null, 0);
  session.received({ type: "welcome", session: "s", version, limits: {}, heartbeat_ms: HEARTBEAT_MS, restored: [] }, 0);
  return session;
}

const said = (actions: Action[]): unknown[] =>
  actions.flatMap((action) => (action.type === "send" ? [action.message.type] : action.type === "hangUp" ? [action.type] : []));

test("a silent router is asked, and left when it does not answer", () => {
  const session = welcomed();
  session.take();
  assert.equal(session.dueAt, HEARTBEAT_MS);
  session.wake(HEARTBEAT_MS - 1);
  assert.deepEqual(said(session.take()), []);
  session.wake(HEARTBEAT_MS);
  assert.deepEqual(said(session.take()), ["ping"]);
  session.wake(2 * HEARTBEAT_MS - 1);
  assert.deepEqual(said(session.take()), []);
  session.wake(2 * HEARTBEAT_MS);
  assert.deepEqual(said(session.take()), ["hangUp"]);
  assert.equal(session.status, "connecting");
  session.wake(2 * HEARTBEAT_MS + 250);
  assert.equal(session.isDialing, true);
});

test("anything heard counts as an answer", () => {
  const session = welcomed();
  session.wake(HEARTBEAT_MS);
  session.take();
  session.received({ type: "pong" }, HEARTBEAT_MS + 5);
  session.wake(2 * HEARTBEAT_MS);
  assert.deepEqual(said(session.take()), []);
  assert.equal(session.dueAt, 2 * HEARTBEAT_MS + 5);
});

test("a page that slept asks before it gives up", () => {
  const session = welcomed();
  session.take();
  session.wake(100 * HEARTBEAT_MS);
  assert.deepEqual(said(session.take()), ["ping"]);
  assert.equal(session.dueAt, 101 * HEARTBEAT_MS);
});

test("an attempt that hangs is given up", () => {
  const session = makeSession();
  session.wake(session.dueAt);
  assert.deepEqual(said(session.take()), ["hangUp"]);
  assert.equal(session.isDialing, false);
  assert.equal(session.dueAt, 15_000 + 250);
});

test("a router that does not answer hello is given up", () => {
  const session = makeSession();
  session.opened(null, 14_000);
  assert.deepEqual(said(session.take()), ["hello"]);
  session.wake(15_000);
  assert.deepEqual(said(session.take()), ["hangUp"]);
});

test("a router of another version is left for good", () => {
  const session = welcomed(2);
  const actions = session.take();
  assert.deepEqual(said(actions), ["hello", "hangUp"]);
  assert.equal(session.status, "closed");
  assert.equal(session.dueAt, Infinity);
  assert.deepEqual(actions.flatMap((action) => (action.type === "error" ? [action.error.code] : [])), ["version"]);
});

test("waits are shortened by chance, by a half at most", () => {
  for (const [chance, wait] of [[0, 125], [0.5, 187.5], [1, 250]] as const) {
    const session = new Session({ client: "me", policy: "clean", attemptsMax: 3, holdBackMax: 10, random: () => chance });
    session.start(0);
    session.closed(1006, "", 0);
    assert.equal(session.dueAt, wait);
  }
});

test("what is said for the first time is one failed attempt", () => {
  const session = new Session({ client: "me", policy: "clean", attemptsMax: 2, holdBackMax: 10, random: () => 1 });
  session.start(0);
  session.closed(1006, "", 0);
  session.wake(250);
  session.opened(null, 250);
  session.received({ type: "welcome", session: "s", version: 1, limits: {}, heartbeat_ms: 0, restored: [] }, 250);
  session.closed(4400, "malformed: no", 250 + 10_000);
  assert.equal(session.status, "connecting");
  assert.equal(session.dueAt, 250 + 10_000 + 250);
});

test("a token is shown in hello and handed over later, and not kept", () => {
  const session = makeSession();
  session.opened("secret", 0);
  const [hello] = session.take();
  assert.deepEqual(hello, { type: "send", message: { type: "hello", client: "me", version: 1, policy: "clean", token: "secret" } });
  session.renewToken("before welcome there is nobody to give it to");
  assert.deepEqual(session.take(), []);
  assert.ok(!JSON.stringify(session).includes("secret"));
});

test("a gap again and again is not asked about in haste", () => {
  const session = makeSession();
  const replica = session.open("plan", "json");
  session.opened(null, 0);
  session.received({ type: "welcome", session: "s", version: 1, limits: {}, heartbeat_ms: 0, restored: [] }, 0);
  const waits = [0, 500, 1000];
  let now = 0;
  for (const [index, wait] of waits.entries()) {
    const epoch = index + 1;
    const common = { document: "plan", epoch, seq: 5 };
    session.received({ type: "subscribed", ...common, incarnation: "i", resumed: false, may_write: true, clock: 0 }, now);
    session.received({ type: "state", ...common, state: {} }, now);
    session.take();
    session.received({ type: "mutation", ...common, seq: 9, client: "you", clock: 1, mutation: {} }, now);
    assert.equal(replica.status, "connecting");
    if (wait > 0) {
      assert.deepEqual(said(session.take()), []);
      now += wait;
      session.wake(now);
    }
    assert.deepEqual(said(session.take()), ["subscribe"]);
  }
});

const welcome = (restored: string[] = []) =>
  ({ type: "welcome", session: "s", version: 1, limits: {}, heartbeat_ms: 0, restored }) as const;
const subscribed = (epoch: number) =>
  ({ type: "subscribed", document: "plan", epoch, incarnation: "i", seq: 0, resumed: false, may_write: true, clock: 0 }) as const;
const failure = (code: string, retriable: boolean) =>
  ({ type: "error", code, message: "no", retriable, document: "plan" }) as const;

test("an answer that comes after a document was closed is not taken for the one that the next opening waits for", () => {
  for (const code of ["superseded", "forbidden"]) {
    const session = makeSession();
    session.opened(null, 0);
    session.received(welcome(), 0);
    session.open("plan", "json");
    session.close("plan");
    session.received(failure(code, code === "superseded"), 0);
    const replica = session.open("plan", "json");
    session.received(subscribed(1), 0);
    session.received({ type: "state", document: "plan", epoch: 1, seq: 0, state: {} }, 0);
    assert.equal(replica.status, "live");
    assert.deepEqual(session.take().filter((action) => action.type === "error"), []);
  }
});

test("a restored subscription that fails is told, and asked for again where that may help", () => {
  const make = (code: string, retriable: boolean) => {
    const session = makeSession();
    const replica = session.open("plan", "json");
    session.opened(null, 0);
    session.received(welcome(["plan"]), 0);
    session.take();
    session.received(failure(code, retriable), 0);
    return { session, replica };
  };
  assert.equal(make("unknown_document", false).replica.status, "closed");
  const { session } = make("busy", true);
  session.wake(session.dueAt);
  assert.deepEqual(said(session.take()), ["subscribe"]);
});
