/**
 * All documents of one client over one connection after another: a machine without socket, clock or chance.
 *
 * Steps come in with the time, what is to be done goes out by `take`, in order. `dueAt` says when `wake` wants to
 * be called.
 *
 * - There is at most one connection or attempt. Nothing but `hello` is said before `welcome`.
 * - A connection was of use if it lasted for `STEADY_MS` or a document went live on it. An attempt has failed if its
 *   connection was not, or ended for what was said in it.
 * - After `attemptsMax` failed ones in a row the session is offline until `goOnline`.
 * - Waits start anew after a connection that lasted for `STEADY_MS`.
 */
import { waitMs } from "./backoff.js";
import { ClosedError, ProtocolError, RefusedError, type SynclineError } from "./errors.js";
import { VERSION, type ClientMessage, type Failure, type Kind, type Policy, type ServerMessage, type Welcome } from "./messages.js";
import { Replica, type ReplicaEvent, type ReplicaOptions, type Status } from "./replica.js";
import { SEND_LIMITS, SendBuffer, type Journal, type SendLimits } from "./send-buffer.js";

export type SessionStatus = Exclude<Status, "evicted">;

export type Action =
  | { type: "dial" }
  | { type: "send"; message: ClientMessage }
  | { type: "hangUp"; code: number; reason: string }
  | { type: "tell"; replica: Replica; event: ReplicaEvent }
  | { type: "status"; status: SessionStatus; error: SynclineError | null }
  | { type: "error"; error: SynclineError };

export interface SessionOptions {
  readonly client: string;
  readonly policy: Policy;
  readonly attemptsMax: number;
  readonly holdBackMax: number;
  readonly random: () => number;
  readonly sendLimits?: SendLimits;
  readonly journalOf?: (document: string) => Journal;
}

/** Until `welcome`, from the moment of dialing. */
const ATTEMPT_MS = 15_000;
/**
 * A welcome costs a router little, and what ends the connection may only come after it: the first subscription, or the
 * first change. So it takes time to tell that a connection works.
 */
const STEADY_MS = 10_000;
/** Until the router says otherwise. */
const FRAME_BYTES_MAX = 1024 * 1024;
const PRESENCE_BYTES_MAX = 4096;

/** Close codes after which the client does not come back by itself. */
const FINAL = new Map([
  [4401, "unauthorized"],
  [4409, "displaced"],
  [4426, "version"],
]);
/** Close codes for what was said. It would be said again, so such an end is a failed attempt. */
const COMPLAINTS = new Map([
  [1009, "limit"],
  [4400, "malformed"],
  [4403, "forbidden"],
  [4408, "malformed"],
  [4429, "limit"],
]);

type Phase = "new" | "dialing" | "greeting" | "open" | "waiting" | "offline" | "ended" | "closed";

export class Session {
  status: SessionStatus = "connecting";

  private phase: Phase = "new";
  private readonly replicas = new Map<string, Replica>();
  /** Of closed documents too: their clocks go on when they are opened again. */
  private readonly buffers = new Map<string, SendBuffer>();
  /** How many subscriptions of a document were asked for on this connection and not answered. */
  private readonly asked = new Map<string, number>();
  private readonly replicaOptions: ReplicaOptions;
  private actions: Action[] = [];
  private failedCount = 0;
  private waitCount = 0;
  /** Whether the last connection ended for what was said in it. */
  private wasBlamed = false;
  /** Of this connection: when it was welcomed, and whether a document went live on it. */
  private welcomedAt = 0;
  private hasBeenLive = false;
  /** The next attempt, or the end of patience with this one. */
  private phaseEndsAt: number | null = null;
  private heartbeatMs = 0;
  private heardAt = 0;
  private pingedAt: number | null = null;

  constructor(private readonly options: SessionOptions) {
    this.replicaOptions = {
      client: options.client,
      holdBackMax: options.holdBackMax,
      random: options.random,
      frameBytesMax: FRAME_BYTES_MAX,
      presenceBytesMax: PRESENCE_BYTES_MAX,
    };
  }

  /** What is to be done, oldest first; empty when there is nothing. */
  take(): Action[] {
    const actions = this.actions;
    this.actions = [];
    return actions;
  }

  get dueAt(): number {
    let dueAt = Math.min(this.phaseEndsAt ?? Infinity, this.heartbeatAt);
    for (const replica of this.replicas.values()) dueAt = Math.min(dueAt, replica.dueAt);
    return dueAt;
  }

  get isDialing(): boolean {
    return this.phase === "dialing";
  }

  get client(): string {
    return this.options.client;
  }

  replica(name: string): Replica | undefined {
    return this.replicas.get(name);
  }

  // ------------------------------------------------------------------------------- the application

  start(now: number): void {
    if (this.phase === "new") this.dial(now);
  }

  /** Connects now, whether it waits, has given up or was sent away. */
  goOnline(now: number): void {
    if (this.phase === "closed") throw new ClosedError("the client is closed; make a new one with `connect`");
    if (this.phase !== "waiting" && this.phase !== "offline" && this.phase !== "ended") return;
    this.failedCount = 0;
    this.waitCount = 0;
    this.disconnect("connecting");
    this.dial(now);
  }

