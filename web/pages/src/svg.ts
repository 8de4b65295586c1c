/** Small helpers to make elements. */
const SVG = "http://www.w3.org/2000/svg";

export function svg<Name extends keyof SVGElementTagNameMap>(
  name: Name,
  attributes: Record<string, string | number> = {},
): SVGElementTagNameMap[Name] {
  const made = document.createElementNS(SVG, name);
  set(made, attributes);
  return made;
}

export function set(element: Element, attributes: Record<string, string | number>): void {
  for (const [name, value] of Object.entries(attributes)) {
    const wanted = String(value);
    if (element.getAttribute(name) !== wanted) element.setAttribute(name, wanted);
  }
}

export function byId<Made extends Element>(id: string): Made {
  const found = document.getElementById(id);
  if (found === null) throw new Error(`the page has no #${id}`);
  return found as unknown as Made;
}

/** Keeps one element for each key, in order of the map; makes and removes what is needed. */
export function reconcile<Value, Made extends Element>(
  parent: Element,
  kept: Map<string, Made>,
  wanted: ReadonlyMap<string, Value>,
  make: (key: string) => Made,
  update: (element: Made, value: Value, key: string) => void,
): void {
  for (const [key, element] of kept) {
    if (!wanted.has(key)) {
      element.remove();
      kept.delete(key);
    }
  }
  for (const [key, value] of wanted) {
    let element = kept.get(key);
    if (element === undefined) {
      element = make(key);
      kept.set(key, element);
      parent.append(element);
    }
    update(element, value, key);
  }
}
