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
  constructor(
    readonly code: string,
    message: string,
    /** Whether trying the same again can help. */
    readonly retriable = false,
  ) {
    super(message);
    this.name = new.target.name;
  }
}

export class InvalidArgumentError extends SynclineError {
  constructor(message: string) {
    super("invalid_argument", message);
  }
}

export class LimitError extends SynclineError {
  constructor(
    readonly what: string,
    readonly value: number,
    readonly limit: number,
    advice: string,
  ) {
    super("limit", `${what} is ${value}, the limit is ${limit}; ${advice}`);
  }
}

export class RefusedError extends SynclineError {
  constructor(
    code: string,
    message: string,
    retriable: boolean,
    readonly document: string | null = null,
    readonly clock: number | null = null,
  ) {
    super(code, message, retriable);
  }
}

export class ClosedError extends SynclineError {
  constructor(message: string) {
    super("closed", message);
  }
}

export class ProtocolError extends SynclineError {
  constructor(message: string) {
    super("malformed", message);
  }
}

export class StorageError extends SynclineError {
  constructor(message: string) {
    super("storage", message, true);
  }
}

/** What somebody else's error says. */
export function reasonOf(error: unknown): string {
  return error instanceof Error ? error.message : "no reason was given";
}
