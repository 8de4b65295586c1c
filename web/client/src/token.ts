/** Where tokens come from, and when the next one is due. Tokens are handed on and never shown. */
import { TIMER_MS_MAX, type Timers } from "./timers.js";

/** With `renewInMs` a fresh one is asked for after that time and given to the router over the open connection. */
export type Token = string | { readonly token: string; readonly renewInMs: number };
export type TokenSource = Token | (() => Token | Promise<Token>);

const RENEW_MS_MIN = 1000;
/** After a source that failed. The connection lives on until the old token expires. */
const RETRY_MS = 5000;

export class TokenKeeper {
  private timer: unknown = null;

  constructor(
    private readonly source: TokenSource | undefined,
    private readonly timers: Timers,
    /** Called with a fresh token while a connection is open, or with the error of the source. */
    private readonly onRenewed: (token: string) => void,
    private readonly onError: (error: unknown) => void,
  ) {}

  /** The token for a new connection; null if there is none to show. */
  async fetch(): Promise<string | null> {
    this.stop();
    if (this.source === undefined) return null;
    const token = typeof this.source === "function" ? await this.source() : this.source;
    if (typeof token === "string") return token;
    this.renewIn(Math.min(Math.max(token.renewInMs, RENEW_MS_MIN), TIMER_MS_MAX));
    return token.token;
  }

  /** Asks for a fresh token now. */
  async renew(): Promise<void> {
    try {
      const token = await this.fetch();
      if (token !== null) this.onRenewed(token);
    } catch (error) {
      this.onError(error);
      this.renewIn(RETRY_MS);
    }
  }

  stop(): void {
    if (this.timer !== null) this.timers.clearTimeout(this.timer);
    this.timer = null;
  }

  private renewIn(ms: number): void {
    this.stop();
    this.timer = this.timers.setTimeout(() => void this.renew(), ms);
  }
}