  open(name: string, kind: Kind): Replica {
    const open = this.replicas.get(name);
    if (open !== undefined) return open;
    const out = {
      send: (message: ClientMessage): void => this.send(message),
      tell: (event: ReplicaEvent): void => void this.actions.push({ type: "tell", replica, event }),
    };
    const replica: Replica = new Replica(name, kind, this.bufferOf(name), out, this.replicaOptions);
    this.replicas.set(name, replica);
    if (this.phase === "open") replica.connected(false);
    if (this.phase === "offline" || this.phase === "ended") replica.disconnected(this.phase === "offline" ? "offline" : "closed");
    return replica;
  }

  close(name: string): void {
    this.replicas.get(name)?.close();
    this.replicas.delete(name);
  }

  /** Says goodbye; nothing more comes. */
  end(): void {
    if (this.phase === "closed") return;
    const isConnected = this.phase === "dialing" || this.phase === "greeting" || this.phase === "open";
    if (isConnected) this.actions.push({ type: "hangUp", code: 1000, reason: "" });
    this.phase = "closed";
    this.phaseEndsAt = null;
    for (const name of [...this.replicas.keys()]) this.close(name);
    this.setStatus("closed", null);
  }

  renewToken(token: string): void {
    if (this.phase === "open") this.send({ type: "token", token });
  }

  // -------------------------------------------------------------------------------- the connection

  /** The socket of the attempt is open. */
  opened(token: string | null, now: number): void {
    if (this.phase !== "dialing") return;
    this.phase = "greeting";
    this.heardAt = now;
    this.pingedAt = null;
    const { client, policy } = this.options;
    this.send({ type: "hello", client, version: VERSION, policy, ...(token === null ? {} : { token }) });
  }

  /** The attempt failed or the connection ended. 1006 stands for an end without a close frame. */
  closed(code: number, reason: string, now: number): void {
    if (this.phase !== "open" && this.phase !== "dialing" && this.phase !== "greeting") return;
    this.asked.clear();
    const final = FINAL.get(code);
    if (final !== undefined) return this.giveUp("ended", "closed", refusal(final, reason));
    const complaint = COMPLAINTS.get(code);
    const error = complaint === undefined ? null : refusal(complaint, reason);
    if (error !== null) this.actions.push({ type: "error", error });
    this.countEnd(error !== null, now);
    if (this.failedCount >= this.options.attemptsMax) return this.giveUp("offline", "offline", null);
    this.phase = "waiting";
    this.phaseEndsAt = now + waitMs(this.waitCount, this.options.random);
    this.waitCount += 1;
    this.disconnect("connecting");
  }

  /** A frame came that is no message of this protocol. */
  receivedNonsense(error: ProtocolError, now: number): void {
    this.actions.push({ type: "hangUp", code: 4400, reason: "malformed: not a message of this protocol" });
    this.closed(4400, `malformed: ${error.message}`, now);
  }

  wake(now: number): void {
    if (this.phaseEndsAt !== null && this.phaseEndsAt <= now) {
      if (this.phase === "waiting") {
        this.dial(now);
      } else {
        this.lose(now);
      }
    }
    if (this.heartbeatAt <= now) this.beat(now);
    for (const replica of this.replicas.values()) replica.wake(now);
  }

  // ------------------------------------------------------------------------------------ the router

  received(message: ServerMessage, now: number): void {
    if (this.phase !== "greeting" && this.phase !== "open") return;
    this.heardAt = now;
    this.pingedAt = null;
    if (message.type === "welcome") return this.takeWelcome(message, now);
    if (message.type === "error") return this.takeFailure(message, now);
    if (this.phase !== "open" || message.type === "pong") return;
    const replica = this.replicas.get(message.document);
    if (message.type !== "subscribed") {
      replica?.receive(message, now);
      this.noteLive(replica);
      return;
    }
    const wasAsked = this.asked.has(message.document);
    if (!this.isLastAnswer(message.document)) return;
    if (replica !== undefined) {
      replica.takeSubscribed(message, now);
      this.noteLive(replica);
    } else if (!wasAsked) {
      // Restored by the router for a document that nobody has open here.
      this.send({ type: "unsubscribe", document: message.document, epoch: message.epoch });
    }
  }

  private takeWelcome(message: Welcome, now: number): void {
    if (this.phase !== "greeting") return;
    if (message.version !== VERSION) {
      this.actions.push({ type: "hangUp", code: 4426, reason: "version: not spoken here" });
      return this.closed(4426, `version: the router speaks version ${message.version}, this client ${VERSION}`, now);
    }
    this.phase = "open";
    this.phaseEndsAt = null;
    this.welcomedAt = now;
    this.hasBeenLive = false;
    this.heartbeatMs = message.heartbeat_ms;
    this.replicaOptions.frameBytesMax = limitOf(message, "frame_bytes") ?? FRAME_BYTES_MAX;
    this.replicaOptions.presenceBytesMax = limitOf(message, "presence_bytes") ?? PRESENCE_BYTES_MAX;
    this.setStatus("live", null);
    const restored = new Set(message.restored);
    for (const replica of this.replicas.values()) {
      if (replica.isClosed) continue;
      const isRestored = restored.has(replica.name);
      // It was asked for on the connection before; what becomes of that is told here.
      if (isRestored) this.asked.set(replica.name, 1);
      replica.connected(isRestored);
    }
  }

