import { colour, h, roving } from "./common.js";

const NS = "http://www.w3.org/2000/svg";
const mark = (tag, attributes, text) => {
  const node = document.createElementNS(NS, tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  if (text !== undefined) node.textContent = text;
  return node;
};
const MOST = 48; // blocks drawn along one side
const PANELS = 24; // small multiples drawn at once; more slices are chosen with sliders
const WIDTH = 600;

/** An array of any rank: two dimensions span a panel, the others make small multiples, or sliders where they are many. */
export function shards(ctx, picture, menus) {
  let leaf = null, corners = null, view = null;
  const name = (device) => ctx.data.names[device] ?? `device ${device}`;
  const cutOthers = () => view.others.filter((d) => leaf.blocks[d] > 1);
  const multiples = () => cutOthers().reduce((n, d) => n * leaf.blocks[d], 1) <= PANELS;

  function setOthers() {
    if (view.row !== null && view.row === view.column) view.column = leaf.shape.findIndex((_, d) => d !== view.row);
    view.others = leaf.shape.map((_, d) => d).filter((d) => d !== view.row && d !== view.column);
    for (const d of view.others) view.slice[d] ??= 0;
  }

  function sliceMenus() {
    const rank = leaf.shape.length, label = (d) => `dimension ${d} (${leaf.shape[d]})`;
    const pick = (key, title) => h("label", {}, title, " ", h("select", { "aria-label": title, onchange: (event) => { view[key] = Number(event.target.value); setOthers(); sliceMenus(); draw(); } },
      leaf.shape.map((_, d) => h("option", { value: d, selected: view[key] === d }, label(d)))));
    const sliders = multiples() ? [] : cutOthers().map((d) => h("label", {}, `slice of ${label(d)}`, h("input", { type: "range", min: 0, max: leaf.blocks[d] - 1, value: view.slice[d] ?? 0, "aria-label": `slice of ${label(d)}`, oninput: (event) => { view.slice[d] = Number(event.target.value); draw(); } })));
    menus.replaceChildren(...(rank > 2 ? [pick("row", "rows"), pick("column", "columns"), ...sliders] : []));
  }

  /** The slices to draw: every one as a panel, or the one that the sliders name. */
  function slices() {
    if (!multiples()) return [{ ...view.slice }];
    let found = [{}];
    for (const d of view.others) found = found.flatMap((slice) => Array.from({ length: leaf.blocks[d] }, (_, at) => ({ ...slice, [d]: at })));
    return found;
  }

  /** Blocks of one slice, each with the devices that hold it. */
  function blocksOf(slice) {
    const rank = leaf.shape.length, found = new Map();
    for (let k = 0; k < leaf.devices.length; k++) {
      const corner = corners.subarray(k * rank, (k + 1) * rank);
      if (!view.others.every((d) => corner[d] === slice[d])) continue;
      const key = corner.join(",");
      if (!found.has(key)) found.set(key, { row: view.row === null ? 0 : corner[view.row], column: view.column === null ? 0 : corner[view.column], devices: [] });
      found.get(key).devices.push(leaf.devices[k]);
    }
    return found;
  }

  function block(key, { devices }, x, y, cell, hue) {
    const held = devices.includes(ctx.selection.device), label = `shard${key ? ` ${key.replaceAll(",", ", ")}` : ""} on ${devices.map(name).join(", ")}`;
    const node = mark("g", { role: "button", "data-block": key, "aria-label": label, "aria-pressed": String(held), class: "wb-stage" });
    node.append(mark("rect", { x: x + 1.5, y: y + 1.5, width: Math.max(cell.w - 3, 1), height: Math.max(cell.h - 3, 1), rx: 4, fill: hue, "fill-opacity": held ? 0.55 : 0.2, stroke: hue, "stroke-width": held ? 3 : 1, class: "wb-card" }));
    const words = devices.length > 3 ? `${devices.slice(0, 2).map(name).join(", ")} +${devices.length - 2}` : devices.map(name).join(", ");
    const shown = cell.w > words.length * 6.4 && cell.h > 15 ? words : cell.w > 15 && cell.h > 13 ? String(devices[0]) : null;
    if (shown) node.append(mark("text", { x: x + cell.w / 2, y: y + cell.h / 2 + 4, "text-anchor": "middle", "font-size": shown === words ? 11 : 10, class: "wb-fill-fg" }, shown));
    node.append(mark("title", {}, label));
    return node;
  }

  function draw() {
    if (!leaf) return;
    if (!leaf.devices.length) return picture.replaceChildren(h("p", { class: "wb-note" }, "Its shards are summarised: ", leaf.sentence));
    const rows = view.row === null ? 1 : leaf.blocks[view.row], columns = view.column === null ? 1 : leaf.blocks[view.column];
    const panels = slices(), shownRows = Math.min(rows, MOST), shownColumns = Math.min(columns, MOST), many = panels.length > 1;
    const across = many ? Math.max(1, Math.min(panels.length, Math.floor(WIDTH / Math.max(shownColumns * 30, 118)))) : 1;
    const wide = (WIDTH - 14 * (across - 1)) / across, tall = many ? 150 : 260;
    const cell = { w: wide / shownColumns, h: Math.min(Math.max(tall / shownRows, 14), many ? 40 : 64) }, head = many ? 18 : 0;
    const panelHeight = head + cell.h * shownRows + (many ? 10 : 0), height = Math.ceil(panels.length / across) * panelHeight;
    const svg = mark("svg", { viewBox: `0 0 ${WIDTH + 2} ${height + 24}`, role: "group", "aria-label": leaf.sentence, class: "wb-shards" });
    svg.style.maxWidth = `${WIDTH}px`;
    const series = Array.from({ length: 8 }, (_, i) => colour(ctx.root, `series-${i}`)), nodes = [], held = new Map();
    panels.forEach((slice, number) => {
      const x0 = 1 + (number % across) * (wide + 14), y0 = 1 + Math.floor(number / across) * panelHeight;
      const title = view.others.filter((d) => leaf.blocks[d] > 1).map((d) => `dim ${d}: ${slice[d] * leaf.shard_shape[d]}–${Math.min((slice[d] + 1) * leaf.shard_shape[d], leaf.shape[d]) - 1}`).join(", ");
      if (many) svg.append(mark("text", { x: x0 + 2, y: y0 + 12, "font-size": 10.5, class: "wb-fill-muted" }, title));
      for (const [key, found] of blocksOf(slice)) {
        if (found.row >= shownRows || found.column >= shownColumns) continue;
        const hue = series[(number * rows * columns + found.row * columns + found.column) % 8];
        const node = block(key, found, x0 + found.column * cell.w, y0 + head + found.row * cell.h, cell, hue);
        held.set(key, found.devices);
        nodes.push(node);
        svg.append(node);
      }
    });
    const count = `${rows} × ${columns} shards`, cutShort = rows > MOST || columns > MOST ? `the first ${shownRows} × ${shownColumns} of ${count}` : count;
    const caption = many ? `${panels.length} slices of ${cutShort}` : `${cutShort}${cutOthers().length ? " in this slice" : ""}`;
    svg.append(mark("text", { x: 2, y: height + 17, "font-size": 11, class: "wb-fill-muted" }, `${caption}; each of ${leaf.rows[1][1]}`));
    const pick = (node) => { const devices = held.get(node.dataset.block); ctx.select({ device: devices[(devices.indexOf(ctx.selection.device) + 1) % devices.length] }); };
    svg.addEventListener("click", (event) => { const node = event.target.closest("[data-block]"); if (node) pick(node); });
    const step = across > 1 || columns > 1 ? shownColumns : 1, move = (by) => (node, focus) => focus(nodes[Math.min(Math.max(nodes.indexOf(node) + by, 0), nodes.length - 1)]);
    roving(svg, nodes, { choose: pick, step: { ArrowDown: move(step), ArrowUp: move(-step) } });
    const at = document.activeElement?.dataset?.block, inside = picture.contains(document.activeElement);
    picture.replaceChildren(svg);
    if (inside) nodes.find((node) => node.dataset.block === at)?.focus(); // a redraw must not lose the keyboard's place
  }

  return {
    draw,
    show(next, nextCorners) {
      leaf = next;
      corners = nextCorners;
      const rank = leaf.shape.length, cut = leaf.blocks.map((n, d) => [n, d]).filter(([n]) => n > 1).map(([, d]) => d);
      const order = [...cut, ...leaf.shape.map((_, d) => d).filter((d) => !cut.includes(d))].slice(0, 2).sort((a, b) => a - b);
      view = { row: rank > 1 ? order[0] : null, column: rank > 1 ? order[1] : rank ? 0 : null, others: [], slice: {} };
      setOthers();
      sliceMenus();
      draw();
    },
  };
}
