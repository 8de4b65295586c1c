/**
 * A router of a page, for tests: documents in memory, the promises of docs/formats/sync.md, and faults on demand.
 */
import assert from "node:assert/strict";
import * as Y from "yjs";

import { fromBase64, toBase64 } from "../src/base64.js";
import type { Json } from "../src/json.js";
import { mergePatch } from "../src/merge-patch.js";
import type { ClientMessage, Kind } from "../src/messages.js";

export interface Entry {
  seq: number;
  client: string;
  clock: number;
  mutation: Json;
}

const EMPTY_UPDATE = new Uint8Array([0, 0]);

export class TinyDocument {
  readonly log: Entry[] = [];
  readonly presence = new Map<string, Json>();

  constructor(
    readonly name: string,
    readonly kind: Kind,
    readonly incarnation: string,
  ) {}

  get state(): Json {
    const mutations = this.log.map(({ mutation }) => mutation);
    if (this.kind === "json") return mutations.reduce<Json>((state, mutation) => mergePatch(state, mutation), {});
    if (this.kind === "bytes") return mutations;
    return toBase64(Y.mergeUpdates([EMPTY_UPDATE, ...mutations.map((update) => fromBase64(update as string))]));
  }

  clockOf(client: string): number {
    return this.log.reduce((clock, entry) => (entry.client === client ? Math.max(clock, entry.clock) : clock), 0);
  }
}

type Deliver = (message: Record<string, Json>) => void;
type Close = (code: number, reason: string) => void;

/** One connection, as the router sees it. */
export class TinyPeer {
  client = "";
  readonly epochs = new Map<string, number>();
  readonly received: ClientMessage[] = [];
  private lastEpoch = 0;
  isOpen = true;

  constructor(
    private readonly router: TinyRouter,
    readonly deliver: Deliver,
    readonly close: Close,
  ) {}

  receive(message: ClientMessage): void {
    if (!this.isOpen) return;
    this.received.push(message);
    switch (message.type) {
      case "hello":
        return this.router.greet(this, message);
      case "subscribe":
        this.lastEpoch += 1;
        return this.router.subscribe(this, message, this.lastEpoch);
      case "unsubscribe":
        return this.router.unsubscribe(this, message.document);
      case "mutation":
        if (this.epochs.get(message.document) === message.epoch) this.router.store(this, message);
        return;
      case "presence":
        if (this.epochs.get(message.document) === message.epoch) this.router.show(this, message.document, message.state);
        return;
      case "ping":
        return this.deliver({ type: "pong" });
      case "ack":
      case "token":
        return;
    }
  }

  /** The connection is gone, by whichever side. */
  leave(): void {
    if (!this.isOpen) return;
    this.isOpen = false;
    for (const name of [...this.epochs.keys()]) this.router.unsubscribe(this, name);
    this.router.peers.delete(this);
  }
}

export class TinyRouter {
  readonly peers = new Set<TinyPeer>();
  readonly documents = new Map<string, TinyDocument>();
  heartbeatMs = 20_000;
  limits: Record<string, number> = {};
  /** Mutations are neither stored nor answered while it holds: as if the store took its time. */
  isStuck = false;
  refuse: ((mutation: Json) => string | null) | null = null;
  private lives = 0;

  accept(deliver: Deliver, close: Close): TinyPeer {
    const peer = new TinyPeer(this, deliver, close);
    this.peers.add(peer);
    return peer;
  }

  document(name: string, kind: Kind = "json"): TinyDocument {
    const known = this.documents.get(name);
    if (known !== undefined) return known;
    this.lives += 1;
    const document = new TinyDocument(name, kind, `life-${this.lives}`);
    this.documents.set(name, document);
    return document;
  }

  peer(client: string): TinyPeer {
    const peer = [...this.peers].find((one) => one.client === client);
    assert.ok(peer, `${client} is not connected`);
    return peer;
  }

