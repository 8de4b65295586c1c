/** Where tokens come from, and when the next one is due. Tokens are handed on and never shown. */
import { TIMER_MS_MAX } from "./timers.js";
const RENEW_MS_MIN = 1000;
/** After a source that failed. The connection lives on until the old token expires. */
const RETRY_MS = 5000;
export class TokenKeeper {
    source;
    timers;
    onRenewed;
    onError;
    timer = null;
    constructor(source, timers, 
    /** Called with a fresh token while a connection is open, or with the error of the source. */
    onRenewed, onError) {
        this.source = source;
        this.timers = timers;
        this.onRenewed = onRenewed;
        this.onError = onError;
    }
    /** The token for a new connection; null if there is none to show. */
    async fetch() {
        this.stop();
        if (this.source === undefined)
            return null;
        const token = typeof this.source === "function" ? await this.source() : this.source;
        if (typeof token === "string")
            return token;
        this.renewIn(Math.min(Math.max(token.renewInMs, RENEW_MS_MIN), TIMER_MS_MAX));
        return token.token;
    }
    /** Asks for a fresh token now. */
    async renew() {
        try {
            const token = await this.fetch();
            if (token !== null)
                this.onRenewed(token);
        }
        catch (error) {
            this.onError(error);
            this.renewIn(RETRY_MS);
        }
    }
    stop() {
        if (this.timer !== null)
            this.timers.clearTimeout(this.timer);
        this.timer = null;
    }
    renewIn(ms) {
        this.stop();
        this.timer = this.timers.setTimeout(() => void this.renew(), ms);
    }
}
