/**
 * Keeping unsent work across page reloads.
 *
 * A document has one entry with its range of clocks and one entry per mutation, so a change costs two small writes
 * whatever else is unsent:
 *
 *     <client>/<document>          {"first": 7, "last": 9}
 *     <client>/<document>/8        {"nodes": {"a": {"x": 1}}}
 *
 * A clock of the range without an entry was acknowledged or refused.
 */
import { reasonOf, StorageError } from "./errors.js";
import { SEND_LIMITS } from "./send-buffer.js";
/**
 * Keeps unsent work in the storage of a browser. That of a session belongs to one tab and lives as long as it;
 * `localStorage` outlives the tab, but all tabs share it: give each its own id with `claimClient`.
 */
export function webStorage(area = globalThis.sessionStorage, prefix = "syncline/") {
    return {
        get: (key) => area.getItem(prefix + key),
        set: (key, value) => area.setItem(prefix + key, value),
        delete: (key) => area.removeItem(prefix + key),
    };
}
/** A fresh client id: 128 bits of chance. */
export function randomClient() {
    const bytes = crypto.getRandomValues(new Uint8Array(16));
    return Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
}
const CLIENTS_KEY = "clients";
const CLIENTS_MAX = 64;
/**
 * A client id from `storage` that no other tab is using, or a new one. It is held until the page is left, so unsent
 * work of a tab that was closed is taken over by the next one that is opened.
 */
export async function claimClient(storage, locks = navigator.locks) {
    const known = readClients(storage);
    for (const client of known) {
        if (await hold(locks, client))
            return client;
    }
    const client = randomClient();
    await hold(locks, client);
    storage.set(CLIENTS_KEY, JSON.stringify([client, ...readClients(storage)].slice(0, CLIENTS_MAX)));
    return client;
}
/** The id of the only client of a storage. */
export function storedClient(storage) {
    const known = storage.get("client");
    if (known !== null && /^[A-Za-z0-9._~-]{1,64}$/.test(known))
        return known;
    const client = randomClient();
    storage.set("client", client);
    return client;
}
/** Keeps the send buffer of one document; trouble is reported and does not stop the work. */
export class StoredJournal {
    storage;
    onError;
    key;
    constructor(storage, client, document, onError) {
        this.storage = storage;
        this.onError = onError;
        this.key = `${client}/${encodeURIComponent(document)}`;
    }
    load() {
        const { first, last } = this.readRange();
        const mutations = [];
        for (let clock = first; clock <= last; clock += 1) {
            const text = this.storage.get(`${this.key}/${clock}`);
            if (text === null)
                continue;
            try {
                mutations.push({ clock, mutation: JSON.parse(text) });
            }
            catch {
                this.onError(new StorageError(`what was kept of mutation ${clock} cannot be read; it is left out`));
            }
        }
        return { clock: last, mutations };
    }
    keep(own, firstClock, lastClock) {
        this.attempt(() => {
            this.storage.set(`${this.key}/${own.clock}`, JSON.stringify(own.mutation));
            this.writeRange(firstClock, lastClock);
        });
    }
    drop(clock, firstClock, lastClock) {
        this.attempt(() => {
            this.writeRange(firstClock, lastClock);
            this.storage.delete(`${this.key}/${clock}`);
        });
    }
    readRange() {
        const text = this.storage.get(this.key);
        if (text === null)
            return { first: 1, last: 0 };
        const range = parseRange(text);
        if (range !== null)
            return range;
        this.onError(new StorageError("what was kept of unsent work cannot be read; it is left out"));
        return { first: 1, last: 0 };
    }
    writeRange(first, last) {
        this.storage.set(this.key, JSON.stringify({ first, last }));
    }
    attempt(write) {
        try {
            write();
        }
        catch (error) {
            this.onError(new StorageError(`unsent work could not be kept for after a reload: ${reasonOf(error)}; free some room`));
        }
    }
}
function parseRange(text) {
    try {
        const { first, last } = JSON.parse(text);
        if (!Number.isSafeInteger(first) || !Number.isSafeInteger(last))
            return null;
        // No more than a buffer can have held, refused ones included.
        return { first: Math.max(first, last - 2 * SEND_LIMITS.count), last: last };
    }
    catch {
        return null;
    }
}
function readClients(storage) {
    try {
        const known = JSON.parse(storage.get(CLIENTS_KEY) ?? "[]");
        return Array.isArray(known) ? known.filter((client) => typeof client === "string").slice(0, CLIENTS_MAX) : [];
    }
    catch {
        return [];
    }
}
/** Whether the lock of a client id was free; then it is ours until the page is left. */
function hold(locks, client) {
    return new Promise((resolve, reject) => {
        locks
            .request(`syncline/${client}`, { ifAvailable: true }, (lock) => {
            resolve(lock !== null);
            return lock === null ? Promise.resolve() : new Promise(nothing);
        })
            .catch(reject);
    });
}
const nothing = () => undefined;
