/**
 * One document as one client has it: a machine without socket, clock or chance (docs/formats/sync.md).
 *
 * - `applied` is the highest seq in the base; it moves by one, or to the seq of a state.
 * - The base has what the router stored and nothing else. The application sees it with the own mutations on top.
 * - A message counts only in the epoch that it names. Without an epoch nothing counts.
 * - Whatever is missing is noticed as a gap, and a gap ends in a full state.
 */
import { waitMs } from "./backoff.js";
import { LimitError, ProtocolError, RefusedError, type SynclineError } from "./errors.js";
import type { Json } from "./json.js";
import { mergePatch } from "./merge-patch.js";
import {
  isBodyOf,
  type ClientMessage,
  type Failure,
  type Kind,
  type Mutation,
  type OfEpoch,
  type PresenceStates,
  type Receipt,
  type State,
  type Subscribed,
  type Unsubscribed,
} from "./messages.js";
import { sizeOf, type OwnMutation, type SendBuffer } from "./send-buffer.js";

export type Status = "connecting" | "live" | "offline" | "evicted" | "closed";

export type ReplicaEvent =
  /** The whole document is new: `updates` (kinds yjs and bytes) is all of it, own mutations included. */
  | { type: "state"; seq: number; updates: readonly Json[] }
  | { type: "remote"; seq: number; client: string; mutation: Json }
  | { type: "local"; own: OwnMutation }
  | { type: "refused"; own: OwnMutation; error: SynclineError }
  /** Own mutations were taken off the top, as the base has them; others may show in their place. */
  | { type: "rebased" }
  | { type: "saved"; own: OwnMutation; seq: number | null }
  | { type: "status"; status: Status; error: SynclineError | null }
  | { type: "presence" }
  | { type: "error"; error: SynclineError };

/** Where a replica puts what it wants sent and told. */
export interface ReplicaOutput {
  send(message: ClientMessage): void;
  tell(event: ReplicaEvent): void;
}

/** What all replicas of a session share. */
export interface ReplicaOptions {
  readonly client: string;
  readonly holdBackMax: number;
  readonly random: () => number;
  /** The largest frame and presence that the router takes; it says so in its welcome. */
  frameBytesMax: number;
  presenceBytesMax: number;
}

/** Acknowledged after so many, or after so long. */
const ACK_COUNT = 32;
const ACK_MS = 200;

/** What a frame has beside the mutation: a name of 200 bytes, escaped at worst, and numbers. */
const FRAME_BYTES = 1536;

/**
 * away     no connection, or not welcomed yet
 * asked    a subscription was asked for or is being restored
 * filling  subscribed, the state is awaited
 * live     the base is complete up to `applied`
 * waiting  the router ended the subscription; it is asked for again at `retryAt`
 * closed   ended for good
 */
type Phase = "away" | "asked" | "filling" | "live" | "waiting" | "closed";

export class Replica {
  status: Status = "connecting";
  applied = 0;
  mayWrite = true;
  readonly presence = new Map<string, Json>();

  private phase: Phase = "away";
  private epoch: number | null = null;
  private base: Json | undefined = undefined;
  private view: Json | undefined = undefined;
  private baseIncarnation: string | null = null;
  private epochIncarnation = "";
  private mayResume = false;
  /** What the last `subscribed` said is stored; the base has it once `applied` has reached `seq`. */
  private covered: { clock: number; seq: number } | null = null;
  private held: (Mutation | Receipt)[] = [];
  private lostSeq = 0;
  private unacknowledgedCount = 0;
  private ackAt: number | null = null;
  private retryAt: number | null = null;
  private fruitlessCount = 0;
  private ownPresence: Json = null;

  constructor(
    readonly name: string,
    readonly kind: Kind,
    readonly buffer: SendBuffer,
    private readonly out: ReplicaOutput,
    private readonly options: ReplicaOptions,
  ) {}

  /** Kind json: the base with the own mutations on top; undefined as long as nothing is known. */
  get state(): Json | undefined {
    if (this.kind === "json" && this.view === undefined) {
      this.view = this.buffer.onTop.reduce<Json | undefined>((view, { mutation }) => mergePatch(view, mutation), this.base);
    }
    return this.view;
  }

  get isClosed(): boolean {
    return this.phase === "closed";
  }

