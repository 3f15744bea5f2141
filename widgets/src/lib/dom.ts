// Elements without markup: text is always text. Everything that can be focused keeps its keys from the notebook.

type Handler = { bivarianceHack(event: Event): void }["bivarianceHack"];
export type Attributes = Record<string, string | number | boolean | null | undefined | Handler>;
export type Child = Node | string | number | null | undefined | false | readonly Child[];

const SVG = "http://www.w3.org/2000/svg";
const FOCUSABLE = new Set(["BUTTON", "INPUT", "SELECT", "TEXTAREA", "SUMMARY", "A", "IFRAME"]);

/** JupyterLab's own shortcuts (`d d` deletes the cell) match the focused element itself, so each one must refuse them. */
export function keepKeys<T extends Element>(node: T): T {
  node.setAttribute("data-lm-suppress-shortcuts", "true");
  return node;
}

export function setTabIndex(node: Element, index: 0 | -1): void {
  node.setAttribute("tabindex", String(index));
  keepKeys(node);
}

function apply(node: Element, attributes: Attributes): void {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (typeof value === "function") node.addEventListener(name.replace(/^on/, ""), value as EventListener);
    else node.setAttribute(name, value === true ? "" : String(value));
  }
  if (FOCUSABLE.has(node.tagName) || node.hasAttribute("tabindex")) keepKeys(node);
}

function flatten(children: readonly Child[]): (Node | string)[] {
  const kept: (Node | string)[] = [];
  for (const child of children) {
    if (child === null || child === undefined || child === false) continue;
    if (Array.isArray(child)) kept.push(...flatten(child));
    else kept.push(typeof child === "number" ? String(child) : (child as Node | string));
  }
  return kept;
}

/** An element with attributes, listeners (`onclick`) and children. */
export function h<K extends keyof HTMLElementTagNameMap>(
  tag: K,
  attributes: Attributes = {},
  ...children: Child[]
): HTMLElementTagNameMap[K] {
  const node = document.createElement(tag);
  apply(node, attributes);
  node.append(...flatten(children));
  return node;
}

/** An SVG element. */
export function s<K extends keyof SVGElementTagNameMap>(
  tag: K,
  attributes: Attributes = {},
  ...children: Child[]
): SVGElementTagNameMap[K] {
  const node = document.createElementNS(SVG, tag) as SVGElementTagNameMap[K];
  apply(node, attributes);
  node.append(...flatten(children));
  return node;
}

export function replace(node: Element, ...children: Child[]): void {
  node.replaceChildren(...flatten(children));
}

export const button = (text: Child, onclick: (event: MouseEvent) => void, attributes: Attributes = {}) =>
  h("button", { type: "button", onclick, ...attributes }, text);

export type Option<T extends string | number> = readonly [T, string];

/** A menu; `change` gets the chosen value. */
export function menu<T extends string | number>(
  label: string,
  options: readonly Option<T>[],
  chosen: T,
  change: (value: T) => void,
): HTMLSelectElement {
  const node = h(
    "select",
    { "aria-label": label, onchange: () => change(options[node.selectedIndex][0]) },
    options.map(([value, text]) => h("option", { value, selected: value === chosen }, text)),
  );
  return node;
}

const TAGS = new Set(
  "svg g rect line path circle text tspan title desc defs pattern polyline polygon ellipse marker".split(" "),
);

function cleanPicture(node: Element): void {
  for (const child of [...node.children]) TAGS.has(child.nodeName) ? cleanPicture(child) : child.remove();
  for (const { name, value } of [...node.attributes])
    if (/^on|href/i.test(name) || /url\((?!#)|javascript:/i.test(value)) node.removeAttribute(name);
}

/** A picture made by the kernel; whatever could run or load something is left out. */
export function pictureFrom(text: string): SVGSVGElement {
  const made = new DOMParser().parseFromString(text, "image/svg+xml").documentElement;
  if (made.nodeName !== "svg") throw new Error("the kernel sent a picture that is not SVG");
  cleanPicture(made);
  return document.importNode(made, true) as unknown as SVGSVGElement;
}

let last = 0;
export function uniqueId(): string {
  last += 1;
  return `wb-${Date.now().toString(36)}-${last}`;
}
