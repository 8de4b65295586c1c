/** RFC 7396: the table of its appendix, and laws over generated values. */
import assert from "node:assert/strict";
import { test } from "node:test";

import { deepFreeze, isJsonObject, type Json, type JsonObject } from "../src/json.js";
import { mergePatch } from "../src/merge-patch.js";
import { SeededRandom } from "./random.js";

const TABLE: [Json, Json, Json][] = [
  [{ a: "b" }, { a: "c" }, { a: "c" }],
  [{ a: "b" }, { b: "c" }, { a: "b", b: "c" }],
  [{ a: "b" }, { a: null }, {}],
  [{ a: "b", b: "c" }, { a: null }, { b: "c" }],
  [{ a: ["b"] }, { a: "c" }, { a: "c" }],
  [{ a: "c" }, { a: ["b"] }, { a: ["b"] }],
  [{ a: { b: "c" } }, { a: { b: "d", c: null } }, { a: { b: "d" } }],
  [{ a: [{ b: "c" }] }, { a: [1] }, { a: [1] }],
  [["a", "b"], ["c", "d"], ["c", "d"]],
  [{ a: "b" }, ["c"], ["c"]],
  [{ a: "foo" }, null, null],
  [{ a: "foo" }, "bar", "bar"],
  [{ e: null }, { a: 1 }, { e: null, a: 1 }],
  [[1, 2], { a: "b", c: null }, { a: "b" }],
  [{}, { a: { bb: { ccc: null } } }, { a: { bb: {} } }],
];

test("the table of the RFC holds", () => {
  for (const [target, patch, result] of TABLE) assert.deepEqual(mergePatch(target, patch), result);
});

function generate(random: SeededRandom, depth: number): Json {
  const kind = random.below(depth === 0 ? 4 : 6);
  if (kind === 0) return null;
  if (kind === 1) return random.below(3);
  if (kind === 2) return random.chance(0.5);
  if (kind === 3) return random.pick(["", "x", "__proto__"]);
  if (kind === 4) return Array.from({ length: random.below(3) }, () => generate(random, depth - 1));
  return generateObject(random, depth);
}

function generateObject(random: SeededRandom, depth: number): JsonObject {
  const names = ["a", "b", "c", "__proto__", "constructor"].filter(() => random.chance(0.5));
  return Object.fromEntries(names.map((name) => [name, generate(random, depth - 1)]));
}

/** The RFC's own words, which change the target in place: another way to the same result. */
function inPlace(target: Json | undefined, patch: Json): Json {
  if (!isJsonObject(patch)) return patch;
  const result = new Map(isJsonObject(target) ? Object.entries(target) : []);
  for (const [name, value] of Object.entries(patch)) {
    if (value === null) result.delete(name);
    else result.set(name, inPlace(result.get(name), value));
  }
  return Object.fromEntries(result);
}

function forEachSeed(law: (random: SeededRandom) => void): void {
  for (let seed = 1; seed <= 2000; seed += 1) {
    try {
      law(new SeededRandom(seed));
    } catch (error) {
      throw new Error(`seed ${seed}`, { cause: error });
    }
  }
}

test("it does what the pseudo code of the RFC does, whatever the names are", () => {
  forEachSeed((random) => {
    const [target, patch] = [generate(random, 4), generate(random, 4)];
    assert.deepEqual(JSON.stringify(mergePatch(target, patch)), JSON.stringify(inPlace(target, patch)));
  });
});

test("twice is as good as once", () => {
  forEachSeed((random) => {
    const [target, patch] = [generate(random, 4), generate(random, 4)];
    const once = mergePatch(target, patch);
    assert.deepEqual(mergePatch(once, patch), once);
  });
});

test("arguments stay as they are, and the result is frozen through and through", () => {
  forEachSeed((random) => {
    const [target, patch] = [generate(random, 4), generateObject(random, 4)];
    const before = JSON.stringify([target, patch]);
    const result = mergePatch(deepFreeze(target), deepFreeze(patch));
    assert.equal(JSON.stringify([target, patch]), before);
    assertFrozen(result);
  });
});

function assertFrozen(value: Json): void {
  if (typeof value !== "object" || value === null) return;
  assert.ok(Object.isFrozen(value));
  Object.values(value).forEach(assertFrozen);
}

test("what a patch does not touch is shared", () => {
  const target = { a: { deep: [1, 2, 3] }, b: 1 };
  const result = mergePatch(target, { b: 2 }) as JsonObject;
  assert.equal(result["a"], target.a);
});

test("no name reaches a prototype", () => {
  const patch = JSON.parse('{"__proto__": {"polluted": true}, "constructor": {"prototype": {"polluted": true}}}') as Json;
  const result = mergePatch({}, patch) as JsonObject;
  assert.equal((result as { polluted?: unknown }).polluted, undefined);
  assert.equal(({} as { polluted?: unknown }).polluted, undefined);
  assert.equal(JSON.stringify(result), JSON.stringify(patch));
});
