// Two programs on one call tree: a figure of every function, module and line in both, what it changed by first.

import { type Block, showDetails } from "../lib/details";
import { button, h, menu, type Option } from "../lib/dom";
import { formatAs, formatCount } from "../lib/format";
import { wordsOf } from "../lib/matches";
import { split } from "../lib/split";
import type { ComparedFigure } from "../lib/states";
import { type Tree, treeFrom } from "../lib/tree";
import { type Column, type TreeTable, treeTable } from "../lib/tree-table";
import type { ViewContext } from "../lib/view";

export type Side = "both" | "only first" | "only last";
const FIRST_ROWS = 24;
export const SMALL = 0.005; // a share of the first value below which a change is no finding

/** In which of the two programs a node is: a figure that no program has says nothing of that. */
export function sideOf(first: readonly number[], last: readonly number[]): Side {
  const has = (values: readonly number[]) => values.some((value) => !Number.isNaN(value));
  if (!has(first)) return has(last) ? "only last" : "both";
  return has(last) ? "both" : "only first";
}

/** How much a figure changed, signed; what is missing counts as nothing. */
export const changeOf = (first: number, last: number): number => (last || 0) - (first || 0);

/** "+1.5 MiB", "−40 %" of the first. */
export function changeWords(first: number, last: number, unit: string): string {
  const change = changeOf(first, last);
  if (change === 0) return "same";
  const sign = change > 0 ? "+" : "−";
  const share = first > 0 && last > 0 ? ` (${sign}${Math.abs((100 * change) / first).toFixed(0)} %)` : "";
  return `${sign}${formatAs(unit, Math.abs(change))}${share}`;
}

/** Names of programs, with a letter before each if some are the same. */
export const distinct = (names: readonly string[]): string[] =>
  new Set(names).size === names.length ? [...names] : names.map((name, i) => `${String.fromCharCode(65 + i)}: ${name}`);

export class ComparedTree {
  private readonly names: readonly string[];
  private readonly places: readonly string[];
  private readonly figures: readonly ComparedFigure[];
  private readonly first: Float32Array[];
  private readonly last: Float32Array[];
  private readonly sides: Side[];
  private readonly tree: Tree;
  private readonly table: TreeTable;
  private readonly detail: HTMLElement;
  private readonly status = h("span", { class: "wb-note", role: "status" });
  private metric = 0;
  private words: string[] = [];
  private only = "";

  constructor(
    host: HTMLElement,
    private readonly context: ViewContext<"compare">,
  ) {
    this.names = context.state("tree_names");
    this.places = context.state("tree_places");
    this.figures = context.state("tree_columns");
    this.first = this.figures.map(({ key }) => context.array(`tree.${key}.a`));
    this.last = this.figures.map(({ key }) => context.array(`tree.${key}.b`));
    this.tree = treeFrom(context.array("tree.parent"));
    const of = (columns: Float32Array[], node: number) => columns.map((values) => values[node]);
    this.sides = this.names.map((_, node) => sideOf(of(this.first, node), of(this.last, node)));
    const { node, main, detail } = split(context, "Details of the selected node", 0.72);
    this.detail = detail;
    this.table = treeTable({
      label: "Both programs by function, module and line",
      parent: context.array("tree.parent"),
      title: "function, line, operation",
      nameWidth: 180,
      name: (each) => this.names[each],
      columns: this.columns(),
      sort: { key: "change", descending: true },
      rowClass: (each) => (this.sides[each] === "both" && this.change(each) === 0 ? "wb-dim" : ""),
      rowAttributes: (each) => ({ "data-side": this.sides[each] }),
      choose: (each) => this.describe(each),
      empty: "Nothing differs.",
      signal: context.signal,
    });
    main.append(this.tools(), this.table.node);
    host.append(node);
    this.open();
    this.filter();
    this.describe(0);
  }

  private change(node: number): number {
    return changeOf(this.first[this.metric]?.[node] ?? 0, this.last[this.metric]?.[node] ?? 0);
  }

  private open(): void {
    this.table.expandTo(FIRST_ROWS, (node) => Math.abs(this.change(node)));
  }

