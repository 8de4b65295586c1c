/** The live page of an operator: asks the router's API every second while somebody looks. */
import { bytes, duration, HEALTH_WORDS, healthOf, rate, sparkline, } from "./figures.js";
import { byId, set } from "./svg.js";
const EVERY_MS = 1000;
const RATES_MAX = 120;
const ANSWER_MS_MAX = 5000;
const TOKEN_KEY = "syncline/operator-token";
class Console {
    before = null;
    chosen = null;
    rates = [];
    rows = new Map();
    async run() {
        byId("ask").addEventListener("submit", (event) => this.takeToken(event));
        for (;;) {
            if (!document.hidden)
                await this.look();
            await new Promise((resolve) => setTimeout(resolve, EVERY_MS));
        }
    }
    takeToken(event) {
        event.preventDefault();
        token.keep(byId("token").value);
        void this.look();
    }
    async look() {
        const state = byId("state");
        try {
            const overview = await ask("/api/documents");
            if (overview === null)
                return;
            this.show(overview);
            if (this.chosen !== null)
                await this.showDetails(this.chosen);
            set(state, { "data-state": "saved" });
            state.textContent = "live";
        }
        catch (error) {
            set(state, { "data-state": "offline" });
            state.textContent = error instanceof AnswerError ? error.message : "router not reached";
            byId("ask").toggleAttribute("hidden", !(error instanceof NeedsTokenError));
        }
    }
    show(overview) {
        byId("ask").toggleAttribute("hidden", true);
        const perSecond = rate(this.before, overview, "mutation_count");
        this.before = overview;
        this.rates.push(perSecond);
        if (this.rates.length > RATES_MAX)
            this.rates.shift();
        const { documents } = overview;
        const sum = documents.reduce((total, line) => total + line.state_bytes, 0);
        const figures = {
            open: String(overview.open),
            connections: String(overview.connections),
            rate: perSecond < 10 ? perSecond.toFixed(1) : String(Math.round(perSecond)),
            worst: duration(Math.max(0, ...documents.map((line) => line.lag_ms))),
            kept: bytes(sum),
            evictions: String(overview.counters["evicted_count"] ?? 0),
        };
        for (const [id, words] of Object.entries(figures))
            byId(id).textContent = words;
        set(byId("spark").querySelector("path"), { d: sparkline(this.rates, 120, 36) });
        byId("empty").toggleAttribute("hidden", documents.length > 0);
        this.showRows(documents);
    }
    /** Rows stay while their documents do: who is at one of them, by keyboard or by ear, is not thrown off every second. */
    showRows(lines) {
        const body = byId("documents").querySelector("tbody");
        const focused = document.activeElement;
        const names = new Set(lines.map((line) => line.name));
        for (const [name, row] of this.rows) {
            if (names.has(name))
                continue;
            row.remove();
            this.rows.delete(name);
        }
        let next = body.firstElementChild;
        for (const line of lines) {
            const row = this.rows.get(line.name) ?? this.makeRow(line.name);
            updateRow(row, line, line.name === this.chosen);
            if (row === next)
                next = row.nextElementSibling;
            else
                body.insertBefore(row, next);
        }
        // One that had to be moved has lost it.
        if (focused instanceof HTMLTableRowElement && body.contains(focused))
            focused.focus({ preventScroll: true });
    }
    makeRow(name) {
        const row = document.createElement("tr");
        row.className = "choice";
        row.tabIndex = 0;
        const choose = () => {
            this.chosen = this.chosen === name ? null : name;
            byId("detail").toggleAttribute("hidden", this.chosen === null);
            void this.look();
        };
        row.addEventListener("click", choose);
        row.addEventListener("keydown", (event) => event.key === "Enter" && choose());
        const first = cell(name, "name");
        first.title = name;
        row.append(first, cell(""), ...Array.from({ length: NUMBER_COUNT }, () => cell("", "n")));
        this.rows.set(name, row);
        return row;
    }
    async showDetails(name) {
        const details = await ask(`/api/documents/${name.split("/").map(encodeURIComponent).join("/")}`);
        byId("detail").toggleAttribute("hidden", details === null);
        if (details === null) {
            this.chosen = null;
            return;
        }
        byId("detail-name").textContent = details.name;
        byId("detail-facts").textContent =
            `${details.kept_updates} updates kept, from ${details.first} to ${details.head}; ` +
                `life ${details.incarnation}; a reader may be ${duration(details.relative_lag_ms)} behind.`;
        const rows = details.connections.map((place) => placeRow(place, details.relative_lag_ms));
        byId("places").querySelector("tbody").replaceChildren(...rows);
    }
}
/** Behind the name and the kind of a document. */
const NUMBER_COUNT = 7;
function updateRow(row, line, isChosen) {
    set(row, { "aria-selected": String(isChosen) });
    const numbers = [line.head, line.first, line.snapshot_seq, bytes(line.state_bytes), line.readers, duration(line.lag_ms), line.evicted];
    [line.name, line.kind, ...numbers].forEach((content, index) => {
        const shown = row.cells[index];
        if (shown.textContent !== String(content))
            shown.textContent = String(content);
    });
}
function placeRow(place, relativeLagMs) {
    const row = document.createElement("tr");
    const health = healthOf(place, relativeLagMs);
    const shown = document.createElement("span");
    shown.className = `health ${health}`;
    shown.textContent = place.acknowledges ? HEALTH_WORDS[health] : "no acknowledgements";
    const lag = document.createElement("meter");
    Object.assign(lag, { min: 0, max: relativeLagMs, high: (relativeLagMs * 2) / 3, low: relativeLagMs / 3, optimum: 0, value: place.lag_ms });
    const name = cell(place.client, "name");
    name.title = place.client;
    row.append(name, cell(shown), cell(String(place.sent), "n"), cell(String(place.acked), "n"), cell(lag, "", duration(place.lag_ms)));
    return row;
}
function cell(content, className = "", after = "") {
    const made = document.createElement("td");
    made.className = className;
    made.append(content, after);
    return made;
}
/** The router answered, but not with what was asked for. The message is short enough for the pill. */
class AnswerError extends Error {
}
class NeedsTokenError extends AnswerError {
}
/** The operator's, until the tab is closed; where the browser keeps nothing, until the page is left. */
class OperatorToken {
    held = null;
    get headers() {
        const token = this.held ?? this.kept();
        try {
            return new Headers(token === null ? {} : { authorization: `Bearer ${token}` });
        }
        catch {
            // It has characters that no header can have, so it cannot be the right one.
            throw new NeedsTokenError("locked");
        }
    }
    keep(token) {
        this.held = token;
        try {
            sessionStorage.setItem(TOKEN_KEY, token);
        }
        catch {
            // Held it is.
        }
    }
    kept() {
        try {
            return sessionStorage.getItem(TOKEN_KEY);
        }
        catch {
            return null;
        }
    }
}
const token = new OperatorToken();
/** What the API says; null if there is no such thing. */
async function ask(path) {
    // A router that hangs must not leave the page saying that it is live.
    const answer = await fetch(path, { headers: token.headers, signal: AbortSignal.timeout(ANSWER_MS_MAX) });
    if (answer.status === 401)
        throw new NeedsTokenError("locked");
    if (answer.status === 404)
        return null;
    if (!answer.ok)
        throw new AnswerError(`router answered ${answer.status}`);
    return (await answer.json());
}
await new Console().run();
