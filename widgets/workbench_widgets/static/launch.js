import { details, floats, format, h, range, roving, svgFrom, widget } from "./common.js";

const NS = "http://www.w3.org/2000/svg";
const CARD = 220;  // pixels of text in a card
const mark = (tag, attributes) => {
  const node = document.createElementNS(NS, tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  return node;
};
const known = (value) => value !== null && value !== undefined && Number.isFinite(value);
const rate = (value) => (value >= 10 ? format.count(Math.round(value)) : value.toFixed(1));
const ago = (value) => (known(value) ? (value < 1 ? "now" : format.seconds(Math.round(value * 10) / 10)) : "–");
const COLUMNS = [
  ["node", null], ["state", null], ["sign of life", (n) => n.beat, ago], ["calls/s", (n) => n.rate, (v) => (known(v) ? rate(v) : "–")],
  ["queue", (n) => n.queue, (v) => (known(v) ? format.count(v) : "–")], ["CPU", (n) => n.cpu, (v) => (known(v) ? v.toFixed(2) : "–")],
  ["memory", (n) => n.memory, (v) => (known(v) ? format.bytes(v) : "–")], ["restarts", (n) => n.restarts, format.count], ["last line of the log", null],
];
const MOST_ROWS = 300;

/** A program of nodes: its graph with a mark per node, what each does, its history and log, and a button that stops all. */
export function launch(ctx) {
  const status = h("div", { class: "wb-big", role: "status" }), totals = h("span", { class: "wb-note" });
  const stop = h("button", { type: "button", class: "wb-stop", onclick: () => { stop.disabled = true; ctx.request("stop").then(() => ctx.say("Asked all nodes to end."), () => (stop.disabled = false)); } }, "Stop");
  const pictures = h("div", { class: "wb-pictures wb-nodes" }), panel = h("aside", { class: "wb-panel", "aria-label": "Details of the chosen node" });
  const filter = h("select", { "aria-label": "Show nodes of" }), table = h("div", {});
  ctx.root.append(h("div", { class: "wb-row wb-runhead" }, status, stop), totals, h("div", { class: "wb-split" }, pictures, panel), h("div", { class: "wb-tools wb-nodetools" }, h("label", {}, "Show nodes of ", filter)), table);
  const marks = new Map(), rows = new Map();
  let sort = [null, -1], groups = new Map(), body = null;

  const states = () => new Map((ctx.live("nodes") ?? []).map((each) => [each.label, each]));
  const chosen = () => (ctx.data.nodes[ctx.selection.node] ? ctx.selection.node : null);
  const choose = (label) => { ctx.select({ node: label }); follow(); };

  function drawGraph() {
    const svg = svgFrom(ctx.data.svg), width = Number(svg.getAttribute("width"));
    svg.setAttribute("role", "group");
    svg.removeAttribute("width");
    svg.removeAttribute("height");
    const frame = h("div", { class: "wb-frame" }, svg);
    frame.style.maxWidth = `${width}px`;
    svg.style.minWidth = `${Math.min(width, 480)}px`;
    pictures.replaceChildren(h("div", { class: "wb-scroll", tabindex: 0, role: "region", "aria-label": "The program's graph" }, frame));
    marks.clear();
    groups = new Map([...svg.querySelectorAll("[data-group]")].map((each) => [each.dataset.group, each]));
    for (const each of svg.querySelectorAll("[data-node]")) {
      each.setAttribute("role", "button");
      marks.set(each.dataset.node, each);
    }
    svg.addEventListener("click", (event) => {
      const node = event.target.closest("[data-node]"), group = event.target.closest("[data-group]");
      if (node) choose(node.dataset.node);
      else if (group) (filter.value = filter.value === `=${group.dataset.group}` ? "" : `=${group.dataset.group}`), fillTable();
    });
    roving(svg, [...marks.values()], { choose: (node) => choose(node.dataset.node), escape: () => choose(null) });
  }

  function paintGraph() {
    const now = states(), { glyphs, hues } = ctx.data;
    for (const [label, node] of marks) {
      const state = now.get(label)?.state ?? "waiting", text = now.size ? `${label}: ${state}` : label;
      node.classList.toggle("wb-selected", label === chosen());
      node.setAttribute("aria-pressed", String(label === chosen()));
      if (node.dataset.painted === text) continue;
      node.dataset.painted = text;
      node.dataset.state = state;
      node.setAttribute("aria-label", text);
      node.querySelector("title").textContent = text;
      node.querySelector("rect").setAttribute("class", `wb-fill-bg wb-stroke-${hues[state]}`);
      node.querySelector("path")?.remove();
      if (glyphs[state]) node.append(mark("path", { d: glyphs[state], fill: "none", "stroke-width": 2, class: `wb-stroke-${hues[state]}` }));
    }
    for (const [label, group] of groups) {
      const told = ctx.live("groups")?.[label], said = group.querySelector(".wb-told"), load = group.querySelector(".wb-load");
      if (said && told) {
        said.textContent = told.said;
        said.setAttribute("class", `wb-told wb-fill-${told.hue}`);
        load.textContent = told.load;
        load.removeAttribute("textLength");
        if (load.getComputedTextLength() > CARD) load.setAttribute("textLength", CARD);
        load.setAttribute("lengthAdjust", "spacingAndGlyphs");
      }
      group.classList.toggle("wb-selected", filter.value === `=${label}`);
    }
    const mine = ctx.data.nodes[chosen()]?.group;
    for (const wire of pictures.querySelectorAll(".wb-graph-edge")) wire.classList.toggle("wb-related", mine !== undefined && (wire.dataset.source === mine || wire.dataset.target === mine));
  }

  function wanted() {
    const now = states(), all = Object.keys(ctx.data.nodes);
    const kept = all.filter((label) => (filter.value === "" ? true : filter.value === "failed" ? now.get(label)?.failed : `=${ctx.data.nodes[label].group}` === filter.value));
    const value = COLUMNS[sort[0]]?.[1];
    if (value) kept.sort((a, b) => sort[1] * ((value(now.get(a) ?? {}) ?? -Infinity) - (value(now.get(b) ?? {}) ?? -Infinity)) || 0);
    return kept;
  }

  function drawTable() {
    const head = h("tr", {}, COLUMNS.map(([name, value], i) => h("th", { scope: "col", class: value ? "wb-num" : "", "data-column": i }, value ? h("button", { type: "button", class: "wb-sortable", onclick: () => { sort = sort[0] === i ? (sort[1] < 0 ? [i, 1] : [null, -1]) : [i, -1]; fillTable(); } }, name) : name)));
    body = h("tbody", {});
    body.addEventListener("click", (event) => { const row = event.target.closest("[data-node]"); if (row) choose(row.dataset.node); });
    table.replaceChildren(h("div", { class: "wb-tablebox", tabindex: 0, role: "region", "aria-label": "Nodes, table" }, h("table", { "aria-label": "Nodes" }, h("thead", {}, head), body)), h("p", { class: "wb-note" }));
    rows.clear();
    fillTable();
  }

  function row(label) {
    if (rows.has(label)) return rows.get(label);
    const cells = COLUMNS.map(([, value], i) => h("td", { class: value ? "wb-num" : i === 8 ? "wb-lastline" : "" }, i ? null : h("button", { type: "button", class: "wb-link" }, label)));
    const made = { cells, node: h("tr", { "data-node": label }, cells) };
    rows.set(label, made);
    return made;
  }

  function fillTable() {
    const now = states(), labels = wanted(), shown = labels.slice(0, MOST_ROWS), { signs, hues } = ctx.data;
    table.hidden = !now.size;
    filter.closest(".wb-tools").hidden = !now.size || (ctx.data.groups.length < 2 && now.size < 12);
    for (const th of table.querySelectorAll("th")) {
      const on = Number(th.dataset.column) === sort[0];
      on ? th.setAttribute("aria-sort", sort[1] < 0 ? "descending" : "ascending") : th.removeAttribute("aria-sort");
    }
    const put = (cell, text) => { if (cell.textContent !== text) cell.textContent = text; };
    const made = shown.map((label) => {
      const { cells, node } = row(label), state = now.get(label) ?? {};
      node.classList.toggle("wb-selected", label === chosen());
      put(cells[1], state.state ? `${signs[state.state]} ${state.state}` : "");
      cells[1].className = `wb-state-${hues[state.state] ?? "muted"}`;
      COLUMNS.forEach(([, value, write], i) => value && put(cells[i], write(value(state))));
      put(cells[8], state.last?.[0] ?? "");
      cells[8].title = state.last?.[0] ?? "";
      return node;
    });
    if (made.length !== body.childElementCount || made.some((node, i) => body.children[i] !== node)) body.replaceChildren(...made);
    table.lastChild.textContent = labels.length > shown.length ? `${labels.length - shown.length} more nodes are not listed: choose a group.` : labels.length ? "" : "No such node.";
    paintGraph();
  }

  function spark(name, values, write) {
    const seen = [...values].filter(Number.isFinite);
    if (seen.length < 2 || !Math.max(...seen)) return null;
    const top = Math.max(...seen), step = 200 / Math.max(values.length - 1, 1);
    const points = [...values].map((value, i) => (Number.isFinite(value) ? `${(i * step).toFixed(1)} ${(36 - (32 * value) / top).toFixed(1)}` : null)).filter(Boolean);
    const svg = mark("svg", { viewBox: "0 0 200 38", preserveAspectRatio: "none", role: "img", class: "wb-spark", "aria-label": `${name}: ${write(range(seen)[0])} to ${write(top)}, now ${write(seen.at(-1))}` });
    svg.append(mark("path", { d: `M${points.join("L")}L${points.at(-1).split(" ")[0]} 38L${points[0].split(" ")[0]} 38Z`, class: "wb-fill-broadcast-soft" }), mark("path", { d: `M${points.join("L")}`, class: "wb-stroke-broadcast", fill: "none", "stroke-width": 1.5, "vector-effect": "non-scaling-stroke" }));
    return h("div", { class: "wb-sparkrow" }, h("div", { class: "wb-row" }, h("b", {}, write(seen.at(-1))), h("span", { class: "wb-note" }, `${name} · most ${write(top)}`)), svg);
  }

  function about(label) {
    const made = ctx.data.nodes[label], now = states().get(label), list = (names) => (names.length > 6 ? `${names.slice(0, 6).join(", ")} and ${names.length - 6} more` : names.join(", "));
    const running = now ? [["state", `${ctx.data.signs[now.state]} ${now.state}`], ["lives in", now.where], ["sign of life", known(now.beat) ? `${format.seconds(Math.max(now.beat, 0.001))} ago` : null], ["up for", known(now.uptime) ? format.seconds(Math.round(now.uptime)) : null],
      ["calls answered", made.methods.length ? `${format.count(now.calls)}${known(now.rate) ? `, ${rate(now.rate)} per second` : ""}` : null], ["calls now", made.methods.length ? `${format.count(now.active)} at work, ${format.count(now.queue)} waiting` : null], ["calls that raised", now.errors ? format.count(now.errors) : null],
      ["processor", known(now.cpu) ? `${now.cpu.toFixed(2)} cores` : null], ["memory", known(now.memory) ? format.bytes(now.memory) : null], ["restarts", now.restarts || made.restarts ? `${now.restarts} of at most ${made.restarts}` : null], ["exit code", known(now.code) ? String(now.code) : null]] : [["state", "not launched"]];
    const fixed = [["methods", made.methods.map((name) => `.${name}()`).join(", ")], ["calls", list(made.calls)], ["called by", list(made.callers)], ["at once", made.concurrency > 1 ? `${made.concurrency} calls` : null], ["needs", made.resources.join(", ")], ["shares its process with", list(made.shares)], ["may restart", !now && made.restarts ? `${made.restarts} ×` : null]];
    return [...running, ...fixed].filter(([, value]) => value);
  }

  function follow() {
    const label = chosen();
    fillTable();
    if (!label) {
      const count = Object.keys(ctx.data.nodes).length, engine = ctx.live("engine");
      const facts = [["nodes", format.count(count)], ["groups", ctx.data.groups.join(", ")], ["runs on", engine ?? "nothing yet: launch it"]];
      return details(ctx, panel, { title: ctx.data.name, kind: "server", subtitle: "the whole program", blocks: [{ form: "facts", title: "", rows: facts }, { form: "note", title: "Look closer", text: engine ? "Choose a node for its history and its log: a mark in the graph, or a row of the table." : "Choose a node: with the mouse, or with the arrow keys and Enter. After launch, show what `launch` returned to see it live." }] });
    }
    const made = ctx.data.nodes[label], more = ctx.live("chosen")?.label === label ? ctx.live("chosen") : null;
    const at = panel.querySelector(".wb-log"), low = !at || panel.dataset.node !== label || at.scrollHeight - at.scrollTop - at.clientHeight < 24, top = at?.scrollTop ?? 0;
    panel.dataset.node = label;
    const past = more?.history ?? {}, sparks = [["calls per second", "calls", rate], ["calls waiting", "queue", format.count], ["cores", "cpu", (v) => v.toFixed(2)], ["memory", "memory", format.bytes]].map(([name, key, write]) => spark(name, floats(past[key]), write)).filter(Boolean);
    const lines = more?.log ?? states().get(label)?.last ?? [], live = states().size > 0;
    const log = h("div", { class: "wb-code wb-log", tabindex: 0, role: "log", "aria-label": `Log of ${label}` }, lines.length ? lines.map((line) => h("div", { class: "wb-line" }, h("code", {}, line || " "))) : h("div", { class: "wb-line wb-note" }, "nothing yet"));
    const error = more?.error ? [h("h4", {}, "How it failed"), h("div", { class: "wb-code wb-failed", tabindex: 0, role: "region", "aria-label": "Error" }, more.error.trimEnd().split("\n").map((line) => h("div", { class: "wb-line" }, h("code", {}, line || " "))))] : [];
    const all = h("button", { type: "button", class: "wb-link", onclick: () => ctx.request("log", { node: label }).then(({ value }) => { log.replaceChildren(...value.map((line) => h("div", { class: "wb-line" }, h("code", {}, line || " ")))); frozen = label; }, () => {}) }, "Whole log");
    if (frozen === label) return; // the whole log is open for reading
    frozen = null;
    details(ctx, panel, { title: label, kind: made.hue, subtitle: `${made.kind} ${made.target}`, blocks: [{ form: "facts", title: "", rows: about(label) }], extra: [...error, ...(sparks.length ? [h("h4", {}, "Recently"), ...sparks] : []), ...(live ? [h("div", { class: "wb-row wb-loghead" }, h("h4", {}, "Log"), lines.length >= 200 ? all : null), log] : [])] });
    log.scrollTop = low ? log.scrollHeight : top;
  }
  let frozen = null;

  function draw() {
    const state = ctx.live("status"), now = states();
    status.textContent = state ? `${state} · ${format.seconds(ctx.live("elapsed"))}` : "not launched";
    status.dataset.status = state ?? "";
    stop.hidden = !state || !["running", "stopping"].includes(state);
    stop.disabled = state === "stopping";
    totals.textContent = state ? [`${now.size} node${now.size === 1 ? "" : "s"} on ${ctx.live("engine")}`, ctx.live("said"), ctx.live("load")].filter(Boolean).join(" · ") : `${Object.keys(ctx.data.nodes).length} nodes in ${ctx.data.groups.length} groups`;
    follow();
  }

  function build() {
    filter.replaceChildren(h("option", { value: "" }, "all groups"), ...ctx.data.groups.map((label) => h("option", { value: `=${label}` }, label)), h("option", { value: "failed" }, "any group, failed"));
    drawGraph();
    drawTable();
    draw();
  }
  filter.addEventListener("change", fillTable);
  ctx.onLive(draw);
  ctx.onSelection(follow);
  ctx.onData(build);
  build();
}

export default widget(launch);
