// Several programs side by side: what differs first, each figure with its change.

import { type Block, showDetails } from "../lib/details";
import { button, h, menu } from "../lib/dom";
import { formatAs, formatCount } from "../lib/format";
import { wordsOf } from "../lib/matches";
import { split } from "../lib/split";
import type { ComparedRow } from "../lib/states";
import { type Column, type TreeTable, treeTable } from "../lib/tree-table";
import type { RenderView, ViewContext } from "../lib/view";
import { ComparedTree, distinct, SMALL } from "./compare-tree";

const MINOR = 0.02; // of the largest figure of a group: a smaller change is not worth a colour
const SIGNS: Record<ComparedRow["status"], string> = {
  same: "=",
  changed: "≠",
  added: "+",
  removed: "−",
  unknown: "?",
};

/** The last value as a multiple of the first; null where that means nothing. */
export function ratioOf(row: ComparedRow): number | null {
  const first = row.values[0];
  const last = row.values[row.values.length - 1];
  return typeof first === "number" && typeof last === "number" && first !== 0 ? last / first : null;
}

type Weight = "none" | "small" | "minor" | "less" | "more" | "other";

const ends = ({ values }: ComparedRow) => [values[0], values[values.length - 1]];

/** The last value minus the first; what a program lacks counts as zero, and words as no change. */
function differenceOf(row: ComparedRow): number {
  const [first, last] = ends(row).map((value) => (typeof value === "number" ? value : 0));
  return row.status === "unknown" ? 0 : last - first;
}

/** The largest figure of a group whose figures have one unit; else zero, since they cannot be compared. */
export function scaleOf(rows: readonly ComparedRow[]): number {
  if (new Set(rows.map(({ unit }) => unit)).size !== 1) return 0;
  return Math.max(0, ...rows.flatMap(ends).map((value) => (typeof value === "number" ? Math.abs(value) : 0)));
}

/** What a change is to a reader: of bytes, FLOPs and seconds less is better; one of little in its group is minor. */
export function weightOf(row: ComparedRow, scale = 0): Weight {
  if (row.status === "same") return "none";
  const ratio = ratioOf(row);
  if (ratio !== null && Math.abs(ratio - 1) < SMALL) return "small";
  const difference = differenceOf(row);
  if (!["bytes", "flops", "seconds"].includes(row.unit) || difference === 0) return "other";
  if (Math.abs(difference) < MINOR * scale) return "minor";
  return difference < 0 ? "less" : "more";
}

/** What rows are sorted by: the change in the unit of their group; rows of several units keep their order. */
export function sizeOf(row: ComparedRow, rows: readonly ComparedRow[]): number {
  return scaleOf(rows) ? Math.abs(differenceOf(row)) : -rows.indexOf(row);
}

/** How much more or less, in words that are read at a glance. */
export function changeText(row: ComparedRow): string {
  const ratio = ratioOf(row);
  if (row.status === "same") return "same";
  if (ratio === null) return row.status;
  if (ratio >= 2 || ratio <= 0.5) return `× ${Number(ratio.toPrecision(3))}`;
  const percent = 100 * (ratio - 1);
  if (Math.abs(percent) < 0.05) return "less than 0.1 %";
  return `${percent > 0 ? "+" : "−"}${Math.abs(percent).toFixed(Math.abs(percent) < 10 ? 1 : 0)} %`;
}

const signOf = (row: ComparedRow) =>
  weightOf(row) === "small" ? "≈" : ratioOf(row) === null || row.status === "same" ? SIGNS[row.status] : "";

/** Rows below a row for each group; a group comes before its rows. */
export function groupRows(rows: readonly ComparedRow[]): { parent: number[]; groups: string[]; at: number[] } {
  const groups = [...new Set(rows.map(({ group }) => group))];
  const parent = groups.map(() => -1);
  const at = groups.map(() => -1);
  groups.forEach((group, g) =>
    rows.forEach((row, i) => {
      if (row.group !== group) return;
      parent.push(g);
      at.push(i);
    }),
  );
  return { parent, groups, at };
}