  private takeFailure(failure: Failure, now: number): void {
    const name = failure.document ?? null;
    // A subscription is answered by `subscribed` or by an error without a clock. `unexpected` is about the past.
    const isOfSubscription =
      name !== null && (failure.clock ?? null) === null && failure.code !== "unexpected" && this.asked.has(name);
    // Counted whether or not the document is still open: the next one who opens it waits for its own answer.
    const isLastAnswer = isOfSubscription && this.isLastAnswer(name);
    const replica = name === null ? undefined : this.replicas.get(name);
    if (replica !== undefined) {
      replica.takeFailure(failure, isLastAnswer, now);
    } else if (!isOfSubscription) {
      this.actions.push({ type: "error", error: new RefusedError(failure.code, failure.message, failure.retriable, name) });
    }
  }

  /** Counts an answer to `subscribe`; of several under way only the last one counts. */
  private isLastAnswer(name: string): boolean {
    const left = (this.asked.get(name) ?? 1) - 1;
    if (left > 0) {
      this.asked.set(name, left);
    } else {
      this.asked.delete(name);
    }
    return left === 0;
  }

  // ---------------------------------------------------------------------------------------- within

  private dial(now: number): void {
    this.phase = "dialing";
    this.phaseEndsAt = now + ATTEMPT_MS;
    this.setStatus("connecting", null);
    this.actions.push({ type: "dial" });
  }

  private noteLive(replica: Replica | undefined): void {
    this.hasBeenLive ||= replica?.status === "live";
  }

  private countEnd(isBlamed: boolean, now: number): void {
    const wasWelcomed = this.phase === "open";
    const wasSteady = wasWelcomed && now - this.welcomedAt >= STEADY_MS;
    const wasOfUse = wasSteady || (wasWelcomed && this.hasBeenLive);
    // Blamed again, it is most likely for the same, however far it came in between.
    const countsAnew = !(isBlamed && this.wasBlamed);
    if (wasOfUse && countsAnew) this.failedCount = 0;
    if (wasSteady && countsAnew) this.waitCount = 0;
    if (isBlamed || !wasOfUse) this.failedCount += 1;
    this.wasBlamed = isBlamed;
  }

  private giveUp(phase: "offline" | "ended", status: "offline" | "closed", error: SynclineError | null): void {
    this.phase = phase;
    this.phaseEndsAt = null;
    if (error !== null) this.actions.push({ type: "error", error });
    this.disconnect(status, error);
  }

  private disconnect(status: "connecting" | "offline" | "closed", error: SynclineError | null = null): void {
    for (const replica of this.replicas.values()) replica.disconnected(status, error);
    this.setStatus(status, error);
  }

  private lose(now: number): void {
    this.actions.push({ type: "hangUp", code: 4000, reason: "no answer" });
    this.closed(1006, "", now);
  }

  // A browser shows no WebSocket pings to its pages, so it is asked from here.
  private get heartbeatAt(): number {
    if (this.phase !== "open" || this.heartbeatMs === 0) return Infinity;
    // From the ping itself, not from what was heard last: a page that slept asks before it gives up.
    return (this.pingedAt ?? this.heardAt) + this.heartbeatMs;
  }

  private beat(now: number): void {
    if (this.pingedAt !== null) return this.lose(now);
    this.pingedAt = now;
    this.send({ type: "ping" });
  }

  private send(message: ClientMessage): void {
    if (message.type === "subscribe") {
      this.asked.set(message.document, (this.asked.get(message.document) ?? 0) + 1);
    }
    this.actions.push({ type: "send", message });
  }

  private bufferOf(name: string): SendBuffer {
    const known = this.buffers.get(name);
    if (known !== undefined) return known;
    const { sendLimits = SEND_LIMITS, journalOf } = this.options;
    const buffer = new SendBuffer(sendLimits, journalOf?.(name) ?? null);
    this.buffers.set(name, buffer);
    return buffer;
  }

  private setStatus(status: SessionStatus, error: SynclineError | null): void {
    if (this.status === status) return;
    this.status = status;
    this.actions.push({ type: "status", status, error });
  }
}

function limitOf({ limits }: Welcome, name: string): number | null {
  const limit = Object.hasOwn(limits, name) ? limits[name] : null;
  return typeof limit === "number" ? limit : null;
}

/** The reason of a close frame is `code: message`; the code may be a finer one than the number says. */
function refusal(fallback: string, reason: string): RefusedError {
  const [, code, message] = /^([a-z_]+): (.*)$/s.exec(reason) ?? [];
  return new RefusedError(code ?? fallback, message ?? reason, false);
}
