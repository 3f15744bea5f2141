// All instructions as a table: grouped, sorted by what they cost, searched.

import { badge, onReport } from "../lib/badges";
import { button, h, menu, type Option, replace } from "../lib/dom";
import { formatBytes, formatCount, formatFlops, plural } from "../lib/format";
import { wordsOf } from "../lib/matches";
import { type Column, type TreeTable, treeTable } from "../lib/tree-table";
import type { ViewContext } from "../lib/view";
import { isTrivial, type Module } from "./hlo-data";

type Grouping = "stage" | "computation" | "opcode" | "";
interface Group {
  title: string;
  members: number[];
}

export class Instructions {
  readonly node = h("div", { class: "wb-pane" });
  private readonly place = h("div", { class: "wb-pane" });
  private readonly summary = h("span", { class: "wb-note", role: "status" });
  private readonly search = h("input", {
    type: "search",
    placeholder: "name, opcode, shape, op_name",
    "aria-label": "Search instructions",
    class: "wb-search",
  });
  private groups: Group[] = [];
  private order: number[] = [];
  private table: TreeTable | null = null;
  private grouping: Grouping;
  private axis = "";
  private stage = -1;
  private trivial = false;
  private words: string[] = [];
  private readonly kept = new Map<number, number[]>();
  private readonly sums = new Map<string, number>();

  constructor(
    private readonly context: ViewContext<"hlo">,
    private readonly module: Module,
    private readonly choose: (instruction: number) => void,
    private readonly onSearch: (text: string) => void,
  ) {
    this.grouping = module.stages.length > 1 ? "stage" : "opcode";
    this.node.append(this.tools(), this.place);
    this.build();
    onReport(context, () => this.table?.draw());
  }

  private tools(): HTMLElement {
    const { module } = this;
    const stages: Option<number>[] = [
      [-1, "every stage"],
      ...module.stages.map((stage, i): Option<number> => [i, stage || "no stage"]),
    ];
    const axes = this.context.state("axes").map((axis): Option<string> => [axis, `over ${axis}`]);
    const again =
      <T>(put: (value: T) => void) =>
      (value: T) => {
        put(value);
        this.filter();
      };
    const byStage = menu(
      "Only stage",
      stages,
      -1,
      again<number>((value) => (this.stage = value)),
    );
    const byAxis = menu(
      "Only collectives over axis",
      [["", "everything"], ["*", "collectives only"], ...axes],
      "",
      again<string>((value) => (this.axis = value)),
    );
    const group = menu<Grouping>(
      "Group by",
      [
        ["stage", "stage"],
        ["computation", "computation"],
        ["opcode", "opcode"],
        ["", "nothing"],
      ],
      this.grouping,
      (value) => {
        this.grouping = value;
        this.build();
      },
    );
    const trivial = button(
      "Parameters, tuples …",
      () => {
        this.trivial = !this.trivial;
        trivial.setAttribute("aria-pressed", String(this.trivial));
        this.filter();
      },
      { "aria-pressed": "false", "data-tip": "Also show instructions that only name, store or forward a value." },
    );
    this.search.addEventListener("input", () => {
      this.words = wordsOf(this.search.value);
      this.table?.highlight(this.words);
      this.onSearch(this.search.value);
      this.filter();
    });
    return h(
      "div",
      { class: "wb-tools" },
      this.search,
      module.stages.length > 1 ? byStage : null,
      byAxis,
      h("label", {}, "Group by ", group),
      trivial,
      this.summary,
    );
  }

  /** Groups first, each followed in `order` by its members. */
  private build(): void {
    const { module, grouping } = this;
    const index = grouping === "stage" ? module.stage : grouping === "opcode" ? module.opcode : module.computation;
    const titles =
      grouping === "stage"
        ? module.stages.map((stage) => (stage ? `stage ${stage}` : "no stage"))
        : grouping === "opcode"
          ? module.opcodes
          : module.computations;
    const made = new Map<number, Group>();
    if (grouping)
      for (let i = 0; i < module.count; i++) {
        const group = made.get(index[i]) ?? { title: titles[index[i]], members: [] };
        group.members.push(i);
        made.set(index[i], group);
      }
    this.groups = [...made].sort((a, b) => a[0] - b[0]).map(([, group]) => group);
    this.order = grouping
      ? this.groups.flatMap(({ members }) => members)
      : Array.from({ length: module.count }, (_, i) => i);
    const parent = [
      ...this.groups.map(() => -1),
      ...(grouping ? this.groups.flatMap(({ members }, g) => members.map(() => g)) : this.order.map(() => -1)),
    ];
    this.table = this.makeTable(parent);
    replace(this.place, this.table.node);
    this.table.highlight(this.words);
    this.filter();
  }

  private index(node: number): number {
    return node < this.groups.length ? -1 : this.order[node - this.groups.length];
  }

  private sum(node: number, value: (instruction: number) => number): number {
    const i = this.index(node);
    return (i >= 0 ? [i] : this.passing(node)).reduce((total, each) => total + (value(each) || 0), 0);
  }

