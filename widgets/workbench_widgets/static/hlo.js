import { details, format, h, term, widget } from "./common.js";
import { graphPane } from "./graph.js";
import { virtualList } from "./list.js";
import { memoryPane } from "./memory.js";

const plural = (count, noun) => `${format.count(count)} ${noun}${count === 1 ? "" : "s"}`;

/** Your source, the portable listing and the compiled one, linked by line. */
export function hlo(ctx) {
  if (!ctx.data.count && !ctx.data.stable.length) return ctx.root.append(h("p", { class: "wb-note" }, ctx.data.missing));
  const d = ctx.data, names = d.names.split("\n"), shapes = d.shapes.split("\n"), operands = d.operands.split("\n");
  const [opcode, stage, computation, source, size, flops, accessed, executions, collective] = ["opcode", "stage", "computation", "source", "size", "flops", "accessed", "executions", "collective"].map((name) => ctx.array(`hlo.${name}`));
  const stableSource = ctx.array("hlo.stable");
  const keyOf = (i) => (i < 0 ? "" : `${d.sources[i][0]}:${d.sources[i][1]}`);
  const option = (value, text = value) => h("option", { value }, text);
  const search = h("input", { type: "search", placeholder: "name, opcode, shape, op_name", "aria-label": "Search instructions", class: "wb-search" });
  const byStage = h("select", { "aria-label": "Only stage" }, option("", "every stage"), d.stages.map((each, i) => option(i, each || "no stage")));
  const byOpcode = h("select", { "aria-label": "Only opcode" }, option("", "every opcode"), d.opcodes.map((each, i) => option(i, each)));
  const byAxis = h("select", { "aria-label": "Only collectives over axis" }, option("", "everything"), option("*", "collectives only"), d.axes.map((axis) => option(axis, `over ${axis}`)));
  const group = h("select", { "aria-label": "Group by" }, [["stage", "stage"], ["computation", "computation"], ["", "nothing"]].map(([value, text]) => option(value, text)));
  const faces = [["list", "List"], d.graph ? ["graph", "Graph"] : null, d.memory ? ["memory", "Memory"] : null].filter(Boolean);
  const faceButtons = new Map(faces.map(([key, text]) => [key, h("button", { type: "button", "aria-pressed": "false", onclick: () => ctx.set("face", key) }, text)]));
  const grouping = h("label", {}, "Group by ", group);
  const summary = h("p", { class: "wb-note", role: "status" });
  const panel = h("aside", { class: "wb-panel", "aria-live": "polite", "aria-label": "Details of the chosen instruction" });
  const closed = new Set();
  let rows = [], haystack = null;

  const code = [];
  for (const [file, lines] of d.code) {
    code.push({ head: (d.sources.find(([name]) => name === file)?.[2] ?? file).replace(/:\d+$/, "") });
    lines.forEach(([number, text], i) => {
      if (i && number > lines[i - 1][0] + 1) code.push({ head: "⋯" });
      code.push({ file, number, text, key: `${file}:${number}` });
    });
  }
  const used = new Map();
  source.forEach((index) => index >= 0 && used.set(keyOf(index), (used.get(keyOf(index)) ?? 0) + 1));

  const listing = virtualList(ctx, { label: "Instructions of the compiled module", height: 470, tree: true, row: instructionRow, choose: pick });
  const stable = virtualList(ctx, { label: "StableHLO listing", height: 215, choose: (i) => stableSource[i] >= 0 && ctx.select({ line: keyOf(stableSource[i]), instruction: null }), empty: "No StableHLO text is in this record.",
    row: (i) => { const key = keyOf(stableSource[i] ?? -1), selected = Boolean(key) && key === ctx.selection.line; return { selected, class: selected ? "wb-selected" : "", children: [h("span", { class: "wb-number" }, i + 1), d.stable[i]] }; } });
  const mine = virtualList(ctx, { label: "Your source", height: 215, choose: (i) => code[i].key && ctx.select({ line: code[i].key, instruction: null }), empty: "The source is not readable from here.",
    row: (i) => { const line = code[i]; if (line.head) return { class: "wb-head", children: [line.head] };
      const selected = line.key === ctx.selection.line, count = used.get(line.key); return { selected, class: selected ? "wb-selected" : "", children: [h("span", { class: "wb-number" }, line.number), line.text, count ? h("span", { class: "wb-note" }, `  ${count} instr.`) : null] }; } });

  const pane = (title, node) => h("div", {}, h("h4", {}, term(ctx, title)), node);
  const boxes = { list: pane("HLO", listing.node), graph: h("div", { class: "wb-wide" }), memory: h("div", { class: "wb-wide" }) };
  const left = h("div", { class: "wb-stack" }, pane("source", mine.node), pane("StableHLO", stable.node));
  const columns = h("div", { class: "wb-hlo" }, left, h("div", {}, Object.values(boxes)));
  const chooser = faces.length > 1 ? h("div", { class: "wb-row", role: "group", "aria-label": "Show as" }, [...faceButtons.values()]) : null;
  ctx.root.append(largest(), h("div", { class: "wb-tools" }, chooser, search, byStage, byOpcode, byAxis, grouping), summary, columns, panel);
  const sourceOf = (k) => (source[k] < 0 ? "" : d.sources[source[k]][2]), jointOf = (k) => (collective[k] >= 0 ? d.collectives[collective[k]] : null);
  const graph = d.graph ? graphPane(ctx, boxes.graph, { names, opcodes: d.opcodes, opcode, flops, bytes: accessed, executions, joint: jointOf, choose: (k) => pickInstruction(k), sourceOf }) : null;
  const memory = d.memory ? memoryPane(ctx, boxes.memory, { names, choose: (k) => pickInstruction(k), sourceOf }) : null;

  /** The collectives that send most, each with the line that caused it: what most people come here for. */
  function largest() {
    const ranked = [...d.collectives].sort((a, b) => b.sent - a.sent), few = 5;
    if (!ranked.length) return h("p", { class: "wb-note" }, d.count ? "No collectives: the devices do not talk to each other." : "");
    const rows = ranked.map((each, i) => {
      const [key, text, code] = each.lines[0] ?? [null, "line not known", ""];
      const choose = h("button", { type: "button", class: "wb-link", onclick: () => { const k = names.indexOf(each.name); k >= 0 ? pickInstruction(k) : ctx.select({ line: key, instruction: null }); } }, each.name);
      return h("tr", { hidden: i >= few, "data-collective": each.name }, h("td", {}, choose), h("td", {}, each.axes), h("td", { class: "wb-num" }, each.payload), h("td", { class: "wb-num" }, each.executions), h("td", { class: "wb-num" }, format.bytes(each.sent)), h("td", {}, each.stages.join(", ") || "unknown"), h("td", {}, text, code ? h("code", { class: "wb-codebit" }, code) : null));
    });
    const head = [["collective"], ["mesh axis"], ["payload", "wb-num"], ["executions", "wb-num"], ["wire", "wb-num"], ["stage"], ["source"]].map(([name, style]) => h("th", { scope: "col", class: style }, term(ctx, name)));
    const more = ranked.length > few ? h("button", { type: "button", class: "wb-link", onclick: () => { rows.forEach((row) => (row.hidden = false)); more.remove(); } }, `Show all ${format.count(ranked.length)}`) : null;
    return h("section", { class: "wb-largest", "aria-label": "Collectives, largest first" }, h("h4", {}, "Collectives, largest first"), h("div", { class: "wb-scroll", tabindex: 0, role: "region", "aria-label": "Collectives, largest first, table" }, h("table", { "aria-label": "Collectives, largest first" }, h("thead", {}, h("tr", {}, head)), h("tbody", {}, rows))), more);
  }

  /** The list, the graph or the timeline; kept in the settings, so that Python can open one. */
  function face() {
    const key = faceButtons.has(ctx.setting("face")) ? ctx.setting("face") : "list";
    for (const [name, box] of Object.entries(boxes)) box.hidden = name !== key;
    for (const [name, button] of faceButtons) button.setAttribute("aria-pressed", String(name === key));
    columns.classList.toggle("wb-single", key === "graph");
    left.hidden = key === "graph";
    grouping.hidden = key !== "list";
    if (key === "graph") graph.open();
    if (key === "memory") memory.open();
    follow();
  }

  function instructionRow(i) {
    const made = rows[i];
    if (made.group !== undefined) return { class: "wb-head", expanded: !closed.has(made.group), children: [closed.has(made.group) ? "▸ " : "▾ ", made.title, h("span", { class: "wb-note" }, ` ${plural(made.count, "instruction")} · ${format.flops(made.flops)} · ${format.bytes(made.bytes)}`)] };
    const k = made.index, selected = names[k] === ctx.selection.instruction, linked = !ctx.selection.instruction && source[k] >= 0 && keyOf(source[k]) === ctx.selection.line;
    const joint = jointOf(k);
    return { selected, depth: group.value ? 1 : 0, level: group.value ? 2 : 1, class: `${selected || linked ? "wb-selected " : ""}${joint ? "wb-collective" : ""}`, attributes: { "data-instruction": names[k] },
      children: [h("span", { class: "wb-muted" }, `%${names[k]}`), h("b", {}, d.opcodes[opcode[k]]), joint ? h("span", { class: "wb-tag" }, `over ${joint.axes} · ${joint.payload}`) : null, shapes[k]] };
  }

  function passes(k, words) {
    if (byStage.value !== "" && stage[k] !== Number(byStage.value)) return false;
    if (byOpcode.value !== "" && opcode[k] !== Number(byOpcode.value)) return false;
    if (byAxis.value !== "" && (collective[k] < 0 || (byAxis.value !== "*" && !d.collectives[collective[k]].axis_names.includes(byAxis.value)))) return false;
    return words.every((word) => haystack[k].includes(word));
  }

  function filter() {
    haystack ??= names.map((name, k) => `${name} ${d.opcodes[opcode[k]]} ${shapes[k]} ${d.op_names[k] ?? ""}`.toLowerCase());
    const words = search.value.toLowerCase().split(/\s+/).filter(Boolean), kept = [];
    for (let k = 0; k < d.count; k++) if (passes(k, words)) kept.push(k);
    const groups = new Map(), index = group.value === "stage" ? stage : computation, titles = group.value === "stage" ? d.stages : d.computations;
    if (group.value) for (const k of kept) { if (!groups.has(index[k])) groups.set(index[k], []); groups.get(index[k]).push(k); }
    const total = (list, values) => list.reduce((sum, k) => sum + values[k] * (Number.isFinite(executions[k]) ? executions[k] : 1), 0);
    rows = group.value ? [...groups].sort((a, b) => a[0] - b[0]).flatMap(([key, list]) => {
      const id = `${group.value}/${key}`, title = group.value === "stage" ? (titles[key] ? `stage ${titles[key]}` : "no stage") : titles[key];
      return [{ group: id, title, count: list.length, flops: total(list, flops), bytes: total(list, accessed) }, ...(closed.has(id) ? [] : list.map((k) => ({ index: k })))];
    }) : kept.map((k) => ({ index: k }));
    summary.textContent = `${format.count(kept.length)} of ${format.count(d.count)} instructions · ${plural(kept.filter((k) => collective[k] >= 0).length, "collective")}${d.facts ? ` · ${d.facts}` : ""}`;
    listing.set(rows.length);
    graph?.keep(kept.length === d.count ? null : kept);
    const chosen = ctx.selection.instruction;
    if (chosen) listing.show(rows.findIndex((made) => made.index !== undefined && names[made.index] === chosen));
  }

  function pick(i) {
    const made = rows[i];
    if (made.group !== undefined) { closed.has(made.group) ? closed.delete(made.group) : closed.add(made.group); return filter(); }
    pickInstruction(made.index);
  }
  const pickInstruction = (k) => ctx.select({ instruction: names[k], line: keyOf(source[k]) || null, stage: d.stages[stage[k]] || null });

  function follow() {
    const { instruction, line } = ctx.selection, k = instruction ? names.indexOf(instruction) : -1;
    const at = rows.findIndex((made) => made.index !== undefined && (k >= 0 ? made.index === k : line && source[made.index] >= 0 && keyOf(source[made.index]) === line));
    at >= 0 ? listing.show(at) : listing.draw();
    const inStable = line ? stableSource.findIndex((index) => index >= 0 && keyOf(index) === line) : -1, inCode = line ? code.findIndex((each) => each.key === line) : -1;
    inStable >= 0 ? stable.show(inStable) : stable.draw();
    inCode >= 0 ? mine.show(inCode) : mine.draw();
    const all = k >= 0 ? [k] : marksOf(ctx.selection);
    graph?.mark(all, k);
    memory?.mark(all);
    panel.hidden = k < 0 && !line;
    if (k >= 0) describe(k);
    else if (line) describeLine(line);
  }

  /** What a chosen line, axis or stage means in instructions. */
  function marksOf({ line, axis, stage: path }) {
    const all = [...names.keys()];
    if (line) return all.filter((k) => source[k] >= 0 && keyOf(source[k]) === line);
    if (axis) return all.filter((k) => jointOf(k)?.axis_names.includes(axis));
    return path ? all.filter((k) => d.stages[stage[k]] === path) : [];
  }

  function describe(k) {
    const joint = jointOf(k);
    const facts = [["opcode", d.opcodes[opcode[k]]], ["shape", shapes[k]], ["stage", d.stages[stage[k]] || "none"], ["size", format.bytes(size[k])], ["FLOPs", format.flops(flops[k])], ["memory traffic", format.bytes(accessed[k])], ["executions", Number.isFinite(executions[k]) ? format.count(executions[k]) : "unknown"], ["computation", d.computations[computation[k]]], ["operands", operands[k] || "none"], ["op_name", d.op_names[k] || "none"], ["source", source[k] < 0 ? "unknown" : d.sources[source[k]][2]]];
    const blocks = [{ form: "facts", title: "", rows: facts }];
    if (joint) blocks.push({ form: "facts", title: "collective", rows: joint.rows });
    details(ctx, panel, { title: names[k], kind: joint ? "reduce" : "server", subtitle: "instruction of one device", blocks });
  }

  function describeLine(line) {
    const all = [...names.keys()].filter((k) => source[k] >= 0 && keyOf(source[k]) === line), joint = all.filter((k) => collective[k] >= 0);
    const sum = (values) => all.reduce((total, k) => total + values[k] * (Number.isFinite(executions[k]) ? executions[k] : 1), 0);
    const rows_ = joint.map((k) => { const each = d.collectives[collective[k]]; return [names[k], each.axes, each.payload]; });
    const blocks = [{ form: "facts", title: "", rows: [["instructions", format.count(all.length)], ["FLOPs", format.flops(sum(flops))], ["memory traffic", format.bytes(sum(accessed))]] }];
    if (rows_.length) blocks.push({ form: "table", title: "Collectives", columns: ["collective", "mesh axis", "payload"], rows: rows_ });
    details(ctx, panel, { title: d.sources.find(([file, number]) => `${file}:${number}` === line)?.[2] ?? line, kind: "server", subtitle: "what this line became", blocks });
  }

  for (const control of [byStage, byOpcode, byAxis, group]) control.addEventListener("change", filter);
  search.addEventListener("input", filter);
  ctx.onSelection(follow);
  ctx.listen("change:settings", face);
  stable.set(d.stable.length);
  mine.set(code.length);
  filter();
  face();
}

export default widget(hlo);
