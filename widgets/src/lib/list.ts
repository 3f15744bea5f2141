// A list of any length of which only what is visible exists; arrow keys move, Enter chooses.
import { type Attributes, type Child, h, setTabIndex, uniqueId } from "./dom";
import { clamp, consume, listStep } from "./keyboard";
import { revealed, visibleWindow } from "./window";

export interface ListRow {
  children: Child;
  class?: string;
  selected?: boolean;
  attributes?: Attributes;
}
export interface ListOptions {
  label: string;
  row: (index: number) => ListRow;
  choose: (index: number) => void;
  rowHeight?: number;
  empty?: string;
  signal: AbortSignal;
}
export interface List {
  readonly node: HTMLElement;
  set(count: number): void;
  reveal(index: number): void;
  draw(): void;
}

export function virtualList({
  label,
  row,
  choose,
  rowHeight = 24,
  empty = "No row matches the filter.",
  signal,
}: ListOptions): List {
  const inner = h("div", { class: "wb-inner" });
  const status = h("p", { class: "wb-note wb-empty", hidden: true }, empty);
  const node = h("div", { class: "wb-list", "aria-label": label }, inner, status);
  setTabIndex(node, 0);
  const prefix = uniqueId();
  let count = 0;
  let active = 0;
  let frame = 0;

  const drawRow = (i: number) => {
    const made = row(i);
    const item = h(
      "div",
      {
        id: `${prefix}-${i}`,
        role: "option",
        class: `wb-item ${made.class ?? ""}${i === active ? " wb-active" : ""}`,
        "aria-selected": String(Boolean(made.selected)),
        "aria-setsize": count,
        "aria-posinset": i + 1,
        "data-row": i,
        ...made.attributes,
      },
      made.children,
    );
    item.style.top = `${i * rowHeight}px`;
    item.style.height = `${rowHeight}px`;
    return item;
  };
  const draw = () => {
    frame = 0;
    const [first, last] = visibleWindow(node.scrollTop, node.clientHeight || 400, rowHeight, count);
    inner.replaceChildren(...Array.from({ length: Math.max(0, last - first) }, (_, i) => drawRow(first + i)));
    if (count) node.setAttribute("aria-activedescendant", `${prefix}-${active}`);
  };
  const later = () => {
    if (!frame) frame = requestAnimationFrame(draw);
  };
  const reveal = (i: number) => {
    if (i < 0 || i >= count) return;
    active = i;
    node.scrollTop = revealed(i, node.scrollTop, node.clientHeight, rowHeight);
    draw();
  };
  node.addEventListener("scroll", later, { signal });
  node.addEventListener("click", (event) => {
    const found = (event.target as Element).closest<HTMLElement>("[data-row]");
    if (!found) return;
    active = Number(found.dataset.row);
    choose(active);
    draw();
  });
  node.addEventListener("keydown", (event) => {
    const step = listStep(event.key, Math.max(1, Math.floor(node.clientHeight / rowHeight) - 1));
    if (step !== undefined) reveal(clamp(active + step, 0, count - 1));
    else if ((event.key === "Enter" || event.key === " ") && count) choose(active);
    else return;
    consume(event);
  });
  const watch = new ResizeObserver(later);
  watch.observe(node);
  signal.addEventListener("abort", () => {
    watch.disconnect();
    cancelAnimationFrame(frame);
  });
  return {
    node,
    draw,
    reveal,
    set(next) {
      count = next;
      active = clamp(active, 0, Math.max(count - 1, 0));
      inner.style.height = `${count * rowHeight}px`;
      status.hidden = count > 0;
      node.setAttribute("role", count ? "listbox" : "group");
      draw();
    },
  };
}