  /** When `wake` wants to be called, at the latest. */
  get dueAt(): number {
    return Math.min(this.ackAt ?? Infinity, this.retryAt ?? Infinity);
  }

  // ------------------------------------------------------------------------------- the application

  /** Throws LimitError if it is too large or too much is unsent. */
  change(mutation: Json): OwnMutation {
    const bytes = sizeOf(mutation);
    if (!this.fitsFrame(bytes)) {
      const advice = "change less at once";
      throw new LimitError("the size of a mutation in bytes", bytes, this.options.frameBytesMax - FRAME_BYTES, advice);
    }
    const own = this.buffer.add(mutation);
    if (this.view !== undefined) this.view = mergePatch(this.view, mutation);
    this.out.tell({ type: "local", own });
    this.sendUnsent();
    return own;
  }

  /** Throws LimitError if it is too large. */
  setPresence(state: Json): void {
    const [bytes, most] = [sizeOf(state), this.options.presenceBytesMax];
    if (bytes > most) throw new LimitError("the size of a presence in bytes", bytes, most, "show less");
    this.ownPresence = state;
    this.sendPresence();
  }

  /** Asks for the whole state, whatever is known. */
  reload(): void {
    this.mayResume = false;
    if (this.phase === "live" || this.phase === "filling") this.subscribe();
  }

  close(): void {
    if (this.phase === "asked" || this.epoch !== null) {
      this.out.send({ type: "unsubscribe", document: this.name, ...(this.epoch === null ? {} : { epoch: this.epoch }) });
    }
    this.end(null);
  }

  // -------------------------------------------------------------------------------- the connection

  /** The connection was welcomed; a restored subscription need not be asked for. */
  connected(isRestored: boolean): void {
    if (isRestored) {
      this.phase = "asked";
    } else {
      this.subscribe();
    }
  }

  /** The connection is gone. `next` is what becomes of it. */
  disconnected(next: "connecting" | "offline" | "closed", error: SynclineError | null = null): void {
    if (this.phase === "closed") return;
    this.leaveEpoch();
    this.phase = "away";
    this.fruitlessCount = 0;
    // Who was away for long, or was sent away, starts with the full state.
    if (next !== "connecting") this.mayResume = false;
    this.setStatus(next, error);
  }

  wake(now: number): void {
    if (this.ackAt !== null && this.ackAt <= now) this.acknowledge();
    if (this.retryAt !== null && this.retryAt <= now) this.subscribe();
  }

  // ------------------------------------------------------------------------------------ the router

  receive(message: OfEpoch, now: number): void {
    if (message.epoch !== this.epoch) return;
    switch (message.type) {
      case "state":
        return this.takeState(message, now);
      case "mutation":
      case "ack":
        return this.takeInStream(message, now);
      case "presence":
        return this.takePresence(message);
      case "evicted":
        // The place in the stream was given up: nothing that is known here helps.
        this.mayResume = false;
        this.setStatus("evicted");
        return this.subscribe();
      case "unsubscribed":
        return this.takeUnsubscribed(message, now);
    }
  }

  takeSubscribed(message: Subscribed, now: number): void {
    this.leaveEpoch();
    this.epoch = message.epoch;
    this.mayWrite = message.may_write;
    const isKnown = this.mayResume && message.incarnation === this.baseIncarnation && message.seq >= this.applied;
    if (message.resumed && !isKnown) return this.askForState(now);
    if (message.incarnation !== this.epochIncarnation) this.buffer.forgetStored();
    this.epochIncarnation = message.incarnation;
    this.covered = { clock: message.clock, seq: message.seq };
    for (const own of this.buffer.cover(message.clock)) this.out.tell({ type: "saved", own, seq: null });
    this.phase = message.resumed ? "live" : "filling";
    this.buffer.restart();
    this.sendUnsent();
    if (this.ownPresence !== null) this.sendPresence();
    if (message.resumed) {
      this.forgetCovered();
      this.setStatus("live");
    }
  }

