// What is chosen, told in one order in every view: sentence, figures, call path, its line, its HLO, its devices.

import type { EditorChunk, EditorHandle } from "../editor/types";
import { type Block, blockOf, codeWords, type Details, showDetails } from "../lib/details";
import { button, type Child, h, replace, s } from "../lib/dom";
import { formatAs, formatBytes, formatCount, formatFlops, plural } from "../lib/format";
import type { Answers } from "../lib/states";
import { SERIES } from "../lib/theme";
import type { ViewContext, ViewName } from "../lib/view";
import { Calls } from "./calls";
import { Module, type SourceFile } from "./hlo-data";
import { Mesh } from "./mesh-data";
import { groupsOver } from "./mesh-links";

const AROUND = 4; // lines of code on either side of the chosen one
const MOST_LETTERS = 160;
const MOST_NAMED = 6; // instructions of a node that are named
const MOST_DEVICES = 64; // that are drawn
const CELL = 34; // pixels of a device
const OTHERS: readonly (readonly [ViewName, string])[] = [
  ["operations", "Operations"],
  ["hlo", "Source and HLO"],
  ["memory", "Memory"],
  ["mesh", "Mesh"],
  ["player", "Play"],
];

type Shown = Omit<Details, "blocks" | "extra"> & { blocks: Block[] };

/** Drops the columns of a table that say 1 in every row. */
function telling(columns: readonly string[], rows: readonly (readonly string[])[]) {
  const kept = columns.map((_, i) => i).filter((i) => rows.some((row) => row[i] !== "1"));
  return { columns: kept.map((i) => columns[i]), rows: rows.map((row) => kept.map((i) => row[i])) };
}

const isNothing = (text: string) => /^(≥ )?(0 |unknown)/.test(text) || text === "none";

export class Inspector {
  private readonly calls: Calls | null;
  private readonly module: Module | null;
  private readonly mesh: Mesh | null;
  private readonly files: readonly SourceFile[];
  private editor: EditorHandle | undefined;
  private shown = 0;
  private reasons: Promise<Answers["why"]> | undefined; // of all collectives, by instruction

  /** Shows in `pane` what is chosen; `parts` are the parts that the view has read already. */
  constructor(
    private readonly context: ViewContext,
    private readonly pane: HTMLElement,
    parts: { calls?: Calls; module?: Module } = {},
  ) {
    const [calls, hlo, mesh] = [context.of("operations"), context.of("hlo"), context.of("mesh")];
    this.calls = parts.calls ?? (calls?.state("names")?.length ? new Calls(calls) : null);
    this.module = parts.module ?? (hlo?.state("count") ? new Module(hlo) : null);
    this.mesh = mesh?.state("count") ? new Mesh(mesh) : null;
    this.files = this.module?.reader.state("code") ?? [];
    context.signal.addEventListener("abort", () => this.editor?.destroy());
  }

  /** False where nothing is chosen that the inspector knows; `more` stands below the figures. */
  show(more: readonly Block[] = []): boolean {
    const { node, line, instruction } = this.context.selection;
    const at = this.calls?.chosen(this.context.selection) ?? null;
    const named = at === null ? [] : (this.calls?.instructions[at] ?? []);
    const i = this.module?.find(instruction ?? (named.length === 1 ? named[0] : undefined)) ?? -1;
    if (node === undefined && i >= 0 && this.module) this.put(this.ofInstruction(this.module, i), more, at, i);
    else if (at !== null && this.calls && (node !== undefined || !this.module))
      this.put(this.ofNode(this.calls, at), more, at, named.length === 1 ? i : -1);
    else if (line && this.module) this.put(this.ofLine(this.module, line), more, at, -1);
    else return false;
    return true;
  }

  /** The whole program: the root of its call tree. */
  showRoot(): void {
    if (this.calls) this.put(this.ofNode(this.calls, 0), [], 0, -1);
  }

