/**
 * The shell around a session: a WebSocket, timers and chance.
 *
 * Every step of the session goes through `run`, and what it wants done is done right after, in order. A listener of
 * the application may take further steps; they are queued behind.
 */
import { ProtocolError, reasonOf, SynclineError } from "./errors.js";
import { readServerMessage, SUBPROTOCOL, type ServerMessage } from "./messages.js";
import type { Replica, ReplicaEvent } from "./replica.js";
import type { Session, SessionStatus } from "./session.js";
import { TIMER_MS_MAX, type Timers } from "./timers.js";
import { TokenKeeper, type TokenSource } from "./token.js";

/** As much of a WebSocket as is used: the browser's, Node's, and that of the package `ws` have it. */
export interface WebSocketLike {
  onopen: ((event: never) => void) | null;
  onmessage: ((event: never) => void) | null;
  onclose: ((event: never) => void) | null;
  onerror: ((event: never) => void) | null;
  send(data: string): void;
  close(code?: number, reason?: string): void;
}
export type WebSocketConstructor = new (url: string, protocols: string[]) => WebSocketLike;

export interface ConnectionListener {
  tell(replica: Replica, event: ReplicaEvent): void;
  status(status: SessionStatus, error: SynclineError | null): void;
  error(error: SynclineError): void;
}

const nothing = (): void => undefined;

export class Connection {
  private socket: WebSocketLike | null = null;
  /** Grows with each attempt, so that a token that comes late is not used for a later one. */
  private attempt = 0;
  private timer: unknown = null;
  private timerAt = Infinity;
  private isDraining = false;
  private readonly tokens: TokenKeeper;

  constructor(
    private readonly session: Session,
    private readonly url: string,
    private readonly socketClass: WebSocketConstructor,
    token: TokenSource | undefined,
    private readonly timers: Timers,
    private readonly listener: ConnectionListener,
  ) {
    this.tokens = new TokenKeeper(
      token,
      timers,
      (fresh) => this.run(() => session.renewToken(fresh)),
      (error) => listener.error(tokenError(error)),
    );
  }

  /** Takes a step of the session and does what follows from it. */
  run<T>(step: (now: number) => T): T {
    try {
      return step(this.timers.now());
    } finally {
      this.drain();
    }
  }

  renewToken(): Promise<void> {
    return this.tokens.renew();
  }

  private drain(): void {
    if (this.isDraining) return;
    this.isDraining = true;
    try {
      for (let actions = this.session.take(); actions.length > 0; actions = this.session.take()) {
        for (const action of actions) this.carryOut(action);
      }
    } finally {
      this.isDraining = false;
      this.setTimer();
    }
  }

  private carryOut(action: ReturnType<Session["take"]>[number]): void {
    switch (action.type) {
      case "dial":
        return void this.dial();
      case "send":
        return this.socket?.send(JSON.stringify(action.message));
      case "hangUp":
        return this.hangUp(action.code, action.reason);
      case "tell":
        return this.listener.tell(action.replica, action.event);
      case "status":
        return this.listener.status(action.status, action.error);
      case "error":
        return this.listener.error(action.error);
    }
  }

  private async dial(): Promise<void> {
    this.attempt += 1;
    const attempt = this.attempt;
    let token: string | null;
    try {
      token = await this.tokens.fetch();
    } catch (error) {
      if (attempt !== this.attempt) return;
      this.listener.error(tokenError(error));
      return this.run((now) => this.session.closed(1006, "", now));
    }
    if (attempt === this.attempt) this.openSocket(token);
  }

  private openSocket(token: string | null): void {
    let socket: WebSocketLike;
    try {
      socket = new this.socketClass(this.url, [SUBPROTOCOL]);
    } catch (error) {
      this.listener.error(new SynclineError("socket", `no WebSocket can be made: ${reasonOf(error)}`));
      return this.run((now) => this.session.closed(1006, "", now));
    }
    this.socket = socket;
    socket.onopen = () => this.run((now) => this.session.opened(token, now));
    socket.onmessage = ({ data }: { data: unknown }) => this.received(data);
    socket.onclose = ({ code, reason }: { code: number; reason: unknown }) => {
      this.release();
      this.run((now) => this.session.closed(code, String(reason ?? ""), now));
    };
    // An end always comes as `onclose` too, and tells more there.
    socket.onerror = nothing;
  }

  private received(data: unknown): void {
    let message: ServerMessage;
    try {
      message = readServerMessage(data);
    } catch (error) {
      if (!(error instanceof ProtocolError)) throw error;
      return this.run((now) => this.session.receivedNonsense(error, now));
    }
    this.run((now) => this.session.received(message, now));
  }

  private hangUp(code: number, reason: string): void {
    // A token that is still being fetched is for nobody now.
    this.attempt += 1;
    const socket = this.socket;
    this.release();
    socket?.close(code, reason);
  }

  private release(): void {
    this.tokens.stop();
    if (this.socket === null) return;
    this.socket.onopen = nothing;
    this.socket.onmessage = nothing;
    this.socket.onclose = nothing;
    this.socket = null;
  }

  private setTimer(): void {
    const dueAt = this.session.dueAt;
    if (dueAt === this.timerAt) return;
    if (this.timer !== null) this.timers.clearTimeout(this.timer);
    this.timer = null;
    this.timerAt = dueAt;
    if (dueAt === Infinity) return;
    const wait = Math.min(Math.max(Math.ceil(dueAt - this.timers.now()), 0), TIMER_MS_MAX);
    this.timer = this.timers.setTimeout(() => {
      this.timer = null;
      this.timerAt = Infinity;
      this.run((now) => this.session.wake(now));
    }, wait);
  }
}

function tokenError(error: unknown): SynclineError {
  return new SynclineError("token", `the token could not be fetched: ${reasonOf(error)}`, true);
}
