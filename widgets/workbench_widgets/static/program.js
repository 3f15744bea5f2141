import { cells, cellAt, css, details, format, h, legend, ramp, range, roving, show, svgFrom, widget } from "./common.js";

/** Which values a client has, and where it lives; shared with the panel of one client. */
/** The column that says how long clients take: measured if there is one, else simulated, else estimated; -1: none. */
export function timeColumn(columns) {
  const rank = ({ kind }) => ["measured", "simulated"].indexOf(kind) + 1 || 3;
  const known = [...columns.keys()].filter((i) => columns[i].unit === "seconds").sort((a, b) => rank(columns[a]) - rank(columns[b]) || a - b);
  return known[0] ?? -1;
}

/** Whether everybody waits for this client, and what it has more of than the others. */
function why(columns, values, client) {
  const times = timeColumn(columns);
  if (times < 0 || !Number.isFinite(values[times][client])) return [];
  const compared = columns.map(({ label }, i) => {
    const known = [...values[i]].filter(Number.isFinite), mean = known.reduce((a, b) => a + b, 0) / known.length;
    return { label, ratio: values[i][client] / mean, rank: known.filter((value) => value > values[i][client]).length + 1, of: known.length };
  });
  const own = compared[times], share = (ratio) => `${ratio.toFixed(ratio < 10 ? 2 : 0)} × the mean`;
  const more = compared.filter(({ ratio }, i) => i !== times && columns[i].unit !== "times" && !(columns[i].unit === "seconds" && columns[i].kind !== columns[times].kind) && ratio > 1.05).sort((a, b) => b.ratio - a.ratio);
  const place = own.rank === 1 ? `The slowest of ${format.count(own.of)}: all others wait for it.` : `Slower than ${format.count(own.of - own.rank)} of ${format.count(own.of)}.`;
  const because = more.length ? ` It has more than others of: ${more.map(({ label, ratio }) => `${label} (${share(ratio)})`).join(", ")}.` : " Nothing that was counted tells why: it has no more work than the others, so its device is slower.";
  return [{ form: "note", title: "straggler", text: `${place} It takes ${share(own.ratio)}.${own.ratio > 1.05 ? because : ""}` }];
}

export function clientDetails(ctx, clients, columns, client) {
  const held = clients.ranges.find(([start, stop]) => client >= start && client < stop);
  const rows = [["client", `${client} (of 0 to ${format.count(clients.count - 1)})`]];
  if (held) rows.push([held[2].length > 1 ? "devices" : "device", held[3].join(", ")]);
  clients.columns.forEach((column, i) => {
    const value = columns[i][client];
    if (Number.isFinite(value)) rows.push([column.label, `${show(column.unit, value)}${column.kind ? ` (${column.kind})` : ""}`]);
  });
  const blocks = [{ form: "facts", title: "", rows }, ...why(clients.columns, columns, client)];
  if (clients.shares.length) blocks.push({ form: "table", title: "Its share of the data", columns: ["name", "type", "bytes"], rows: clients.shares });
  if (clients.neighbours && held) blocks.push({ form: "note", title: "Lives with", text: `clients ${held[0]} to ${held[1] - 1} on the same ${held[2].length > 1 ? "devices" : "device"}` });
  return { title: `Client ${client}`, kind: "clients", subtitle: clients.placement, blocks };
}