  private put(made: Shown, more: readonly Block[], node: number | null, i: number): void {
    const { context } = this;
    this.shown += 1;
    this.editor?.destroy();
    this.editor = undefined;
    const code = h("div", {});
    showDetails(context, this.pane, {
      ...made,
      blocks: [...made.blocks, ...more],
      extra: [this.why(i), this.path(node), code, this.hlo(node, i), this.devices(i), this.others()],
    });
    const line = context.selection.line ?? (node === null ? "" : this.calls?.keys[node]);
    if (line) this.code(code, line, this.shown).catch((error) => context.fail(error));
  }

  private ofNode(calls: Calls, node: number): Shown {
    const rows = calls.columns.map(({ title, unit }, i): [string, string] => {
      const [total, own] = [calls.totals[i][node], calls.own[i][node]];
      const share = node > 0 && calls.totals[i][0] > 0 ? ` · ${((100 * total) / calls.totals[i][0]).toFixed(1)} %` : "";
      const itself =
        calls.tree.children[node].length && own > 0 ? `, ${formatAs(unit, own)} directly in this node` : "";
      return [title, `${calls.isLeast(i, node) ? "≥ " : ""}${formatAs(unit, total)}${share}${itself}`];
    });
    const blocks: Block[] = [{ form: "facts", title: "", rows: rows.filter(([, text]) => !isNothing(text)) }];
    const members = calls.layers[node];
    if (members) {
      const each = calls.columns.map(({ title }, i): [string, string] => [title, calls.spread(i, members)]);
      blocks.push({ form: "facts", title: "Each of these layers", rows: each });
    }
    const sent = calls.collectives[node];
    const columns = ["collective", "mesh axis", "count", "executions", "payload", "sent"];
    if (sent) blocks.push({ form: "table", title: "Collectives", ...telling(columns, sent) });
    for (const text of calls.notes(node)) blocks.push({ form: "note", title: "", text });
    const scope = calls.sentence(node) || [calls.kinds[node], calls.scopes[node]].filter(Boolean).join(" · ");
    const subtitle = node ? scope : `the whole program; ${calls.counted}`;
    return { title: calls.title(node), kind: sent ? "reduce" : "clients", subtitle, blocks };
  }

  private ofInstruction(module: Module, i: number): Shown {
    const joint = module.jointOf(i);
    const stage = module.stages.filter(Boolean).length > 1 ? module.stages[module.stage[i]] : "";
    const name = module.opNames[i] || "none"; // of combined collectives, all of their names
    const rows: [string, string][] = [
      ["source", module.placeOf(i) || "unknown"],
      ["stage", stage || "none"],
      ["matrix FLOPs", formatFlops(module.flops[i])],
      ["elementwise FLOPs", formatFlops(module.elementwise[i])],
      ["memory traffic", formatBytes(module.traffic[i])],
      ["size", formatBytes(module.size[i])],
      ["executions", Number.isFinite(module.times[i]) ? formatCount(module.times[i]) : "unknown"],
      ["op_name", name.length > MOST_LETTERS ? `${name.slice(0, MOST_LETTERS)}…` : name],
    ];
    const said = new Set(joint?.rows.map(([name]) => name));
    const kept = rows.filter(([name, text]) => text !== "0 FLOP" && text !== "none" && !said.has(name));
    const blocks: Block[] = [{ form: "facts", title: "", rows: [...(joint?.rows ?? []), ...kept] }];
    const lines = joint?.lines;
    if (lines && lines.length > 1) {
      const rows = lines.map(([, place, code]) => [place, code]);
      blocks.push({ form: "table", title: "The compiler combined these lines", columns: ["source", "code"], rows });
    }
    const times = joint?.times && joint.times > 1 ? `, in ${plural(joint.times, "execution")}` : "";
    const subtitle = joint
      ? `One device sends ${formatBytes(joint.sent)} over ${joint.axes} in one call${times}.`
      : `${module.opcodes[module.opcode[i]]} of one device`;
    return { title: module.names[i], kind: joint ? "reduce" : "server", subtitle, blocks };
  }

