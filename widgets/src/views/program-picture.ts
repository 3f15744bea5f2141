// One picture of a program: stages that can be chosen, clients inside of them as dots or as pixels.
import { h, pictureFrom, setTabIndex } from "../lib/dom";
import { consume, rove } from "../lib/keyboard";
import { boxOf, cellAt, placeOver } from "../lib/pixels";
import type { ProgramPicture } from "../lib/states";

/** A canvas over the place that a picture left for many clients. */
export interface Heat {
  canvas: HTMLCanvasElement;
  first: number;
  count: number;
  across: number;
}
export interface PictureNodes {
  node: HTMLElement;
  stages: SVGElement[];
  heat: Heat[];
}
type Choose = (stage: string, client: number | null) => void;

export const clientOf = (node: Element): number => Number((node as SVGElement).dataset.client);
const CLIENT = "[data-client]";
const STAGE = "[data-stage]";

/** Names and roles for what can be chosen; keys of stages are made unique over all pictures. */
function name(svg: SVGSVGElement, prefix: string): SVGElement[] {
  svg.setAttribute("role", "tree"); // stages hold clients, and a button may hold nothing that can be chosen
  for (const attribute of ["width", "height"]) svg.removeAttribute(attribute);
  const stages = [...svg.querySelectorAll<SVGElement>(STAGE)];
  for (const stage of stages) {
    stage.setAttribute("role", "treeitem");
    stage.setAttribute("aria-label", stage.dataset.label ?? "");
    stage.dataset.key = prefix + stage.dataset.stage;
  }
  for (const block of svg.querySelectorAll("[data-first]"))
    if (block.querySelector(CLIENT)) block.setAttribute("role", "group");
  for (const wire of svg.querySelectorAll<SVGElement>(".wb-wire")) {
    wire.dataset.key1 = prefix + (wire.dataset.source ?? "?");
    wire.dataset.key2 = prefix + (wire.dataset.target ?? "?");
  }
  for (const dot of svg.querySelectorAll<SVGElement>(CLIENT)) {
    dot.setAttribute("role", "treeitem");
    dot.setAttribute("aria-label", `client ${dot.dataset.client}`);
    setTabIndex(dot, -1);
  }
  return stages;
}

/** Arrow keys among the clients of one stage. */
function walkClients(event: KeyboardEvent, focus: (stage: SVGElement) => void, choose: Choose): void {
  const dot = (event.target as Element).closest<SVGElement>(CLIENT);
  const stage = dot?.closest<SVGElement>(STAGE);
  if (!dot || !stage) return;
  const all = [...stage.querySelectorAll<SVGElement>(CLIENT)];
  const step = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: 4, ArrowUp: -4 }[event.key];
  if (step) all[Math.min(Math.max(all.indexOf(dot) + step, 0), all.length - 1)].focus();
  else if (event.key === "Enter" || event.key === " ") choose(stage.dataset.key ?? "", clientOf(dot));
  else if (event.key === "Escape") focus(stage);
  else return;
  consume(event);
}

function overlay(block: Element, size: readonly number[], choose: (client: number) => void): Heat {
  const box = boxOf(block.querySelector("rect") ?? block);
  const first = Number((block as SVGElement).dataset.first);
  const count = Number((block as SVGElement).dataset.count);
  const across = Math.max(1, Math.round(Math.sqrt((count * box[2]) / box[3])));
  const canvas = h("canvas", {
    class: "wb-heat",
    role: "img",
    "aria-label": `clients ${first} to ${first + count - 1}`,
  });
  placeOver(canvas, box, size);
  const under = (event: MouseEvent) => {
    const index = cellAt(event, canvas, across, Math.ceil(count / across));
    return index >= 0 && index < count ? first + index : null;
  };
  canvas.addEventListener("click", (event) => {
    const client = under(event);
    if (client !== null) choose(client);
  });
  canvas.addEventListener("mousemove", (event) => {
    const client = under(event);
    canvas.title = client === null ? "" : `client ${client}`;
  });
  return { canvas, first, count, across };
}

export function drawPicture(made: ProgramPicture, titled: boolean, choose: Choose, clear: () => void): PictureNodes {
  const svg = pictureFrom(made.svg);
  const stages = name(svg, made.prefix);
  const frame = h("div", { class: "wb-frame" }, svg as unknown as Node);
  frame.style.maxWidth = `${made.width}px`;
  const node = h("div", { class: "wb-picture" }, titled ? h("h3", {}, made.name) : null, frame);
  if (titled) node.style.minWidth = `${made.width}px`; // next to another: text keeps its size, and the pane scrolls
  svg.addEventListener("click", (event) => {
    const target = event.target as Element;
    const dot = target.closest(CLIENT);
    const stage = target.closest<SVGElement>(STAGE);
    if (stage) choose(stage.dataset.key ?? "", dot ? clientOf(dot) : null);
  });
  svg.addEventListener("keydown", (event) => walkClients(event, focus, choose));
  const focus = rove<SVGElement>(svg, {
    items: () => stages,
    choose: (stage) => choose(stage.dataset.key ?? "", null),
    escape: clear,
    moves: { ArrowRight: (stage) => stage.querySelector<SVGElement>(CLIENT)?.focus(), ArrowLeft: 0 },
  });
  const [, , width, height] = (svg.getAttribute("viewBox") ?? "0 0 1 1").split(" ").map(Number);
  const many = [...svg.querySelectorAll("[data-first]")].filter((block) => !block.querySelector(CLIENT));
  const heat = many.map((block) => {
    const stage = block.closest<SVGElement>(STAGE)?.dataset.key ?? "";
    return overlay(block, [width, height], (client) => choose(stage, client));
  });
  frame.append(...heat.map(({ canvas }) => canvas));
  return { node, stages, heat };
}
