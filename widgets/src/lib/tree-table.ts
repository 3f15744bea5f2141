// A tree with columns of numbers, each with a bar in its cell: sorted, filtered, of any length, by mouse and by keyboard.
import { button, type Child, h, keepKeys, replace, setTabIndex, uniqueId } from "./dom";
import { DEEP_NAME, fitColumns, keptColumns, leastOfNumbers } from "./fit-columns";
import { formatAs, plural } from "./format";
import { clamp, consume, listStep } from "./keyboard";
import { shortened } from "./matches";
import {
  byNumber,
  byText,
  keepWithContext,
  openLargest,
  pathTo,
  type Row,
  type Sorted,
  type Tree,
  treeFrom,
  visibleRows,
} from "./tree";
import { revealed, visibleWindow } from "./window";

export interface Column {
  key: string;
  title: string;
  /** Explains the column, on its header. */
  tip?: string;
  unit?: string;
  /** The number of a node; null where it is unknown. Columns without it are sorted by `text`. */
  value?: (node: number) => number | null;
  text?: (node: number) => string;
  /** What the cell holds instead of the formatted number. */
  cell?: (node: number) => Child;
  /** Whether the number of a node is only a lower bound. */
  atLeast?: (node: number) => boolean;
  /** Draws a bar: the number that fills the cell. */
  full?: number;
  width?: string;
  /** Hidden before the others where there is no room for all. */
  lesser?: boolean;
}

export interface TreeTableOptions {
  label: string;
  parent: ArrayLike<number>;
  /** The first column: what a node is called, and what stands before its name. */
  title: string;
  name: (node: number) => string;
  mark?: (node: number) => Child;
  /** What stands behind the name. */
  after?: (node: number) => Child;
  columns: readonly Column[];
  choose: (node: number) => void;
  /** A key of the tree's own, e.g. to open one level more. */
  sort?: { key: string; descending: boolean };
  open?: ReadonlySet<number>;
  rowClass?: (node: number) => string;
  rowAttributes?: (node: number) => Record<string, string>;
  rowHeight?: number;
  nameWidth?: number;
  empty?: string;
  signal: AbortSignal;
}

export interface TreeTable {
  readonly node: HTMLElement;
  /** Shows what passes, with its ancestors, which are opened for it unless `fold`; null shows all. Returns how many pass. */
  filter(passes: ((node: number) => boolean) | null, fold?: boolean): number;
  /** Marks these words wherever they stand in the rows. */
  highlight(words: readonly string[]): void;
  /** Marks a node; opens what it stands in and scrolls to it. */
  select(node: number | null): void;
  setColumns(columns: readonly Column[]): void;
  /** Opens the largest nodes until about `rows` show; those that `folded` names stay closed. */
  expandTo(rows: number, value: (node: number) => number, folded?: (node: number) => boolean): void;
  collapseAll(): void;
  draw(): void;
}

const DEFAULT_ROW_HEIGHT = 26;
const NAME_WIDTH = 220;
const LEAST_TEXT = 90;
const INDENT = { first: 6, step: 13, levels: 5, deeper: 5 }; // pixels; deep levels leave room for their names

class Table implements TreeTable {
  readonly node: HTMLElement;
  private readonly prefix = uniqueId();
  private readonly tree: Tree;
  private readonly head = h("div", { role: "rowgroup", class: "wb-tt-head" });
  private readonly body = h("div", { role: "rowgroup", class: "wb-tt-body" });
  private readonly nothing: HTMLElement;
  private readonly rowHeight: number;
  private readonly nameWidth: number;
  private columns: readonly Column[];
  private shown: readonly Column[];
  private all = false;
  private open: Set<number>;
  private order: { key: string; descending: boolean } | undefined;
  private kept: Uint8Array | undefined;
  private fold = false;
  private words: readonly string[] = [];
  private rows: Row[] = [];
  private sorted: Sorted = new Map();
  private active = 0;
  private chosen: number | null = null;
  private frame = 0;

