/** The scenarios that every client runs (tests/scenarios/replica.json; its `about` says what the steps mean). */
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";

import type { Json } from "../src/json.js";
import { checkServerMessage, type ClientMessage, type Kind, type Policy } from "../src/messages.js";
import type { Replica } from "../src/replica.js";
import { Session } from "../src/session.js";

interface Options {
  documents?: Record<string, Kind>;
  policy?: Policy;
  max_attempts?: number;
  hold_back_max?: number;
}
type Step = Record<string, Json> & { document?: string; kind?: Kind };
interface Scenario {
  name: string;
  begin?: string;
  options?: Options;
  steps: Step[];
}
interface ScenarioFile {
  preludes: Record<string, Step[]>;
  scenarios: Scenario[];
}

const FILE = new URL("../../../../tests/scenarios/replica.json", import.meta.url);
const { preludes, scenarios } = JSON.parse(readFileSync(FILE, "utf8")) as ScenarioFile;

/** A session on a bench: nothing but its machine, a clock moved by hand and what it put out. */
class Bench {
  private now = 0;
  private readonly session: Session;
  private readonly documents = new Map<string, Replica>();
  private sent: ClientMessage[] = [];
  private saved: number[] = [];
  private errors: string[] = [];
  private updates: Json[] = [];

  constructor(options: Options) {
    this.session = new Session({
      client: "me",
      policy: options.policy ?? "clean",
      attemptsMax: options.max_attempts ?? 5,
      holdBackMax: options.hold_back_max ?? 1024,
      random: () => 1,
    });
    for (const [name, kind] of Object.entries(options.documents ?? { plan: "json" as const })) this.open(name, kind);
    this.session.start(this.now);
    this.drain();
  }

  run(step: Step): void {
    const name = step.document ?? "plan";
    const [verb] = Object.keys(step).filter((key) => key !== "document" && key !== "kind");
    assert.ok(verb !== undefined);
    const value = step[verb] as Json;
    if (!this.act(verb, value, name, step)) this.expect(verb, value, name);
    this.drain();
  }

  finish(): void {
    assert.deepEqual(this.sent, [], "sent, and nobody looked at it");
  }

  private act(verb: string, value: Json, name: string, step: Step): boolean {
    switch (verb) {
      case "connect":
        assert.ok(this.session.isDialing, "no attempt is under way");
        this.session.opened(null, this.now);
        return true;
      case "drop": {
        const { code, reason } = value === true ? { code: 1006, reason: "" } : (value as { code: number; reason: string });
        this.session.closed(code, reason, this.now);
        return true;
      }
      case "receive":
        this.session.received(checkServerMessage(structuredClone(value)), this.now);
        return true;
      case "change":
        this.document(name).change(value);
        return true;
      case "presence":
        this.document(name).setPresence(value);
        return true;
      case "open":
        this.open(value as string, step.kind ?? "json");
        return true;
      case "close":
        this.session.close(value as string);
        return true;
      case "go_online":
        this.session.goOnline(this.now);
        return true;
      case "advance_ms":
        this.advance(value as number);
        return true;
      default:
        return false;
    }
  }

  private expect(verb: string, value: Json, name: string): void {
    switch (verb) {
      case "expect_sent":
        assert.deepEqual(this.sent, value);
        this.sent = [];
        return;
      case "expect_saved":
        assert.deepEqual(this.saved, value);
        this.saved = [];
        return;
      case "expect_errors":
        assert.deepEqual(this.errors, value);
        this.errors = [];
        return;
      case "expect_updates":
        assert.deepEqual(this.updates, value);
        this.updates = [];
        return;
      case "expect_state":
        return assert.deepEqual(this.document(name).state ?? null, value);
      case "expect_status":
        return assert.equal(this.document(name).status, value);
      case "expect_applied":
        return assert.equal(this.document(name).applied, value);
      case "expect_unacknowledged":
        return assert.deepEqual(this.document(name).buffer.unacknowledged.map(({ clock }) => clock), value);
      case "expect_presence":
        return assert.deepEqual(Object.fromEntries(this.document(name).presence), value);
      case "expect_dialing":
        return assert.equal(this.session.isDialing, value);
      default:
        assert.fail(`no such step: ${verb}`);
    }
  }

  private advance(ms: number): void {
    const end = this.now + ms;
    for (let turns = 0; this.session.dueAt <= end; turns += 1) {
      assert.ok(turns < 10_000, "the session never comes to rest");
      this.now = Math.max(this.now, this.session.dueAt);
      this.session.wake(this.now);
      this.drain();
    }
    this.now = end;
  }

  private open(name: string, kind: Kind): void {
    this.documents.set(name, this.session.open(name, kind));
  }

  private document(name: string): Replica {
    const replica = this.documents.get(name);
    assert.ok(replica, `${name} was never opened`);
    return replica;
  }

  private drain(): void {
    for (const action of this.session.take()) {
      if (action.type === "send" && action.message.type !== "ping") this.sent.push(action.message);
      if (action.type === "error") this.errors.push(action.error.code);
      if (action.type !== "tell") continue;
      const { event } = action;
      if (event.type === "saved") this.saved.push(event.own.clock);
      if (event.type === "error") this.errors.push(event.error.code);
      if (event.type === "state") this.updates.push(...event.updates);
      if (event.type === "remote") this.updates.push(event.mutation);
    }
  }
}

test("there are scenarios to run", () => {
  assert.ok(scenarios.length >= 25);
});

for (const { name, begin, options = {}, steps } of scenarios) {
  test(name, () => {
    const bench = new Bench(options);
    const all = [...(begin === undefined ? [] : (preludes[begin] ?? [])), ...steps];
    all.forEach((step, index) => {
      try {
        bench.run(step);
      } catch (error) {
        throw new Error(`step ${index + 1} of ${all.length}: ${JSON.stringify(step)}`, { cause: error });
      }
    });
    bench.finish();
  });
}