  /** The router has an error about this document; `isAnswer` if it answers the subscription asked for. */
  takeFailure(failure: Failure, isAnswer: boolean, now: number): void {
    const { code } = failure;
    const clock = failure.clock ?? null;
    const error = new RefusedError(code, failure.message, failure.retriable, this.name, clock);
    // `unexpected` is about a subscription that ended meanwhile, not about what the mutation says.
    const isRefusal = code !== "unexpected" && !failure.retriable;
    if (clock !== null && isRefusal) return this.refuse(clock, error);
    const endsAttempt = isAnswer && this.phase === "asked";
    if (endsAttempt && isRefusal) return this.end(error);
    this.out.tell({ type: "error", error });
    if (endsAttempt) this.retryLater(now);
  }

  private takeState(message: State, now: number): void {
    if (this.phase !== "filling") return;
    if (!isBodyOf(this.kind, message.state, "state")) return this.endBroken("state");
    this.phase = "live";
    this.baseIncarnation = this.epochIncarnation;
    this.mayResume = true;
    this.applied = message.seq;
    this.base = this.kind === "json" ? message.state : undefined;
    this.view = undefined;
    this.forgetCovered();
    this.out.tell({ type: "state", seq: message.seq, updates: this.updatesOf(message.state) });
    if (message.seq > 0) this.ackWithin(now);
    const held = this.held;
    this.held = [];
    for (const item of held) this.takeInStream(item, now);
    if (this.isLive() && this.lostSeq > this.applied) this.askForState(now);
    if (this.isLive()) this.setStatus("live");
  }

  private takeInStream(message: Mutation | Receipt, now: number): void {
    if (this.phase === "filling") return this.holdBack(message);
    if (this.phase !== "live") return;
    if (message.seq > this.applied + 1) return this.askForState(now);
    if (message.seq <= this.applied) {
      // The router sends again what it holds for unacknowledged, so it is told again.
      this.ackWithin(now);
      if (message.type === "ack") this.settle(message, 0);
      return;
    }
    if (message.type === "mutation") {
      if (!isBodyOf(this.kind, message.mutation, "mutation")) return this.endBroken("mutation");
      this.fold(message.mutation);
    } else {
      const own = this.buffer.find(message.clock);
      // Stored in an earlier life of this client: nobody here knows what it says.
      if (own === undefined && this.kind === "json") return this.askForState(now);
      if (own !== undefined) this.fold(own.mutation);
    }
    this.applied = message.seq;
    this.fruitlessCount = 0;
    if (message.type === "ack") this.settle(message, 1);
    this.forgetCovered();
    if (message.type === "mutation") {
      this.out.tell({ type: "remote", seq: message.seq, client: message.client, mutation: message.mutation });
    }
    this.countApplied(now);
  }

  private takePresence(message: PresenceStates): void {
    for (const [client, state] of Object.entries(message.states)) {
      if (client === this.options.client) continue;
      if (state === null) {
        this.presence.delete(client);
      } else {
        this.presence.set(client, state);
      }
    }
    this.out.tell({ type: "presence" });
  }

  private takeUnsubscribed(message: Unsubscribed, now: number): void {
    const code = message.code ?? null;
    if (message.retriable === true) return this.retryLater(now);
    this.end(code === null ? null : new RefusedError(code, message.message ?? "", false, this.name));
  }

  // --------------------------------------------------------------------------------- subscriptions

  private subscribe(): void {
    this.leaveEpoch();
    this.phase = "asked";
    const from =
      this.mayResume && this.baseIncarnation !== null
        ? { from: { incarnation: this.baseIncarnation, seq: this.applied } }
        : {};
    this.out.send({ type: "subscribe", document: this.name, kind: this.kind, ...from });
    if (this.status !== "evicted") this.setStatus("connecting");
  }

  private askForState(now: number): void {
    this.mayResume = false;
    // Once at once. If that brought nothing, something is wrong, and haste would only make it worse.
    if (this.fruitlessCount === 0) {
      this.fruitlessCount = 1;
      this.subscribe();
    } else {
      this.retryLater(now);
    }
  }

  private retryLater(now: number): void {
    this.leaveEpoch();
    this.phase = "waiting";
    this.retryAt = now + waitMs(this.fruitlessCount, this.options.random);
    this.fruitlessCount += 1;
    this.setStatus("connecting");
  }

  private leaveEpoch(): void {
    this.epoch = null;
    this.held = [];
    this.lostSeq = 0;
    this.retryAt = null;
    this.ackAt = null;
    this.unacknowledgedCount = 0;
    if (this.presence.size > 0) {
      this.presence.clear();
      this.out.tell({ type: "presence" });
    }
  }