  constructor(private readonly options: TreeTableOptions) {
    this.tree = treeFrom(options.parent);
    this.rowHeight = options.rowHeight ?? DEFAULT_ROW_HEIGHT;
    this.nameWidth = options.nameWidth ?? NAME_WIDTH;
    this.columns = options.columns;
    this.shown = options.columns;
    this.open = new Set(options.open ?? []);
    this.order = options.sort;
    this.nothing = h("p", { class: "wb-note wb-empty", hidden: true }, options.empty ?? "No row matches the filter.");
    this.node = h("div", { class: "wb-tt", role: "treegrid", "aria-label": options.label }, this.head, this.body);
    setTabIndex(this.node, 0);
    keepKeys(this.node);
    this.node.addEventListener("scroll", () => this.later());
    this.node.addEventListener("keydown", (event) => this.onKey(event));
    this.body.addEventListener("click", (event) => this.onClick(event));
    const watch = new ResizeObserver(() => {
      this.fit();
      if (this.rows[this.active]?.node === this.chosen) this.moveTo(this.active); // still in sight
      this.later();
    });
    watch.observe(this.node);
    options.signal.addEventListener("abort", () => {
      watch.disconnect();
      cancelAnimationFrame(this.frame);
    });
    this.setColumns(options.columns);
  }

  setColumns(columns: readonly Column[]): void {
    this.columns = columns;
    this.sorted.clear();
    this.fit();
    this.node.setAttribute("aria-colcount", String(columns.length + 1));
    this.drawHead();
    this.flatten();
  }

  /** Narrows the columns, then hides some, before it makes anybody scroll sideways. */
  private fit(): void {
    const wanted = this.columns.map(({ key, title, value, unit, cell, width = "108px", lesser }) => ({
      width,
      least: cell && !value ? Number.POSITIVE_INFINITY : value ? leastOfNumbers(title, unit) : LEAST_TEXT,
      lesser,
      needed: key === this.order?.key,
    }));
    const room = this.node.clientWidth;
    const kept = this.all ? wanted.map((_, i) => i) : keptColumns(this.nameWidth, wanted, room);
    const fewer = kept.map((i) => wanted[i]);
    const { columns, least } = fitColumns(this.nameWidth, fewer, room, this.all ? DEEP_NAME : undefined);
    this.node.style.setProperty("--wb-tt-columns", columns);
    this.node.style.setProperty("--wb-tt-least", `${least}px`);
    const shown = kept.map((i) => this.columns[i]);
    const changed = shown.length !== this.shown.length || shown.some((each, i) => each !== this.shown[i]);
    this.shown = shown;
    if (changed) this.drawHead();
  }

  /** Shows the columns that had no room, or hides them again. */
  private more(): Child {
    const hidden = this.columns.filter((each) => !this.shown.includes(each));
    if (!hidden.length && !this.all) return null;
    const said = this.all ? "Fewer columns" : `Show ${plural(hidden.length, "more column")}`;
    const titles = hidden.map(({ title }) => title).join(", ");
    const toggle = () => {
      this.all = !this.all;
      this.fit();
      this.drawHead();
      this.draw();
      this.head.querySelector<HTMLElement>(".wb-tt-more")?.focus();
    };
    return button(this.all ? "fewer" : `+${hidden.length}`, toggle, {
      class: "wb-link wb-tt-more",
      "aria-label": titles ? `${said}: ${titles}` : said,
      "data-tip": titles ? `${said}: ${titles}` : said,
    });
  }

  filter(passes: ((node: number) => boolean) | null, fold = false): number {
    this.fold = fold;
    if (!passes) this.kept = undefined;
    let count = this.tree.parent.length;
    if (passes) {
      const passing = Uint8Array.from(this.tree.parent, (_, node) => (passes(node) ? 1 : 0));
      this.kept = keepWithContext(this.tree, (node) => passing[node] === 1);
      count = passing.reduce((sum, each) => sum + each, 0);
    }
    this.flatten();
    return count;
  }

  highlight(words: readonly string[]): void {
    this.words = words;
    this.later();
  }

