/** The shared diagram: a document of the router, drawn, and hands that change it. */
import { claimClient, connect, webStorage, } from "../../client/src/index.js";
import { Canvas } from "./canvas.js";
import { History } from "./history.js";
import { identityOf } from "./identity.js";
import * as model from "./model.js";
import { Notice } from "./notice.js";
import { readPerson } from "./presence.js";
import { byId } from "./svg.js";
const POINT_EVERY_MS = 50;
const STEP = 12;
class Page {
    client;
    notice;
    canvas = new Canvas(this);
    history = new History();
    document;
    me;
    selection = null;
    /** The box from which the next one is connected. */
    source = null;
    pointedAt = 0;
    isDrawing = false;
    constructor(client, name, notice) {
        this.client = client;
        this.notice = notice;
        this.me = identityOf(client.id);
        this.document = client.document(name);
        byId("title").textContent = name;
        for (const event of ["change", "saved", "presence"])
            this.document.on(event, () => this.drawSoon());
        this.document.on("status", (change) => this.turned(change));
        client.on("status", (change) => this.turned(change));
        this.document.on("error", (error) => this.notice.show(error.message));
        client.on("error", (error) => this.notice.show(error.message));
        this.listen();
        this.document.setPresence({ ...this.me });
        this.drawSoon();
    }
    // What hands do.
    addAt(at) {
        const id = fresh();
        const tone = this.diagram.nodes.size % model.TONES;
        this.edit(model.addNode(id, { x: Math.round(at.x), y: Math.round(at.y), label: "New box", tone }));
        this.draw();
        this.canvas.focus({ kind: "node", id });
        this.canvas.edit(id);
    }
    move(node, to) {
        this.edit(model.moveNode(node, to.x, to.y), `move ${node}`);
    }
    join(from, to) {
        if (model.findEdge(this.diagram, from, to) === undefined)
            this.edit(model.addEdge(fresh(), from, to));
    }
    rename(node, label) {
        if (this.diagram.nodes.has(node))
            this.edit(model.labelNode(node, label));
    }
    select(selection) {
        this.selection = selection;
        if (this.source !== null && selection?.kind === "node" && selection.id !== this.source) {
            this.join(this.source, selection.id);
            this.connectFrom(null);
        }
        this.drawSoon();
    }
    point(at) {
        if (this.document.isClosed)
            return;
        const now = performance.now();
        if (at !== null && now - this.pointedAt < POINT_EVERY_MS)
            return;
        this.pointedAt = now;
        this.document.setPresence(at === null ? { ...this.me } : { ...this.me, x: Math.round(at.x), y: Math.round(at.y) });
    }
    removeSelected() {
        if (this.selection === null)
            return;
        const { kind, id } = this.selection;
        if (kind === "edge" && this.diagram.edges.has(id))
            this.edit(model.removeEdge(id));
        if (kind === "node" && this.diagram.nodes.has(id))
            this.edit(model.removeNode(id, this.diagram));
        this.selection = null;
    }
    nextTone() {
        const node = this.selectedNode;
        if (node !== undefined)
            this.edit(model.toneNode(this.selection.id, node.tone + 1));
    }
    connectFrom(source) {
        this.source = source;
        byId("connect").setAttribute("aria-pressed", String(source !== null));
        this.drawSoon();
    }
    undo() {
        const patch = this.history.pop();
        if (patch !== undefined)
            this.change(patch);
    }
    edit(patch, key = "") {
        const before = this.document.state;
        if (this.change(patch))
            this.history.record(before, patch, key, performance.now());
    }
    /** Whether the change was taken, or it was told why not. */
    change(patch) {
        if (this.document.isClosed) {
            this.notice.show("This diagram has ended here, and what you do to it is not kept. Reload the page.");
            return false;
        }
        if (!this.document.mayWrite) {
            this.notice.show("You may look at this diagram, but not change it.");
            return false;
        }
        try {
            // A change that is refused comes back by itself and is reported as an error.
            this.document.change(patch).saved.catch(() => { });
            return true;
        }
        catch (error) {
            this.notice.show(`That was not done: ${reasonOf(error)}`);
            return false;
        }
    }
    // Keyboard and buttons.
    listen() {
        byId("add").addEventListener("click", () => this.addAt(this.somewhere));
        byId("connect").addEventListener("click", () => this.toggleConnect());
        byId("tone").addEventListener("click", () => this.nextTone());
        byId("remove").addEventListener("click", () => this.removeSelected());
        byId("undo").addEventListener("click", () => this.undo());
        window.addEventListener("keydown", (event) => this.typed(event));
        window.addEventListener("online", () => this.client.goOnline());
    }
    toggleConnect() {
        this.connectFrom(this.source === null && this.selection?.kind === "node" ? this.selection.id : null);
    }
    typed(event) {
        if (event.target instanceof HTMLInputElement)
            return;
        if ((event.ctrlKey || event.metaKey) && event.key.toLowerCase() === "z") {
            event.preventDefault();
            this.undo();
            return;
        }
        if (event.ctrlKey || event.metaKey || event.altKey)
            return;
        const actions = {
            n: () => this.addAt(this.somewhere),
            c: () => this.toggleConnect(),
            t: () => this.nextTone(),
            Delete: () => this.removeSelected(),
            Backspace: () => this.removeSelected(),
            Escape: () => this.connectFrom(null),
            Enter: () => this.selection?.kind === "node" && this.canvas.edit(this.selection.id),
            ArrowLeft: () => this.shift(-STEP, 0),
            ArrowRight: () => this.shift(STEP, 0),
            ArrowUp: () => this.shift(0, -STEP),
            ArrowDown: () => this.shift(0, STEP),
        };
        const action = actions[event.key];
        // A button that has the focus does its own work on Enter.
        if (action === undefined || (event.key === "Enter" && event.target instanceof HTMLButtonElement))
            return;
        event.preventDefault();
        action();
    }
    shift(dx, dy) {
        const node = this.selectedNode;
        if (node !== undefined)
            this.move(this.selection.id, { x: node.x + dx, y: node.y + dy });
    }
    // Showing.
    /** An end that is final is told for as long as it lasts. */
    turned({ status, error }) {
        if (status !== "closed" && !this.document.isClosed)
            this.notice.endStanding();
        if (status === "closed" && error !== null) {
            this.notice.show(`The router has ended this: ${error.message}. Reload the page to try again.`, true);
        }
        this.drawSoon();
    }
    get diagram() {
        return model.readDiagram(this.document.state);
    }
    get selectedNode() {
        return this.selection?.kind === "node" ? this.diagram.nodes.get(this.selection.id) : undefined;
    }
    /** Near the middle, but not on top of the last one. */
    get somewhere() {
        const { x, y } = this.canvas.center;
        const count = this.diagram.nodes.size;
        return { x: x + ((count * 47) % 260) - 130, y: y + ((count * 83) % 200) - 100 };
    }
    drawSoon() {
        if (this.isDrawing)
            return;
        this.isDrawing = true;
        requestAnimationFrame(() => {
            this.isDrawing = false;
            this.draw();
        });
    }
    draw() {
        const diagram = this.diagram;
        this.canvas.draw(diagram, this.source);
        this.drawPeople();
        this.drawSaving();
        byId("hint").toggleAttribute("hidden", diagram.nodes.size > 2);
        byId("undo").disabled = this.history.isEmpty;
        byId("remove").disabled = this.selection === null;
        byId("tone").disabled = this.selectedNode === undefined;
    }
    drawSaving() {
        const pill = byId("saving");
        const unsaved = this.document.unsavedCount;
        const toSend = unsaved > 0 ? ` · ${unsaved} to send` : "";
        const isOver = this.document.isClosed || this.client.status === "closed";
        const [state, words] = isOver
            ? ["offline", `ended${toSend}`]
            : this.document.status === "live"
                ? unsaved > 0 ? ["saving", `saving ${unsaved}`] : ["saved", "saved"]
                : this.client.status === "offline"
                    ? ["offline", `offline${toSend}`]
                    : ["connecting", `connecting${toSend}`];
        pill.dataset["state"] = state;
        if (pill.textContent !== words)
            pill.textContent = words;
    }
    drawPeople() {
        const cursors = new Map();
        const people = byId("people");
        people.replaceChildren(person(this.me, "you"));
        for (const [id, shown] of this.document.presence) {
            const other = id === this.client.id ? null : readPerson(shown);
            if (other === null)
                continue;
            people.append(person(other, other.name));
            if (other.at !== null)
                cursors.set(id, { ...other, ...other.at });
        }
        this.canvas.drawCursors(cursors);
    }
}
function person({ name, tone }, title) {
    const made = document.createElement("span");
    made.className = `person mark-${tone}`;
    made.title = title === "you" ? `${name} (you)` : name;
    made.textContent = name.split(" ").map(([first]) => first).join("");
    return made;
}
/** Of a secure context more could be asked; this works everywhere. */
function fresh() {
    return Array.from(crypto.getRandomValues(new Uint8Array(6)), (byte) => byte.toString(16).padStart(2, "0")).join("");
}
function reasonOf(error) {
    return error instanceof Error ? error.message : String(error);
}
/** What a tab has not sent outlives it, where tabs can tell each other apart; else it lives as long as the tab. */
async function identity() {
    if (!("locks" in navigator))
        return { storage: webStorage(sessionStorage) };
    const storage = webStorage(localStorage);
    return { storage, client: await claimClient(storage) };
}
/** A browser may keep nothing for this page, or have no room left: that is no reason not to work. */
async function identityIfKept(notice) {
    try {
        return await identity();
    }
    catch (error) {
        notice.show(`What is not sent is lost with this tab, since the browser does not keep it: ${reasonOf(error)}`);
        return {};
    }
}
async function open(notice) {
    const name = new URLSearchParams(location.search).get("document") || "diagrams/demo";
    const token = new URLSearchParams(location.hash.slice(1)).get("token");
    const url = `${location.protocol === "https:" ? "wss" : "ws"}://${location.host}/sync`;
    const client = connect(url, { ...(token !== null && { token }), ...(await identityIfKept(notice)), maxAttempts: 1000 });
    try {
        new Page(client, name, notice);
    }
    catch (error) {
        client.close();
        byId("saving").textContent = "ended";
        byId("saving").dataset["state"] = "offline";
        notice.show(`This diagram cannot be opened: ${reasonOf(error)}`, true);
    }
}
await open(new Notice());