  private end(error: SynclineError | null): void {
    this.leaveEpoch();
    this.phase = "closed";
    if (error !== null) this.out.tell({ type: "error", error });
    this.setStatus("closed", error);
  }

  private endBroken(what: string): void {
    this.end(new ProtocolError(`the router sent a ${what} that does not suit a document of kind ${this.kind}`));
  }

  private setStatus(status: Status, error: SynclineError | null = null): void {
    if (this.status === status) return;
    this.status = status;
    this.out.tell({ type: "status", status, error });
  }

  // A method, since the phase changes in calls that the type checker does not follow.
  private isLive(): boolean {
    return this.phase === "live";
  }

  // ------------------------------------------------------------------------------------- mutations

  private sendUnsent(): void {
    if (this.epoch === null) return;
    for (let own = this.buffer.takeNext(); own !== undefined; own = this.buffer.takeNext()) {
      const { clock, mutation } = own;
      if (!this.fitsFrame(own.bytes)) {
        // Sent, it would end this connection and each one after it.
        const message = `the mutation has ${own.bytes} bytes, more than this router takes; change less at once`;
        this.refuse(clock, new RefusedError("limit", message, false, this.name, clock));
        continue;
      }
      this.out.send({ type: "mutation", document: this.name, epoch: this.epoch, clock, mutation });
    }
  }

  private sendPresence(): void {
    if (this.epoch === null) return;
    this.out.send({ type: "presence", document: this.name, epoch: this.epoch, state: this.ownPresence });
  }

  private fitsFrame(bytes: number): boolean {
    return bytes + FRAME_BYTES <= this.options.frameBytesMax;
  }

  private holdBack(message: Mutation | Receipt): void {
    if (this.held.length < this.options.holdBackMax) {
      this.held.push(message);
    } else {
      this.lostSeq = Math.max(this.lostSeq, message.seq);
    }
  }

  private fold(mutation: Json): void {
    if (this.kind !== "json") return;
    this.base = mergePatch(this.base, mutation);
    this.view = undefined;
  }

  /** The base has everything up to the clock of a receipt; `foldedCount` of it has just been folded in. */
  private settle(receipt: Receipt, foldedCount: number): void {
    for (const own of this.buffer.cover(receipt.clock)) {
      this.out.tell({ type: "saved", own, seq: own.clock === receipt.clock ? receipt.seq : null });
    }
    this.takeOffTop(receipt.clock, foldedCount);
    this.sendUnsent();
  }

  private forgetCovered(): void {
    if (this.covered === null || this.applied < this.covered.seq) return;
    this.takeOffTop(this.covered.clock, 0);
    this.covered = null;
  }

  private takeOffTop(clock: number, foldedCount: number): void {
    const count = this.buffer.forget(clock);
    if (count > 0) this.view = undefined;
    // What was folded in a moment ago shows as before.
    if (count > foldedCount) this.out.tell({ type: "rebased" });
  }

  private refuse(clock: number, error: SynclineError): void {
    const own = this.buffer.refuse(clock);
    this.view = undefined;
    this.out.tell({ type: "error", error });
    if (own !== undefined) this.out.tell({ type: "refused", own, error });
    this.sendUnsent();
  }

  private updatesOf(state: Json): readonly Json[] {
    if (this.kind === "json") return [];
    const updates = this.kind === "bytes" ? (state as readonly Json[]) : [state];
    return [...updates, ...this.buffer.onTop.map(({ mutation }) => mutation)];
  }

  // ------------------------------------------------------------------------------- acknowledgements

  private countApplied(now: number): void {
    this.unacknowledgedCount += 1;
    if (this.unacknowledgedCount >= ACK_COUNT) {
      this.acknowledge();
    } else {
      this.ackWithin(now);
    }
  }

  private ackWithin(now: number): void {
    this.ackAt ??= now + ACK_MS;
  }

  private acknowledge(): void {
    this.ackAt = null;
    this.unacknowledgedCount = 0;
    if (this.epoch === null) return;
    this.out.send({ type: "ack", document: this.name, epoch: this.epoch, seq: this.applied });
  }
}