const amount = (value: number | string | null, unit: string): string =>
  value === null ? "–" : typeof value === "string" ? value : formatAs(unit, value);

class Comparison {
  private readonly rows: readonly ComparedRow[];
  private readonly names: readonly string[];
  private readonly at: number[];
  private readonly groups: string[];
  private readonly table: TreeTable;
  private readonly detail: HTMLElement;
  private readonly status = h("span", { class: "wb-note", role: "status" });
  private words: string[] = [];
  private shown = "different";

  constructor(
    host: HTMLElement,
    private readonly context: ViewContext<"compare">,
  ) {
    this.rows = context.state("rows");
    this.names = distinct(context.state("names"));
    const { parent, groups, at } = groupRows(this.rows);
    this.at = at;
    this.groups = groups;
    const { node, main, detail } = split(context, "Details of the selected figure", 0.7);
    this.detail = detail;
    this.table = this.makeTable(parent);
    main.append(this.tools(), this.table.node);
    host.append(node);
    this.filter();
    this.overview();
  }

  private differs(node: number): boolean {
    const row = this.rowOf(node);
    return !row || !["none", "small"].includes(weightOf(row));
  }

  private groupOf({ group }: ComparedRow): readonly ComparedRow[] {
    return this.rows.filter((row) => row.group === group);
  }

  private rowOf(node: number): ComparedRow | null {
    return this.at[node] >= 0 ? this.rows[this.at[node]] : null;
  }

  private makeTable(parent: number[]): TreeTable {
    const targets = this.context.state("targets");
    const values = this.names.map(
      (name, i): Column => ({
        key: `value${i}`,
        title: name,
        tip: `${name} on ${targets[i]}`,
        text: (node) => amount(this.rowOf(node)?.values[i] ?? null, this.rowOf(node)?.unit ?? ""),
        cell: (node) => {
          const row = this.rowOf(node);
          return row ? h("span", { class: "wb-tt-text" }, amount(row.values[i], row.unit)) : "";
        },
        width: "minmax(130px, 0.6fr)",
      }),
    );
    const change: Column = {
      key: "change",
      title: "change",
      tip: "The last program compared with the first.",
      value: (node) => {
        const row = this.rowOf(node);
        return row ? sizeOf(row, this.groupOf(row)) : -node; // groups keep their order
      },
      cell: (node) => {
        const row = this.rowOf(node);
        return row
          ? h(
              "span",
              { class: `wb-compared wb-compared-${weightOf(row, scaleOf(this.groupOf(row)))}` },
              h("span", { "aria-hidden": "true" }, `${signOf(row)} `),
              changeText(row),
            )
          : "";
      },
      width: "118px",
    };
    return treeTable({
      label: "Figures of the compared programs",
      parent,
      title: "figure",
      name: (node) => this.rowOf(node)?.name ?? this.groups[node],
      after: (node) => h("span", { class: "wb-note wb-comparedplace" }, this.rowOf(node)?.place ?? ""),
      columns: [...values, change],
      open: new Set(this.groups.map((_, g) => g)),
      sort: { key: "change", descending: true },
      rowClass: (node) => (this.differs(node) ? "" : "wb-dim"),
      rowAttributes: (node): Record<string, string> => {
        const row = this.rowOf(node);
        return row ? { "data-status": row.status } : {};
      },
      choose: (node) => this.choose(node),
      empty: "Nothing differs.",
      signal: this.context.signal,
    });
  }

