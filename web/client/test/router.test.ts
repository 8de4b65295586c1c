/**
 * The client against a router that runs: set SYNCLINE_URL to the address of its `/sync`, and SYNCLINE_TOKEN if it
 * wants one. Documents have names of chance, so that one router serves any number of runs.
 */
import assert from "node:assert/strict";
import { randomUUID } from "node:crypto";
import { afterEach, describe, test } from "node:test";
import { WebSocket } from "ws";
import * as Y from "yjs";

import { connect, type ByteChange, type Client, type ConnectOptions, type Json, type JsonChange, type JsonDocument, type Policy } from "../src/index.js";
import type { WebSocketConstructor } from "../src/index.js";
import { bindYjs } from "../src/yjs.js";
import { first, reaches } from "./socket-router.js";

const URL_OF_ROUTER = process.env["SYNCLINE_URL"];
const TOKEN = process.env["SYNCLINE_TOKEN"];

/** A client whose connection can be cut, and that comes back soon. */
class Cuttable {
  readonly client: Client;
  private socket: WebSocket | null = null;

  constructor(options: ConnectOptions = {}) {
    const remember = (socket: WebSocket): void => {
      this.socket = socket;
    };
    class Remembered extends WebSocket {
      constructor(url: string, protocols: string[]) {
        super(url, protocols);
        remember(this);
      }
    }
    this.client = connect(URL_OF_ROUTER as string, {
      WebSocket: Remembered as unknown as WebSocketConstructor,
      random: () => 0,
      ...(TOKEN === undefined ? {} : { token: TOKEN }),
      ...options,
    });
  }

  cut(): void {
    this.socket?.terminate();
  }
}

let open: Cuttable[] = [];
function start(options: ConnectOptions = {}): Cuttable {
  const one = new Cuttable(options);
  open.push(one);
  return one;
}

function changed(document: JsonDocument, isWanted: (change: JsonChange) => boolean): Promise<JsonChange> {
  return first((listener) => document.on("change", listener), isWanted);
}

async function catchesUp(document: JsonDocument, seq: number): Promise<void> {
  if (document.seq < seq) await changed(document, () => document.seq >= seq);
}

const name = (): string => `test-${randomUUID()}`;

