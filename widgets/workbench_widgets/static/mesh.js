import { cellAt, colour, css, details, format, h, legend, ramp, range, show, widget } from "./common.js";

const rgbOf = (text) => text.match(/\w\w/g).map((part) => parseInt(part, 16));
const MOST_RINGS = 64; // devices marked around a canvas at once
const MOST_TITLES = 40; // as in the kernel's layout, which leaves room for them

/** Devices by mesh axis, on the torus or by host: cards with words while they are few, one pixel each when they are many. */
export function mesh(ctx) {
  const select = h("select", { "aria-label": "Colour devices by" }), arrange = h("select", { "aria-label": "Arrange devices by" });
  const arrangeBox = h("label", {}, "Arrange by ", arrange), legendBox = h("div", { class: "wb-legendbox" });
  const tip = h("p", { class: "wb-note wb-hovered", role: "status" }), caption = h("p", { class: "wb-note" });
  const place = h("div", { class: "wb-pictures" });
  const panel = h("aside", { class: "wb-panel", "aria-live": "polite", "aria-label": "Details of the chosen device" });
  ctx.root.append(h("div", { class: "wb-tools" }, arrangeBox, h("label", {}, "Colour devices by ", select), legendBox), h("div", { class: "wb-split" }, place, panel));
  let ids = [], values = [], cards = [], canvas = null, rings = null, cursor = 0, shownClient, layout = null, spots = [], grid = new Int32Array();

  const nameOf = (index) => `${ctx.data.names.all ?? ctx.data.names.each[index]}:${ids[index]}`;
  const clientsOf = (id) => ctx.data.held[id] ?? [];
  const words = (id) => clientsOf(id).map(([name, start, stop]) => (stop === start ? `no ${name}` : stop - start === 1 ? `${name} ${start}` : `${name} ${start}–${stop - 1}`)).join(", ");
  const positionOf = (index) => ctx.data.axes.map((_, axis) => ctx.array(`mesh.axis${axis}`)[index]);
  const spoken = (index) => [nameOf(index), ctx.data.axes.map((axis, i) => `${axis.name} ${ctx.array(`mesh.axis${i}`)[index]}`).join(", "), words(ids[index])].filter(Boolean).join(": ");
  const choose = (index) => { cursor = index; ctx.select({ device: ids[index] }); };

  function fills() {
    const choice = ctx.data.choices[Number(select.value)];
    if (!choice) return () => [128, 128, 128];
    const [low, high] = range(values);
    const series = Array.from({ length: 8 }, (_, i) => rgbOf(colour(ctx.root, `series-${i}`)));
    if (choice.kind === "group" && high < 8) return (value) => series[value];
    return (value) => ramp(high > low ? (value - low) / (high - low) : 0.5);
  }

  function paint() {
    const choice = ctx.data.choices[Number(select.value)];
    values = choice ? ctx.array(`mesh.${choice.key}`) : [];
    const fill = fills(), [low, high] = range(values), start = performance.now();
    legendBox.replaceChildren();
    if (choice && (choice.kind !== "group" || high >= 8)) legendBox.append(legend("", show(choice.unit, low), show(choice.unit, high)));
    else if (choice) legendBox.append(h("span", {}, `${high + 1} group${high ? "s" : ""}${high ? ", each in its own colour and numbered" : ""}`));
    cards.forEach((card, i) => {
      card.style.setProperty("--card", css(fill(values[i])));
      card.querySelector(".wb-cardnumber").textContent = choice?.kind === "group" ? format.count(values[i]) : "";
    });
    if (!canvas) return;
    const holders = holding(), lit = holders.size > MOST_RINGS ? holders : null; // too many to ring: the others are dimmed
    const context = canvas.getContext("2d"), image = context.createImageData(layout.columns, layout.rows), known = new Map();
    for (let i = 0; i < ids.length; i++) {
      let rgb = known.get(values[i]);
      if (!rgb) known.set(values[i], (rgb = fill(values[i])));
      const at = 4 * (spots[2 * i + 1] * layout.columns + spots[2 * i]);
      image.data[at] = rgb[0], image.data[at + 1] = rgb[1], image.data[at + 2] = rgb[2], image.data[at + 3] = lit && !lit.has(i) ? 70 : 255;
    }
    context.putImageData(image, 0, 0);
    canvas.dataset.paintMilliseconds = (performance.now() - start).toFixed(2);
  }

  /** The device in the next cell in a direction, gaps between panels jumped over; the same one at an edge. */
  function neighbour(index, dx, dy) {
    let x = spots[2 * index] + dx, y = spots[2 * index + 1] + dy;
    for (; x >= 0 && x < layout.columns && y >= 0 && y < layout.rows; x += dx, y += dy) {
      const found = grid[y * layout.columns + x];
      if (found >= 0) return found;
    }
    return index;
  }

  /** Arrow keys by the picture's own rows and columns, whatever the order of the devices. */
  function onKey(event, at, moved) {
    const step = { ArrowRight: [1, 0], ArrowLeft: [-1, 0], ArrowDown: [0, 1], ArrowUp: [0, -1] }[event.key];
    if (step) moved(neighbour(at, ...step));
    else if (event.key === "Home") moved(0);
    else if (event.key === "End") moved(ids.length - 1);
    else if (event.key === "Enter" || event.key === " ") choose(at);
    else if (event.key === "Escape") ctx.select({ device: null });
    else return;
    event.preventDefault();
    event.stopPropagation();
  }

  function buildCards() {
    const box = h("div", { class: "wb-cards", role: "group", "aria-label": ctx.data.sentence }), columns = layout.columns;
    cards = Array.from(ids, (id, i) => h("button", { type: "button", class: "wb-devicecard", "data-device": id, "aria-label": spoken(i), tabindex: i ? -1 : 0, title: spoken(i) },
      h("span", { class: "wb-cardname" }, nameOf(i), h("span", { class: "wb-cardnumber", "aria-hidden": "true" })), h("span", { class: "wb-cardclients" }, (layout.columns > 5 ? words(id).replace(/^\D+(?=\d+(–\d+)?$)/, "") : words(id)) || "no clients")));
    const gaps = Array.from({ length: columns }, (_, x) => (Array.from({ length: layout.rows }, (_, y) => grid[y * columns + x]).some((found) => found >= 0) ? "minmax(64px, 1fr)" : "10px"));
    box.style.gridTemplateColumns = gaps.join(" ");
    const titled = layout.panels.length > 1, line = (y) => (titled ? layout.panels.filter((each) => each[2] <= y).map((each) => each[2]).filter((row, i, all) => all.indexOf(row) === i).length : 0) + y + 1;
    if (titled) for (const [title, x, y, wide] of layout.panels) {
      const head = h("p", { class: "wb-note wb-paneltitle" }, title);
      head.style.gridArea = `${line(y) - 1} / ${x + 1} / auto / span ${wide}`;
      box.append(head);
    }
    cards.forEach((card, i) => (card.style.gridArea = `${line(spots[2 * i + 1])} / ${spots[2 * i] + 1}`));
    box.append(...cards);
    const focus = (index) => { cards.forEach((card, i) => card.setAttribute("tabindex", i === index ? "0" : "-1")); cards[index].focus(); };
    box.addEventListener("click", (event) => { const card = event.target.closest("[data-device]"); if (card) choose(cards.indexOf(card)); });
    box.addEventListener("keydown", (event) => { const at = cards.indexOf(event.target.closest("[data-device]")); if (at >= 0) onKey(event, at, focus); });
    place.replaceChildren(h("div", { class: "wb-scroll wb-wide" }, caption, box));
  }

  function buildCanvas() {
    const { columns, rows } = layout;
    canvas = h("canvas", { class: "wb-pixels", role: "img", tabindex: 0, "aria-label": `${ctx.data.sentence}. ${layout.reading}. Arrow keys move, Enter chooses.`, width: columns, height: rows });
    canvas.style.aspectRatio = `${columns} / ${rows}`;
    rings = h("div", { class: "wb-rings", "aria-hidden": "true" });
    const frame = h("div", { class: "wb-meshframe" }, canvas, rings);
    frame.style.maxWidth = `${Math.min(900, (620 * columns) / rows)}px`;
    const shown = layout.panels.length > 1 && layout.panels.length <= MOST_TITLES;
    frame.classList.toggle("wb-titled", shown);
    if (shown) for (const [title, x, y, wide] of layout.panels) {
      const head = h("span", { class: "wb-paneltag" }, title);
      Object.assign(head.style, { left: `${(100 * x) / columns}%`, top: `${(100 * y) / rows}%`, maxWidth: `${(100 * wide) / columns}%` });
      rings.append(head);
    }
    const over = (event) => { const cell = cellAt(event, canvas, columns, rows); return cell < 0 ? -1 : grid[cell]; };
    const tell = (index) => { tip.textContent = index < 0 ? "" : `${spoken(index)} · ${ctx.data.choices[Number(select.value)]?.label}: ${format.count(values[index])}`; };
    const moved = (index) => { cursor = index; tell(index); mark(); };
    canvas.addEventListener("mousemove", (event) => tell(over(event)));
    canvas.addEventListener("mouseleave", () => tell(-1));
    canvas.addEventListener("click", (event) => { const index = over(event); if (index >= 0) choose(index); });
    canvas.addEventListener("keydown", (event) => onKey(event, cursor, moved));
    canvas.addEventListener("focus", () => mark());
    canvas.addEventListener("blur", () => mark());
    place.replaceChildren(h("div", { class: "wb-canvas wb-wide" }, caption, frame, tip));
  }

  /** The devices that differ from the chosen one along one mesh axis alone: those that it talks to over that axis. */
  function groupOf(index, name) {
    const axis = ctx.data.axes.findIndex((each) => each.name === name);
    if (axis < 0 || index < 0) return new Set();
    const mine = positionOf(index), columns = ctx.data.axes.map((_, i) => ctx.array(`mesh.axis${i}`));
    const found = new Set();
    for (let i = 0; i < ids.length; i++) if (columns.every((column, k) => k === axis || column[i] === mine[k])) found.add(i);
    return found;
  }

  /** The devices that hold the chosen client. */
  function holding() {
    const { client } = ctx.selection, found = new Set();
    if (client !== undefined) ids.forEach((id, i) => { if (clientsOf(id).some(([, start, stop]) => client >= start && client < stop)) found.add(i); });
    return found;
  }

  /** Rings around the cursor, the chosen device, its group, and the devices of the chosen client. */
  function mark() {
    const chosen = ids.indexOf(ctx.selection.device), group = groupOf(chosen, ctx.selection.axis), holders = holding();
    cards.forEach((card, i) => {
      card.classList.toggle("wb-selected", i === chosen);
      card.classList.toggle("wb-holds", holders.has(i));
      card.classList.toggle("wb-group", group.has(i) && i !== chosen);
      card.setAttribute("aria-pressed", String(i === chosen));
    });
    if (!rings) return;
    for (const old of rings.querySelectorAll(".wb-ring")) old.remove();
    const ring = (index, kind) => {
      const node = h("span", { class: `wb-ring wb-ring-${kind}` });
      Object.assign(node.style, { left: `${(100 * (spots[2 * index] + 0.5)) / layout.columns}%`, top: `${(100 * (spots[2 * index + 1] + 0.5)) / layout.rows}%`, width: `max(9px, ${100 / layout.columns}%)` });
      rings.append(node);
    };
    if (holders.size <= MOST_RINGS) holders.forEach((index) => ring(index, "client"));
    [...group].slice(0, 4 * MOST_RINGS).forEach((index) => ring(index, "group"));
    if (chosen >= 0) ring(chosen, "chosen");
    if (document.activeElement === canvas) ring(cursor, "cursor");
  }

  function shardRows(index) {
    return ctx.data.leaves.map((leaf, i) => {
      const rank = leaf.shape.length, corner = ctx.array(`mesh.shards.${i}`).subarray(index * (rank || 1), (index + 1) * (rank || 1));
      if (corner[0] < 0) return null;
      const bounds = leaf.shape.map((size, d) => (leaf.shard_shape[d] === size ? ":" : `${corner[d] * leaf.shard_shape[d]}:${Math.min((corner[d] + 1) * leaf.shard_shape[d], size)}`));
      return [leaf.name, `[${bounds.join(", ")}]`, format.bytes(leaf.bytes)];
    }).filter(Boolean);
  }

  function factsOf(index) {
    const rows = ctx.data.axes.map((axis, i) => [`place along ${axis.name}`, `${ctx.array(`mesh.axis${i}`)[index]} of ${axis.size}`]);
    if (ctx.data.kinds.length === 1) rows.push(["kind", ctx.data.kinds[0]]);
    if (ctx.data.hosts > 1) rows.push(["host", format.count(ctx.array("mesh.host")[index])]);
    if (ctx.data.coords) {
      rows.push(["torus coordinates", [...ctx.array("mesh.coords").subarray(index * ctx.data.coords, (index + 1) * ctx.data.coords)].join(" × ")]);
      rows.push(["core on chip", String(ctx.array("mesh.core")[index])]);
    }
    for (const choice of ctx.data.choices) if (choice.kind !== "group") rows.push([choice.label, show(choice.unit, ctx.array(`mesh.${choice.key}`)[index])]);
    return rows;
  }

  function follow() {
    if (canvas && ctx.selection.client !== shownClient) (shownClient = ctx.selection.client), paint();
    mark();
    const index = ids.indexOf(ctx.selection.device);
    if (index < 0) {
      const rows = ctx.data.axes.map((axis) => [`mesh axis ${axis.name}`, `${format.count(axis.size)} devices, ${axis.type}${axis.hops ? `; hops to the next: ${axis.hops}` : ""}`]);
      const axes = ctx.data.axes.map((axis) => h("button", { type: "button", "aria-pressed": String(ctx.selection.axis === axis.name), onclick: () => ctx.select({ axis: ctx.selection.axis === axis.name ? null : axis.name }) }, axis.name));
      return details(ctx, panel, { title: `${format.count(ids.length)} devices`, kind: "server", subtitle: ctx.data.sentence, blocks: [{ form: "facts", title: "", rows }, { form: "note", title: "Look closer", text: "Choose a device: with the mouse, or with the arrow keys and Enter. Choose a mesh axis too, and the devices that it talks to over this axis are marked." }], extra: [h("div", { class: "wb-row" }, axes)] });
    }
    const held = clientsOf(ids[index]).map(([name, start, stop, padding]) => [name, stop > start ? `${start}–${stop - 1}` : "none", format.count(stop - start), format.count(padding)]);
    const shards = shardRows(index), blocks = [{ form: "facts", title: "", rows: factsOf(index) },
      held.length ? { form: "table", title: "Clients here", columns: ["placement", "members", "count", "padding"], rows: held } : { form: "note", title: "Clients here", text: "No clients." }];
    if (shards.length) blocks.push({ form: "table", title: "Shards here", columns: ["array", "slice", "bytes"], rows: shards.slice(0, 40), note: shards.length > 40 ? `and ${shards.length - 40} more` : "" });
    const axes = ctx.data.axes.filter((axis) => axis.size > 1).map((axis) => h("button", { type: "button", "aria-pressed": String(ctx.selection.axis === axis.name), onclick: () => ctx.select({ axis: ctx.selection.axis === axis.name ? null : axis.name }) }, `its group along ${axis.name}`));
    details(ctx, panel, { title: nameOf(index), kind: "clients", subtitle: "device", blocks, extra: [h("div", { class: "wb-row wb-steps" }, axes)] });
  }

  function lay() {
    layout = ctx.data.layouts.find((each) => each.key === arrange.value) ?? ctx.data.layouts[0];
    spots = ctx.array(`mesh.places.${layout.key}`);
    grid = new Int32Array(layout.columns * layout.rows).fill(-1);
    for (let i = 0; i < ids.length; i++) grid[spots[2 * i + 1] * layout.columns + spots[2 * i]] = i;
    caption.textContent = `${layout.reading}${ctx.data.abstract ? " · no devices behind it" : ""}`;
    cards = [];
    canvas = rings = null;
    ctx.data.few ? buildCards() : buildCanvas();
    paint();
    follow();
  }

  function build() {
    ids = Array.from(ctx.array("mesh.id"));
    select.replaceChildren(...ctx.data.choices.map((choice, i) => h("option", { value: i }, choice.label)));
    const preferred = ctx.data.choices.findIndex((choice) => choice.key === "axis0");
    select.value = String(Math.max(0, preferred));
    arrange.replaceChildren(...ctx.data.layouts.map((each) => h("option", { value: each.key }, each.label)));
    arrangeBox.hidden = ctx.data.layouts.length < 2;
    if (!ids.length) return place.replaceChildren(h("p", { class: "wb-note" }, "This mesh has no devices."));
    lay();
  }
  select.addEventListener("change", paint);
  arrange.addEventListener("change", lay);
  ctx.onTheme(() => (paint(), mark()));
  ctx.onSelection(follow);
  ctx.onData(build);
  build();
}

export default widget(mesh);
