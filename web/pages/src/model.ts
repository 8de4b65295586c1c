/** What a diagram is, and how its parts are changed: patches in, patches out, nothing drawn. */
import type { Json, JsonObject } from "../../client/src/index.js";

export interface DiagramNode {
  readonly x: number;
  readonly y: number;
  readonly label: string;
  readonly tone: number;
}

export interface Edge {
  readonly from: string;
  readonly to: string;
}

export interface Diagram {
  readonly nodes: ReadonlyMap<string, DiagramNode>;
  readonly edges: ReadonlyMap<string, Edge>;
}

export const TONES = 6;
export const NODE_WIDTH = 148;
export const NODE_HEIGHT = 56;
const LABEL_LENGTH_MAX = 60;
const POSITION_MAX = 100_000;

/** Reads whatever is stored: other programs may write to the document as well. */
export function readDiagram(state: Json | undefined): Diagram {
  const nodes = new Map<string, DiagramNode>();
  for (const [id, value] of entries(field(state, "nodes"))) {
    nodes.set(id, {
      x: number(field(value, "x")),
      y: number(field(value, "y")),
      label: text(field(value, "label")),
      tone: Math.abs(Math.trunc(number(field(value, "tone")))) % TONES,
    });
  }
  const edges = new Map<string, Edge>();
  for (const [id, value] of entries(field(state, "edges"))) {
    const [from, to] = [text(field(value, "from")), text(field(value, "to"))];
    // An edge may arrive before its node, or outlive it.
    if (nodes.has(from) && nodes.has(to)) edges.set(id, { from, to });
  }
  return { nodes, edges };
}

export function addNode(id: string, node: DiagramNode): JsonObject {
  return { nodes: { [id]: { ...node } } };
}

export function moveNode(id: string, x: number, y: number): JsonObject {
  return { nodes: { [id]: { x: Math.round(x), y: Math.round(y) } } };
}

export function labelNode(id: string, label: string): JsonObject {
  return { nodes: { [id]: { label: cut(label, LABEL_LENGTH_MAX) } } };
}

export function toneNode(id: string, tone: number): JsonObject {
  return { nodes: { [id]: { tone: tone % TONES } } };
}

/** With a node go the edges at it. */
export function removeNode(id: string, diagram: Diagram): JsonObject {
  const dangling = [...diagram.edges].filter(([, edge]) => edge.from === id || edge.to === id);
  return {
    nodes: { [id]: null },
    ...(dangling.length > 0 && { edges: Object.fromEntries(dangling.map(([edge]) => [edge, null])) }),
  };
}

export function addEdge(id: string, from: string, to: string): JsonObject {
  return { edges: { [id]: { from, to } } };
}

export function removeEdge(id: string): JsonObject {
  return { edges: { [id]: null } };
}

export function findEdge(diagram: Diagram, from: string, to: string): string | undefined {
  return [...diagram.edges].find(
    ([, edge]) => (edge.from === from && edge.to === to) || (edge.from === to && edge.to === from),
  )?.[0];
}

/**
 * The patch that takes `patch` back, as far as it changes `before`. The two collections themselves are never taken away:
 * others may have put something in since.
 */
export function inverse(before: Json | undefined, patch: JsonObject): JsonObject {
  const undone: { [name: string]: Json } = {};
  for (const [collection, parts] of Object.entries(patch)) {
    undone[collection] = isObject(parts) ? inverseOf(field(before, collection), parts) : null;
  }
  return undone;
}

function inverseOf(before: Json | undefined, patch: JsonObject): JsonObject {
  const undone: { [name: string]: Json } = {};
  for (const [name, value] of Object.entries(patch)) {
    const old = field(before, name);
    if (old === undefined) undone[name] = null;
    else undone[name] = isObject(value) && isObject(old) ? inverseOf(old, value) : old;
  }
  return undone;
}

/** The beginning of a text, without half of a character at its end: no document takes that. */
export function cut(text: string, lengthMax: number): string {
  return text.slice(0, lengthMax).replace(/[\uD800-\uDBFF]$/, "");
}

function field(value: Json | undefined, name: string): Json | undefined {
  return isObject(value) && Object.hasOwn(value, name) ? value[name] : undefined;
}

function entries(value: Json | undefined): [string, Json][] {
  return isObject(value) ? (Object.entries(value) as [string, Json][]) : [];
}

function isObject(value: Json | undefined): value is JsonObject {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}

function number(value: Json | undefined): number {
  return typeof value === "number" ? Math.max(-POSITION_MAX, Math.min(POSITION_MAX, value)) : 0;
}

function text(value: Json | undefined): string {
  return typeof value === "string" ? cut(value, LABEL_LENGTH_MAX) : "";
}
