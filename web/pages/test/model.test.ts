import assert from "node:assert/strict";
import { test } from "node:test";
import { mergePatch, type Json } from "../../client/src/index.js";
import { bytes, duration, healthOf, rate, sparkline, type Overview } from "../src/figures.js";
import { History } from "../src/history.js";
import { identityOf } from "../src/identity.js";
import * as model from "../src/model.js";
import { readPerson } from "../src/presence.js";

const state: Json = {
  nodes: { a: { x: 1, y: 2, label: "A", tone: 0 }, b: { x: 5, y: 6, label: "B", tone: 1 } },
  edges: { e: { from: "a", to: "b" }, dangling: { from: "a", to: "gone" } },
};

test("whatever is stored can be read", () => {
  for (const odd of [undefined, null, 7, [], "x", { nodes: 3 }, { nodes: { a: null, b: "?" } }, { edges: { e: {} } }]) {
    const { nodes, edges } = model.readDiagram(odd as Json);
    for (const node of nodes.values()) assert.equal(typeof node.label, "string");
    assert.equal(edges.size, 0);
  }
  assert.deepEqual([...model.readDiagram(state).edges.keys()], ["e"]);
});

test("with a node go its edges", () => {
  const after = mergePatch(state, model.removeNode("a", model.readDiagram(state)));
  assert.deepEqual([...model.readDiagram(after).nodes.keys()], ["b"]);
  assert.equal(model.readDiagram(after).edges.size, 0);
});

test("an edit and its inverse leave what was there", () => {
  const patches = [
    model.addNode("c", { x: 0, y: 0, label: "C", tone: 2 }),
    model.moveNode("a", 9.4, 8),
    model.labelNode("b", "new"),
    model.toneNode("b", 5),
    model.removeNode("a", model.readDiagram(state)),
    model.addEdge("f", "b", "a"),
    model.removeEdge("e"),
  ];
  for (const patch of patches) {
    assert.deepEqual(mergePatch(mergePatch(state, patch), model.inverse(state, patch)), state);
  }
});

test("taking back the first box leaves what others have added since", () => {
  const patch = model.addNode("mine", { x: 0, y: 0, label: "", tone: 0 });
  const undo = model.inverse({}, patch);
  const theirs = mergePatch(mergePatch({}, patch), model.addNode("theirs", { x: 1, y: 1, label: "", tone: 0 }));
  assert.deepEqual([...model.readDiagram(mergePatch(theirs, undo)).nodes.keys()], ["theirs"]);
});

test("the moves of one drag are one step back", () => {
  const history = new History();
  let now: Json = state;
  for (const [x, at] of [[10, 0], [20, 100], [30, 200]] as const) {
    const patch = model.moveNode("a", x, 0);
    history.record(now, patch, "move a", at);
    now = mergePatch(now, patch);
  }
  assert.deepEqual(mergePatch(now, history.pop()!), state);
  assert.ok(history.isEmpty);
});

test("a name belongs to a client", () => {
  assert.deepEqual(identityOf("abc"), identityOf("abc"));
  assert.match(identityOf("x").name, /^[A-Z][a-z]+ [A-Z][a-z]+$/);
});

test("numbers as people read them", () => {
  assert.deepEqual([0, 999, 1000, 15_400, 999_600, 2_500_000].map(bytes), ["0 B", "999 B", "1.0 kB", "15 kB", "1.0 MB", "2.5 MB"]);
  assert.deepEqual([12, 1500, 61_000].map(duration), ["12 ms", "1.5 s", "1 min 1 s"]);
});

test("health follows the lag", () => {
  const place = { connection: 1, client: "a", acked: 0, sent: 0, acknowledges: true, is_away: false };
  assert.deepEqual([0, 10_001, 20_001].map((lag_ms) => healthOf({ ...place, lag_ms }, 30_000)), ["good", "warn", "bad"]);
  assert.equal(healthOf({ ...place, lag_ms: 0, is_away: true }, 30_000), "away");
});

test("a rate is what came between two looks", () => {
  const at = (now_ms: number, count: number): Overview => ({ now_ms, open: 0, connections: 0, counters: { n: count }, documents: [] });
  assert.equal(rate(null, at(0, 5), "n"), 0);
  assert.equal(rate(at(0, 5), at(2000, 25), "n"), 10);
  assert.equal(rate(at(0, 50), at(2000, 3), "n"), 0);
  assert.equal(sparkline([0, 1], 10, 10), "M0.0 9.0L10.0 1.0");
});

test("whatever others show of themselves can be read", () => {
  const unspeakable = { toString: 1, valueOf: 1 };
  for (const odd of [{}, { name: unspeakable, tone: unspeakable }, { name: null, tone: "3" }, { tone: -1e308, x: "1", y: 2 }, []]) {
    const person = readPerson(odd as Json);
    assert.equal(typeof person?.name, "string");
    assert.ok(person !== null && person.tone >= 0 && person.tone < model.TONES);
    assert.equal(person.at, null);
  }
  for (const nobody of [null, 7, "x"]) assert.equal(readPerson(nobody), null);
  assert.deepEqual(readPerson({ name: "Ann", tone: 2, x: 3, y: 4 }), { name: "Ann", tone: 2, at: { x: 3, y: 4 } });
});

test("a label that is cut can be written again", () => {
  const long = `${"a".repeat(59)}\u{1F600}`;
  const { label } = model.readDiagram({ nodes: { a: { label: long } } }).nodes.get("a")!;
  assert.equal(label, "a".repeat(59));
  assert.deepEqual(model.labelNode("a", long), { nodes: { a: { label: "a".repeat(59) } } });
  assert.equal(model.cut("\u{1F600}\u{1F600}", 2), "\u{1F600}");
});
