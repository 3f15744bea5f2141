// Arrays cut over devices as a tree; one array as a picture; what another spec would cost; why values are cut as they are.

import { badge, onReport } from "../lib/badges";
import { type Block, showDetails } from "../lib/details";
import { button, h, menu, type Option, replace, s } from "../lib/dom";
import { asSentence, formatBytes, formatCount, plural } from "../lib/format";
import { wordsOf } from "../lib/matches";
import { split } from "../lib/split";
import type { PropagationState, ShardingLeaf } from "../lib/states";
import { type TreeTable, treeTable } from "../lib/tree-table";
import type { RenderView, ViewContext } from "../lib/view";
import { playPropagation } from "./propagation";
import { bytesPerDevice, copies, type PathTree, pathTree, type Spec, written } from "./sharding-data";
import { ShardPicture } from "./sharding-picture";
import { change, Trial } from "./sharding-trial";

type Mode = "arrays" | "why";
const FIRST_ROWS = 14;
const GLYPH = 4; // lines at most in the small picture of a row

/** How an array is cut, as small as a letter: lines where rows and columns are cut. */
function glyph(leaf: ShardingLeaf): SVGSVGElement {
  const cut = leaf.blocks.filter((count) => count > 1);
  const [rows, columns] =
    cut.length > 1 ? cut : leaf.blocks.length > 1 && leaf.blocks[0] === 1 ? [1, cut[0] ?? 1] : [cut[0] ?? 1, 1];
  const line = (vertical: boolean, share: number) => {
    const at = 1 + 14 * share;
    const ends = vertical ? { x1: at, x2: at, y1: 1, y2: 15 } : { x1: 1, x2: 15, y1: at, y2: at };
    return s("line", { ...ends, class: "wb-stroke-accent", "stroke-width": 1 });
  };
  const lines = (count: number, vertical: boolean) =>
    Array.from({ length: Math.min(count, GLYPH) - 1 }, (_, i) => line(vertical, (i + 1) / Math.min(count, GLYPH)));
  const whole = cut.length === 0;
  const box = s("rect", {
    x: 1,
    y: 1,
    width: 14,
    height: 14,
    rx: 2,
    class: `wb-stroke-muted ${whole ? "wb-fill-reduce-soft" : "wb-fill-broadcast-soft"}`,
    "stroke-width": 1,
  });
  return s(
    "svg",
    { viewBox: "0 0 16 16", width: 16, height: 16, "aria-hidden": "true" },
    box,
    lines(rows, false),
    lines(columns, true),
  );
}

class Sharding {
  private readonly leaves: readonly ShardingLeaf[];
  private readonly tree: PathTree;
  private readonly trial: Trial;
  private readonly picture: ShardPicture;
  private readonly table: TreeTable;
  private readonly facts = h("div", {});
  private readonly status = h("span", { class: "wb-note", role: "status" });
  private words: string[] = [];
  private only = "";
  private shown: number | undefined; // a node of the tree, or -1: all arrays

  constructor(
    host: HTMLElement,
    private readonly context: ViewContext<"sharding">,
  ) {
    this.leaves = context.state("leaves");
    this.tree = pathTree(this.leaves.map(({ path }) => path));
    this.trial = new Trial(context);
    this.picture = new ShardPicture(context);
    const { node, main, detail } = split(context, "Details of the selected array", 0.54);
    this.table = this.makeTable();
    main.append(this.tools(), this.table.node);
    replace(detail, this.facts, this.picture.menus, this.picture.node, this.trial.menus, this.trial.desk);
    host.append(node);
    const depth = (node: number): number => (node < 0 ? 0 : 1 + depth(this.tree.parent[node]));
    const bytes = (node: number) => this.sum(node, (leaf) => this.trial.bytesOf(leaf));
    this.table.expandTo(FIRST_ROWS, (node) => bytes(node) + 1 / depth(node)); // parameters before an optimizer's copies
    this.follow();
    context.onSelection(() => this.follow());
    context.onSettings(() => {
      this.table.draw();
      if (this.trial.group) this.describe(this.trial.group);
    });
    onReport(context, () => this.table.draw());
    context.theme.onChange(() => this.picture.draw());
  }

  /** The arrays in a node; all of them for -1. */
  private leavesIn(node: number): ShardingLeaf[] {
    if (this.tree.leaf[node] >= 0) return [this.leaves[this.tree.leaf[node]]];
    const inside: ShardingLeaf[] = [];
    for (let i = node + 1; i < this.tree.parent.length && this.tree.parent[i] >= node; i++)
      if (this.tree.leaf[i] >= 0) inside.push(this.leaves[this.tree.leaf[i]]);
    return inside;
  }

  /** The sum of a figure over the arrays in a node. */
  private sum(node: number, value: (leaf: ShardingLeaf) => number): number {
    return this.leavesIn(node).reduce((sum, leaf) => sum + value(leaf), 0);
  }

  private leafOf(node: number): ShardingLeaf | null {
    return this.tree.leaf[node] >= 0 ? this.leaves[this.tree.leaf[node]] : null;
  }