  private ofLine(module: Module, line: string): Shown {
    const cost = module.costOfLines().get(line);
    const rows: [string, string][] = [
      ["matrix FLOPs", formatFlops(cost?.flops ?? 0)],
      ["elementwise FLOPs", formatFlops(cost?.elementwise ?? 0)],
      ["memory traffic", formatBytes(cost?.traffic ?? 0)],
      ["sent", formatBytes(cost?.sent ?? 0)],
    ];
    const blocks: Block[] = [{ form: "facts", title: "", rows }];
    const groups = module.reader.state("groups");
    const joint = groups
      .filter(({ lines }) => lines.some(([key]) => key === line))
      .map(({ kind, axes, payload, sent }) => [kind, axes, formatBytes(payload), formatBytes(sent)]);
    const columns = ["collective", "mesh axis", "payload", "sent"];
    if (joint.length) blocks.push({ form: "table", title: "Collectives", columns, rows: joint });
    const subtitle = `This line became ${plural(module.ofLine(line).length, "instruction")}.`;
    return { title: module.placeOfKey(line), kind: "server", subtitle, blocks };
  }

  /** Why a collective is there, as the kernel explains it. */
  private why(i: number): Child {
    const { context, module } = this;
    if (!context.hasKernel || !module?.jointOf(i) || !module.reader.state("can_explain")) return null;
    const [title, reason] = [h("h3", { hidden: true }, "Why"), h("p", { hidden: true })];
    this.reasons ??= context.request("why");
    const show = (all: Answers["why"]) => {
      const text = all[module.names[i]];
      replace(reason, codeWords(text ?? ""));
      title.hidden = reason.hidden = !text;
    };
    this.reasons.then(show, () => {});
    return [title, reason];
  }

  /** The calls down to the node, each of which can be chosen. */
  private path(node: number | null): Child {
    const { calls } = this;
    const path = node === null || !calls ? [] : calls.path(node);
    if (!calls || path.length < 2) return null;
    const steps = path.map((each) =>
      h(
        "li",
        {},
        button(calls.title(each), () => this.choose(calls, each), { class: "wb-link" }),
      ),
    );
    return [h("h3", {}, "Call path"), h("ol", { class: "wb-path", "aria-label": "Call path" }, steps)];
  }

  private choose(calls: Calls, node: number): void {
    const instruction = calls.instructions[node]?.[0] ?? null;
    this.context.select({ node: String(node), line: calls.keys[node] || null, instruction });
  }

  /** The line in an editor, with its neighbours; as plain code where the editor or the file is missing. */
  private async code(place: HTMLElement, line: string, turn: number): Promise<void> {
    const { calls, context } = this;
    const number = Number(line.split(":").pop());
    const file = this.files.find(([name]) => line === `${name}:${number}`);
    const lines = file?.[2].filter(([each]) => Math.abs(each - number) <= AROUND) ?? [];
    if (!file || !lines.some(([each]) => each === number)) {
      const known = calls?.reader.state("code")[line];
      const title = calls?.places[calls.keys.indexOf(line)] ?? line;
      if (known) replace(place, blockOf(context, { form: "code", title, lines: known }));
      return;
    }
    const title = `${file[1]}:${number}`;
    const parent = h("div", { class: "wb-editor wb-excerpt" });
    replace(place, h("h3", {}, title), parent);
    const { createEditor } = await context.chunk<EditorChunk>("editor");
    if (context.signal.aborted || turn !== this.shown) return;
    this.editor = createEditor({
      parent,
      label: `Source of ${title}`,
      text: lines.map(([, text]) => text).join("\n"),
      numbers: lines.map(([each]) => each),
      language: "python",
      onLine: (each) => context.select({ line: `${file[0]}:${each}`, instruction: null, node: null }),
    });
    this.editor.mark([[number, "wb-cm-chosen"]]);
  }