  private columns(): Column[] {
    const { unit } = this.figures[this.metric] ?? { unit: "count" };
    const [first, last] = [this.first[this.metric], this.last[this.metric]];
    const names = distinct(this.context.state("names"));
    const full = Math.max(first?.[0] || 0, last?.[0] || 0) || undefined;
    const side = (key: string, title: string, values: Float32Array | undefined): Column => ({
      key,
      title,
      unit,
      value: (node) => (values && !Number.isNaN(values[node]) ? values[node] : null),
      full,
      width: "122px",
    });
    return [
      side("a", names[0], first),
      side("b", names[names.length - 1], last),
      {
        key: "change",
        title: "change",
        tip: "The last program compared with the first; the largest change first.",
        value: (node) => Math.abs(this.change(node)),
        cell: (node) => this.changeCell(node, unit),
        width: "168px",
      },
    ];
  }

  private changeCell(node: number, unit: string): HTMLElement {
    const side = this.sides[node];
    const [first, last] = [this.first[this.metric]?.[node] ?? Number.NaN, this.last[this.metric]?.[node] ?? Number.NaN];
    const text = side === "both" ? changeWords(first, last, unit) : side === "only last" ? "new" : "gone";
    const change = this.change(node);
    const look = side !== "both" ? "other" : Math.abs(change) < SMALL * first ? "small" : change > 0 ? "more" : "less";
    return h("span", { class: `wb-compared wb-compared-${look}` }, text);
  }

  private tools(): HTMLElement {
    const search = h("input", {
      type: "search",
      class: "wb-search",
      placeholder: "function, module, line",
      "aria-label": "Search the compared tree",
    });
    search.addEventListener("input", () => {
      this.words = wordsOf(search.value);
      this.table.highlight(this.words);
      this.filter();
    });
    const figure = menu(
      "Figure",
      this.figures.map(({ title }, i): Option<number> => [i, title]),
      this.metric,
      (i) => {
        this.metric = i;
        this.table.setColumns(this.columns());
        this.open();
        this.filter();
      },
    );
    const only = menu<string>(
      "Only nodes",
      [
        ["", "all nodes"],
        ["changed", "what changed"],
        ["one", "in one program only"],
      ],
      "",
      (value) => {
        this.only = value;
        this.filter();
      },
    );
    const fold = button("Fold all", () => this.table.collapseAll());
    return h("div", { class: "wb-tools" }, search, h("label", {}, "Figure ", figure), only, fold, this.status);
  }

  private filter(): void {
    const moved = (node: number) => this.change(node) !== 0;
    const passes = (node: number) => {
      // The deepest changes only: a table keeps all that is inside of what passes.
      if (this.only === "changed" && (this.change(node) === 0 || this.tree.children[node].some(moved))) return false;
      if (this.only === "one" && this.sides[node] === "both") return false;
      const text = `${this.names[node]} ${this.places[node]}`.toLowerCase();
      return this.words.every((word) => text.includes(word));
    };
    this.table.filter(this.only || this.words.length ? passes : null, true);
    const changed = this.names.filter((_, node) => this.change(node) !== 0).length;
    const alone = this.sides.filter((side) => side !== "both").length;
    const counts = `${formatCount(changed)} of ${formatCount(this.names.length)} nodes changed`;
    this.status.textContent = `${counts}, ${formatCount(alone)} are in one program only`;
  }

  private describe(node: number): void {
    const names = this.context.state("names");
    const text = (values: Float32Array, unit: string) =>
      Number.isNaN(values[node]) ? "–" : formatAs(unit, values[node]);
    const rows = this.figures.map(({ title, unit }, i) => [
      title,
      text(this.first[i], unit),
      text(this.last[i], unit),
      changeWords(this.first[i][node], this.last[i][node], unit),
    ]);
    const block: Block = {
      form: "table",
      title: "Both programs",
      columns: ["figure", names[0], names[names.length - 1], "change"],
      rows: rows.filter(([, first, last]) => !/^(0 |–)/.test(first) || !/^(0 |–)/.test(last)),
    };
    const side = { both: "in both programs", "only first": `only in ${names[0]}`, "only last": "only in the last" };
    showDetails(this.context, this.detail, {
      title: this.names[node],
      kind: "broadcast",
      subtitle: [side[this.sides[node]], this.places[node]].filter(Boolean).join(" · "),
      blocks: [block],
    });
    this.table.select(node);
  }
}
