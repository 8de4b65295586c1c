/**
 * The shell around a session: a WebSocket, timers and chance.
 *
 * Every step of the session goes through `run`, and what it wants done is done right after, in order. A listener of
 * the application may take further steps; they are queued behind.
 */
import { ProtocolError, reasonOf, SynclineError } from "./errors.js";
import { readServerMessage, SUBPROTOCOL } from "./messages.js";
import { TIMER_MS_MAX } from "./timers.js";
import { TokenKeeper } from "./token.js";
const nothing = () => undefined;
export class Connection {
    session;
    url;
    socketClass;
    timers;
    listener;
    socket = null;
    /** Grows with each attempt, so that a token that comes late is not used for a later one. */
    attempt = 0;
    timer = null;
    timerAt = Infinity;
    isDraining = false;
    tokens;
    constructor(session, url, socketClass, token, timers, listener) {
        this.session = session;
        this.url = url;
        this.socketClass = socketClass;
        this.timers = timers;
        this.listener = listener;
        this.tokens = new TokenKeeper(token, timers, (fresh) => this.run(() => session.renewToken(fresh)), (error) => listener.error(tokenError(error)));
    }
    /** Takes a step of the session and does what follows from it. */
    run(step) {
        try {
            return step(this.timers.now());
        }
        finally {
            this.drain();
        }
    }
    renewToken() {
        return this.tokens.renew();
    }
    drain() {
        if (this.isDraining)
            return;
        this.isDraining = true;
        try {
            for (let actions = this.session.take(); actions.length > 0; actions = this.session.take()) {
                for (const action of actions)
                    this.carryOut(action);
            }
        }
        finally {
            this.isDraining = false;
            this.setTimer();
        }
    }
    carryOut(action) {
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
    async dial() {
        this.attempt += 1;
        const attempt = this.attempt;
        let token;
        try {
            token = await this.tokens.fetch();
        }
        catch (error) {
            if (attempt !== this.attempt)
                return;
            this.listener.error(tokenError(error));
            return this.run((now) => this.session.closed(1006, "", now));
        }
        if (attempt === this.attempt)
            this.openSocket(token);
    }
    openSocket(token) {
        let socket;
        try {
            socket = new this.socketClass(this.url, [SUBPROTOCOL]);
        }
        catch (error) {
            this.listener.error(new SynclineError("socket", `no WebSocket can be made: ${reasonOf(error)}`));
            return this.run((now) => this.session.closed(1006, "", now));
        }
        this.socket = socket;
        socket.onopen = () => this.run((now) => this.session.opened(token, now));
        socket.onmessage = ({ data }) => this.received(data);
        socket.onclose = ({ code, reason }) => {
            this.release();
            this.run((now) => this.session.closed(code, String(reason ?? ""), now));
        };
        // An end always comes as `onclose` too, and tells more there.
        socket.onerror = nothing;
    }
    received(data) {
        let message;
        try {
            message = readServerMessage(data);
        }
        catch (error) {
            if (!(error instanceof ProtocolError))
                throw error;
            return this.run((now) => this.session.receivedNonsense(error, now));
        }
        this.run((now) => this.session.received(message, now));
    }
    hangUp(code, reason) {
        // A token that is still being fetched is for nobody now.
        this.attempt += 1;
        const socket = this.socket;
        this.release();
        socket?.close(code, reason);
    }
    release() {
        this.tokens.stop();
        if (this.socket === null)
            return;
        this.socket.onopen = nothing;
        this.socket.onmessage = nothing;
        this.socket.onclose = nothing;
        this.socket = null;
    }
    setTimer() {
        const dueAt = this.session.dueAt;
        if (dueAt === this.timerAt)
            return;
        if (this.timer !== null)
            this.timers.clearTimeout(this.timer);
        this.timer = null;
        this.timerAt = dueAt;
        if (dueAt === Infinity)
            return;
        const wait = Math.min(Math.max(Math.ceil(dueAt - this.timers.now()), 0), TIMER_MS_MAX);
        this.timer = this.timers.setTimeout(() => {
            this.timer = null;
            this.timerAt = Infinity;
            this.run((now) => this.session.wake(now));
        }, wait);
    }
}
function tokenError(error) {
    return new SynclineError("token", `the token could not be fetched: ${reasonOf(error)}`, true);
}
