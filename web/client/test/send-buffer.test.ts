/** The send buffer by itself: its window, its bounds, its journal. */
import assert from "node:assert/strict";
import { test } from "node:test";

import { LimitError } from "../src/errors.js";
import type { Json } from "../src/json.js";
import { SendBuffer, type SendLimits } from "../src/send-buffer.js";

const LIMITS: SendLimits = { count: 5, bytes: 1000, window: 2 };

function filled(count: number): SendBuffer {
  const buffer = new SendBuffer(LIMITS);
  for (let x = 1; x <= count; x += 1) buffer.add({ x });
  return buffer;
}

function takeAll(buffer: SendBuffer): number[] {
  const clocks = [];
  for (let own = buffer.takeNext(); own !== undefined; own = buffer.takeNext()) clocks.push(own.clock);
  return clocks;
}

test("no more than a window is under way", () => {
  const buffer = filled(5);
  assert.deepEqual(takeAll(buffer), [1, 2]);
  assert.deepEqual(buffer.cover(1).map(({ clock }) => clock), [1]);
  assert.deepEqual(takeAll(buffer), [3]);
  buffer.cover(3);
  assert.deepEqual(takeAll(buffer), [4, 5]);
});

test("a new subscription begins with the first that is not stored", () => {
  const buffer = filled(4);
  takeAll(buffer);
  buffer.cover(1);
  buffer.restart();
  assert.deepEqual(takeAll(buffer), [2, 3]);
});

test("what is stored stays on top until it is forgotten", () => {
  const buffer = filled(3);
  takeAll(buffer);
  buffer.cover(2);
  assert.deepEqual(buffer.onTop.map(({ clock }) => clock), [1, 2, 3]);
  assert.deepEqual(buffer.unacknowledged.map(({ clock }) => clock), [3]);
  buffer.forget(1);
  assert.deepEqual(buffer.onTop.map(({ clock }) => clock), [2, 3]);
  buffer.forget(99);
  assert.deepEqual(buffer.onTop.map(({ clock }) => clock), [3]);
});

test("a refused one leaves the others and makes room in the window", () => {
  const buffer = filled(4);
  assert.deepEqual(takeAll(buffer), [1, 2]);
  assert.equal(buffer.refuse(1)?.clock, 1);
  assert.equal(buffer.refuse(1), undefined);
  assert.deepEqual(takeAll(buffer), [3]);
  assert.deepEqual(buffer.onTop.map(({ clock }) => clock), [2, 3, 4]);
});

test("room is counted in mutations and in bytes, and comes back", () => {
  const buffer = filled(5);
  assert.throws(() => buffer.add({}), LimitError);
  takeAll(buffer);
  buffer.cover(1);
  buffer.forget(1);
  buffer.add({});
  const heavy = new SendBuffer(LIMITS);
  const text = "é".repeat(490);
  heavy.add(text);
  assert.throws(() => heavy.add("twenty bytes or more"), LimitError);
  heavy.refuse(1);
  assert.equal(heavy.add(text).clock, 2);
});

test("a clock that was never heard of pushes up what was never sent, and only that", () => {
  const buffer = filled(3);
  assert.equal(buffer.takeNext()?.clock, 1);
  assert.deepEqual(buffer.cover(7).map(({ clock }) => clock), [1]);
  assert.deepEqual(buffer.unacknowledged.map(({ clock, mutation }) => [clock, mutation]), [[8, { x: 2 }], [9, { x: 3 }]]);
  assert.equal(buffer.add({ x: 4 }).clock, 10);
});

test("the journal has at every moment what the buffer has", () => {
  const kept = new Map<number, Json>();
  const contents = (values: Iterable<Json>): string[] => [...values].map((value) => JSON.stringify(value)).sort();
  const buffer: SendBuffer = new SendBuffer(LIMITS, {
    load: () => ({ clock: 3, mutations: [{ clock: 2, mutation: { x: 2 } }, { clock: 3, mutation: { x: 3 } }] }),
    keep: ({ clock, mutation }) => {
      kept.set(clock, mutation);
      // A page may be left between any two writes.
      const lost = contents(buffer.onTop.map((own) => own.mutation)).filter((one) => !contents(kept.values()).includes(one));
      assert.deepEqual(lost, []);
    },
    drop: (clock) => void kept.delete(clock),
  });
  kept.set(2, { x: 2 }).set(3, { x: 3 });
  const check = (): void => {
    assert.deepEqual([...kept].sort(([a], [b]) => a - b), buffer.onTop.map(({ clock, mutation }) => [clock, mutation]));
  };
  check();
  buffer.add({ x: 4 });
  buffer.add({ x: 5 });
  check();
  buffer.cover(4);
  assert.deepEqual(buffer.onTop.map(({ clock }) => clock), [2, 3, 5, 6]);
  check();
  buffer.forget(4);
  check();
  buffer.refuse(5);
  check();
  assert.deepEqual([...kept], [[6, { x: 5 }]]);
});