  select(node: number | null): void {
    if (node === this.chosen) return this.draw();
    this.chosen = node;
    if (node !== null) {
      for (const above of pathTo(this.tree, node).slice(0, -1)) this.open.add(above);
      this.flatten();
      const at = this.rows.findIndex((row) => row.node === node);
      if (at >= 0) this.moveTo(at);
    }
    this.draw();
  }

  expandTo(rows: number, value: (node: number) => number, folded?: (node: number) => boolean): void {
    this.open = openLargest(this.tree, value, rows, folded);
    this.flatten();
  }

  collapseAll(): void {
    this.open.clear();
    this.flatten();
  }

  draw(): void {
    this.frame = 0;
    const [first, last] = visibleWindow(
      this.node.scrollTop,
      this.node.clientHeight || 400,
      this.rowHeight,
      this.rows.length,
    );
    this.body.replaceChildren(...this.rows.slice(first, last).map((row, i) => this.drawRow(row, first + i)));
    if (this.rows.length) this.node.setAttribute("aria-activedescendant", `${this.prefix}-${this.active}`);
    else this.node.removeAttribute("aria-activedescendant");
  }

  private later(): void {
    if (!this.frame) this.frame = requestAnimationFrame(() => this.draw());
  }

  private flatten(): void {
    const focused = this.rows[this.active]?.node;
    this.rows = visibleRows(this.tree, this.open, this.compare(), this.kept, !this.fold, this.sorted);
    this.active = Math.max(
      0,
      this.rows.findIndex((row) => row.node === focused),
    );
    this.body.style.height = `${this.rows.length * this.rowHeight}px`;
    this.node.setAttribute("aria-rowcount", String(this.rows.length + 1));
    if (this.rows.length) this.nothing.remove();
    else this.node.after(this.nothing);
    this.nothing.hidden = this.rows.length > 0;
    this.draw();
  }

  private compare() {
    if (!this.order) return undefined;
    const { key, descending } = this.order;
    if (key === "") return byText(this.options.name, descending);
    const column = this.columns.find((each) => each.key === key);
    if (column?.value) return byNumber(column.value, descending);
    return column?.text ? byText(column.text, descending) : undefined;
  }

  private drawHead(): void {
    const cell = (key: string, title: string, numeric: boolean, tip?: string) => {
      const sorted = this.order?.key === key;
      const direction = this.order?.descending ? "descending" : "ascending";
      const words = [
        title,
        sorted ? h("span", { "aria-hidden": "true" }, this.order?.descending ? "\u00a0↓" : "\u00a0↑") : null,
      ];
      const sort = h("button", { type: "button", class: "wb-sortable", "data-tip": tip, tabindex: 0 }, words);
      sort.addEventListener("click", () => this.sortBy(key, numeric));
      const attributes = { role: "columnheader", class: numeric ? "wb-num" : "", "data-key": key };
      return h("div", { ...attributes, "aria-sort": sorted ? direction : null }, sort);
    };
    const cells = this.shown.map((column) => cell(column.key, column.title, Boolean(column.value), column.tip));
    const name = cell("", this.options.title, false);
    const more = this.more();
    if (more) name.append(more as Node);
    replace(this.head, h("div", { role: "row", class: "wb-tt-row" }, name, cells));
  }

  private sortBy(key: string, numeric: boolean): void {
    const again = this.order?.key === key;
    this.sorted.clear();
    this.order = { key, descending: again ? !this.order?.descending : numeric };
    this.fit();
    this.drawHead();
    this.flatten();
    this.head.querySelector<HTMLElement>(`[data-key="${CSS.escape(key)}"] button`)?.focus();
  }

