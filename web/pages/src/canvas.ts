/** Draws a diagram and tells what hands did to it. Knows nothing of documents. */
import { cut, NODE_HEIGHT, NODE_WIDTH, type Diagram, type DiagramNode, type Edge } from "./model.js";
import { byId, reconcile, set, svg } from "./svg.js";

export interface Point {
  readonly x: number;
  readonly y: number;
}

export interface Hands {
  addAt(at: Point): void;
  move(node: string, to: Point): void;
  join(from: string, to: string): void;
  rename(node: string, label: string): void;
  select(thing: Selection | null): void;
  point(at: Point | null): void;
}

export interface Selection {
  readonly kind: "node" | "edge";
  readonly id: string;
}

export interface Cursor extends Point {
  readonly name: string;
  readonly tone: number;
}

type Drag = { kind: "move"; id: string; grabbed: Point } | { kind: "join"; id: string };

export class Canvas {
  private readonly root = byId<SVGSVGElement>("canvas");
  private readonly nodeLayer = byId<SVGGElement>("nodes");
  private readonly edgeLayer = byId<SVGGElement>("edges");
  private readonly cursorLayer = byId<SVGGElement>("cursors");
  private readonly rubber = byId<SVGPathElement>("rubber");
  private readonly nodes = new Map<string, SVGGElement>();
  private readonly edges = new Map<string, SVGGElement>();
  private readonly cursors = new Map<string, SVGGElement>();
  private diagram: Diagram = { nodes: new Map(), edges: new Map() };
  private drag: Drag | null = null;
  private selection: Selection | null = null;

  constructor(private readonly hands: Hands) {
    this.root.addEventListener("dblclick", (event) => this.doubleClicked(event));
    this.root.addEventListener("pointerdown", (event) => this.pressed(event));
    this.root.addEventListener("pointermove", (event) => this.moved(event));
    this.root.addEventListener("pointerup", (event) => this.released(event));
    this.root.addEventListener("pointercancel", () => this.letGo());
    this.root.addEventListener("pointerleave", () => this.hands.point(null));
    this.root.addEventListener("focusin", (event) => this.select(thingOf(event.target)));
  }

  draw(diagram: Diagram, source: string | null): void {
    this.diagram = diagram;
    reconcile(this.edgeLayer, this.edges, diagram.edges, makeEdge, (element, edge, id) => this.drawEdge(element, edge, id));
    reconcile(this.nodeLayer, this.nodes, diagram.nodes, makeNode, (element, node, id) => {
      drawNode(element, node);
      element.classList.toggle("selected", this.isSelected("node", id));
      element.classList.toggle("source", source === id);
    });
  }

  drawCursors(cursors: ReadonlyMap<string, Cursor>): void {
    reconcile(this.cursorLayer, this.cursors, cursors, makeCursor, drawCursor);
  }

  focus(selection: Selection): void {
    const elements = selection.kind === "node" ? this.nodes : this.edges;
    elements.get(selection.id)?.focus();
  }

  /** The middle of what can be seen. */
  get center(): Point {
    const { width, height } = this.root.getBoundingClientRect();
    return { x: width / 2, y: height / 2 };
  }

  /** Lets a person type a new label over the node. */
  edit(id: string): void {
    const element = this.nodes.get(id);
    const node = this.diagram.nodes.get(id);
    if (element === undefined || node === undefined || element.querySelector("foreignObject")) return;
    const frame = svg("foreignObject", { x: -NODE_WIDTH / 2 + 8, y: -NODE_HEIGHT / 2 + 6, width: NODE_WIDTH - 16, height: NODE_HEIGHT - 12 });
    const input = document.createElement("input");
    input.className = "editor";
    input.value = node.label;
    input.maxLength = 60;
    input.setAttribute("aria-label", "Label");
    frame.append(input);
    element.append(frame);
    element.querySelector("text")!.textContent = "";
    input.focus();
    input.select();
    let isOver = false;
    const finish = (keep: boolean): void => {
      if (isOver) return;
      isOver = true;
      frame.remove();
      drawNode(element, this.diagram.nodes.get(id) ?? node);
      element.focus();
      if (keep && input.value !== node.label) this.hands.rename(id, input.value);
    };
    input.addEventListener("blur", () => finish(true));
    input.addEventListener("keydown", (event) => {
      event.stopPropagation();
      if (event.key === "Enter") finish(true);
      if (event.key === "Escape") finish(false);
    });
  }

  private select(selection: Selection | null): void {
    if (selection?.id === this.selection?.id && selection?.kind === this.selection?.kind) return;
    this.selection = selection;
    this.hands.select(selection);
  }

  private isSelected(kind: "node" | "edge", id: string): boolean {
    return this.selection?.kind === kind && this.selection.id === id;
  }

  private doubleClicked(event: MouseEvent): void {
    const thing = thingOf(event.target);
    if (thing === null) this.hands.addAt(this.place(event));
    else if (thing.kind === "node") this.edit(thing.id);
  }

