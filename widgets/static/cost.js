import { format, h, roving, svgFrom, term, widget } from "./common.js";

const PARTS = [["compute", "compute", "clients"], ["memory", "memory", "broadcast"], ["collective", "collective", "collective"]];

/** Predicted cost: the roofline, seconds per stage, bytes per mesh axis, memory; targets side by side. */
export function cost(ctx) {
  const { targets, memory, buffers } = ctx.data;
  if (!targets.length && !memory) return ctx.root.append(h("p", { class: "wb-note" }, ctx.data.sentence));
  const chosen = [];

  const inlay = (text) => {
    const svg = svgFrom(text), width = Number(svg.getAttribute("width"));
    svg.removeAttribute("width");
    svg.removeAttribute("height");
    svg.style.maxWidth = `${width}px`;
    svg.classList.add("wb-chart");
    return svg;
  };

  function roofline(target) {
    if (!target.roofline) return h("p", { class: "wb-note" }, target.chip === "no chip" ? "A roofline needs the published figures of a chip." : "No stage computes anything.");
    const svg = inlay(target.roofline), points = [...svg.querySelectorAll("[data-stage]")];
    svg.setAttribute("role", "group");
    for (const point of points) point.setAttribute("role", "button"), point.setAttribute("aria-label", point.dataset.label);
    const choose = (point) => ctx.select({ stage: point.dataset.stage });
    svg.addEventListener("click", (event) => { const point = event.target.closest("[data-stage]"); if (point) choose(point); });
    roving(svg, points, { choose });
    chosen.push(...points);
    return svg;
  }

  /** Stages as bars: of seconds where a chip is known, else of FLOPs. */
  function bars(target, longest) {
    const timed = target.stages.some((stage) => stage.seconds !== null);
    const rows = target.stages.map((stage) => {
      const total = timed ? stage.seconds ?? 0 : stage.flops ?? 0, parts = timed ? PARTS.map(([key, label, hue]) => [label, stage[key] ?? 0, hue]) : [["FLOPs", stage.flops ?? 0, "clients"]];
      // Compute and memory run together: the longer one counts, the other is drawn inside it.
      const long = Math.max(stage.compute ?? 0, stage.memory ?? 0), shown = timed ? [[stage.compute >= stage.memory ? "compute" : "memory", long, stage.compute >= stage.memory ? "clients" : "broadcast"], ["collective", stage.collective ?? 0, "collective"]] : parts;
      const bar = h("div", { class: "wb-bar", "aria-hidden": "true" }, shown.filter(([, value]) => value > 0).map(([, value, hue]) => { const part = h("div", { class: `wb-part wb-part-${hue}` }); part.style.width = `${(100 * value) / longest}%`; return part; }));
      const axes = Object.entries(stage.wire).map(([axis, bytes]) => `${axis} ${format.bytes(bytes)}`).join(", ");
      const row = h("tr", { "data-stage": stage.stage }, h("td", {}, h("button", { type: "button", class: "wb-link" }, `${stage.stage}. ${stage.name}`)), h("td", { class: "wb-barcell" }, bar), h("td", { class: "wb-num" }, timed ? format.seconds(total) : format.flops(total)), h("td", {}, timed ? stage.bound : ""), h("td", { class: "wb-num" }, format.flops(stage.flops)), h("td", { class: "wb-num" }, format.bytes(stage.accessed)), h("td", {}, axes || "none"));
      chosen.push(row);
      return row;
    });
    const head = ["stage", timed ? "time, predicted" : "FLOPs, predicted", "", "bound", "FLOPs", "memory traffic", "wire"].map((name) => h("th", { scope: "col" }, name || h("span", { class: "wb-hidden" }, "value")));
    const body = h("tbody", {}, rows);
    body.addEventListener("click", (event) => { const row = event.target.closest("[data-stage]"); if (row) ctx.select({ stage: row.dataset.stage }); });
    const keys = timed ? h("div", { class: "wb-tools" }, PARTS.map(([, label, hue]) => h("span", { class: "wb-row" }, h("span", { class: `wb-key wb-part-${hue}`, "aria-hidden": "true" }), term(ctx, label)))) : null;
    return h("div", {}, keys, h("div", { class: "wb-scroll", tabindex: 0, role: "region", "aria-label": `Cost of stages on ${target.chip}` }, h("table", { "aria-label": `Cost of stages on ${target.chip}` }, h("thead", {}, h("tr", {}, head)), body)));
  }

  function follow() {
    for (const node of chosen) {
      const is = node.dataset.stage === ctx.selection.stage;
      node.classList.toggle("wb-selected", is);
      if (node.getAttribute("role") === "button") node.setAttribute("aria-pressed", String(is));
    }
  }

  const longest = Math.max(1e-30, ...targets.flatMap((target) => target.stages.map((stage) => stage.seconds ?? stage.flops ?? 0)));
  for (const target of targets) {
    const time = target.seconds === null ? "" : format.seconds(target.seconds);
    ctx.root.append(h("section", { class: "wb-target", "aria-label": target.target },
      h("div", { class: "wb-columns" },
        h("div", {}, h("h4", {}, target.target), h("div", { class: "wb-tile" }, h("h4", {}, "one call, ", term(ctx, "predicted")), h("div", { class: "wb-big" }, time || "unknown"), h("div", { class: "wb-note" }, time ? target.chip : "Seconds need the published figures of a chip: inspect with target=\"v5e:4x4\" or another.")), target.assumptions.length ? h("p", { class: "wb-note" }, `Assumes: ${target.assumptions.join("; ")}.`) : null),
        h("div", {}, h("h4", {}, term(ctx, "roofline")), roofline(target))),
      bars(target, longest)));
  }
  if (memory) {
    const rows = buffers.map((row) => h("tr", {}, row.map((value) => h("td", {}, value))));
    ctx.root.append(h("section", { "aria-label": "Memory of one device" }, h("h4", {}, "Memory of one device, as the compiler planned it"), h("div", { class: "wb-columns" },
      h("dl", { class: "wb-facts" }, memory.map(([name, value]) => [h("dt", {}, term(ctx, name)), h("dd", {}, value)])),
      ctx.data.memory_svg ? inlay(ctx.data.memory_svg) : h("p", { class: "wb-note" }, "This backend does not say how memory changes over the schedule.")),
      rows.length ? [h("h4", {}, "Alive at the peak"), h("div", { class: "wb-scroll", tabindex: 0, role: "region", "aria-label": "Buffers alive at the peak" }, h("table", { "aria-label": "Buffers alive at the peak" }, h("thead", {}, h("tr", {}, ["buffer", "bytes", "shape", "source"].map((name) => h("th", { scope: "col" }, name)))), h("tbody", {}, rows)))] : null));
  }
  ctx.onSelection(follow);
  follow();
}

export default widget(cost);
