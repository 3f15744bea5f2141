import { format, h, term, widget } from "./common.js";
import { run } from "./run.js";

const NS = "http://www.w3.org/2000/svg", W = 560, H = 230, L = 44, B = 34;
const LOOKS = ["clients", "reduce", "server", "broadcast", "loop", "collective", "branch", "accent", "muted"], DASHES = ["", "6 3", "2 3", "8 3 2 3"];
const mark = (tag, attributes, text) => {
  const node = document.createElementNS(NS, tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  if (text !== undefined) node.textContent = text;
  return node;
};

/** A form of settings, the run that they make, the runs before it, and the code of what is chosen. */
export function playground(ctx) {
  const inputs = new Map(), form = h("form", { class: "wb-form", "aria-label": "Settings" });
  const usual = { ...ctx.data.usual, ...ctx.setting("chosen", {}) };
  for (const field of ctx.data.fields) form.append(control(field));
  const begin = h("button", { type: "submit", class: "wb-primary" }, "Run"), reset = h("button", { type: "button", onclick: back }, "Usual settings"), show = h("button", { type: "button", "aria-expanded": "false", onclick: code }, "Show me the code");
  const wrong = h("p", { class: "wb-wrong", role: "alert", hidden: true });
  form.append(h("div", { class: "wb-row" }, begin, show, reset), wrong);
  form.addEventListener("submit", (event) => { event.preventDefault(); start(); });
  form.addEventListener("input", () => { ctx.set("chosen", chosen()); if (!cell.hidden) write(); });

  const told = h("div", {}), runs = h("div", {}), pane = h("div", { hidden: true }), empty = h("p", { class: "wb-note" }, "Choose settings and press Run. Training starts in the kernel, in the background: the notebook stays free, and every round is drawn as it ends.");
  const text = h("pre", { tabindex: 0, role: "region", "aria-label": "The notebook cell that does the same" });
  const copy = h("button", { type: "button", onclick: () => { const done = () => (copy.textContent = "Copied"); navigator.clipboard ? navigator.clipboard.writeText(text.textContent).then(done, mine) : mine(); } }, "Copy");
  const mine = () => getSelection().selectAllChildren(text);
  const cell = h("div", { class: "wb-cell", hidden: true }, h("div", { class: "wb-row wb-loghead" }, h("h4", {}, "One notebook cell that does the same"), copy), text);
  ctx.root.append(h("div", { class: "wb-play-split" }, form, h("div", { class: "wb-play-results" }, cell, empty, told, runs, pane)));
  run(ctx.child("run", pane));

  function control(field) {
    const id = `wb-${field.name}-${Math.random().toString(36).slice(2)}`, name = h("label", { for: id }, ctx.glossary[field.label] ? term(ctx, field.label) : field.label);
    const help = h("span", { class: "wb-note", id: `${id}-help` }, field.help);
    if (field.choices) {
      const menu = h("select", { id, "aria-describedby": `${id}-help` }, field.choices.map((each) => h("option", { value: each }, each)));
      menu.value = usual[field.name];
      inputs.set(field.name, { get: () => menu.value, set: (value) => (menu.value = value) });
      return h("div", { class: "wb-field" }, name, menu, help);
    }
    const values = [];
    if (field.factor) for (let value = field.low; value <= field.high * 1.0001; value *= field.factor) values.push(Number(value.toPrecision(6)));
    else for (let i = 0; field.low + i * field.step <= field.high + 1e-9; i++) values.push(Number((field.low + i * field.step).toPrecision(6)));
    const slider = h("input", { id, type: "range", min: 0, max: values.length - 1, step: 1, "aria-describedby": `${id}-help` }), shown = h("output", { for: id });
    const say = () => { const at = Number(slider.value), last = field.last && at === values.length - 1; shown.textContent = last ? field.last : format.count(own ?? values[at]); slider.setAttribute("aria-valuetext", shown.textContent); };
    let own = null; // a value between two steps, from the kernel
    const set = (value) => {
      const nearest = values.reduce((best, each, i) => (Math.abs(Math.log((each + 1e-6) / (value + 1e-6))) < Math.abs(Math.log((values[best] + 1e-6) / (value + 1e-6))) ? i : best), 0);
      own = Math.abs(values[nearest] - value) > 1e-9 ? value : null;
      slider.value = nearest;
      say();
    };
    slider.addEventListener("input", () => { own = null; say(); });
    inputs.set(field.name, { get: () => own ?? values[Number(slider.value)], set });
    set(usual[field.name]);
    return h("div", { class: "wb-field" }, name, h("div", { class: "wb-sliderow" }, slider, shown), help);
  }

  const chosen = () => Object.fromEntries([...inputs].map(([name, input]) => [name, input.get()]));
  const refuse = (error) => { wrong.hidden = !error; wrong.textContent = error ? String(error.message ?? error).replace(/^\w+: /, "") : ""; };
  const over = () => [undefined, "finished", "stopped", "interrupted", "failed"].includes(ctx.live("run/status"));
  function start() {
    refuse(null);
    begin.disabled = true;
    ctx.say("Preparing the experiment");
    ctx.request("start", chosen()).then(() => ctx.say("The experiment has started"), refuse).finally(() => (begin.disabled = !over()));
  }
  function back() {
    for (const [name, input] of inputs) input.set(ctx.data.usual[name]);
    ctx.set("chosen", chosen());
    if (!cell.hidden) write();
  }
  function code() {
    cell.hidden = !cell.hidden;
    show.setAttribute("aria-expanded", String(!cell.hidden));
    show.textContent = cell.hidden ? "Show me the code" : "Hide the code";
    if (!cell.hidden) write();
  }
  let asked = 0;
  const write = () => { const mine = ++asked; refuse(null); copy.textContent = "Copy"; ctx.request("code", chosen()).then(({ value }) => mine === asked && (text.textContent = value), refuse); };

  function compare() {
    const all = ctx.live("runs") ?? [], known = all.filter((each) => each.accuracies.length);
    empty.hidden = all.length > 0;
    if (!known.length) return runs.replaceChildren();
    const longest = Math.max(2, ...known.map((each) => each.accuracies.length)), x = (round) => L + ((W - L - 8) * round) / (longest - 1), y = (value) => 10 + (H - B - 10) * (1 - value);
    const svg = mark("svg", { viewBox: `0 0 ${W} ${H}`, role: "img", class: "wb-chart", "aria-label": `Test accuracy over rounds: ${known.map((each) => `${each.name}, ${format.share(each.accuracies.at(-1))}`).join("; ")}` });
    for (const value of [0, 0.25, 0.5, 0.75, 1]) svg.append(mark("line", { x1: L, x2: W - 8, y1: y(value), y2: y(value), class: "wb-stroke-line" }), mark("text", { x: L - 6, y: y(value) + 4, "text-anchor": "end", "font-size": 11, class: "wb-fill-muted" }, `${100 * value} %`));
    svg.append(mark("text", { x: L, y: H - 18, "font-size": 11, class: "wb-fill-muted" }, "1"), mark("text", { x: W - 8, y: H - 18, "font-size": 11, "text-anchor": "end", class: "wb-fill-muted" }, String(longest)), mark("text", { x: (W + L) / 2, y: H - 4, "font-size": 11, "text-anchor": "middle", class: "wb-fill-muted" }, "round"));
    const look = (each) => LOOKS[(each.number - 1) % LOOKS.length], dash = (each) => DASHES[(each.number - 1) % DASHES.length];
    for (const each of known) svg.append(mark("path", { d: `M${each.accuracies.map((value, i) => `${x(i).toFixed(1)} ${y(value).toFixed(1)}`).join("L")}`, fill: "none", "stroke-width": each === all.at(-1) ? 2.6 : 1.6, "stroke-dasharray": dash(each), class: `wb-stroke-${look(each)}` }));
    const rows = known.map((each) => {
      const key = mark("svg", { viewBox: "0 0 26 8", width: 26, height: 8, "aria-hidden": "true" });
      key.append(mark("line", { x1: 0, x2: 26, y1: 4, y2: 4, "stroke-width": 2.4, "stroke-dasharray": dash(each), class: `wb-stroke-${look(each)}` }));
      const forget = each === all.at(-1) ? null : h("button", { type: "button", class: "wb-link", "aria-label": `Forget ${each.name}`, onclick: () => ctx.request("forget", { number: each.number }).catch(() => {}) }, "×");
      return h("tr", {}, h("td", {}, key), h("td", { class: "wb-runname" }, each.name), h("td", { class: "wb-num" }, format.share(each.accuracies.at(-1))), h("td", { class: "wb-num" }, format.bytes(each.sent)), h("td", {}, forget ?? h("span", { class: "wb-note" }, "this one")));
    });
    const head = ["line", "experiment", "test accuracy", "sent up", ""].map((name) => h("th", { scope: "col" }, name || h("span", { class: "wb-hidden" }, "forget")));
    runs.replaceChildren(h("h4", {}, "Test accuracy, this experiment and those before"), svg, h("div", { class: "wb-scroll", tabindex: 0, role: "region", "aria-label": "Experiments, table" }, h("table", { "aria-label": "Experiments" }, h("thead", {}, h("tr", {}, head)), h("tbody", {}, rows))));
  }

  function draw() {
    pane.hidden = ctx.live("run/status") === undefined;
    begin.disabled = !over();
    begin.textContent = over() ? "Run" : "Running";
    told.replaceChildren(...(ctx.live("told") ?? []).map((each) => h("p", { class: "wb-note" }, each)));
    compare();
  }
  ctx.onLive(draw);
  draw();
}

export default widget(playground);