  private makeTable(): TreeTable {
    const { tree, trial } = this;
    const all = (value: (leaf: ShardingLeaf) => number) => this.leaves.reduce((sum, leaf) => sum + value(leaf), 0);
    const whole = (leaf: ShardingLeaf) => bytesPerDevice(leaf, leaf.spec, {});
    const held = (node: number) => {
      const leaf = this.leafOf(node);
      return leaf ? copies(trial.specOf(leaf), trial.sizes) : null;
    };
    const most = Math.max(1, ...(Object.values(trial.sizes).length ? [copies([], trial.sizes)] : [1]));
    return treeTable({
      label: "Arrays and their shardings",
      parent: tree.parent,
      title: "array",
      name: (node) => tree.names[node],
      mark: (node) => (tree.leaf[node] < 0 ? null : badge(this.context, "leaves", this.leaves[tree.leaf[node]].path)),
      columns: [
        {
          key: "bytes",
          title: "per device",
          unit: "bytes",
          tip: "Bytes of the array on one device.",
          value: (node) => this.sum(node, (leaf) => trial.bytesOf(leaf)),
          full: all((leaf) => trial.bytesOf(leaf)),
          width: "104px",
        },
        {
          key: "copies",
          title: "copies",
          tip: "Number of devices with the same shard; 1 means no copies.",
          value: held,
          cell: (node) => (held(node) === null ? "" : formatCount(held(node))),
          full: most,
          width: "72px",
        },
        {
          key: "spec",
          title: "spec",
          text: (node) => this.specText(node),
          cell: (node) => this.specCell(node),
          width: "minmax(140px, 0.8fr)",
        },
        { key: "type", title: "type", text: (node) => this.leafOf(node)?.type ?? "", width: "126px" },
        {
          key: "whole",
          title: "in all",
          unit: "bytes",
          value: (node) => this.sum(node, whole),
          full: all(whole),
          width: "92px",
        },
      ],
      rowClass: (node) => (this.isChanged(node) ? "wb-changedrow" : ""),
      rowAttributes: (node): Record<string, string> =>
        tree.leaf[node] >= 0 ? { "data-leaf": String(tree.leaf[node]) } : {},
      choose: (node) => this.context.select({ leaf: tree.paths[node] }),
      rowHeight: 27,
      signal: this.context.signal,
    });
  }

  private isChanged(node: number): boolean {
    const leaf = this.leafOf(node);
    return Boolean(leaf && this.trial.specs[leaf.path]);
  }

  private specText(node: number): string {
    const leaf = this.leafOf(node);
    if (!leaf) return "";
    const tried: Spec | undefined = this.trial.specs[leaf.path];
    return tried ? `${leaf.spec_text} → ${written(tried)}` : leaf.spec_text;
  }

  private specCell(node: number) {
    const leaf = this.leafOf(node);
    return leaf ? [glyph(leaf), h("span", { class: "wb-mono wb-tt-text" }, this.specText(node))] : "";
  }

  private tools(): HTMLElement {
    const search = h("input", {
      type: "search",
      class: "wb-search",
      placeholder: "name, type, axis",
      "aria-label": "Search arrays",
    });
    search.addEventListener("input", () => {
      this.words = wordsOf(search.value);
      this.table.highlight(this.words);
      this.filter();
    });
    const axes = Object.keys(this.trial.sizes).map((axis): Option<string> => [axis, `sharded over ${axis}`]);
    const only = menu<string>(
      "Only arrays",
      [["", "all arrays"], ["*", "copied on several devices"], ["?", "tried with another spec"], ...axes],
      "",
      (value) => {
        this.only = value;
        this.filter();
      },
    );
    const { total, fullest } = this.context.whole;
    const text = `${plural(this.leaves.length, "array")}, ${total} in all, ${fullest} on the fullest device`;
    this.status.textContent = text;
    return h("div", { class: "wb-tools" }, search, only, this.status);
  }

  private filter(): void {
    const passes = (node: number) => {
      const leaf = this.leafOf(node);
      if (!leaf) return false;
      const spec = this.trial.specOf(leaf);
      if (this.only === "*" && copies(spec, this.trial.sizes) < 2) return false;
      if (this.only === "?" && !this.trial.specs[leaf.path]) return false;
      if (this.only && !"*?".includes(this.only) && !spec.flat().includes(this.only)) return false;
      const words = `${leaf.path} ${leaf.type} ${spec.flat().join(" ")}`.toLowerCase();
      return this.words.every((word) => words.includes(word));
    };
    const count = this.table.filter(this.words.length || this.only ? passes : null);
    this.status.textContent =
      this.words.length || this.only
        ? `${formatCount(count)} of ${plural(this.leaves.length, "array")}`
        : plural(this.leaves.length, "array");
  }

  /** Shows what is selected: one array, all arrays of a part of the tree, or all arrays where nothing is selected. */
  private follow(): void {
    const node = this.tree.paths.indexOf(this.context.selection.leaf ?? "");
    if (node === this.shown) return this.picture.draw();
    this.shown = node;
    this.table.select(node < 0 ? null : node);
    const index = node < 0 && this.leaves.length === 1 ? 0 : (this.tree.leaf[node] ?? -1);
    // The picture and the menus of one array make no sense for several.
    this.picture.node.hidden = this.picture.menus.hidden = index < 0;
    if (index >= 0) return this.showOne(index);
    this.trial.showGroup(this.leavesIn(node));
    this.describe(this.leavesIn(node));
  }

