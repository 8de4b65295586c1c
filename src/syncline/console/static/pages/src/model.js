export const TONES = 6;
export const NODE_WIDTH = 148;
export const NODE_HEIGHT = 56;
const LABEL_LENGTH_MAX = 60;
const POSITION_MAX = 100_000;
/** Reads whatever is stored: other programs may write to the document as well. */
export function readDiagram(state) {
    const nodes = new Map();
    for (const [id, value] of entries(field(state, "nodes"))) {
        nodes.set(id, {
            x: number(field(value, "x")),
            y: number(field(value, "y")),
            label: text(field(value, "label")),
            tone: Math.abs(Math.trunc(number(field(value, "tone")))) % TONES,
        });
    }
    const edges = new Map();
    for (const [id, value] of entries(field(state, "edges"))) {
        const [from, to] = [text(field(value, "from")), text(field(value, "to"))];
        // An edge may arrive before its node, or outlive it.
        if (nodes.has(from) && nodes.has(to))
            edges.set(id, { from, to });
    }
    return { nodes, edges };
}
export function addNode(id, node) {
    return { nodes: { [id]: { ...node } } };
}
export function moveNode(id, x, y) {
    return { nodes: { [id]: { x: Math.round(x), y: Math.round(y) } } };
}
export function labelNode(id, label) {
    return { nodes: { [id]: { label: cut(label, LABEL_LENGTH_MAX) } } };
}
export function toneNode(id, tone) {
    return { nodes: { [id]: { tone: tone % TONES } } };
}
/** With a node go the edges at it. */
export function removeNode(id, diagram) {
    const dangling = [...diagram.edges].filter(([, edge]) => edge.from === id || edge.to === id);
    return {
        nodes: { [id]: null },
        ...(dangling.length > 0 && { edges: Object.fromEntries(dangling.map(([edge]) => [edge, null])) }),
    };
}
export function addEdge(id, from, to) {
    return { edges: { [id]: { from, to } } };
}
export function removeEdge(id) {
    return { edges: { [id]: null } };
}
export function findEdge(diagram, from, to) {
    return [...diagram.edges].find(([, edge]) => (edge.from === from && edge.to === to) || (edge.from === to && edge.to === from))?.[0];
}
/**
 * The patch that takes `patch` back, as far as it changes `before`. The two collections themselves are never taken away:
 * others may have put something in since.
 */
export function inverse(before, patch) {
    const undone = {};
    for (const [collection, parts] of Object.entries(patch)) {
        undone[collection] = isObject(parts) ? inverseOf(field(before, collection), parts) : null;
    }
    return undone;
}
function inverseOf(before, patch) {
    const undone = {};
    for (const [name, value] of Object.entries(patch)) {
        const old = field(before, name);
        if (old === undefined)
            undone[name] = null;
        else
            undone[name] = isObject(value) && isObject(old) ? inverseOf(old, value) : old;
    }
    return undone;
}
/** The beginning of a text, without half of a character at its end: no document takes that. */
export function cut(text, lengthMax) {
    return text.slice(0, lengthMax).replace(/[\uD800-\uDBFF]$/, "");
}
function field(value, name) {
    return isObject(value) && Object.hasOwn(value, name) ? value[name] : undefined;
}
function entries(value) {
    return isObject(value) ? Object.entries(value) : [];
}
function isObject(value) {
    return typeof value === "object" && value !== null && !Array.isArray(value);
}
function number(value) {
    return typeof value === "number" ? Math.max(-POSITION_MAX, Math.min(POSITION_MAX, value)) : 0;
}
function text(value) {
    return typeof value === "string" ? cut(value, LABEL_LENGTH_MAX) : "";
}