  /** The instruction as the compiler wrote it, with the shapes of its operands; of a node, its instructions. */
  private hlo(node: number | null, i: number): Child {
    const { module, calls, context } = this;
    if (!module) return null;
    const link = (name: string) =>
      button(name, () => this.context.select({ instruction: name, line: this.lineOf(name), node: null }), {
        class: "wb-link",
      });
    if (i < 0) {
      const names = node === null ? [] : (calls?.instructions[node] ?? []);
      if (!names.length) return null;
      const more = names.length > MOST_NAMED ? ` and ${plural(names.length - MOST_NAMED, "other")}` : "";
      const listed = names.slice(0, MOST_NAMED).flatMap((name) => [link(name), " "]);
      return [h("h3", {}, plural(names.length, "instruction")), h("p", {}, listed, more)];
    }
    const operands = module.operands[i].split(", ").filter(Boolean);
    const rows = operands.map((name) => {
      const k = module.find(name);
      const argument = module.opcodes[module.opcode[k]] === "parameter" ? module.opNames[k] : "";
      return [name, module.shapes[k]?.replace(/\{[^}]*\}/g, "") ?? "", argument || (k < 0 ? "" : module.placeOf(k))];
    });
    const text = module.textOf(i) ?? `${module.names[i]} = ${module.shapes[i]}`;
    return [
      h("h3", {}, "HLO"),
      h("pre", { class: "wb-hlotext" }, text),
      operands.length
        ? blockOf(context, { form: "table", title: "Operands", columns: ["operand", "shape", "from"], rows })
        : null,
    ];
  }

  private lineOf(name: string): string | null {
    const i = this.module?.find(name) ?? -1;
    return (i >= 0 && this.module?.lineOf(i)) || null;
  }

  /** The devices of a collective, coloured by the groups that communicate. */
  private devices(i: number): Child {
    const { mesh } = this;
    const joint = i >= 0 ? this.module?.jointOf(i) : null;
    const layout = mesh?.layouts[0];
    if (!joint?.axis_names.length || !mesh || !layout) return null;
    const over = joint.axis_names.map((name) => mesh.axes.findIndex((axis) => axis.name === name));
    const count = mesh.ids.length;
    const positions = mesh.axes.map((_, axis) => Float32Array.from(mesh.ids, (_id, k) => mesh.position(k, axis)));
    const groups = groupsOver(positions, over, count);
    const words = `${plural(groups.length, "group")} of ${plural(groups[0].length, "device")} over ${joint.axes}`;
    const title = [h("h3", {}, "Devices"), h("p", { class: "wb-note" }, words)];
    if (count > MOST_DEVICES) return title;
    const places = this.context.of("mesh")?.array(`mesh.places.${layout.key}`) ?? new Float32Array();
    const cells = groups.flatMap((group, g) =>
      group.map((k) => {
        const [x, y] = [places[2 * k] * CELL, places[2 * k + 1] * CELL];
        const box = s("rect", { x: x + 1, y: y + 1, width: CELL - 4, height: CELL - 4, rx: 4, class: "wb-groupcell" });
        box.style.setProperty("--wb-group", `var(--wb-series-${g % SERIES})`);
        return [box, s("text", { x: x + CELL / 2 - 1, y: y + CELL / 2 + 3, "text-anchor": "middle" }, mesh.ids[k])];
      }),
    );
    const [width, height] = [layout.columns * CELL, layout.rows * CELL];
    const size = { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": words, class: "wb-groups" };
    const picture = s("svg", { ...size, width, height }, cells);
    return [...title, picture];
  }

  /** Ways to the same thing in other views. */
  private others(): Child {
    const { context } = this;
    const known = context.key ? OTHERS.filter(([key]) => key !== context.key && context.of(key)) : [];
    if (!known.length) return null;
    return h(
      "div",
      { class: "wb-row wb-others" },
      h("span", { class: "wb-note" }, "Open in"),
      known.map(([key, title]) => button(title, () => context.open(key))),
    );
  }
}
