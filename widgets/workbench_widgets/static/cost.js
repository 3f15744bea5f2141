import { format, h, roving, svgFrom, term, widget } from "./common.js";
import { compilePanel, sideBySide } from "./compile.js";
import { whatIf } from "./scaling.js";

const PARTS = [["compute", "clients"], ["memory", "broadcast"]];
const AXIS_LOOKS = 4; // patterns of axes in the style sheet; then they repeat

/** Predicted cost: the roofline, seconds per stage and mesh axis, memory; targets side by side, here and elsewhere. */
export function cost(ctx) {
  const { targets, memory, buffers } = ctx.data;
  if (!targets.length && !memory) return ctx.root.append(h("p", { class: "wb-note" }, ctx.data.sentence));
  let chosen = [];

  const inlay = (text) => {
    const svg = svgFrom(text), width = Number(svg.getAttribute("width"));
    svg.removeAttribute("width");
    svg.removeAttribute("height");
    svg.style.maxWidth = `${width}px`;
    svg.classList.add("wb-chart");
    return svg;
  };

  function roofline(target) {
    if (!target.roofline) return h("p", { class: "wb-note" }, "No stage computes anything.");
    const svg = inlay(target.roofline), points = [...svg.querySelectorAll("[data-stage]")];
    svg.setAttribute("role", "group");
    for (const point of points) point.setAttribute("role", "button"), point.setAttribute("aria-label", point.dataset.label);
    const choose = (point) => ctx.select({ stage: point.dataset.stage });
    svg.addEventListener("click", (event) => { const point = event.target.closest("[data-stage]"); if (point) choose(point); });
    roving(svg, points, { choose });
    chosen.push(...points);
    return svg;
  }

  const strip = (parts, longest) => h("div", { class: "wb-bar", "aria-hidden": "true" }, parts.filter(([value]) => value > 0).map(([value, look]) => {
    const part = h("div", { class: `wb-part ${look}` });
    part.style.width = `${(100 * value) / longest}%`;
    return part;
  }));

  /** Stages × axes as bars: of seconds where a chip is known, else of FLOPs; what each stage sends over each axis. */
  function bars(target, longest, known = "predicted") {
    const timed = target.stages.some((stage) => stage.seconds !== null);
    const axes = [...new Set(target.stages.flatMap((stage) => Object.keys(stage.wire)))], look = (axis) => `wb-axis-${axes.indexOf(axis) % AXIS_LOOKS}`;
    const most = Math.max(1e-30, ...target.stages.flatMap((stage) => Object.values(stage.wire)));
    const rows = target.stages.map((stage) => {
      // Compute and memory run together: the longer one counts.
      const bound = (stage.compute ?? 0) >= (stage.memory ?? 0) ? 0 : 1, long = Math.max(stage.compute ?? 0, stage.memory ?? 0);
      const parts = timed ? [[long, `wb-part-${PARTS[bound][1]}`], ...Object.entries(stage.wire_seconds).map(([axis, value]) => [value, look(axis)])] : [[stage.flops ?? 0, "wb-part-clients"]];
      const wires = axes.map((axis) => h("td", { class: "wb-wirecell" }, stage.wire[axis] ? [strip([[stage.wire[axis], look(axis)]], most), h("span", {}, format.bytes(stage.wire[axis]))] : "–"));
      const row = h("tr", { "data-stage": stage.stage },
        h("td", {}, h("button", { type: "button", class: "wb-link" }, `${stage.stage}. ${stage.name}`)), h("td", { class: "wb-barcell" }, strip(parts, longest)),
        timed ? [h("td", { class: "wb-num" }, format.seconds(stage.seconds)), h("td", {}, stage.seconds !== 0 ? stage.bound : "")] : null,
        h("td", { class: "wb-num" }, format.flops(stage.flops)), h("td", { class: "wb-num" }, format.bytes(stage.accessed)), wires);
      chosen.push(row);
      return row;
    });
    const column = (name) => h("th", { scope: "col" }, name || h("span", { class: "wb-hidden" }, "value"));
    const head = ["stage", `${timed ? "time" : "FLOPs"}, ${known}`, ...(timed ? ["", "bound", "FLOPs"] : [""]), "memory traffic", ...axes.map((axis) => `sent over ${axis}`)].map(column);
    const body = h("tbody", {}, rows);
    body.addEventListener("click", (event) => { const row = event.target.closest("[data-stage]"); if (row) ctx.select({ stage: row.dataset.stage }); });
    const key = (words, look) => h("span", { class: "wb-row" }, h("span", { class: `wb-key ${look}`, "aria-hidden": "true" }), words);
    const keys = timed ? h("div", { class: "wb-tools" }, PARTS.map(([name, hue]) => key(term(ctx, name), `wb-part-${hue}`)), axes.map((axis) => key([term(ctx, "collective"), ` over ${axis}`], look(axis)))) : null;
    const label = `Cost of stages on ${target.target}`;
    return h("div", {}, keys, h("div", { class: "wb-scroll", tabindex: 0, role: "region", "aria-label": label }, h("table", { "aria-label": label }, h("thead", {}, h("tr", {}, head)), body)));
  }

  function section(target, longest) {
    const time = target.seconds === null ? "" : format.seconds(target.seconds);
    const flops = target.stages.reduce((sum, stage) => sum + (stage.flops ?? 0), 0);
    const facts = h("div", { class: "wb-tile" }, h("h4", {}, time ? "one call, " : "one call on a device, ", term(ctx, "predicted")), h("div", { class: "wb-big" }, time || format.flops(flops)),
      h("div", { class: "wb-note" }, time ? target.chip : "Seconds need the published figures of a chip: inspect with target=\"v5e:4x4\" or another."));
    const misfit = target.fits === false ? h("div", { class: "wb-misfit", role: "note" }, h("b", {}, `Does not fit: needs ${format.bytes(target.peak)} of ${format.bytes(target.available)}.`),
      target.buffers.length ? h("ul", {}, target.buffers.map(([name, bytes, shape, where]) => h("li", {}, `${bytes}: ${name} ${shape.split("{")[0]} ${where && `from ${where}`}`))) : null) : null;
    const assumed = [...target.notes, ...target.assumptions];
    return h("section", { class: "wb-target", "aria-label": target.target }, misfit,
      h("div", { class: "wb-columns" },
        h("div", {}, h("h4", {}, target.target), facts, assumed.length ? h("details", {}, h("summary", {}, `What this rests on: ${target.assumptions[0] ?? "notes"}, …`), h("ul", { class: "wb-note" }, assumed.map((each) => h("li", {}, each)))) : null),
        target.chip === "no chip" ? null : h("div", {}, h("h4", {}, term(ctx, "roofline")), roofline(target))),
      bars(target, longest));
  }

  function follow() {
    for (const node of chosen) {
      const is = node.dataset.stage === ctx.selection.stage;
      node.classList.toggle("wb-selected", is);
      if (node.getAttribute("role") === "button") node.setAttribute("aria-pressed", String(is));
    }
  }

  const shown = h("div", {});
  let drawn = null;
  function drawTargets() {
    const more = ctx.live("compiled") ?? [];
    if (drawn === more) return;
    drawn = more;
    chosen = chosen.filter((node) => node.isConnected && !shown.contains(node));
    const all = [...targets, ...more], longest = Math.max(1e-30, ...all.flatMap((target) => target.stages.map((stage) => stage.seconds ?? 0)));
    const flops = Math.max(1e-30, ...all.flatMap((target) => target.stages.map((stage) => stage.flops ?? 0)));
    shown.replaceChildren(...[sideBySide(ctx, all, new Set(more.map((each) => each.target))), ...all.map((target) => section(target, target.seconds === null ? flops : longest))].filter(Boolean));
    sizes?.offer();
    follow();
  }

  const sizes = whatIf(ctx, () => [...targets, ...(ctx.live("compiled") ?? [])], (target, longest) => {
    chosen = chosen.filter((node) => node.isConnected);
    const made = bars(target, longest, "estimated");
    follow();
    return made;
  });
  ctx.root.append(...[compilePanel(ctx), sizes?.section, shown].filter(Boolean));
  if (memory) {
    const rows = buffers.map((row) => h("tr", {}, row.map((value) => h("td", {}, value))));
    ctx.root.append(h("section", { "aria-label": "Memory of one device" }, h("h4", {}, "Memory of one device, as the compiler planned it"), h("div", { class: "wb-columns" },
      h("dl", { class: "wb-facts" }, memory.map(([name, value]) => [h("dt", {}, term(ctx, name)), h("dd", {}, value)])),
      ctx.data.memory_svg ? inlay(ctx.data.memory_svg) : h("p", { class: "wb-note" }, "This backend does not say how memory changes over the schedule.")),
      rows.length ? [h("h4", {}, "Alive at the peak"), h("div", { class: "wb-scroll", tabindex: 0, role: "region", "aria-label": "Buffers alive at the peak" }, h("table", { "aria-label": "Buffers alive at the peak" }, h("thead", {}, h("tr", {}, ["buffer", "bytes", "shape", "source"].map((name) => h("th", { scope: "col" }, name)))), h("tbody", {}, rows)))] : null));
  }
  ctx.onLive(drawTargets);
  ctx.onSelection(follow);
  drawTargets();
}

export default widget(cost);
