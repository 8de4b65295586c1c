/**
 * Every error that the client makes on purpose, named by who has to act.
 *
 *     SynclineError
 *       InvalidArgumentError   what the application handed in is no patch, name, presence or address
 *       LimitError             larger or more than allowed
 *       RefusedError           the router said no; `code` is what the wire carried
 *       ClosedError            the document or the client is closed
 *       ProtocolError          the router broke the rules
 *       StorageError           unsent work could not be kept for after a reload
 *
 * `code` is a word to compare with, the message is a sentence to read.
 */
export class SynclineError extends Error {
    code;
    retriable;
    constructor(code, message, 
    /** Whether trying the same again can help. */
    retriable = false) {
        super(message);
        this.code = code;
        this.retriable = retriable;
        this.name = new.target.name;
    }
}
export class InvalidArgumentError extends SynclineError {
    constructor(message) {
        super("invalid_argument", message);
    }
}
export class LimitError extends SynclineError {
    what;
    value;
    limit;
    constructor(what, value, limit, advice) {
        super("limit", `${what} is ${value}, the limit is ${limit}; ${advice}`);
        this.what = what;
        this.value = value;
        this.limit = limit;
    }
}
export class RefusedError extends SynclineError {
    document;
    clock;
    constructor(code, message, retriable, document = null, clock = null) {
        super(code, message, retriable);
        this.document = document;
        this.clock = clock;
    }
}
export class ClosedError extends SynclineError {
    constructor(message) {
        super("closed", message);
    }
}
export class ProtocolError extends SynclineError {
    constructor(message) {
        super("malformed", message);
    }
}
export class StorageError extends SynclineError {
    constructor(message) {
        super("storage", message, true);
    }
}
/** What somebody else's error says. */
export function reasonOf(error) {
    return error instanceof Error ? error.message : "no reason was given";
}
