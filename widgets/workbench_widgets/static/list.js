import { h } from "./common.js";

/**
 * A list of any length of which only what is visible exists; arrow keys move, Enter chooses. `row(i)` fills a line; in a
 * `tree` a line may say its `level` and whether it is `expanded`.
 */
export function virtualList(ctx, { label, rowHeight = 21, height = 460, row, choose, empty = "Nothing passes the filter.", tree = false }) {
  const inner = h("div", { class: "wb-inner" }), status = h("p", { class: "wb-note wb-empty", hidden: true }, empty);
  const box = h("div", { class: "wb-list", tabindex: 0, "aria-label": label }, inner, status);
  const prefix = `wb-${Math.random().toString(36).slice(2)}`;
  box.style.height = `${height}px`;
  let count = 0, active = 0, frame = 0;

  const draw = () => {
    frame = 0;
    const first = Math.max(0, Math.floor(box.scrollTop / rowHeight) - 6), last = Math.min(count, first + Math.ceil((box.clientHeight || height) / rowHeight) + 12);
    const nodes = [];
    for (let i = first; i < last; i++) {
      const made = row(i), node = h("div", { id: `${prefix}-${i}`, role: tree ? "treeitem" : "option", "aria-level": tree ? made.level ?? 1 : null, "aria-expanded": made.expanded === undefined ? null : String(made.expanded), class: `wb-item ${made.class ?? ""}`, "aria-selected": String(Boolean(made.selected)), "aria-setsize": count, "aria-posinset": i + 1, "data-row": i, ...(made.attributes ?? {}) }, made.children);
      node.style.cssText = `top:${i * rowHeight}px;height:${rowHeight}px;padding-left:${12 + 14 * (made.depth ?? 0)}px`;
      nodes.push(node);
    }
    inner.replaceChildren(...nodes);
    if (active >= first && active < last) box.setAttribute("aria-activedescendant", `${prefix}-${active}`);
    nodes.find((node) => Number(node.dataset.row) === active)?.classList.add("wb-active");
  };
  const later = () => (frame ||= requestAnimationFrame(draw));
  const reveal = (i) => {
    if (i * rowHeight < box.scrollTop) box.scrollTop = i * rowHeight;
    else if ((i + 1) * rowHeight > box.scrollTop + box.clientHeight) box.scrollTop = (i + 1) * rowHeight - box.clientHeight;
  };
  box.addEventListener("scroll", later);
  box.addEventListener("click", (event) => { const node = event.target.closest("[data-row]"); if (node) (active = Number(node.dataset.row)), choose(active), draw(); });
  box.addEventListener("keydown", (event) => {
    const page = Math.floor(box.clientHeight / rowHeight), move = { ArrowDown: 1, ArrowUp: -1, PageDown: page, PageUp: -page, Home: -count, End: count }[event.key];
    if (move) (active = Math.min(Math.max(active + move, 0), count - 1)), reveal(active), draw();
    else if (event.key === "Enter" || event.key === " ") choose(active);
    else return;
    event.preventDefault();
    event.stopPropagation();
  });
  ctx.cleanup(() => cancelAnimationFrame(frame));
  return {
    node: box,
    set(next) { count = next; active = Math.min(active, Math.max(count - 1, 0)); inner.style.height = `${count * rowHeight}px`; status.hidden = count > 0; box.setAttribute("role", count ? (tree ? "tree" : "listbox") : "group"); draw(); },
    show(i) { if (i < 0) return; active = i; const top = (i - 4) * rowHeight; if (i * rowHeight < box.scrollTop || (i + 1) * rowHeight > box.scrollTop + (box.clientHeight || height)) box.scrollTop = Math.max(0, top); draw(); },
    draw,
  };
}
