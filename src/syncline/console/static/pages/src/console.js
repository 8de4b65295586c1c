/** The live page of an operator: asks the router's API every second while somebody looks. */
import { bytes, duration, HEALTH_WORDS, healthOf, rate, sparkline, } from "./figures.js";
import { byId, set } from "./svg.js";
const EVERY_MS = 1000;
const RATES_MAX = 120;
const TOKEN_KEY = "syncline/operator-token";
class Console {
    before = null;
    chosen = null;
    rates = [];
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
        sessionStorage.setItem(TOKEN_KEY, byId("token").value);
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
            state.textContent = error instanceof NeedsTokenError ? "locked" : "router not reached";
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
        byId("documents").querySelector("tbody").replaceChildren(...documents.map((line) => this.documentRow(line)));
    }
    documentRow(line) {
        const row = document.createElement("tr");
        row.className = "choice";
        row.tabIndex = 0;
        row.setAttribute("aria-selected", String(line.name === this.chosen));
        const choose = () => {
            this.chosen = this.chosen === line.name ? null : line.name;
            byId("detail").toggleAttribute("hidden", this.chosen === null);
            void this.look();
        };
        row.addEventListener("click", choose);
        row.addEventListener("keydown", (event) => event.key === "Enter" && choose());
        const name = cell(line.name, "name");
        name.title = line.name;
        row.append(name, cell(line.kind), ...[line.head, line.first, line.snapshot_seq].map((number) => cell(String(number), "n")), cell(bytes(line.state_bytes), "n"), cell(String(line.readers), "n"), cell(duration(line.lag_ms), "n"), cell(String(line.evicted), "n"));
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
class NeedsTokenError extends Error {
}
/** What the API says; null if there is no such thing. */
async function ask(path) {
    const token = sessionStorage.getItem(TOKEN_KEY);
    const answer = await fetch(path, { headers: token === null ? {} : { authorization: `Bearer ${token}` } });
    if (answer.status === 401)
        throw new NeedsTokenError();
    if (answer.status === 404)
        return null;
    if (!answer.ok)
        throw new Error(`the router answered ${answer.status}`);
    return (await answer.json());
}
await new Console().run();
