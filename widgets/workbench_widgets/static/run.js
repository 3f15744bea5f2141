import { cellAt, cells, fitted, floats, format, h, legend, range, widget } from "./common.js";

const NS = "http://www.w3.org/2000/svg", W = 320, H = 150, L = 58, B = 20;
const mark = (tag, attributes, text) => {
  const node = document.createElementNS(NS, tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  if (text !== undefined) node.textContent = text;
  return node;
};

/** Progress and control of a run, its curves with bands over clients, and every client over the rounds. */
export function run(ctx) {
  const status = h("div", { class: "wb-big", role: "status" }), bar = h("div", {}), progress = h("div", { class: "wb-progress", role: "progressbar", "aria-label": "Rounds", "aria-valuemin": 0 }, bar), times = h("span", { class: "wb-note" });
  const button = (name, text) => h("button", { type: "button", onclick: () => ctx.request(`${name}_run`).then(({ value }) => ctx.say(value === "running" && name === "pause" ? "It will pause before the next round." : ""), () => {}) }, text);
  const pause = button("pause", "Pause"), resume = button("resume", "Resume"), stop = button("stop", "Stop");
  const curves = h("div", { class: "wb-curves" }), map = h("div", {}), nowCanvas = h("canvas", { class: "wb-pixels", role: "img", "aria-label": "all clients" }), now = h("div", { hidden: true }, h("h4", {}, "Every client after the last round"), h("div", { class: "wb-canvas" }, nowCanvas)), problems = h("div", {});
  const notes = h("textarea", { "aria-label": "Notes on this run", placeholder: "Notes on this run (kept in view.settings[\"notes\"])", rows: 2 });
  const head = h("div", { class: "wb-row wb-runhead" }, status, progress, h("div", { class: "wb-row" }, pause, resume, stop));
  ctx.root.append(head, times, curves, now, map, problems, h("h4", {}, "Notes"), notes);
  notes.value = ctx.setting("notes", "");
  notes.addEventListener("change", () => ctx.set("notes", notes.value));

  function chart(curve) {
    const points = floats(curve.points), count = points.length / 4, at = (i, k) => points[4 * i + k];
    const all = [], last = count - 1;
    for (let i = 0; i < count; i++) all.push(at(i, 2), at(i, 3));
    const [low, high] = range(all), span = high - low || 1, first = count ? at(0, 0) : 0, end = Math.max(count ? at(last, 0) : 1, first + 1);
    const x = (round) => L + ((W - L - 6) * (round - first)) / (end - first), y = (value) => 8 + (H - B - 14) * (1 - (value - low) / span);
    const known = [...Array(count).keys()].filter((i) => Number.isFinite(at(i, 1)));
    const line = (k) => known.map((i) => `${x(at(i, 0)).toFixed(1)} ${y(at(i, k)).toFixed(1)}`);
    const banded = known.some((i) => at(i, 3) > at(i, 2));
    const svg = mark("svg", { viewBox: `0 0 ${W} ${H}`, role: "img", "aria-label": `${curve.name}: ${count ? format.count(at(last, 1)) : "nothing yet"} after round ${end}` });
    for (const value of [low, high]) svg.append(mark("line", { x1: L, x2: W - 6, y1: y(value), y2: y(value), class: "wb-stroke-line" }), mark("text", { x: L - 5, y: y(value) + 4, "text-anchor": "end", "font-size": 10, class: "wb-fill-muted" }, format.count(value)));
    svg.append(mark("text", { x: L, y: H - 4, "font-size": 10, class: "wb-fill-muted" }, `round ${first}`), mark("text", { x: W - 6, y: H - 4, "font-size": 10, "text-anchor": "end", class: "wb-fill-muted" }, String(end)));
    if (banded) svg.append(mark("path", { d: `M${line(3).join("L")}L${line(2).reverse().join("L")}Z`, class: "wb-fill-clients-soft" }));
    if (known.length) svg.append(mark("path", { d: `M${line(1).join("L")}`, fill: "none", "stroke-width": 2, class: "wb-stroke-clients" }));
    return h("div", { class: "wb-tile" }, h("h4", {}, curve.name), h("div", {}, h("b", {}, count ? format.count(at(last, 1)) : "nothing yet"), banded ? h("span", { class: "wb-note" }, ` mean; band from least to most over clients`) : null), svg);
  }

  function drawMap() {
    const made = ctx.live("map");
    if (!made) return map.replaceChildren();
    const values = floats(made.values), [low, high] = range(values);
    let canvas = map.querySelector("canvas");
    if (!canvas) {
      canvas = h("canvas", { class: "wb-pixels", role: "img" });
      const tip = h("p", { class: "wb-note", role: "status" });
      map.replaceChildren(h("h4", {}, "Clients over rounds"), h("div", { class: "wb-legendbox" }), h("div", { class: "wb-canvas" }, canvas), h("div", { class: "wb-foot", "aria-hidden": "true" }), tip);
      canvas.style.height = "200px";
      const over = (event) => { const grid = ctx.live("map"), index = cellAt(event, canvas, grid.columns, grid.rows); return index < 0 ? null : { client: Math.floor(index / grid.columns) * grid.together, round: grid.first + (index % grid.columns), value: floats(grid.values)[index] }; };
      canvas.addEventListener("mousemove", (event) => { const found = over(event); tip.textContent = found ? `client ${found.client} · round ${found.round} · ${format.count(found.value)}` : ""; });
      canvas.addEventListener("click", (event) => { const found = over(event); if (found) ctx.select({ client: found.client }); });
    }
    canvas.setAttribute("aria-label", `${made.name} of ${made.clients} clients over ${made.columns} rounds, from ${format.count(low)} to ${format.count(high)}`);
    map.querySelector(".wb-legendbox").replaceChildren(legend(`${made.name}${made.together > 1 ? `; means of ${made.together} clients` : ""}`, format.count(low), format.count(high)));
    map.querySelector(".wb-foot").replaceChildren(...[`round ${made.first}`, `client 0 at the top, ${made.clients - 1} at the bottom`, `round ${made.first + made.columns - 1}`].map((text) => h("span", {}, text)));
    cells(canvas, made.columns, values, low, high);
    const latest = floats(made.latest);
    now.hidden = !latest.length;
    if (!latest.length) return;
    const [least, most] = range(latest), across = Math.ceil(Math.sqrt(latest.length * 4));
    cells(nowCanvas, across, latest, least, most);
    nowCanvas.style.aspectRatio = `${across} / ${Math.ceil(latest.length / across)}`;
    nowCanvas.dataset.round = made.first + made.columns - 1;
    nowCanvas.setAttribute("aria-label", `${made.name} of all ${latest.length} clients after the last round, from ${format.count(least)} to ${format.count(most)}`);
  }

  function draw() {
    const state = ctx.live("status");
    head.hidden = times.hidden = state === undefined; // a simulated round alone
    if (state === undefined) return;
    const finished = ctx.live("finished") ?? 0, rounds = ctx.live("rounds") ?? 0, share = rounds ? finished / rounds : 0;
    status.textContent = `${state} · ${format.count(finished)} of ${format.count(rounds)} rounds`;
    bar.style.width = `${100 * share}%`;
    progress.setAttribute("aria-valuemax", rounds);
    progress.setAttribute("aria-valuenow", finished);
    const over = ["finished", "stopped", "interrupted", "failed"].includes(state);
    times.textContent = `${ctx.live("elapsed")} ${over ? "in all" : "so far"} · ${ctx.live("pace")} per round${over ? "" : ` · about ${ctx.live("left")} left`}`;
    pause.disabled = over || state === "paused";
    resume.disabled = state !== "paused";
    stop.disabled = over;
    curves.replaceChildren(...(ctx.live("curves") ?? []).map(chart));
    drawMap();
    const list = ctx.live("problems") ?? [];
    problems.replaceChildren(...(list.length ? [h("h4", {}, "Problems"), h("ul", {}, list.map((text) => h("li", {}, text)))] : []));
  }
  if (ctx.data.gantt) {
    const { drawn, sentence } = ctx.data.gantt;
    ctx.root.append(h("h4", {}, "A round on the virtual clock"), h("p", { class: "wb-note" }, sentence), fitted(ctx, drawn));
  }
  ctx.onLive(draw);
  draw();
}

export default widget(run);