  private drawRow(row: Row, index: number): HTMLElement {
    const { node, depth, expandable, expanded } = row;
    const twist = h(
      "span",
      { class: "wb-twist", "data-twist": expandable ? "" : null, "aria-hidden": "true" },
      expandable ? (expanded ? "▾" : "▸") : "",
    );
    const name = this.options.name(node);
    const first = h(
      "div",
      { role: "gridcell", class: "wb-tt-name", title: name },
      twist,
      this.options.mark?.(node),
      h("span", { class: "wb-tt-text" }, shortened(name, this.words)),
      this.options.after?.(node),
    );
    const { first: margin, step, levels, deeper } = INDENT;
    first.style.paddingLeft = `${margin + step * Math.min(depth, levels) + deeper * Math.max(0, depth - levels)}px`;
    const look = [
      "wb-tt-row",
      this.options.rowClass?.(node),
      node === this.chosen ? "wb-selected" : "",
      index === this.active ? "wb-active" : "",
    ];
    const made = h(
      "div",
      {
        role: "row",
        id: `${this.prefix}-${index}`,
        class: look.filter(Boolean).join(" "),
        "data-row": index,
        "data-node": node,
        "aria-level": depth + 1,
        "aria-posinset": row.place,
        "aria-setsize": row.siblings,
        "aria-rowindex": index + 2,
        "aria-expanded": expandable ? String(expanded) : null,
        "aria-selected": String(node === this.chosen),
        ...this.options.rowAttributes?.(node),
      },
      first,
      this.shown.map((column) => this.drawCell(column, node)),
    );
    made.style.top = `${index * this.rowHeight}px`;
    made.style.height = `${this.rowHeight}px`;
    return made;
  }

  private drawCell(column: Column, node: number): HTMLElement {
    const value = column.value?.(node) ?? null;
    const text = column.cell
      ? column.cell(node)
      : column.text
        ? h("span", { class: "wb-tt-text" }, shortened(column.text(node), this.words))
        : value === null
          ? "–"
          : `${column.atLeast?.(node) ? "≥ " : ""}${formatAs(column.unit ?? "count", value)}`;
    const zero = value === 0 && !column.cell;
    const cell = h(
      "div",
      { role: "gridcell", class: column.value ? "wb-num" : "" },
      zero ? h("span", { class: "wb-zero" }, "–") : text,
    );
    if (column.full && value) {
      const bar = h("span", { class: "wb-cellbar", "aria-hidden": "true" });
      bar.style.width = `${clamp((100 * Math.abs(value)) / column.full, 0, 100)}%`;
      cell.prepend(bar);
    }
    return cell;
  }

  private moveTo(index: number): void {
    if (!this.rows.length) return;
    this.active = clamp(index, 0, this.rows.length - 1);
    const height = this.node.clientHeight - this.head.offsetHeight;
    this.node.scrollTop = revealed(this.active, this.node.scrollTop, height, this.rowHeight);
    this.draw();
  }

  private toggle(row: Row, expanded = !row.expanded): void {
    if (!row.expandable) return;
    if (expanded) this.open.add(row.node);
    else this.open.delete(row.node);
    this.flatten();
  }

  private choose(row: Row): void {
    this.chosen = row.node;
    this.draw();
    this.options.choose(row.node);
  }

  private onClick(event: MouseEvent): void {
    const target = event.target as Element;
    const found = target.closest<HTMLElement>("[data-row]");
    if (!found || target.closest("button, a, select, input")) return;
    this.active = Number(found.dataset.row);
    const row = this.rows[this.active];
    if (target.closest("[data-twist]")) this.toggle(row);
    else this.choose(row);
  }

  private onKey(event: KeyboardEvent): void {
    const row = this.rows[this.active];
    if (event.target !== this.node || !row) return;
    const page = Math.max(1, Math.floor(this.node.clientHeight / this.rowHeight) - 2);
    const step = listStep(event.key, page);
    if (step !== undefined) this.moveTo(this.active + step);
    else if (event.key === "ArrowRight" && row.expanded) this.moveTo(this.active + 1);
    else if (event.key === "ArrowRight") this.toggle(row, true);
    else if (event.key === "ArrowLeft" && row.expanded && (!this.kept || this.fold)) this.toggle(row, false);
    else if (event.key === "ArrowLeft")
      this.moveTo(this.rows.findIndex(({ node }) => node === this.tree.parent[row.node]));
    else if (event.key === "Enter" || event.key === " ") this.choose(row);
    else return;
    consume(event);
  }
}

export const treeTable = (options: TreeTableOptions): TreeTable => new Table(options);
