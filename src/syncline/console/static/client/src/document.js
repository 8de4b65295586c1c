/**
 * A document as the application holds it.
 *
 * `JsonDocument` has a state that is changed by merge patches. `ByteDocument` (kinds yjs and bytes) hands updates
 * over and leaves the state to the application.
 */
import { fromBase64, toBase64 } from "./base64.js";
import { ChangeQueue } from "./change-queue.js";
import { Emitter } from "./emitter.js";
import { ClosedError, InvalidArgumentError, RefusedError, SynclineError } from "./errors.js";
import { frozenCopy, isJsonObject } from "./json.js";
const UNREAD_MAX = 1024;
class DocumentHandle extends Emitter {
    replica;
    session;
    connection;
    waiters = new Map();
    queues = new Set();
    flushed = [];
    /** @internal */
    constructor(replica, session, connection) {
        super();
        this.replica = replica;
        this.session = session;
        this.connection = connection;
    }
    get name() {
        return this.replica.name;
    }
    get kind() {
        return this.replica.kind;
    }
    get status() {
        return this.replica.status;
    }
    /** Whether it is closed for good: by the application, or because the router ended it. */
    get isClosed() {
        return this.replica.isClosed;
    }
    /** The highest sequence number that this replica has. */
    get seq() {
        return this.replica.applied;
    }
    /** Whether the router lets this client change the document; true as long as it has not said. */
    get mayWrite() {
        return this.replica.mayWrite;
    }
    /** How many own changes are not known to be stored. */
    get unsavedCount() {
        return this.replica.buffer.unacknowledged.length;
    }
    /** Who else is here, by client id, as the router last said. */
    get presence() {
        return new Map(this.replica.presence);
    }
    /** Shows the others something small about this client; null takes it away. It is told again after a reconnect. Throws LimitError. */
    setPresence(state) {
        const copy = frozenCopy(state, "the presence");
        this.checkOpen();
        this.connection.run(() => this.replica.setPresence(copy));
    }
    /** Resolves when nothing is unsaved. Rejects if the document closes before. */
    flush() {
        if (this.unsavedCount === 0)
            return Promise.resolve();
        return new Promise((resolve, reject) => {
            const stop = this.on("status", ({ status }) => {
                if (status !== "closed")
                    return;
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
    changes({ unreadMax = UNREAD_MAX } = {}) {
        const queue = new ChangeQueue(unreadMax, () => this.queues.delete(queue));
        this.queues.add(queue);
        if (this.replica.isClosed)
            queue.end();
        return queue;
    }
    /** Asks the router for the whole state, whatever is known here. */
    reload() {
        this.checkOpen();
        this.connection.run(() => this.replica.reload());
    }
    /** Leaves the document. What is unsaved stays with the client and goes on when the document is opened again. */
    close() {
        this.connection.run(() => this.session.close(this.name));
    }
    /** @internal Tells the listeners of `error`. */
    report(error) {
        this.emitCommon(this, "error", error);
    }
    /** @internal What the replica has to say. */
    receive(event) {
        const emitter = this;
        switch (event.type) {
            case "saved":
                return this.wasSaved(event.own, event.seq);
            case "status":
                // First the news, then whoever waited for better ones.
                this.emitCommon(emitter, "status", { status: event.status, error: event.error });
                if (this.replica.isClosed)
                    this.wasClosed(event.error);
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
    push(mutation) {
        this.checkOpen();
        if (!this.replica.mayWrite) {
            throw new RefusedError("forbidden", "this client may only read the document; ask for a token that allows writing", false, this.name);
        }
        return this.connection.run(() => {
            const own = this.replica.change(mutation);
            const saved = new Promise((resolve, reject) => this.waiters.set(own, { resolve, reject }));
            // Whoever does not look at `saved` is told by events, and must not be ended by a rejection nobody handles.
            saved.catch(() => undefined);
            return {
                get clock() {
                    return own.clock;
                },
                saved,
            };
        });
    }
    hand(change) {
        for (const queue of [...this.queues])
            queue.push(change);
    }
    wasSaved(own, seq) {
        const saved = { clock: own.clock, seq };
        this.settle(own)?.resolve(saved);
        this.emitCommon(this, "saved", saved);
        this.checkFlushed();
    }
    wasClosed(error) {
        for (const waiter of this.waiters.values())
            waiter.reject(error ?? this.closedError());
        this.waiters.clear();
        for (const queue of [...this.queues])
            queue.end();
    }
    settle(own) {
        const waiter = this.waiters.get(own);
        this.waiters.delete(own);
        return waiter;
    }
    checkFlushed() {
        if (this.unsavedCount > 0)
            return;
        const flushed = this.flushed;
        this.flushed = [];
        for (const resolve of flushed)
            resolve();
    }
    checkOpen() {
        if (this.replica.isClosed)
            throw this.closedError();
    }
    closedError() {
        return new ClosedError(`the document ${this.name} is closed here; open it again with \`client.document\``);
    }
    emitCommon(emitter, name, event) {
        // The common events are the same in every kind of document, which the type checker cannot see.
        emitter.emit(name, event);
    }
}
export class JsonDocument extends DocumentHandle {
    /** The document with the own changes on top, frozen; undefined as long as nothing is known. */
    get state() {
        return this.replica.state;
    }
    /**
     * Changes the document by a merge patch (RFC 7396): names are merged, `null` takes one away. It shows at once.
     * Throws InvalidArgumentError, LimitError, RefusedError or ClosedError, and then nothing has changed.
     */
    change(patch) {
        const copy = frozenCopy(patch, "the patch");
        if (!isJsonObject(copy))
            throw new InvalidArgumentError("a patch is an object with the names to change");
        return this.push(copy);
    }
    receiveChange(event) {
        const change = { ...originOf(event, this.seq), state: this.state ?? null };
        this.emit("change", change);
        this.hand(change);
    }
}
export class ByteDocument extends DocumentHandle {
    /** Sends an update that the application has applied itself. Throws as `JsonDocument.change` does. */
    send(update) {
        if (!(update instanceof Uint8Array))
            throw new InvalidArgumentError("an update is a Uint8Array");
        return this.push(toBase64(update));
    }
    receiveChange(event) {
        // What is sent from here has been applied by the application, and what was refused it learns from `error`.
        if (event.type !== "state" && event.type !== "remote")
            return;
        const updates = event.type === "state" ? event.updates : [event.mutation];
        const change = {
            origin: event.type,
            seq: event.seq,
            client: event.type === "remote" ? event.client : null,
            updates: updates.map((update) => fromBase64(update)),
        };
        this.emit("update", change);
        this.hand(change);
    }
}
function originOf(event, seq) {
    switch (event.type) {
        case "state":
        case "rebased":
            return { origin: "state", seq, client: null, patch: null };
        case "remote":
            return { origin: "remote", seq: event.seq, client: event.client, patch: event.mutation };
        case "local":
        case "refused":
            return { origin: event.type, seq: null, client: null, patch: event.own.mutation };
    }
}
