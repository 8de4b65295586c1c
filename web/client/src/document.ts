/**
 * A document as the application holds it.
 *
 * `JsonDocument` has a state that is changed by merge patches. `ByteDocument` (kinds yjs and bytes) hands updates
 * over and leaves the state to the application.
 */
import { fromBase64, toBase64 } from "./base64.js";
import { ChangeQueue } from "./change-queue.js";
import type { Connection } from "./connection.js";
import { Emitter } from "./emitter.js";
import { ClosedError, InvalidArgumentError, RefusedError, SynclineError } from "./errors.js";
import { frozenCopy, isJsonObject, type Json, type JsonObject } from "./json.js";
import type { Kind } from "./messages.js";
import type { Replica, ReplicaEvent, Status } from "./replica.js";
import type { OwnMutation } from "./send-buffer.js";
import type { Session } from "./session.js";

export interface Saved {
  readonly clock: number;
  /** The place in the document's history; null if the router only said that it is stored. */
  readonly seq: number | null;
}

/** What became of a change. */
export interface PendingChange {
  readonly clock: number;
  /** Resolves when the router has it on disk. Rejects if it was refused, or the document closed before. */
  readonly saved: Promise<Saved>;
}

export interface StatusChange {
  readonly status: Status;
  readonly error: SynclineError | null;
}

/**
 * Where a change comes from: `state`, anything may be different; `remote`, somebody else; `local`, this client;
 * `refused`, an own change that the router did not take and that is undone.
 */
export interface JsonChange {
  readonly origin: "state" | "remote" | "local" | "refused";
  readonly seq: number | null;
  readonly client: string | null;
  readonly patch: JsonObject | null;
  /** The document after this change, with what follows it already. */
  readonly state: Json;
}

/** With origin `state` the updates are all there are, the own ones that are not saved yet included. */
export interface ByteChange {
  readonly origin: "state" | "remote";
  readonly seq: number;
  readonly client: string | null;
  readonly updates: readonly Uint8Array[];
}

export interface DocumentEvents {
  saved: Saved;
  status: StatusChange;
  presence: ReadonlyMap<string, Json>;
  error: SynclineError;
}
export interface JsonDocumentEvents extends DocumentEvents {
  change: JsonChange;
}
export interface ByteDocumentEvents extends DocumentEvents {
  update: ByteChange;
}

interface Waiter {
  resolve(saved: Saved): void;
  reject(error: SynclineError): void;
}

/** What changes what the application sees. */
type ContentEvent = Extract<ReplicaEvent, { type: "state" | "remote" | "local" | "refused" | "rebased" }>;

const UNREAD_MAX = 1024;

abstract class DocumentHandle<Events extends DocumentEvents, Change> extends Emitter<Events> {
  private readonly waiters = new Map<OwnMutation, Waiter>();
  private readonly queues = new Set<ChangeQueue<Change>>();
  private flushed: (() => void)[] = [];

  /** @internal */
  constructor(
    protected readonly replica: Replica,
    private readonly session: Session,
    private readonly connection: Connection,
  ) {
    super();
  }

  get name(): string {
    return this.replica.name;
  }

  get kind(): Kind {
    return this.replica.kind;
  }

  get status(): Status {
    return this.replica.status;
  }

  /** Whether it is closed for good: by the application, or because the router ended it. */
  get isClosed(): boolean {
    return this.replica.isClosed;
  }

  /** The highest sequence number that this replica has. */
  get seq(): number {
    return this.replica.applied;
  }

  /** Whether the router lets this client change the document; true as long as it has not said. */
  get mayWrite(): boolean {
    return this.replica.mayWrite;
  }

  /** How many own changes are not known to be stored. */
  get unsavedCount(): number {
    return this.replica.buffer.unacknowledged.length;
  }

  /** Who else is here, by client id, as the router last said. */
  get presence(): ReadonlyMap<string, Json> {
    return new Map(this.replica.presence);
  }

  /** Shows the others something small about this client; null takes it away. It is told again after a reconnect. Throws LimitError. */
  setPresence(state: unknown): void {
    const copy = frozenCopy(state, "the presence");
    this.checkOpen();
    this.connection.run(() => this.replica.setPresence(copy));
  }

  /** Resolves when nothing is unsaved. Rejects if the document closes before. */
  flush(): Promise<void> {
    if (this.unsavedCount === 0) return Promise.resolve();
    return new Promise((resolve, reject) => {
      const stop = (this as Emitter<DocumentEvents>).on("status", ({ status }) => {
        if (status !== "closed") return;
        stop();
        reject(this.closedError());
      });
      this.flushed.push(() => {
        stop();
        resolve();
      });
    });
  }

  /**
   * What happens from now on, one after another. Throws LimitError if more than `unreadMax` were unread: what is
   * missing then is in the state. Ends when the document closes.
   */
  changes({ unreadMax = UNREAD_MAX }: { unreadMax?: number } = {}): AsyncIterableIterator<Change> {
    const queue = new ChangeQueue<Change>(unreadMax, () => this.queues.delete(queue));
    this.queues.add(queue);
    if (this.replica.isClosed) queue.end();
    return queue;
  }

  /** Asks the router for the whole state, whatever is known here. */
  reload(): void {
    this.checkOpen();
    this.connection.run(() => this.replica.reload());
  }

  /** Leaves the document. What is unsaved stays with the client and goes on when the document is opened again. */
  close(): void {
    this.connection.run(() => this.session.close(this.name));
  }