  private pressed(event: PointerEvent): void {
    if (event.button !== 0 || (event.target as Element).closest("foreignObject")) return;
    const thing = thingOf(event.target);
    if (thing === null) {
      this.select(null);
      (document.activeElement as HTMLElement | null)?.blur();
      return;
    }
    const node = this.diagram.nodes.get(thing.id);
    if (thing.kind === "node" && node !== undefined) {
      const at = this.place(event);
      const joins = (event.target as Element).classList.contains("dot");
      this.drag = joins
        ? { kind: "join", id: thing.id }
        : { kind: "move", id: thing.id, grabbed: { x: at.x - node.x, y: at.y - node.y } };
      this.root.setPointerCapture(event.pointerId);
    }
    this.focus(thing);
    event.preventDefault();
  }

  private moved(event: PointerEvent): void {
    const at = this.place(event);
    this.hands.point(at);
    if (this.drag?.kind === "move") {
      this.hands.move(this.drag.id, { x: at.x - this.drag.grabbed.x, y: at.y - this.drag.grabbed.y });
    } else if (this.drag?.kind === "join") {
      const from = this.diagram.nodes.get(this.drag.id);
      if (from !== undefined) set(this.rubber, { d: `M${from.x} ${from.y}L${at.x} ${at.y}` });
    }
  }

  private released(event: PointerEvent): void {
    if (this.drag?.kind === "join") {
      // The pointer is captured: ask what lies below it.
      const below = thingOf(document.elementFromPoint(event.clientX, event.clientY));
      if (below?.kind === "node" && below.id !== this.drag.id) this.hands.join(this.drag.id, below.id);
    }
    this.letGo();
  }

  private letGo(): void {
    this.drag = null;
    set(this.rubber, { d: "" });
  }

  private place(event: MouseEvent): Point {
    const { left, top } = this.root.getBoundingClientRect();
    return { x: event.clientX - left, y: event.clientY - top };
  }

  private drawEdge(element: SVGGElement, edge: Edge, id: string): void {
    const [from, to] = [this.diagram.nodes.get(edge.from)!, this.diagram.nodes.get(edge.to)!];
    const [start, end] = [border(from, to), border(to, from)];
    const d = `M${start.x} ${start.y}L${end.x} ${end.y}`;
    for (const line of element.children) set(line, { d });
    set(element, { "aria-label": `Connection from ${from.label || "a box"} to ${to.label || "a box"}` });
    element.classList.toggle("selected", this.isSelected("edge", id));
  }
}

/** Where the line between two middles leaves the first box. */
function border(from: Point, to: Point): Point {
  const [dx, dy] = [to.x - from.x, to.y - from.y];
  if (dx === 0 && dy === 0) return from;
  const scale = Math.min(
    (NODE_WIDTH / 2 + 4) / Math.max(Math.abs(dx), 0.001),
    (NODE_HEIGHT / 2 + 4) / Math.max(Math.abs(dy), 0.001),
  );
  return { x: from.x + dx * scale, y: from.y + dy * scale };
}

function thingOf(target: EventTarget | null): Selection | null {
  const element = target instanceof Element ? target.closest<SVGGElement>("[data-kind]") : null;
  if (element === null) return null;
  return { kind: element.dataset["kind"] as "node" | "edge", id: element.dataset["id"]! };
}

function makeNode(id: string): SVGGElement {
  const group = svg("g", { class: "node", tabindex: 0, role: "button", "data-kind": "node", "data-id": id });
  group.append(
    svg("rect", { class: "box", x: -NODE_WIDTH / 2, y: -NODE_HEIGHT / 2, width: NODE_WIDTH, height: NODE_HEIGHT, rx: 9 }),
    svg("text"),
    svg("circle", { class: "dot", cx: NODE_WIDTH / 2, cy: 0, r: 7 }),
  );
  return group;
}

function drawNode(element: SVGGElement, node: DiagramNode): void {
  set(element, { transform: `translate(${node.x} ${node.y})`, "aria-label": `Box ${node.label || "without a label"}` });
  for (const name of [...element.classList]) if (name.startsWith("tone-")) element.classList.remove(name);
  element.classList.add(`tone-${node.tone}`);
  const text = element.querySelector("text")!;
  const isEdited = element.querySelector("foreignObject") !== null;
  const shown = isEdited ? "" : node.label.length > 18 ? `${cut(node.label, 17)}…` : node.label;
  if (text.textContent !== shown) text.textContent = shown;
}

function makeEdge(id: string): SVGGElement {
  const group = svg("g", { class: "edge", tabindex: 0, role: "button", "data-kind": "edge", "data-id": id });
  group.append(svg("path", { class: "reach" }), svg("path", { class: "line", "marker-end": "url(#arrow)" }));
  return group;
}

function makeCursor(): SVGGElement {
  const group = svg("g", { class: "cursor" });
  group.append(
    svg("path", { class: "pointer", d: "M0 0L5 16L8.5 9.5L15.5 8z" }),
    svg("rect", { class: "tag", x: 12, y: 14, height: 20, rx: 6 }),
    svg("text", { x: 19, y: 28 }),
  );
  return group;
}

function drawCursor(element: SVGGElement, cursor: Cursor): void {
  element.setAttribute("class", `cursor mark-${cursor.tone}`);
  element.style.transform = `translate(${cursor.x}px, ${cursor.y}px)`;
  const text = element.querySelector("text")!;
  if (text.textContent !== cursor.name) {
    text.textContent = cursor.name;
    set(element.querySelector("rect")!, { width: 14 + cursor.name.length * 7.6 });
  }
}