/** The stages as a picture with a panel beside it. */
export function program(ctx) {
  const pictures = h("div", { class: "wb-pictures" });
  const panel = h("aside", { class: "wb-panel", "aria-live": "polite", "aria-label": "Details of the chosen stage or client" });
  const metric = h("select", { "aria-label": "Colour clients by" });
  const legendBox = h("div", { class: "wb-legendbox" });
  const tools = h("div", { class: "wb-tools" }, h("label", {}, "Colour clients by ", metric), legendBox);
  ctx.root.append(tools, h("div", { class: "wb-split" }, pictures, panel));
  let columns = [], stages = [], heat = [];

  const clientOf = (node) => (node.dataset.client === undefined ? null : Number(node.dataset.client));

  function picture(made, index) {
    const figure = h("div", { class: "wb-picture" }), svg = svgFrom(made.svg);
    svg.setAttribute("role", "tree"); // stages hold clients, and a button may hold nothing that can be chosen
    svg.removeAttribute("height");
    svg.removeAttribute("width");
    svg.style.maxWidth = `${made.width}px`;
    if (ctx.data.pictures.length > 1) figure.append(h("h4", {}, made.name));
    const frame = h("div", { class: "wb-frame" }, svg);
    frame.style.maxWidth = `${made.width}px`;
    figure.append(frame);
    const found = [...svg.querySelectorAll("[data-stage]")];
    for (const stage of found) {
      stage.setAttribute("role", "treeitem");
      stage.setAttribute("aria-label", stage.dataset.label);
      stage.dataset.key = made.prefix + stage.dataset.stage;
    }
    for (const block of svg.querySelectorAll("[data-first]")) if (block.querySelector("[data-client]")) block.setAttribute("role", "group");
    for (const wire of svg.querySelectorAll(".wb-wire")) {
      wire.dataset.key1 = made.prefix + (wire.dataset.source ?? "?");
      wire.dataset.key2 = made.prefix + (wire.dataset.target ?? "?");
    }
    for (const dot of svg.querySelectorAll("[data-client]")) {
      dot.setAttribute("role", "treeitem");
      dot.setAttribute("aria-label", `client ${dot.dataset.client}`);
      dot.setAttribute("tabindex", "-1");
    }
    svg.addEventListener("click", (event) => {
      const dot = event.target.closest("[data-client]"), stage = event.target.closest("[data-stage]");
      if (stage) choose(stage.dataset.key, dot ? clientOf(dot) : null);
    });
    const focus = roving(svg, found, {
      choose: (stage) => choose(stage.dataset.key, null),
      escape: () => ctx.select({ stage: null, client: null }),
      step: { ArrowRight: (stage) => stage.querySelector("[data-client]")?.focus(), ArrowLeft: () => {} },
    });
    svg.addEventListener("keydown", (event) => walkClients(event, focus));
    heat.push(...overlay(frame, svg, made));
    stages.push(...found);
    return figure;
  }

  function walkClients(event, focus) {
    const dot = event.target.closest?.("[data-client]");
    if (!dot) return;
    const stage = dot.closest("[data-stage]"), all = [...stage.querySelectorAll("[data-client]")], at = all.indexOf(dot);
    const move = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: 4, ArrowUp: -4 }[event.key];
    if (move) all[Math.min(Math.max(at + move, 0), all.length - 1)].focus();
    else if (event.key === "Enter" || event.key === " ") choose(stage.dataset.key, clientOf(dot));
    else if (event.key === "Escape") focus(stage);
    else return;
    event.preventDefault();
    event.stopPropagation();
  }

  /** Many clients are a canvas of pixels over the block that the picture left for them. */
  function overlay(frame, svg, made) {
    const [, , width, height] = svg.getAttribute("viewBox").split(" ").map(Number);
    return [...svg.querySelectorAll("[data-first]")].filter((block) => !block.querySelector("[data-client]")).map((block) => {
      const box = block.querySelector("rect"), at = (name) => Number(box.getAttribute(name));
      const first = Number(block.dataset.first), count = Number(block.dataset.count), stage = block.closest("[data-stage]").dataset.stage;
      const across = Math.max(1, Math.round(Math.sqrt((count * at("width")) / at("height"))));
      const canvas = h("canvas", { class: "wb-heat", role: "img", "aria-label": `clients ${first} to ${first + count - 1}` });
      Object.assign(canvas.style, { left: `${(100 * at("x")) / width}%`, top: `${(100 * at("y")) / height}%`, width: `${(100 * at("width")) / width}%`, height: `${(100 * at("height")) / height}%` });
      const clientAt = (event) => { const index = cellAt(event, canvas, across, Math.ceil(count / across)); return index >= 0 && index < count ? first + index : null; };
      canvas.addEventListener("click", (event) => { const client = clientAt(event); if (client !== null) choose(made.prefix + stage, client); });
      canvas.addEventListener("mousemove", (event) => { const client = clientAt(event); canvas.title = client === null ? "" : `client ${client}`; });
      frame.append(canvas);
      return { canvas, first, count, across };
    });
  }

  function choose(stage, client) {
    ctx.select({ stage, client });
    follow();
  }

  function paint() {
    const index = Number(metric.value), column = ctx.data.clients.columns[index];
    legendBox.replaceChildren();
    const values = column ? columns[index] : new Float32Array();
    const [low, high] = range(values), flat = !(high > low);
    for (const dot of pictures.querySelectorAll("[data-client]"))
      dot.style.fill = flat ? "" : css(ramp((values[clientOf(dot)] - low) / (high - low)));
    for (const { canvas, first, count, across } of heat) {
      canvas.hidden = flat;
      if (!flat) cells(canvas, across, values.subarray(first, first + count), low, high);
    }
    if (!flat) legendBox.append(legend("", show(column.unit, low), show(column.unit, high)));
    else if (column) legendBox.append(h("span", { class: "wb-note" }, `the same for every client: ${show(column.unit, low)}`));
  }

  function follow() {
    const { stage, client, line } = ctx.selection, lines = ctx.data.lines ?? {}, here = stage ? lines[stage] : line, clients = ctx.data.clients;
    for (const node of stages) {
      const chosen = node.dataset.key === stage;
      node.classList.toggle("wb-selected", chosen);
      node.classList.toggle("wb-kin", !chosen && here !== undefined && lines[node.dataset.key] === here); // of the same line: its forward or backward twin
      node.setAttribute("aria-selected", String(chosen));
    }
    for (const wire of pictures.querySelectorAll(".wb-wire")) wire.classList.toggle("wb-related", wire.dataset.key1 === stage || wire.dataset.key2 === stage);
    for (const dot of pictures.querySelectorAll("[data-client]")) {
      const chosen = clientOf(dot) === client;
      dot.classList.toggle("wb-selected", chosen);
      dot.setAttribute("aria-selected", String(chosen));
    }
    const made = client !== undefined && client < clients.count ? clientDetails(ctx, clients, columns, client) : ctx.data.stages[stage];
    if (!made) return details(ctx, panel, ctx.data.overview);
    details(ctx, panel, client !== undefined ? { ...made, extra: [steps(client, clients.count), backTo(stage)] } : made);
  }

  function steps(client, count) {
    const go = (next) => ctx.select({ client: Math.min(Math.max(next, 0), count - 1) });
    const number = h("input", { type: "number", min: 0, max: count - 1, value: client, "aria-label": "Client number", onchange: (event) => go(Number(event.target.value)) });
    return h("div", { class: "wb-row wb-steps" }, h("button", { type: "button", onclick: () => go(client - 1) }, "‹ Previous"), number, h("button", { type: "button", onclick: () => go(client + 1) }, "Next ›"));
  }

  const backTo = (stage) => stage && ctx.data.stages[stage] ? h("button", { type: "button", class: "wb-link", onclick: () => ctx.select({ client: null }) }, `Back to ${ctx.data.stages[stage].title}`) : null;

  function build() {
    const { clients } = ctx.data;
    columns = clients.columns.map((column) => ctx.array(`clients.${column.key}`));
    metric.replaceChildren(...clients.columns.map((column, i) => h("option", { value: i }, column.label)));
    const varied = columns.findIndex((values) => { const [low, high] = range(values); return high > low; });
    metric.value = String(Math.max(0, varied));
    tools.hidden = varied < 0;
    stages = [];
    heat = [];
    pictures.replaceChildren(...ctx.data.pictures.map(picture));
    pictures.style.maxWidth = `${ctx.data.pictures.reduce((sum, made) => sum + made.width + 16, -16)}px`;
    paint();
    follow();
  }
  metric.addEventListener("change", paint);
  ctx.onSelection(follow);
  ctx.onData(build);
  build();
}

export default widget(program);