  /** @internal Tells the listeners of `error`. */
  report(error: SynclineError): void {
    this.emitCommon(this as Emitter<DocumentEvents>, "error", error);
  }

  /** @internal What the replica has to say. */
  receive(event: ReplicaEvent): void {
    const emitter = this as Emitter<DocumentEvents>;
    switch (event.type) {
      case "saved":
        return this.wasSaved(event.own, event.seq);
      case "status":
        // First the news, then whoever waited for better ones.
        this.emitCommon(emitter, "status", { status: event.status, error: event.error });
        if (this.replica.isClosed) this.wasClosed(event.error);
        return;
      case "presence":
        return this.emitCommon(emitter, "presence", this.presence);
      case "error":
        return this.report(event.error);
      case "refused":
        this.settle(event.own)?.reject(event.error);
        this.receiveChange(event);
        return this.checkFlushed();
      default:
        return this.receiveChange(event);
    }
  }

  protected abstract receiveChange(event: ContentEvent): void;

  protected push(mutation: Json): PendingChange {
    this.checkOpen();
    if (!this.replica.mayWrite) {
      throw new RefusedError("forbidden", "this client may only read the document; ask for a token that allows writing", false, this.name);
    }
    return this.connection.run(() => {
      const own = this.replica.change(mutation);
      const saved = new Promise<Saved>((resolve, reject) => this.waiters.set(own, { resolve, reject }));
      // Whoever does not look at `saved` is told by events, and must not be ended by a rejection nobody handles.
      saved.catch(() => undefined);
      return {
        get clock(): number {
          return own.clock;
        },
        saved,
      };
    });
  }

  protected hand(change: Change): void {
    for (const queue of [...this.queues]) queue.push(change);
  }

  private wasSaved(own: OwnMutation, seq: number | null): void {
    const saved: Saved = { clock: own.clock, seq };
    this.settle(own)?.resolve(saved);
    this.emitCommon(this as Emitter<DocumentEvents>, "saved", saved);
    this.checkFlushed();
  }

  private wasClosed(error: SynclineError | null): void {
    for (const waiter of this.waiters.values()) waiter.reject(error ?? this.closedError());
    this.waiters.clear();
    for (const queue of [...this.queues]) queue.end();
  }

  private settle(own: OwnMutation): Waiter | undefined {
    const waiter = this.waiters.get(own);
    this.waiters.delete(own);
    return waiter;
  }

  private checkFlushed(): void {
    if (this.unsavedCount > 0) return;
    const flushed = this.flushed;
    this.flushed = [];
    for (const resolve of flushed) resolve();
  }

  private checkOpen(): void {
    if (this.replica.isClosed) throw this.closedError();
  }

  private closedError(): ClosedError {
    return new ClosedError(`the document ${this.name} is closed here; open it again with \`client.document\``);
  }

  private emitCommon<Name extends keyof DocumentEvents>(
    emitter: Emitter<DocumentEvents>,
    name: Name,
    event: DocumentEvents[Name],
  ): void {
    // The common events are the same in every kind of document, which the type checker cannot see.
    (emitter as unknown as { emit(name: Name, event: DocumentEvents[Name]): void }).emit(name, event);
  }
}

export class JsonDocument extends DocumentHandle<JsonDocumentEvents, JsonChange> {
  /** The document with the own changes on top, frozen; undefined as long as nothing is known. */
  get state(): Json | undefined {
    return this.replica.state;
  }

  /**
   * Changes the document by a merge patch (RFC 7396): names are merged, `null` takes one away. It shows at once.
   * Throws InvalidArgumentError, LimitError, RefusedError or ClosedError, and then nothing has changed.
   */
  change(patch: object): PendingChange {
    const copy = frozenCopy(patch, "the patch");
    if (!isJsonObject(copy)) throw new InvalidArgumentError("a patch is an object with the names to change");
    return this.push(copy);
  }

  protected override receiveChange(event: ContentEvent): void {
    const change: JsonChange = { ...originOf(event, this.seq), state: this.state ?? null };
    this.emit("change", change);
    this.hand(change);
  }
}

export class ByteDocument extends DocumentHandle<ByteDocumentEvents, ByteChange> {
  /** Sends an update that the application has applied itself. Throws as `JsonDocument.change` does. */
  send(update: Uint8Array): PendingChange {
    if (!(update instanceof Uint8Array)) throw new InvalidArgumentError("an update is a Uint8Array");
    return this.push(toBase64(update));
  }

  protected override receiveChange(event: ContentEvent): void {
    // What is sent from here has been applied by the application, and what was refused it learns from `error`.
    if (event.type !== "state" && event.type !== "remote") return;
    const updates = event.type === "state" ? event.updates : [event.mutation];
    const change: ByteChange = {
      origin: event.type,
      seq: event.seq,
      client: event.type === "remote" ? event.client : null,
      updates: updates.map((update) => fromBase64(update as string)),
    };
    this.emit("update", change);
    this.hand(change);
  }
}

function originOf(event: ContentEvent, seq: number): Omit<JsonChange, "state"> {
  switch (event.type) {
    case "state":
    case "rebased":
      return { origin: "state", seq, client: null, patch: null };
    case "remote":
      return { origin: "remote", seq: event.seq, client: event.client, patch: event.mutation as JsonObject };
    case "local":
    case "refused":
      return { origin: event.type, seq: null, client: null, patch: event.own.mutation as JsonObject };
  }
}
