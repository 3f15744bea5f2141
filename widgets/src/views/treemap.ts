// Buffers at the peak of memory as areas: by the group that they are in, the largest first.

import { hierarchy, treemap, treemapSquarify } from "d3-hierarchy";
import { h, replace, setTabIndex } from "../lib/dom";
import { formatBytes } from "../lib/format";
import { rove } from "../lib/keyboard";
import type { MemoryRow } from "../lib/states";
import type { ViewContext } from "../lib/view";

export interface Area {
  /** Of the buffer, or -1 for a group's own frame. */
  index: number;
  title: string;
  bytes: number;
  x: number;
  y: number;
  width: number;
  height: number;
}
interface Item {
  title: string;
  index: number;
  bytes: number;
  children?: Item[];
}

const HEAD = 17;
const LINE = 14; // pixels of a line of text
const LEAST = 0.0005; // of the picture: what is smaller cannot be seen

/** Areas of a rectangle: one for each group, and in it one for each of its buffers. */
export function areasOf(
  buffers: readonly { bytes: number; name: string; group: string }[],
  width: number,
  height: number,
): Area[] {
  const groups = new Map<string, Item[]>();
  buffers.forEach(({ bytes, name, group }, index) => {
    groups.set(group, [...(groups.get(group) ?? []), { title: name, index, bytes }]);
  });
  const data: Item = {
    title: "",
    index: -1,
    bytes: 0,
    children: [...groups].map(([title, children]) => ({ title, index: -1, bytes: 0, children })),
  };
  const root = hierarchy(data)
    .sum(({ bytes }) => bytes)
    .sort((a, b) => (b.value ?? 0) - (a.value ?? 0));
  const laid = treemap<Item>().size([width, height]).tile(treemapSquarify).paddingTop(HEAD).paddingInner(2)(root);
  return laid
    .descendants()
    .slice(1)
    .filter(({ value }) => (value ?? 0) > LEAST * (root.value ?? 0))
    .map(({ data: { title, index }, value, x0, x1, y0, y1 }) => ({
      index,
      title,
      bytes: value ?? 0,
      x: x0,
      y: y0 - HEAD,
      width: x1 - x0,
      height: y1 - y0,
    }));
}

export type TreemapBuffer = Pick<MemoryRow, "name" | "bytes" | "shape" | "group" | "place" | "key">;

/** The end of a path, which tells an array from its neighbours: `up.kernel` of `model['blocks'][0].up.kernel`. */
export function shortName(name: string): string {
  const parts = name.match(/\.?\w+|\[[^\]]*\]/g) ?? [];
  if (parts.length < 3 || parts.join("") !== name) return name;
  const words = parts.map((part) => part.replace(/[.[\]'"]/g, ""));
  return words.slice(/^\d+$/.test(words[words.length - 2]) ? -3 : -2).join(".");
}

/** The name of a buffer; below it its bytes, where there is room. */
const label = ({ name }: TreemapBuffer, { bytes, height }: Area): HTMLElement[] =>
  [shortName(name), ...(height > 2 * LINE ? [formatBytes(bytes)] : [])].map((text) => h("span", {}, text));

/** Without the outermost group, whose name would leave no room for the others. */
const inner = (words: string): string => words.replace(/^[^›]+ › /, "");

/** The picture; it is laid out for the size that it has, and again when that changes. */
export function bufferTreemap(
  context: ViewContext,
  buffers: readonly TreemapBuffer[],
  choose: (buffer: number) => void,
): { node: HTMLElement; draw: () => void } {
  const node = h("div", { class: "wb-treemap", role: "group", "aria-label": "Buffers alive at the peak, by group" });
  const draw = () => {
    const { clientWidth, clientHeight } = node;
    if (!clientWidth || !clientHeight) return;
    const { line } = context.selection;
    const made = areasOf(buffers, clientWidth, clientHeight + HEAD).map((area) => {
      const buffer = buffers[area.index];
      const words = buffer
        ? `${buffer.name}: ${formatBytes(area.bytes)}, ${buffer.shape}${buffer.place ? `, ${buffer.place}` : ""}`
        : `${area.title}: ${formatBytes(area.bytes)}`;
      const box = h(
        "div",
        {
          class: `${buffer ? "wb-area-buffer" : "wb-area-line"} ${buffer?.key && buffer.key === line ? "wb-selected" : ""}`,
          "aria-label": words,
          "data-tip": words,
          ...(buffer ? { role: "button", "data-buffer": area.index } : {}),
        },
        area.width > 46 && area.height > LINE ? (buffer ? label(buffer, area) : h("span", {}, inner(words))) : null,
      );
      box.style.cssText = `left:${area.x}px;top:${area.y}px;width:${area.width}px;height:${area.height}px`;
      if (buffer) setTabIndex(box, area.index === 0 ? 0 : -1);
      return box;
    });
    replace(node, made);
  };
  const items = () => [...node.querySelectorAll<HTMLElement>("[data-buffer]")];
  node.addEventListener("click", (event) => {
    const box = (event.target as Element).closest<HTMLElement>("[data-buffer]");
    if (box) choose(Number(box.dataset.buffer));
  });
  rove<HTMLElement>(node, { items, choose: (box) => choose(Number(box.dataset.buffer)) });
  const watch = new ResizeObserver(draw);
  watch.observe(node);
  context.signal.addEventListener("abort", () => watch.disconnect());
  context.onSelection(draw);
  return { node, draw };
}
