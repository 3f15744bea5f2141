import { cells, cellAt, colour, css, details, floats, format, h, legend, ramp, range, show, widget } from "./common.js";
import { courses } from "./courses.js";
import { clientDetails, timeColumn } from "./program.js";
import { opening } from "./values.js";

const ROW = 26;
const TESTS = { "≥": (a, b) => a >= b, "≤": (a, b) => a <= b, "=": (a, b) => a === b };

/** Any number of clients as a heat map, as bars or as a table; sorted, filtered, some of them pinned. */
export function clients(ctx) {
  const mode = h("select", { "aria-label": "Show clients as" }, [["heat", "heat map"], ["bars", "bars"], ["table", "table"]].map(([value, text]) => h("option", { value }, text)));
  const metric = h("select", { "aria-label": "Measure" });
  const sort = h("select", { "aria-label": "Sort by" }, [["client", "client number"], ["down", "largest first"], ["up", "smallest first"]].map(([value, text]) => h("option", { value }, text)));
  const field = h("select", { "aria-label": "Filter by" }), test = h("select", { "aria-label": "Filter comparison" }, Object.keys(TESTS).map((text) => h("option", {}, text)));
  const bound = h("input", { type: "number", step: "any", placeholder: "any", "aria-label": "Filter bound", class: "wb-short" });
  const back = h("input", { type: "range", min: 0, max: 0, value: 0, step: 1, "aria-label": "Round" }), which = h("span", {}, "last"), rounds = h("label", { hidden: true }, "Round ", back, which);
  const legendBox = h("div", { class: "wb-legendbox" }), tip = h("div", { class: "wb-note", role: "status" }), summary = h("p", { class: "wb-note" });
  const gutter = h("div", { class: "wb-gutter", "aria-hidden": "true" }), foot = h("div", { class: "wb-foot", "aria-hidden": "true" });
  const place = h("div", { class: "wb-wide" }), pins = h("div", { class: "wb-wide" }), opened = h("div", { class: "wb-wide" });
  const panel = h("aside", { class: "wb-panel", "aria-live": "polite", "aria-label": "Details of the chosen client" });
  ctx.root.append(h("div", { class: "wb-tools" }, h("label", {}, "Show as ", mode), h("label", {}, "Measure ", metric), h("label", {}, "Sort ", sort), h("span", { class: "wb-row" }, "Only ", field, test, bound), rounds, legendBox),
    h("div", { class: "wb-split" }, h("div", { class: "wb-pictures" }, h("div", { class: "wb-wide" }, summary, place, tip, pins)), panel), opened);
  let columns = [], followed = [], order = [], cursor = 0, node = null, drawn = "", across = 1, wanted = null;

  const all = () => [...ctx.data.columns, ...followed];
  const column = () => all()[Number(metric.value)];
  const course = courses(ctx), open = opening(ctx, opened);
  const value = (client) => columns[Number(metric.value)]?.[client];
  const tell = (client) => { tip.textContent = client === undefined ? "" : `client ${client} · ${column().label}: ${show(column().unit, value(client))}`; };
  const choose = (client) => { if (client !== undefined) (cursor = order.indexOf(client)), ctx.select({ client, stage: ctx.selection.stage ?? ctx.data.stage }); };
  const pinned = () => ctx.setting("pinned", []).filter((client) => client < ctx.data.count);

  function arrange() {
    order = Array.from({ length: ctx.data.count }, (_, client) => client);
    if (bound.value !== "") {
      const values = columns[Number(field.value)];
      order = order.filter((client) => TESTS[test.value](values[client], Number(bound.value)));
    }
    const sign = sort.value === "down" ? -1 : 1;
    if (sort.value !== "client") order.sort((a, b) => sign * (value(a) - value(b)) || a - b);
    const shown = order.map(value).filter(Number.isFinite), [low, high] = range(shown), mean = shown.reduce((a, b) => a + b, 0) / Math.max(shown.length, 1);
    const most = order.find((client) => value(client) === high);
    const { label, kind, unit } = column(), leader = h("button", { type: "button", class: "wb-link", onclick: () => choose(most) }, `client ${most}`);
    summary.replaceChildren(...(!order.length ? ["No client passes the filter."] : [
      `${format.count(order.length)} of ${format.count(ctx.data.count)} clients · ${label}${kind ? ` (${kind})` : ""}: mean ${show(unit, mean)}, most ${show(unit, high)}`,
      ...(high > low ? [" (", leader, `, ${(high / mean).toFixed(2)} × the mean)`] : []), ctx.data.sentence ? ` · ${ctx.data.sentence}` : ""]));
    legendBox.replaceChildren(...(mode.value === "heat" && high > low ? [legend(label, show(unit, low), show(unit, high))] : []));
    draw(low, high);
  }

  function draw(low, high) {
    tell();
    if (mode.value === "table") return drawTable();
    if (node?.isConnected && drawn === mode.value) return paint(low, high); // a new round: the same canvas, so that keys and pointer stay in it
    const canvas = h("canvas", { role: "img", tabindex: 0, class: mode.value === "heat" ? "wb-pixels" : "wb-bars", "aria-label": `${column().label} of ${order.length} clients. Arrow keys move, Enter chooses.` });
    place.replaceChildren(h("div", { class: mode.value === "heat" ? "" : "wb-axes" }, mode.value === "heat" ? null : gutter, h("div", { class: "wb-canvas" }, canvas), foot));
    node = canvas;
    drawn = mode.value;
    paint(low, high);
    const over = (event) => order[mode.value === "heat" ? cellAt(event, canvas, across, Math.ceil(order.length / across)) : cellAt(event, canvas, order.length, 1)];
    canvas.addEventListener("mousemove", (event) => tell(over(event)));
    canvas.addEventListener("click", (event) => choose(over(event)));
    canvas.addEventListener("keydown", (event) => {
      const step = mode.value === "heat" ? across : 10, move = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: step, ArrowUp: -step }[event.key];
      if (move) (cursor = Math.min(Math.max(cursor + move, 0), order.length - 1)), tell(order[cursor]);
      else if (event.key === "Enter" || event.key === " ") choose(order[cursor]);
      else return;
      event.preventDefault();
      event.stopPropagation();
    });
  }

  function paint(low, high) {
    node.setAttribute("aria-label", `${column().label} of ${order.length} clients. Arrow keys move, Enter chooses.`);
    const ends = [order[0], order.at(-1)].map((client) => (client === undefined ? "" : `client ${client}`));
    foot.replaceChildren(...[ends[0], mode.value === "heat" ? "row by row" : sort.value === "client" ? "" : sort.selectedOptions[0].textContent, ends[1]].map((text) => h("span", {}, text)));
    if (mode.value !== "heat") return drawBars(node, high);
    across = Math.max(1, Math.ceil(Math.sqrt(order.length * 2.2)));
    cells(node, across, order.map(value), low, high);
    node.style.aspectRatio = `${across} / ${Math.max(1, Math.ceil(order.length / across))}`;
    node.style.maxHeight = "420px";
  }

  function drawBars(canvas, high) {
    const width = 1200, height = 300, pen = canvas.getContext("2d"), chosen = ctx.selection.client, step = width / order.length;
    gutter.replaceChildren(...[high, high / 2, 0].map((each) => h("span", {}, high > 0 ? show(column().unit, each) : "")));
    Object.assign(canvas, { width, height });
    canvas.style.aspectRatio = `${width} / ${height}`;
    const normal = colour(ctx.root, "clients"), strong = colour(ctx.root, "accent"), pin = new Set(pinned());
    order.forEach((client, i) => {
      const size = high > 0 ? (value(client) / high) * height : 0, marked = client === chosen || pin.has(client);
      pen.fillStyle = marked ? strong : normal;
      pen.fillRect(i * step, height - size, Math.max(step - (step > 4 ? 1 : 0), marked ? 3 : 0.6), size);
    });
  }

  function drawTable() {
    const head = h("tr", {}, h("th", { scope: "col" }, "client"), all().map((each, i) => h("th", { scope: "col", class: "wb-num", "aria-sort": i === Number(metric.value) ? { down: "descending", up: "ascending" }[sort.value] : null },
      h("button", { type: "button", class: "wb-sortable", onclick: () => { const same = metric.value === String(i); metric.value = String(i); sort.value = same && sort.value === "down" ? "up" : "down"; arrange(); } }, each.label, each.kind ? ` (${each.kind})` : ""))));
    const body = h("tbody", {}), above = h("tr", { "aria-hidden": "true" }, h("td", { class: "wb-pad" })), below = h("tr", { "aria-hidden": "true" }, h("td", { class: "wb-pad" }));
    const scroll = h("div", { class: "wb-tablebox", tabindex: 0, role: "region", "aria-label": "Clients, table" }, h("table", { "aria-rowcount": order.length + 1 }, h("thead", {}, head), body));
    const fill = () => {
      const first = Math.max(0, Math.floor(scroll.scrollTop / ROW) - 8), last = Math.min(order.length, first + 34);
      above.firstChild.style.height = `${first * ROW}px`;
      below.firstChild.style.height = `${(order.length - last) * ROW}px`;
      body.replaceChildren(above, ...order.slice(first, last).map((client, i) => h("tr", { "data-client": client, "aria-rowindex": first + i + 2, class: client === ctx.selection.client ? "wb-selected" : "" },
        h("td", {}, h("button", { type: "button", class: "wb-link" }, `client ${client}`)), columns.map((values, c) => h("td", { class: "wb-num" }, show(all()[c].unit, values[client]))))), below);
    };
    body.addEventListener("click", (event) => { const row = event.target.closest("[data-client]"); if (row) choose(Number(row.dataset.client)); });
    scroll.addEventListener("scroll", () => requestAnimationFrame(fill));
    place.replaceChildren(scroll);
    node = null;
    fill();
  }

  function drawPins() {
    const list = pinned();
    if (!list.length) return pins.replaceChildren();
    const rows = list.map((client) => h("tr", { "data-client": client }, h("td", {}, h("button", { type: "button", class: "wb-link", onclick: () => choose(client) }, `client ${client}`)), columns.map((values, c) => h("td", { class: "wb-num" }, show(all()[c].unit, values[client]))), h("td", {}, h("button", { type: "button", "aria-label": `Unpin client ${client}`, onclick: () => { ctx.set("pinned", list.filter((each) => each !== client)); follow(); } }, "×"))));
    pins.replaceChildren(h("h4", {}, "Pinned"), h("div", { class: "wb-scroll" }, h("table", { "aria-label": "Pinned clients" }, h("thead", {}, h("tr", {}, h("th", {}, "client"), ctx.data.columns.map((each) => h("th", { class: "wb-num" }, each.label)), h("th", {}, "unpin"))), h("tbody", {}, rows))));
  }

  function follow() {
    const { client } = ctx.selection;
    drawPins();
    if (mode.value !== "heat") arrange();
    if (client === undefined || client >= ctx.data.count) {
      const facts = all().map((each, i) => { const [low, high] = range(columns[i]); return [each.label, low === high ? show(each.unit, low) : `${show(each.unit, low)} to ${show(each.unit, high)}`]; });
      return details(ctx, panel, { title: ctx.data.placement || "Clients", kind: "clients", subtitle: "all of them", blocks: [{ form: "facts", title: "", rows: facts }, { form: "note", title: "Look closer", text: "Choose a client: with the mouse, or with the arrow keys and Enter." }] });
    }
    const made = clientDetails(ctx, ctx.data, columns, client), is = pinned().includes(client);
    const code = ctx.data.jaxpr ? [{ form: "code", title: "jaxpr of one client", folded: true, lines: ctx.data.jaxpr.split("\n").map((line) => [null, line, false]) }] : [];
    details(ctx, panel, { ...made, blocks: [...made.blocks, ...code], extra: [h("div", { class: "wb-row wb-steps" }, h("button", { type: "button", onclick: () => { ctx.set("pinned", is ? pinned().filter((each) => each !== client) : [...pinned(), client]); follow(); } }, is ? "Unpin" : "Pin to compare"), ctx.data.opens ? h("button", { type: "button", onclick: () => open(client) }, "Open its values") : null), course.node] });
    course.show(client);
  }

  /** The metrics of a run become columns of their own: those of the last round, or of the one that is looked back at. */
  function take() {
    const metrics = ctx.live("metrics") ?? [], base = ctx.data.columns.length, count = ctx.data.count, before = followed.map((each) => each.key).join();
    rounds.hidden = !metrics.length;
    if (!metrics.length) return;
    const [first, last] = ctx.live("rounds"), values = floats(ctx.live("values"));
    Object.assign(back, { min: first, max: last });
    if (wanted === null) back.value = last;
    which.textContent = wanted === null ? `${last} (the last)` : String(wanted);
    const column = (key, round) => ({ key, name: `${key}, by round`, label: `${key} in round ${round}`, unit: "number", kind: "measured" });
    followed = metrics.map(({ key, round }) => column(key, wanted ?? round));
    if (wanted === null) columns = [...columns.slice(0, base), ...metrics.map((_, i) => values.subarray(i * count, (i + 1) * count))];
    if (before !== followed.map((each) => each.key).join()) options();
  }

  function lookBack() {
    wanted = Number(back.value) === Number(back.max) ? null : Number(back.value);
    take();
    if (wanted === null) return arrange(), follow();
    const round = wanted;
    ctx.request("clients_in_round", { round }).then(({ value: found }) => {
      if (round !== wanted) return;
      const nothing = new Float32Array(ctx.data.count).fill(NaN);
      columns = [...columns.slice(0, ctx.data.columns.length), ...followed.map(({ key }) => (found[key] ? Float32Array.from(found[key], (each) => each ?? NaN) : nothing))];
      arrange();
      follow();
    }, () => {});
  }

  function options() {
    const chosen = [metric.value, field.value], twice = (label) => all().filter((each) => each.label === label).length > 1;
    const made = () => all().map((each, i) => h("option", { value: i }, each.name ?? (twice(each.label) ? `${each.label} (${each.kind})` : each.label)));
    metric.replaceChildren(...made());
    field.replaceChildren(...made());
    [metric.value, field.value] = chosen.map((value) => (value === "" ? "0" : value));
  }

  function build() {
    columns = ctx.data.columns.map((each) => ctx.array(`clients.${each.key}`));
    if (!ctx.data.count || !(columns.length || ctx.live("metrics")?.length)) return ctx.root.replaceChildren(h("p", { class: "wb-note" }, "Nothing is known about single clients of this program."));
    followed = [];
    options();
    take();
    const varies = (i) => { const [low, high] = range(columns[i]); return high > low; }, some = [...columns.keys()].filter(varies);
    metric.value = String([timeColumn(ctx.data.columns), ...some].find((i) => some.includes(i)) ?? 0); // who is late is what is asked most
    if (mode.dataset.set !== "1") (mode.value = ctx.data.count <= 64 ? "bars" : "heat"), (mode.dataset.set = "1");
    arrange();
    follow();
  }
  for (const control of [mode, metric, sort, field, test]) control.addEventListener("change", arrange);
  bound.addEventListener("input", arrange);
  back.addEventListener("input", lookBack);
  ctx.onLive(() => {
    const base = ctx.data.columns.length, shown = [Number(metric.value), Number(field.value)], known = followed.length;
    take();
    if (wanted === null && (known !== followed.length || shown.some((i) => i >= base))) arrange();
    if (ctx.selection.client !== undefined) course.show(ctx.selection.client);
  });
  ctx.onTheme(() => node && arrange());
  ctx.onSelection(follow);
  ctx.onData(build);
  build();
}

export default widget(clients);
