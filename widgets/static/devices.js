import { floats, format, h, svgFrom, term, widget } from "./common.js";

const NS = "http://www.w3.org/2000/svg";
const path = (d, name, extra = {}) => {
  const node = document.createElementNS(NS, "path");
  for (const [key, value] of Object.entries({ d, class: name, ...extra })) node.setAttribute(key, value);
  return node;
};

/** One tile per device with a history of its memory; whatever a backend does not tell is left out. */
export function devices(ctx) {
  const tiles = h("div", { class: "wb-tiles", role: "list" }), host = h("div", {}), arrays = h("div", {}), note = h("p", { class: "wb-note" });
  ctx.root.append(note, tiles, host, arrays);
  let made = new Map();

  function tile(where) {
    const spark = document.createElementNS(NS, "svg"), parts = { big: h("div", { class: "wb-big" }), facts: h("div", { class: "wb-note" }), spark, name: h("h4", {}) };
    spark.setAttribute("viewBox", "0 0 200 44");
    spark.setAttribute("preserveAspectRatio", "none");
    spark.setAttribute("role", "img");
    spark.classList.add("wb-spark");
    parts.node = h("div", { class: "wb-tile", role: "listitem", "data-where": where }, parts.name, parts.big, spark, parts.facts);
    return parts;
  }

  function line(parts, seconds, values, limit) {
    const known = values.filter(Number.isFinite), top = Math.max(limit && limit < 2 * Math.max(...known) ? limit : 0, ...known, 1), first = seconds[0] ?? 0, span = Math.max((seconds.at(-1) ?? 0) - first, 1e-9);
    const points = [...values].map((value, i) => (Number.isFinite(value) ? `${((200 * (seconds[i] - first)) / span).toFixed(1)} ${(42 - (38 * value) / top).toFixed(1)}` : null)).filter(Boolean);
    parts.spark.setAttribute("aria-label", known.length ? `memory over ${format.seconds(span)}: ${format.bytes(Math.min(...known))} to ${format.bytes(Math.max(...known))}` : "memory unknown");
    parts.spark.replaceChildren(...(points.length > 1 ? [path(`M${points.join("L")}L200 44L0 44Z`, "wb-fill-broadcast-soft"), path(`M${points.join("L")}`, "wb-stroke-broadcast", { fill: "none", "stroke-width": 1.5, "vector-effect": "non-scaling-stroke" })] : []));
  }

  function draw() {
    const list = ctx.live("devices") ?? [], seconds = floats(ctx.live("seconds")), memory = floats(ctx.live("memory"));
    note.textContent = list.length ? `${format.count(seconds.length)} samples, the last at ${format.seconds(seconds.at(-1))}${ctx.live("left_out") ? `; ${ctx.live("left_out")} more devices are not drawn` : ""}` : "No sample has been taken yet.";
    if (list.length !== made.size || list.some((device) => !made.has(device.where))) {
      made = new Map(list.map((device) => [device.where, tile(device.where)]));
      tiles.replaceChildren(...[...made.values()].map((parts) => parts.node));
    }
    list.forEach((device, row) => {
      const parts = made.get(device.where);
      parts.name.textContent = `${device.where}${device.kind ? ` · ${device.kind}` : ""}${device.present ? "" : " · gone"}`;
      parts.big.textContent = format.bytes(device.bytes);
      const facts = [["peak", device.peak, format.bytes], ["of", device.limit, format.bytes], ["utilisation", device.utilisation, (value) => `${value.toFixed(0)} %`], ["power", device.power, (value) => `${value.toFixed(0)} W`], ["temperature", device.temperature, (value) => `${value.toFixed(0)} °C`]];
      parts.facts.textContent = facts.filter(([, value]) => value !== null && value !== undefined).map(([name, value, show]) => `${name} ${show(value)}`).join(" · ");
      parts.node.classList.toggle("wb-selected", device.id === ctx.selection.device);
      line(parts, seconds, memory.subarray(row * seconds.length, (row + 1) * seconds.length), device.limit);
    });
    host.replaceChildren(h("h4", {}, "Host"), h("dl", { class: "wb-facts" }, (ctx.live("host") ?? []).map(([name, value]) => [h("dt", {}, name), h("dd", {}, value)])));
    const rows = ctx.live("arrays") ?? [];
    arrays.replaceChildren(...(rows.length ? [h("h4", {}, `Largest of ${format.count(ctx.live("live_arrays") ?? rows.length)} live arrays`), h("div", { class: "wb-scroll", tabindex: 0, role: "region", "aria-label": "Largest live arrays" }, h("table", { "aria-label": "Largest live arrays" }, h("thead", {}, h("tr", {}, ["type", "bytes", "sharding", "source"].map((name) => h("th", { scope: "col" }, term(ctx, name))))), h("tbody", {}, rows.map((row) => h("tr", {}, row.map((value) => h("td", {}, value)))))))] : []));
  }
  tiles.addEventListener("click", (event) => { const node = event.target.closest("[data-where]"), device = (ctx.live("devices") ?? []).find((each) => each.where === node?.dataset.where); if (device) ctx.select({ device: device.id }); });
  if (ctx.data.timeline) {
    const svg = svgFrom(ctx.data.timeline);
    svg.style.maxWidth = `${svg.getAttribute("width")}px`;
    svg.removeAttribute("width");
    svg.removeAttribute("height");
    svg.classList.add("wb-chart");
    ctx.root.append(h("h4", {}, "The last round on every device, ", term(ctx, "measured")), svg);
  }
  ctx.onLive(draw);
  ctx.onSelection(draw);
  draw();
}

export default widget(devices);