  /** The instructions of a group that pass the filter, found once per filter. */
  private passing(group: number): readonly number[] {
    const known = this.kept.get(group);
    if (known) return known;
    const found = this.groups[group].members.filter((member) => this.passes(member));
    this.kept.set(group, found);
    return found;
  }

  private makeTable(parent: number[]): TreeTable {
    const { module } = this;
    const runs = (values: Float32Array) => (i: number) => values[i] * module.runs(i);
    const summed = (key: string, value: (i: number) => number) => (node: number) => {
      if (this.index(node) >= 0) return this.sum(node, value);
      const id = `${key}/${node}`;
      const known = this.sums.get(id) ?? this.sum(node, value);
      this.sums.set(id, known);
      return known;
    };
    const total = (value: (i: number) => number) =>
      this.order.reduce((sum, i) => sum + (value(i) || 0), 0) || undefined;
    const text = (value: (i: number) => string) => (node: number) =>
      this.index(node) >= 0 ? value(this.index(node)) : "";
    const number = (key: string, title: string, unit: string, value: (i: number) => number, tip: string): Column => ({
      key,
      title,
      unit,
      tip,
      value: summed(key, value),
      full: total(value),
      width: "104px",
    });
    return treeTable({
      label: "Instructions of the compiled module",
      parent,
      title: "instruction",
      name: (node) =>
        this.index(node) >= 0
          ? module.names[this.index(node)]
          : `${this.groups[node].title} (${formatCount(this.passing(node).length)})`,
      mark: (node) =>
        this.index(node) >= 0 ? badge(this.context, "instructions", module.names[this.index(node)]) : null,
      columns: [
        { key: "opcode", title: "opcode", text: text((i) => module.opcodes[module.opcode[i]]), width: "120px" },
        number("flops", "matrix FLOPs", "flops", runs(module.flops), "Of one device in one call."),
        number(
          "elementwise",
          "elementwise FLOPs",
          "flops",
          runs(module.elementwise),
          "FLOPs of elementwise operations.",
        ),
        number("traffic", "memory traffic", "bytes", runs(module.traffic), "Bytes read and written in one call."),
        ...(module.collectives.length
          ? [number("sent", "sent", "bytes", (i) => module.sentBy(i), "Bytes that one device sends in one call.")]
          : []),
        {
          key: "times",
          title: "executions",
          value: (node) =>
            this.index(node) >= 0 && Number.isFinite(module.times[this.index(node)])
              ? module.times[this.index(node)]
              : null,
          cell: text((i) => (Number.isFinite(module.times[i]) ? formatCount(module.times[i]) : "?")),
          width: "82px",
        },
        { key: "shape", title: "shape", text: text((i) => module.shapes[i].replace(/\{[^}]*\}/g, "")), width: "150px" },
        { key: "operands", title: "operands", text: text((i) => module.operands[i]), width: "170px" },
        { key: "source", title: "source", text: text((i) => module.placeOf(i)), width: "140px" },
      ],
      sort: { key: "flops", descending: true },
      rowClass: (node) => this.look(this.index(node)),
      rowAttributes: (node): Record<string, string> =>
        this.index(node) >= 0 ? { "data-instruction": module.names[this.index(node)] } : {},
      choose: (node) => {
        if (this.index(node) >= 0) this.choose(this.index(node));
      },
      signal: this.context.signal,
    });
  }

  private look(i: number): string {
    const { line, instruction } = this.context.selection;
    const kin = i >= 0 && line && !instruction && this.module.lineOf(i) === line ? "wb-kin" : "";
    return `${kin} ${i >= 0 && this.module.jointOf(i) ? "wb-collective" : ""}`.trim();
  }

  private passes(i: number): boolean {
    const { module } = this;
    if (!this.trivial && isTrivial(module.opcodes[module.opcode[i]])) return false;
    if (this.stage >= 0 && module.stage[i] !== this.stage) return false;
    const joint = module.jointOf(i);
    if (this.axis && (!joint || (this.axis !== "*" && !joint.axis_names.includes(this.axis)))) return false;
    return !this.words.length || module.matches(i, this.words);
  }

  private filter(): void {
    const { module } = this;
    this.kept.clear();
    this.sums.clear();
    const kept: number[] = [];
    for (let i = 0; i < module.count; i++) if (this.passes(i)) kept.push(i);
    const passing = new Uint8Array(module.count);
    for (const i of kept) passing[i] = 1;
    const asked = Boolean(this.words.length || this.axis || this.stage >= 0);
    this.table?.filter((node) => passing[this.index(node)] === 1, !asked);
    const sum = (values: Float32Array) => kept.reduce((total, i) => total + (values[i] * module.runs(i) || 0), 0);
    const joint = kept.filter((i) => module.jointOf(i)).length;
    this.summary.textContent = [
      `${formatCount(kept.length)} of ${formatCount(module.count)} instructions`,
      plural(joint, "collective"),
      formatFlops(sum(module.flops)),
      `${formatFlops(sum(module.elementwise))} elementwise`,
      `${formatBytes(sum(module.traffic))} of memory traffic`,
    ].join(" · ");
  }

  select(instruction: number): void {
    const at = instruction < 0 ? -1 : this.order.indexOf(instruction);
    this.table?.select(at < 0 ? null : this.groups.length + at);
  }
}