  private tools(): HTMLElement {
    const search = h("input", {
      type: "search",
      class: "wb-search",
      placeholder: "figure",
      "aria-label": "Search figures",
    });
    search.addEventListener("input", () => {
      this.words = wordsOf(search.value);
      this.table.highlight(this.words);
      this.filter();
    });
    const which = menu<string>(
      "Show figures",
      [
        ["different", "what differs"],
        ["all", "all figures"],
      ],
      this.shown,
      (value) => {
        this.shown = value;
        this.filter();
      },
    );
    return h("div", { class: "wb-tools" }, search, which, this.status);
  }

  private filter(): void {
    const passes = (node: number) => {
      const row = this.rowOf(node);
      if (!row || (this.shown === "different" && !this.differs(node))) return false;
      const text = `${row.group} ${row.name}`.toLowerCase();
      return this.words.every((word) => text.includes(word));
    };
    this.table.filter(passes);
    const count = (...weights: string[]) => this.rows.filter((row) => weights.includes(weightOf(row))).length;
    const small = count("small") ? `, ${formatCount(count("small"))} by less than ${100 * SMALL} %` : "";
    const different = formatCount(count("small", "less", "more", "other"));
    this.status.textContent = `${different} of ${formatCount(this.rows.length)} figures differ${small}`;
  }

  private choose(node: number): void {
    const row = this.rowOf(node);
    if (!row) return;
    const rows = row.values.map((value, i): [string, string] => [
      `${this.names[i]} on ${this.context.state("targets")[i]}`,
      amount(value, row.unit),
    ]);
    const blocks: Block[] = [{ form: "facts", title: "", rows: [...rows, ["change", changeText(row)]] }];
    showDetails(this.context, this.detail, { title: row.name, kind: "broadcast", subtitle: row.group, blocks });
  }

  private overview(): void {
    const targets = this.context.state("targets");
    const blocks: Block[] = [
      {
        form: "table",
        title: "Programs",
        columns: ["name", "target"],
        rows: this.names.map((name, i) => [name, targets[i]]),
      },
    ];
    const collectives = this.rows.filter(({ group }) => group === "bytes sent per collective");
    const changed = collectives.filter((row) => row.status !== "same");
    if (changed.length)
      blocks.unshift({
        form: "table",
        title: "Collectives that differ",
        columns: ["collective", "sent by one device", "line"],
        rows: changed
          .sort((a, b) => sizeOf(b, collectives) - sizeOf(a, collectives))
          .map((row) => {
            const [first, last] = ends(row).map((value) => amount(value, row.unit));
            return [`${SIGNS[row.status]} ${row.name}`, `${first} → ${last}`, row.place];
          }),
      });
    for (const text of this.context.state("notes")) blocks.push({ form: "note", title: "", text });
    showDetails(this.context, this.detail, {
      title: "Comparison",
      kind: "broadcast",
      subtitle: this.context.state("sentence"),
      blocks,
    });
  }
}

type Face = "tree" | "figures";

export const compare: RenderView<"compare"> = (host, context) => {
  if (!context.state("tree_columns").length) return void new Comparison(host, context);
  const panes: Record<Face, HTMLElement> = {
    tree: h("div", { class: "wb-pane" }),
    figures: h("div", { class: "wb-pane" }),
  };
  const titles: [Face, string][] = [
    ["figures", "Figures"],
    ["tree", "Call tree, A next to B"],
  ];
  const buttons = titles.map(([face, title]) => button(title, () => context.set("face", face), { "data-face": face }));
  const built = new Set<Face>();
  const show = () => {
    const face = context.setting<Face>("face", "figures");
    for (const [each] of titles) panes[each].hidden = each !== face;
    for (const each of buttons) each.setAttribute("aria-pressed", String(each.dataset.face === face));
    if (built.has(face)) return;
    built.add(face);
    if (face === "tree") new ComparedTree(panes.tree, context);
    else new Comparison(panes.figures, context);
  };
  const faces = h("div", { class: "wb-faces", role: "group", "aria-label": "What to compare" }, buttons);
  host.append(h("div", { class: "wb-tools" }, faces), panes.figures, panes.tree);
  context.onSettings(show);
  show();
};