describe("against a router", { skip: URL_OF_ROUTER === undefined && "SYNCLINE_URL is not set", timeout: 60_000 }, () => {
  afterEach(() => {
    for (const { client } of open) client.close();
    open = [];
  });

  test("a new document is empty, a change is saved and reaches the other", async () => {
    const plan = name();
    const [ann, bob] = [start().client, start().client];
    const [there, here] = [ann.document(plan), bob.document(plan)];
    await Promise.all([reaches(there, "live"), reaches(here, "live")]);
    assert.deepEqual([there.state, there.seq], [{}, 0]);
    const arrived = changed(here, ({ origin }) => origin === "remote");
    assert.deepEqual(await there.change({ nodes: { a: { x: 1 } } }).saved, { clock: 1, seq: 1 });
    const { patch, seq, client } = await arrived;
    assert.deepEqual({ patch, seq, client }, { patch: { nodes: { a: { x: 1 } } }, seq: 1, client: ann.id });
  });

  test("a late joiner gets the state, then what follows", async () => {
    const plan = name();
    const there = start().client.document(plan);
    await there.change({ a: 1, b: { c: 1 } }).saved;
    await there.change({ b: { c: null, d: 2 } }).saved;
    const here = start().client.document(plan);
    await reaches(here, "live");
    assert.deepEqual([here.state, here.seq], [{ a: 1, b: { d: 2 } }, 2]);
    await there.change({ a: 3 }).saved;
    await catchesUp(here, 3);
    assert.deepEqual(here.state, { a: 3, b: { d: 2 } });
  });

  test("many changes of two clients end in one state, each stored once", async () => {
    const plan = name();
    const documents = [start().client.document(plan), start().client.document(plan)];
    for (let x = 0; x < 100; x += 1) for (const document of documents) document.change({ last: x, [`n${x % 7}`]: { x } });
    await Promise.all(documents.map((document) => document.flush()));
    await Promise.all(documents.map((document) => catchesUp(document, 200)));
    assert.deepEqual(documents.map(({ seq }) => seq), [200, 200]);
    assert.deepEqual(documents[0]?.state, documents[1]?.state);
  });

  for (const policy of ["clean", "intent", "resume"] satisfies Policy[]) {
    test(`a cut connection loses nothing, policy ${policy}`, async () => {
      const plan = name();
      const ann = start({ policy });
      const bob = start({ policy });
      const [there, here] = [ann.client.document(plan), bob.client.document(plan)];
      await Promise.all([reaches(there, "live"), reaches(here, "live")]);
      for (let x = 1; x <= 30; x += 1) {
        there.change({ [`a${x}`]: x });
        here.change({ [`b${x}`]: x });
        if (x % 10 === 5) ann.cut();
        if (x % 10 === 0) bob.cut();
        await Promise.race([there.flush(), here.flush()]);
      }
      await Promise.all([there.flush(), here.flush()]);
      await Promise.all([catchesUp(there, 60), catchesUp(here, 60)]);
      await Promise.all([reaches(there, "live"), reaches(here, "live")]);
      assert.deepEqual([there.seq, here.seq], [60, 60]);
      assert.deepEqual(there.state, here.state);
      assert.equal(Object.keys(there.state as object).length, 60);
    });
  }

  test("who left a document hears nothing of it", async () => {
    const plan = name();
    const [ann, bob] = [start().client, start().client];
    const [there, here] = [ann.document(plan), bob.document(plan)];
    const other = bob.document(name());
    await Promise.all([there, here, other].map((document) => reaches(document, "live")));
    const heard: unknown[] = [];
    here.on("change", (change) => heard.push(change));
    here.close();
    await there.change({ a: 1 }).saved;
    await other.change({ b: 1 }).saved;
    assert.deepEqual(heard, []);
    const again = bob.document(plan);
    await reaches(again, "live");
    assert.deepEqual(again.state, { a: 1 });
  });

  test("presence comes and goes", async () => {
    const plan = name();
    const [ann, bob] = [start().client, start().client];
    const [there, here] = [ann.document(plan), bob.document(plan)];
    await Promise.all([reaches(there, "live"), reaches(here, "live")]);
    const presence = (wanted: Json): Promise<unknown> =>
      first(
        (listener: (map: ReadonlyMap<string, Json>) => void) => here.on("presence", listener),
        (map) => JSON.stringify([...map]) === JSON.stringify(wanted),
      );
    const came = presence([[ann.id, { cursor: [1, 2] }]]);
    there.setPresence({ cursor: [1, 2] });
    await came;
    const went = presence([]);
    ann.close();
    await went;
  });

  test("bytes arrive as they were sent", async () => {
    const blob = name();
    const there = start().client.document(blob, { kind: "bytes" });
    await there.send(new Uint8Array([0, 1, 254, 255])).saved;
    const here = start().client.document(blob, { kind: "bytes" });
    const state = await first<ByteChange>((listener) => here.on("update", listener));
    assert.deepEqual(state, { origin: "state", seq: 1, client: null, updates: [new Uint8Array([0, 1, 254, 255])] });
  });

  test("two Y.Docs come together, over a cut too", async () => {
    const notes = name();
    const [ann, bob] = [start(), start()];
    const [there, here] = [new Y.Doc(), new Y.Doc()];
    bindYjs(ann.client.document(notes, { kind: "yjs" }), there, Y);
    bindYjs(bob.client.document(notes, { kind: "yjs" }), here, Y);
    const full = first<unknown>(
      (listener) => {
        here.on("update", listener);
        return () => here.off("update", listener);
      },
      () => here.getText("t").length === 10,
    );
    for (let x = 0; x < 10; x += 1) {
      there.getText("t").insert(x, String(x));
      if (x === 4) ann.cut();
    }
    await full;
    assert.equal(String(here.getText("t")), "0123456789");
  });

  test("a document of another kind is refused", async () => {
    const plan = name();
    await start().client.document(plan).change({ a: 1 }).saved;
    const wrong = start().client.document(plan, { kind: "bytes" });
    await reaches(wrong, "closed");
    assert.equal(wrong.isClosed, true);
  });

  test("a second connection with the same id displaces the first", async () => {
    const id = `test-${randomUUID()}`;
    const one = start({ client: id }).client;
    await reaches(one, "live");
    const two = start({ client: id }).client;
    await reaches(one, "closed");
    await two.document(name()).change({ a: 1 }).saved;
    assert.deepEqual([one.status, two.status], ["closed", "live"]);
  });
});
