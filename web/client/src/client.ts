/** The way in: `connect` makes a client, a client opens documents. */
import { Connection, type WebSocketConstructor } from "./connection.js";
import { ByteDocument, JsonDocument, type StatusChange } from "./document.js";
import { Emitter } from "./emitter.js";
import { ClosedError, InvalidArgumentError, type SynclineError } from "./errors.js";
import { utf8Length } from "./json.js";
import type { Kind, Policy } from "./messages.js";
import type { Replica } from "./replica.js";
import { SEND_LIMITS, type SendLimits } from "./send-buffer.js";
import { Session, type SessionStatus } from "./session.js";
import { randomClient, storedClient, StoredJournal, type ClientStorage } from "./storage.js";
import { SYSTEM_TIMERS, type Timers } from "./timers.js";
import type { TokenSource } from "./token.js";

export interface ConnectOptions {
  /** Names this replica, across reconnects. By default from `storage`, else chosen at random. */
  client?: string;
  /** A token, or a function that fetches one before each connection and for each renewal. */
  token?: TokenSource;
  /** What a dropped connection leaves behind at the router. */
  policy?: Policy;
  /** The class to use where there is no global one, as in Node 20. */
  WebSocket?: WebSocketConstructor;
  /** Failed attempts in a row until the client is offline. */
  maxAttempts?: number;
  /** Keeps unsent work across page reloads. */
  storage?: ClientStorage;
  /** Bounds of unsent work per document. */
  sendLimits?: Partial<SendLimits>;
  /** Mutations kept back per document while its state is awaited. */
  holdBackMax?: number;
  timers?: Timers;
  /** Chance, from 0 to 1. */
  random?: () => number;
}

export interface ClientEvents {
  status: StatusChange & { readonly status: SessionStatus };
  error: SynclineError;
}

const MAX_ATTEMPTS = 10;
const HOLD_BACK_MAX = 4096;
const CLIENT_ID = /^[A-Za-z0-9._~-]{1,64}$/;
const NAME_BYTES_MAX = 200;
const CONTROL = /[\u0000-\u001f\u007f-\u009f]/;

/** Connects to the `/sync` of a router, in the background. */
export function connect(url: string, options: ConnectOptions = {}): Client {
  return new Client(url, options);
}

export class Client extends Emitter<ClientEvents> {
  private readonly session: Session;
  private readonly connection: Connection;
  private readonly documents = new Map<string, JsonDocument | ByteDocument>();
  /** By replica: a document that was closed and opened again in one go is two of them. */
  private readonly handles = new WeakMap<Replica, JsonDocument | ByteDocument>();
  private isClosed = false;

  /** @internal Use `connect`. */
  constructor(url: string, options: ConnectOptions) {
    super();
    const client = options.client ?? (options.storage ? storedClient(options.storage) : randomClient());
    if (!CLIENT_ID.test(client)) {
      throw new InvalidArgumentError("a client id has 1 to 64 characters from A-Z a-z 0-9 . _ ~ -");
    }
    const { storage } = options;
    this.session = new Session({
      client,
      policy: options.policy ?? "clean",
      attemptsMax: options.maxAttempts ?? MAX_ATTEMPTS,
      holdBackMax: options.holdBackMax ?? HOLD_BACK_MAX,
      random: options.random ?? Math.random,
      sendLimits: { ...SEND_LIMITS, ...options.sendLimits },
      ...(storage && {
        journalOf: (name: string) => new StoredJournal(storage, client, name, (error) => this.emit("error", error)),
      }),
    });
    this.connection = new Connection(
      this.session,
      checkedUrl(url),
      socketClass(options),
      options.token,
      options.timers ?? SYSTEM_TIMERS,
      {
        tell: (replica, event) => this.handles.get(replica)?.receive(event),
        status: (status, error) => this.emit("status", { status, error }),
        error: (error) => this.emit("error", error),
      },
    );
    this.connection.run((now) => this.session.start(now));
  }

  /** The id of this replica. */
  get id(): string {
    return this.session.client;
  }

  get status(): SessionStatus {
    return this.session.status;
  }

  /** Opens a document, or gives the one that is open. */
  document(name: string, options?: { kind?: "json" }): JsonDocument;
  document(name: string, options: { kind: "yjs" | "bytes" }): ByteDocument;
  document(name: string, { kind = "json" }: { kind?: Kind } = {}): JsonDocument | ByteDocument {
    if (this.isClosed) throw new ClosedError("the client is closed; make a new one with `connect`");
    const open = this.documents.get(name);
    if (open !== undefined && !open.isClosed) {
      if (open.kind === kind) return open;
      throw new InvalidArgumentError(`the document ${name} is open as ${open.kind}; close it before opening it as ${kind}`);
    }
    checkName(name);
    return this.connection.run(() => this.openDocument(name, kind));
  }

  /** Connects now: after `offline`, after an end that was final, or instead of waiting for the next attempt. */
  goOnline(): void {
    this.connection.run((now) => this.session.goOnline(now));
  }

  /** Fetches a fresh token and gives it to the router. */
  renewToken(): Promise<void> {
    return this.connection.renewToken();
  }

  /** Leaves all documents and the router. What is unsaved is lost unless there is a `storage`: see `flush`. */
  close(): void {
    this.isClosed = true;
    this.connection.run(() => this.session.end());
  }

  private openDocument(name: string, kind: Kind): JsonDocument | ByteDocument {
    // One that was ended by the router is still known; it is left before it is asked for again.
    this.session.close(name);
    const replica = this.session.open(name, kind);
    const document =
      kind === "json"
        ? new JsonDocument(replica, this.session, this.connection)
        : new ByteDocument(replica, this.session, this.connection);
    this.documents.set(name, document);
    this.handles.set(replica, document);
    return document;
  }
}

function socketClass({ WebSocket = (globalThis as { WebSocket?: WebSocketConstructor }).WebSocket }: ConnectOptions): WebSocketConstructor {
  if (WebSocket === undefined) {
    throw new InvalidArgumentError("there is no WebSocket here; hand one in as the option `WebSocket`, such as that of `ws`");
  }
  return WebSocket;
}

function checkedUrl(url: string): string {
  let scheme: string;
  try {
    scheme = new URL(url).protocol;
  } catch {
    scheme = "";
  }
  if (scheme === "ws:" || scheme === "wss:") return url;
  throw new InvalidArgumentError("the address of a router begins with ws:// or wss:// and ends in /sync");
}

function checkName(name: string): void {
  const bytes = typeof name === "string" ? utf8Length(name) : 0;
  if (bytes >= 1 && bytes <= NAME_BYTES_MAX && !CONTROL.test(name)) return;
  throw new InvalidArgumentError("the name of a document has 1 to 200 bytes and no control characters");
}