  greet(peer: TinyPeer, { client }: { client: string }): void {
    for (const other of [...this.peers]) {
      if (other !== peer && other.client === client) other.close(4409, "displaced: another connection came");
    }
    peer.client = client;
    const { limits, heartbeatMs } = this;
    peer.deliver({ type: "welcome", session: "s", version: 1, limits, heartbeat_ms: heartbeatMs, restored: [] });
  }

  subscribe(peer: TinyPeer, asked: Extract<ClientMessage, { type: "subscribe" }>, epoch: number): void {
    const document = this.document(asked.document, asked.kind);
    const { name, kind, incarnation, log } = document;
    const seq = log.length;
    const from = asked.from;
    const resumed = from !== undefined && from.incarnation === incarnation && from.seq <= seq;
    const clock = document.clockOf(peer.client);
    peer.epochs.set(name, epoch);
    peer.deliver({ type: "subscribed", document: name, epoch, kind, incarnation, seq, resumed, may_write: true, clock });
    peer.deliver({ type: "presence", document: name, epoch, states: Object.fromEntries(document.presence) });
    if (resumed) {
      for (const entry of log.slice(from.seq)) this.send(peer, document, entry);
    } else {
      peer.deliver({ type: "state", document: name, epoch, seq, state: document.state });
    }
  }

  unsubscribe(peer: TinyPeer, name: string): void {
    const epoch = peer.epochs.get(name);
    if (epoch === undefined) return;
    peer.epochs.delete(name);
    const document = this.document(name);
    if (document.presence.delete(peer.client)) this.spread(peer, name, { [peer.client]: null });
    if (peer.isOpen) peer.deliver({ type: "unsubscribed", document: name, epoch });
  }

  store(author: TinyPeer, message: Extract<ClientMessage, { type: "mutation" }>): void {
    if (this.isStuck) return;
    const { document: name, clock, mutation, epoch } = message;
    const document = this.document(name);
    const code = this.refuse?.(mutation) ?? null;
    if (code !== null) {
      return author.deliver({ type: "error", code, message: "no", retriable: false, document: name, clock });
    }
    const highest = document.clockOf(author.client);
    if (clock <= highest) {
      const seq = document.log.findLast((entry) => entry.client === author.client)?.seq ?? 0;
      return author.deliver({ type: "ack", document: name, epoch, clock: highest, seq });
    }
    const entry: Entry = { seq: document.log.length + 1, client: author.client, clock, mutation };
    document.log.push(entry);
    for (const peer of this.peers) this.send(peer, document, entry);
  }

  show(peer: TinyPeer, name: string, state: Json): void {
    const { presence } = this.document(name);
    if (state === null) {
      presence.delete(peer.client);
    } else {
      presence.set(peer.client, state);
    }
    this.spread(peer, name, { [peer.client]: state });
  }

  /** Ends a subscription, as the router does by itself. */
  endSubscription(peer: TinyPeer, name: string, how: "evicted" | "busy"): void {
    const epoch = peer.epochs.get(name);
    if (epoch === undefined) return;
    peer.epochs.delete(name);
    const rest = how === "evicted" ? { seq: 0 } : { code: "busy", message: "later", retriable: true };
    peer.deliver({ type: how === "evicted" ? "evicted" : "unsubscribed", document: name, epoch, ...rest });
  }

  /** Sends an entry once more, or in its place for the first time. */
  send(peer: TinyPeer, document: TinyDocument, { seq, client, clock, mutation }: Entry): void {
    const epoch = peer.epochs.get(document.name);
    if (epoch === undefined) return;
    const common = { document: document.name, epoch, seq, clock };
    peer.deliver(client === peer.client ? { type: "ack", ...common } : { type: "mutation", ...common, client, mutation });
  }

  private spread(from: TinyPeer, name: string, states: Record<string, Json>): void {
    for (const peer of this.peers) {
      const epoch = peer.epochs.get(name);
      if (peer !== from && epoch !== undefined) peer.deliver({ type: "presence", document: name, epoch, states });
    }
  }
}
