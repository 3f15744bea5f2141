import { colour, css, details, format, h, roving, widget } from "./common.js";

const NS = "http://www.w3.org/2000/svg";
const mark = (tag, attributes, text) => {
  const node = document.createElementNS(NS, tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  if (text !== undefined) node.textContent = text;
  return node;
};
const MOST = 48; // blocks drawn along one side

/** Arrays of any rank: two dimensions as a grid of shards, the others by choosing a slice. */
export function sharding(ctx) {
  const list = h("div", { class: "wb-scroll" }), picture = h("div", { class: "wb-wide" }), menus = h("div", { class: "wb-tools" });
  const panel = h("aside", { class: "wb-panel", "aria-live": "polite", "aria-label": "Details of the chosen array" });
  const trial = h("div", { class: "wb-trial" });
  ctx.root.append(h("div", { class: "wb-split" }, h("div", { class: "wb-pictures" }, h("div", { class: "wb-wide" }, list, menus, picture)), panel));
  let chosen = 0, view = null;

  const name = (device) => ctx.data.names[device] ?? `device ${device}`;

  function table() {
    const rows = ctx.data.leaves.map((leaf, i) => h("tr", { "data-leaf": i, class: i === chosen ? "wb-selected" : "" },
      h("td", {}, h("button", { type: "button", class: "wb-link", "aria-pressed": String(i === chosen) }, leaf.path)), h("td", {}, leaf.type), h("td", {}, leaf.spec_text), ...leaf.rows.slice(3, 5).map(([, value]) => h("td", {}, value))));
    const head = h("tr", {}, ["array", "type", "spec", "per device", "replication"].map((title) => h("th", { scope: "col" }, title)));
    list.replaceChildren(h("table", { "aria-label": "Arrays and their shardings" }, h("thead", {}, head), h("tbody", {}, rows)));
  }

  /** Blocks of the chosen slice, each with its devices. */
  function blocksOf(leaf, corners) {
    const rank = leaf.shape.length, found = new Map();
    for (let k = 0; k < leaf.devices.length; k++) {
      const corner = corners.subarray(k * rank, (k + 1) * rank);
      if (!view.others.every((d) => corner[d] === view.slice[d])) continue;
      const key = `${view.row === null ? 0 : corner[view.row]},${view.column === null ? 0 : corner[view.column]}`;
      if (!found.has(key)) found.set(key, []);
      found.get(key).push(leaf.devices[k]);
    }
    return found;
  }

  function sliceMenus(leaf) {
    const rank = leaf.shape.length, label = (d) => `dimension ${d} (${leaf.shape[d]})`;
    const pick = (key, title) => h("label", {}, title, " ", h("select", { "aria-label": title, onchange: (event) => { view[key] = Number(event.target.value); setOthers(leaf); sliceMenus(leaf); draw(); } },
      leaf.shape.map((_, d) => h("option", { value: d, selected: view[key] === d }, label(d)))));
    const sliders = view.others.filter((d) => leaf.blocks[d] > 1).map((d) => h("label", {}, `slice of ${label(d)}`, h("input", { type: "range", min: 0, max: leaf.blocks[d] - 1, value: view.slice[d] ?? 0, "aria-label": `slice of ${label(d)}`, oninput: (event) => { view.slice[d] = Number(event.target.value); draw(); } })));
    menus.replaceChildren(...(rank > 2 ? [pick("row", "rows"), pick("column", "columns"), ...sliders] : []));
  }

  function setOthers(leaf) {
    if (view.row === view.column) view.column = leaf.shape.findIndex((_, d) => d !== view.row);
    view.others = leaf.shape.map((_, d) => d).filter((d) => d !== view.row && d !== view.column);
    for (const d of view.others) view.slice[d] ??= 0;
  }

  function start(leaf) {
    const rank = leaf.shape.length, cut = leaf.blocks.map((n, d) => [n, d]).filter(([n]) => n > 1).map(([, d]) => d);
    const order = [...cut, ...leaf.shape.map((_, d) => d).filter((d) => !cut.includes(d))].slice(0, 2).sort((a, b) => a - b);
    view = { row: rank > 1 ? order[0] : null, column: rank > 1 ? order[1] : rank ? 0 : null, others: [], slice: {} };
    setOthers(leaf);
  }

  function draw() {
    const leaf = ctx.data.leaves[chosen];
    if (!leaf.devices.length) return picture.replaceChildren(h("p", { class: "wb-note" }, "Its shards are summarised: ", leaf.sentence));
    const found = blocksOf(leaf, ctx.array(`sharding.${chosen}`)), rows = view.row === null ? 1 : leaf.blocks[view.row], columns = view.column === null ? 1 : leaf.blocks[view.column];
    const shownRows = Math.min(rows, MOST), shownColumns = Math.min(columns, MOST), width = 560, cell = { w: width / shownColumns, h: Math.min(Math.max(260 / shownRows, 14), 64) };
    const height = cell.h * shownRows, selected = ctx.selection.device;
    const svg = mark("svg", { viewBox: `0 0 ${width + 2} ${height + 24}`, role: "group", "aria-label": leaf.sentence, class: "wb-shards" });
    svg.style.maxWidth = `${width}px`;
    const series = Array.from({ length: 8 }, (_, i) => colour(ctx.root, `series-${i}`)), nodes = [];
    for (const [key, devices] of found) {
      const [r, c] = key.split(",").map(Number);
      if (r >= shownRows || c >= shownColumns) continue;
      const number = r * columns + c, node = mark("g", { role: "button", "data-block": key, "aria-label": `shard ${key.replace(",", ", ")} on ${devices.map(name).join(", ")}`, "aria-pressed": String(devices.includes(selected)) });
      const x = 1 + c * cell.w, y = 1 + r * cell.h, held = devices.includes(selected);
      node.append(mark("rect", { x: x + 1.5, y: y + 1.5, width: Math.max(cell.w - 3, 1), height: Math.max(cell.h - 3, 1), rx: 4, fill: series[number % 8], "fill-opacity": held ? 0.55 : 0.2, stroke: series[number % 8], "stroke-width": held ? 3 : 1, class: "wb-card" }));
      const words = devices.length > 3 ? `${devices.slice(0, 2).map(name).join(", ")} +${devices.length - 2}` : devices.map(name).join(", ");
      if (cell.w > words.length * 6.2 && cell.h > 15) node.append(mark("text", { x: x + cell.w / 2, y: y + cell.h / 2 + 4, "text-anchor": "middle", "font-size": 11, class: "wb-fill-fg" }, words));
      else if (cell.w > 15 && cell.h > 13) node.append(mark("text", { x: x + cell.w / 2, y: y + cell.h / 2 + 4, "text-anchor": "middle", "font-size": 10, class: "wb-fill-fg" }, String(devices[0])));
      node.append(mark("title", {}, node.getAttribute("aria-label")));
      node.classList.add("wb-stage");
      nodes.push(node);
      svg.append(node);
    }
    const caption = rows > MOST || columns > MOST ? `the first ${shownRows} × ${shownColumns} of ${rows} × ${columns} shards` : `${rows} × ${columns} shards${view.others.length ? " in this slice" : ""}`;
    svg.append(mark("text", { x: 2, y: height + 17, "font-size": 11, class: "wb-fill-muted" }, `${caption}; each of ${leaf.rows[1][1]}`));
    const pick = (node) => { const devices = found.get(node.dataset.block); ctx.select({ device: devices[(devices.indexOf(ctx.selection.device) + 1) % devices.length] }); };
    svg.addEventListener("click", (event) => { const node = event.target.closest("[data-block]"); if (node) pick(node); });
    roving(svg, nodes, { choose: pick });
    picture.replaceChildren(svg);
  }

  /** Menus to try another spec: arithmetic on sizes, nothing runs. */
  function tryOut(leaf) {
    if (!ctx.data.axes.length || !leaf.shape.length) return trial.replaceChildren();
    const spec = leaf.spec.map((axes) => axes.join("+")), result = h("div", {});
    const options = ["", ...ctx.data.axes.map(([axis]) => axis), ...(ctx.data.axes.length > 1 ? [ctx.data.axes.map(([axis]) => axis).join("+")] : [])];
    const sizes = Object.fromEntries(ctx.data.axes);
    const tell = () => {
      const used = spec.flatMap((axes) => (axes ? axes.split("+") : [])), twice = used.find((axis, i) => used.indexOf(axis) !== i);
      if (twice) return result.replaceChildren(h("p", { class: "wb-note" }, `Mesh axis ${twice} is used twice; one array can use each axis once.`));
      const parts = spec.map((axes) => (axes ? axes.split("+").reduce((n, axis) => n * sizes[axis], 1) : 1));
      const uneven = leaf.shape.map((size, d) => [size, parts[d], d]).filter(([size, part]) => size % part);
      const shard = leaf.shape.map((size, d) => Math.ceil(size / parts[d])), bytes = shard.reduce((a, b) => a * b, leaf.itemsize), pieces = parts.reduce((a, b) => a * b, 1);
      const rows = [["shard", `[${shard.join(",")}]`], ["bytes per device", format.bytes(bytes)], ["replication", `${format.count(ctx.data.device_count / pieces)} devices per shard`]];
      result.replaceChildren(h("dl", { class: "wb-facts" }, rows.map(([term, value]) => [h("dt", {}, term), h("dd", {}, value)])),
        ...uneven.map(([size, part, d]) => h("p", { class: "wb-note" }, `${part} does not divide dimension ${d} (${size}): JAX refuses this spec for an input; pad to ${Math.ceil(size / part) * part}.`)));
    };
    const menu = leaf.shape.map((size, d) => h("label", {}, `dimension ${d} (${size}) `, h("select", { "aria-label": `mesh axes of dimension ${d}`, onchange: (event) => { spec[d] = event.target.value; tell(); } }, options.map((axes) => h("option", { value: axes, selected: axes === spec[d] }, axes ? axes.replace("+", " × ") : "not cut")))));
    tell();
    trial.replaceChildren(h("h4", {}, "Try another spec"), h("div", { class: "wb-menu" }, menu), result);
  }

  function choose(index) {
    chosen = index;
    const leaf = ctx.data.leaves[index];
    start(leaf);
    table();
    sliceMenus(leaf);
    draw();
    const notes = [...leaf.notes, ...(leaf.left_out ? [`${leaf.left_out} shards are not drawn.`] : [])];
    tryOut(leaf);
    details(ctx, panel, { title: leaf.path, kind: "clients", subtitle: leaf.type, blocks: [{ form: "facts", title: "", rows: leaf.rows }, ...(notes.length ? [{ form: "note", title: "Notes", text: notes.join(" ") }] : [])], extra: [trial, h("p", { class: "wb-note" }, `The whole tree: ${ctx.data.total}; the fullest device holds ${ctx.data.fullest}.`)] });
  }

  function build() {
    if (!ctx.data.leaves.length) return ctx.root.replaceChildren(h("p", { class: "wb-note" }, "This tree holds no arrays."));
    const wanted = ctx.data.leaves.findIndex((leaf) => leaf.path === ctx.selection.leaf);
    choose(Math.max(0, wanted));
  }
  list.addEventListener("click", (event) => { const row = event.target.closest("[data-leaf]"); if (row) ctx.select({ leaf: ctx.data.leaves[Number(row.dataset.leaf)].path }), choose(Number(row.dataset.leaf)), list.querySelectorAll("button")[chosen].focus(); });
  ctx.onSelection(() => { const wanted = ctx.data.leaves.findIndex((leaf) => leaf.path === ctx.selection.leaf); wanted >= 0 && wanted !== chosen ? choose(wanted) : draw(); });
  ctx.onTheme(draw);
  ctx.onData(build);
  build();
}

export default widget(sharding);
