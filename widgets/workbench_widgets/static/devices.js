import { fitted, floats, format, h, term, widget } from "./common.js";

const NS = "http://www.w3.org/2000/svg";
const path = (d, name, extra = {}) => {
  const node = document.createElementNS(NS, "path");
  for (const [key, value] of Object.entries({ d, class: name, ...extra })) node.setAttribute(key, value);
  return node;
};

const COURSES = {
  memory: { name: "memory", show: format.bytes },
  utilisation: { name: "utilisation", show: (value) => `${value.toFixed(0)} %` },
  power: { name: "power", show: (value) => `${value.toFixed(0)} W` },
  temperature: { name: "temperature", show: (value) => `${value.toFixed(0)} °C` },
  processor: { name: "processor, of all cores", show: (value) => `${value.toFixed(0)} %` },
  "memory of this process": { name: "memory of this process", show: format.bytes },
};

/** One tile per device with a history of its memory; whatever a backend does not tell is left out. */
export function devices(ctx) {
  const tiles = h("div", { class: "wb-tiles", role: "list" }), host = h("div", {}), arrays = h("div", {}), note = h("p", { class: "wb-note" });
  const over = h("select", { "aria-label": "Draw over time" }), choice = h("label", { hidden: true }, "Draw over time ", over);
  ctx.root.append(h("div", { class: "wb-tools" }, note, choice), tiles, host, arrays);
  let made = new Map();
  const courses = () => ({ memory: ctx.live("memory"), ...ctx.live("courses") });
  over.addEventListener("change", () => { ctx.set("course", over.value); draw(); });

  /** What there is a history of: memory everywhere, the rest where the backend tells it. */
  function offer() {
    const names = Object.keys(courses()), known = [...over.options].map((each) => each.value);
    if (names.join() !== known.join()) over.replaceChildren(...names.map((value) => h("option", { value }, COURSES[value].name)));
    over.value = names.includes(ctx.setting("course")) ? ctx.setting("course") : "memory";
    choice.hidden = names.length < 2;
  }

  function sparkline() {
    const spark = document.createElementNS(NS, "svg");
    for (const [name, value] of [["viewBox", "0 0 200 44"], ["preserveAspectRatio", "none"], ["role", "img"]]) spark.setAttribute(name, value);
    spark.classList.add("wb-spark");
    return spark;
  }

  function tile(where) {
    const spark = sparkline(), parts = { big: h("div", { class: "wb-big" }), facts: h("div", { class: "wb-note" }), spark, name: h("button", { type: "button", class: "wb-link" }) };
    parts.node = h("div", { class: "wb-tile", role: "listitem", "data-where": where }, h("h4", {}, parts.name), h("div", { class: "wb-inuse" }, parts.big, h("span", { class: "wb-note" }, " in use")), spark, parts.facts);
    return parts;
  }

  function line(spark, what, seconds, values, limit) {
    const { name, show } = COURSES[what], known = values.filter(Number.isFinite), top = Math.max(limit && limit < 2 * Math.max(...known) ? limit : 0, ...known, 1), first = seconds[0] ?? 0, span = Math.max((seconds.at(-1) ?? 0) - first, 1e-9);
    const points = [...values].map((value, i) => (Number.isFinite(value) ? `${((200 * (seconds[i] - first)) / span).toFixed(1)} ${(42 - (38 * value) / top).toFixed(1)}` : null)).filter(Boolean);
    spark.setAttribute("aria-label", known.length ? `${name} over ${format.seconds(span)}: ${show(Math.min(...known))} to ${show(Math.max(...known))}` : `${name} unknown`);
    spark.replaceChildren(...(points.length > 1 ? [path(`M${points.join("L")}L200 44L0 44Z`, "wb-fill-broadcast-soft"), path(`M${points.join("L")}`, "wb-stroke-broadcast", { fill: "none", "stroke-width": 1.5, "vector-effect": "non-scaling-stroke" })] : []));
  }

  function draw() {
    const list = ctx.live("devices") ?? [], seconds = floats(ctx.live("seconds")), values = (offer(), floats(courses()[over.value]));
    note.textContent = list.length ? `${format.count(seconds.length)} samples, the last at ${format.seconds(seconds.at(-1))} of the monitor's clock${ctx.live("left_out") ? `; ${ctx.live("left_out")} more devices are not drawn` : ""}` : "No sample has been taken yet.";
    if (list.length !== made.size || list.some((device) => !made.has(device.where))) {
      made = new Map(list.map((device) => [device.where, tile(device.where)]));
      tiles.replaceChildren(...[...made.values()].map((parts) => parts.node));
    }
    list.forEach((device, row) => {
      const parts = made.get(device.where);
      parts.name.textContent = `${device.where}${device.kind && !device.where.startsWith(device.kind) ? ` · ${device.kind}` : ""}${device.present ? "" : " · gone"}`;
      parts.big.textContent = format.bytes(device.bytes);
      const facts = [["peak", device.peak, format.bytes], ["of", device.limit, format.bytes], ["utilisation", device.utilisation, (value) => `${value.toFixed(0)} %`], ["power", device.power, (value) => `${value.toFixed(0)} W`], ["temperature", device.temperature, (value) => `${value.toFixed(0)} °C`]];
      parts.facts.textContent = facts.filter(([, value]) => value !== null && value !== undefined).map(([name, value, show]) => `${name} ${show(value)}`).join(" · ");
      parts.node.classList.toggle("wb-selected", device.id === ctx.selection.device);
      line(parts.spark, over.value, seconds, values.subarray(row * seconds.length, (row + 1) * seconds.length), { memory: device.limit, utilisation: 100 }[over.value]);
    });
    const hosts = Object.entries(ctx.live("host_courses") ?? {}).map(([name, course]) => {
      const spark = sparkline();
      line(spark, name, seconds, floats(course), name === "processor" ? 100 : null);
      return h("div", { class: "wb-tile" }, h("h4", {}, COURSES[name].name), spark, h("div", { class: "wb-note" }, `over ${format.seconds((seconds.at(-1) ?? 0) - (seconds[0] ?? 0))}`));
    });
    host.replaceChildren(h("h4", {}, "Host"), h("dl", { class: "wb-facts" }, (ctx.live("host") ?? []).map(([name, value]) => [h("dt", {}, name), h("dd", {}, value)])), h("div", { class: "wb-tiles" }, hosts));
    const rows = ctx.live("arrays") ?? [];
    arrays.replaceChildren(...(rows.length ? [h("h4", {}, `Largest of ${format.count(ctx.live("live_arrays") ?? rows.length)} live arrays`), h("div", { class: "wb-scroll", tabindex: 0, role: "region", "aria-label": "Largest live arrays" }, h("table", { "aria-label": "Largest live arrays" }, h("thead", {}, h("tr", {}, ["type", "bytes", "sharding", "source"].map((name) => h("th", { scope: "col" }, term(ctx, name))))), h("tbody", {}, rows.map((row) => h("tr", {}, row.map((value) => h("td", {}, value)))))))] : []));
  }
  tiles.addEventListener("click", (event) => { const node = event.target.closest("[data-where]"), device = (ctx.live("devices") ?? []).find((each) => each.where === node?.dataset.where); if (device) ctx.select({ device: device.id }); });
  if (ctx.data.timeline) {
    ctx.root.append(h("h4", {}, "The last round on every device, ", term(ctx, "measured")), fitted(ctx, ctx.data.timeline));
  }
  ctx.onLive(draw);
  ctx.onSelection(draw);
  draw();
}

export default widget(devices);