  private describe(inside: readonly ShardingLeaf[]): void {
    const bytes = (value: (leaf: ShardingLeaf) => number) =>
      formatBytes(inside.reduce((sum, leaf) => sum + value(leaf), 0));
    const { sizes } = this.trial;
    const present = bytes((leaf) => bytesPerDevice(leaf, leaf.spec, sizes));
    const rows: [string, string][] = [
      ["arrays", formatCount(inside.length)],
      [
        "bytes per device",
        change(
          present,
          bytes((leaf) => this.trial.bytesOf(leaf)),
        ),
      ],
      ["bytes in all", bytes((leaf) => bytesPerDevice(leaf, leaf.spec, {}))],
    ];
    const path = this.tree.paths[this.shown ?? -1];
    showDetails(this.context, this.facts, {
      title: path ?? "All arrays",
      kind: "server",
      subtitle: path ? "all arrays in it" : "select a row to see one array or a part of the tree",
      blocks: [{ form: "facts", title: "", rows }],
    });
  }

  private showOne(index: number): void {
    const leaf = this.leaves[index];
    this.picture.show(leaf, this.context.array(`sharding.${index}`));
    this.trial.show(leaf);
    const notes = [...leaf.notes, ...(leaf.left_out ? [`${leaf.left_out} shards are not drawn.`] : [])];
    const blocks: Block[] = [{ form: "facts", title: "", rows: leaf.rows }];
    if (notes.length) blocks.push({ form: "note", title: "Notes", text: notes.map(asSentence).join(" ") });
    showDetails(this.context, this.facts, { title: leaf.path, kind: "clients", subtitle: leaf.type, blocks });
  }
}

/** Why values are cut as they are, of the program as it is or as it was tried last; built when it is first looked at. */
class Why {
  private tried: PropagationState | null = null;
  private number = 0;
  private built = false;
  private again: (() => void) | undefined;
  private readonly note = h("p", { class: "wb-note", role: "status" });
  private readonly picture = h("div");

  constructor(
    host: HTMLElement,
    private readonly context: ViewContext<"sharding">,
  ) {
    host.append(this.note, this.picture);
    this.say("");
    context.onLive(() => {
      if (!host.hidden) this.ask();
    });
  }

  open(): void {
    this.ask();
    if (!this.built && !this.picture.hidden) this.build();
  }

  private build(): void {
    const shown = () => this.tried ?? this.context.state("propagation");
    if (!shown()) return this.say("The propagation of this program is not known yet. Try other specs first.");
    this.built = true;
    const leaves = this.context.state("leaves");
    this.again = playPropagation(this.picture, this.context, () => shown() as PropagationState, leaves);
  }

  /** The propagation of what was tried last takes the place of the present one; only who looks at it asks for it. */
  private ask(): void {
    const trial = this.context.live("trial");
    if (trial?.status !== "done" || !trial.number || trial.number === this.number) return;
    const { number } = trial;
    this.number = number;
    this.say("Reading the propagation of the specs that you tried last.", true);
    const settle = (value: PropagationState | null) => {
      if (number !== this.number) return; // a later trial has taken its place
      this.tried = value ?? this.tried;
      this.say("");
      if (this.built) this.again?.();
      else this.build();
    };
    this.context.request("tried_propagation").then(settle, () => settle(null));
  }

  /** While the propagation is read, the old one is hidden: nobody takes it for the new one. */
  private say(text: string, reading = false): void {
    this.note.textContent = text;
    this.note.hidden = !text;
    this.picture.hidden = reading;
  }
}

export const sharding: RenderView<"sharding"> = (host, context) => {
  if (!context.state("leaves").length)
    return host.append(h("p", { class: "wb-note wb-scrolls" }, "This tree has no arrays."));
  const arrays = h("div", { class: "wb-pane" });
  const place = h("div", { class: "wb-scrolls", hidden: true });
  const why = new Why(place, context);
  const modes: [Mode, string][] = [
    ["arrays", "Arrays and what if"],
    ["why", "Why: propagation step by step"],
  ];
  const buttons = modes.map(([mode, title]) => button(title, () => context.set("mode", mode), { "data-mode": mode }));
  const known = Boolean(context.state("can_try") || context.state("propagation"));
  const show = () => {
    const mode = known ? context.setting<Mode>("mode", "arrays") : "arrays";
    for (const each of buttons) each.setAttribute("aria-pressed", String(each.dataset.mode === mode));
    arrays.hidden = mode === "why";
    place.hidden = mode !== "why";
    if (mode === "why") why.open();
  };
  if (known)
    host.append(
      h(
        "div",
        { class: "wb-tools" },
        h("div", { class: "wb-faces", role: "group", "aria-label": "What to show" }, buttons),
      ),
    );
  host.append(arrays, place);
  new Sharding(arrays, context);
  context.onSettings(show);
  show();
};
