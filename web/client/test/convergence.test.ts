/** Clients and a router on a network from a seed: it delays, cuts, repeats and loses. In the end all agree. */
import assert from "node:assert/strict";
import { test } from "node:test";

import type { Json } from "../src/json.js";
import { checkServerMessage, type ClientMessage } from "../src/messages.js";
import type { Replica } from "../src/replica.js";
import { Session } from "../src/session.js";
import { SeededRandom } from "./random.js";
import { TinyRouter, type TinyPeer } from "./tiny-router.js";

const SEEDS = 300;
const TURNS = 250;

/** A client whose two directions are queues that deliver when they like. */
class Wire {
  readonly session: Session;
  readonly replica: Replica;
  readonly saved: number[] = [];
  private toRouter: ClientMessage[] = [];
  private toClient: Json[] = [];
  private peer: TinyPeer | null = null;
  private isDialing = false;

  constructor(
    readonly name: string,
    private readonly router: TinyRouter,
    private readonly random: SeededRandom,
  ) {
    this.session = new Session({
      client: name,
      policy: "clean",
      attemptsMax: 4,
      holdBackMax: 3,
      random: () => random.next(),
      sendLimits: { count: 10_000, bytes: 1 << 20, window: 3 },
    });
    this.replica = this.session.open("plan", "json");
    this.session.start(0);
    this.drain();
  }

  /** Something happens on the way; `isRough` decides whether it may be bad. */
  move(now: number, isRough: boolean): void {
    if (this.isDialing) {
      if (isRough && this.random.chance(0.3)) this.cut(now);
      else this.accept(now);
    } else if (isRough && this.random.chance(0.02)) {
      this.cut(now);
    } else if (this.random.chance(0.5)) {
      const message = this.toRouter.shift();
      if (message !== undefined) this.peer?.receive(message);
    } else {
      this.deliver(now, isRough);
    }
    this.drain();
  }

  goOnline(now: number): void {
    if (this.session.status === "offline") this.session.goOnline(now);
    this.drain();
  }

  wake(now: number): void {
    this.session.wake(now);
    this.drain();
  }

  change(patch: Json): void {
    this.replica.change(patch);
    this.drain();
  }

  get isQuiet(): boolean {
    return this.toRouter.length === 0 && this.toClient.length === 0 && this.replica.status === "live";
  }

  get asPeer(): TinyPeer | null {
    return this.peer;
  }

  private accept(now: number): void {
    this.isDialing = false;
    this.peer = this.router.accept(
      (message) => this.toClient.push(structuredClone(message)),
      () => assert.fail("nobody is displaced here"),
    );
    this.session.opened(null, now);
  }

  private deliver(now: number, isRough: boolean): void {
    const message = this.toClient.shift();
    if (message === undefined) return;
    const { type } = message as { type: string };
    const isOfStream = type === "mutation" || type === "ack";
    if (isRough && isOfStream && this.random.chance(0.05)) return;
    if (isRough && isOfStream && this.random.chance(0.1)) this.toClient.push(structuredClone(message));
    this.session.received(checkServerMessage(message), now);
  }

  private cut(now: number): void {
    this.peer?.leave();
    this.peer = null;
    this.isDialing = false;
    this.toRouter = [];
    this.toClient = [];
    this.session.closed(1006, "", now);
  }

  private drain(): void {
    for (const action of this.session.take()) {
      if (action.type === "dial") this.isDialing = true;
      if (action.type === "send") this.toRouter.push(action.message);
      if (action.type === "tell" && action.event.type === "saved") this.saved.push(action.event.own.clock);
      assert.notEqual(action.type, "hangUp");
    }
  }
}

function run(seed: number): void {
  const random = new SeededRandom(seed);
  const router = new TinyRouter();
  // Nobody is silent for long here, and time jumps.
  router.heartbeatMs = 10_000_000;
  const wires = ["ann", "bob", "cid"].map((name) => new Wire(name, router, random));
  let now = 0;
  for (let turn = 0; turn < TURNS; turn += 1) {
    now += random.below(40);
    const wire = random.pick(wires);
    const choice = random.next();
    if (choice < 0.15) wire.change(patchOf(random, turn));
    else if (choice < 0.16 && wire.asPeer) router.endSubscription(wire.asPeer, "plan", random.pick(["evicted", "busy"]));
    else wire.move(now, true);
    if (random.chance(0.02)) for (const one of wires) one.goOnline(now);
    for (const one of wires) one.wake(now);
  }
  settle(wires, now);
  judge(router, wires);
}

/** A calm network, until nothing is under way. */
function settle(wires: readonly Wire[], start: number): void {
  let now = start;
  for (let turn = 0; turn < 20_000; turn += 1) {
    now += 10;
    for (const wire of wires) {
      wire.goOnline(now);
      wire.wake(now);
      wire.move(now, false);
    }
    const isDone = wires.every((wire) => wire.isQuiet && wire.replica.buffer.onTop.length === 0);
    const seqs = new Set(wires.map((wire) => wire.replica.applied));
    if (isDone && seqs.size === 1) return;
    // What was lost last is noticed with the next one.
    if (turn % 100 === 99) wires[0]?.change({ tick: turn });
  }
  assert.fail("the clients never came to rest");
}

function judge(router: TinyRouter, wires: readonly Wire[]): void {
  const document = router.document("plan");
  const state = document.state;
  for (const { name, replica, saved } of wires) {
    assert.deepEqual(replica.state, state, `${name} differs`);
    assert.equal(replica.applied, document.log.length);
    const stored = document.log.filter((entry) => entry.client === name).map(({ clock }) => clock);
    assert.deepEqual(saved, stored, `what ${name} was told is saved`);
    assert.deepEqual(stored, stored.map((_, index) => index + 1), "each once, in order");
  }
}

function patchOf(random: SeededRandom, turn: number): Json {
  const node = random.pick(["a", "b", "c"]);
  if (random.chance(0.2)) return { nodes: { [node]: null } };
  return { nodes: { [node]: { [random.pick(["x", "y"])]: turn } } };
}

test(`clients agree with the router after ${SEEDS} rough networks`, () => {
  for (let seed = 1; seed <= SEEDS; seed += 1) {
    try {
      run(seed);
    } catch (error) {
      throw new Error(`seed ${seed}`, { cause: error });
    }
  }
});
