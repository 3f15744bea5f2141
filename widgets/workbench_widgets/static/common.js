// Shared by every view: elements, pictures, panels, keyboard, requests, theme. No state lives in this module, because some
// hosts load it once for all widgets and others once for each.

/** An element with attributes and children; text is always text, never markup. */
export function h(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (name === "class") node.className = value;
    else node.setAttribute(name, value === true ? "" : value);
  }
  if (attributes.type === "range") keepKeys(node);
  node.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false));
  return node;
}

/** JupyterLab moves between cells with the arrow keys, before a widget hears of them, unless a node says not to. */
const keepKeys = (node) => node.setAttribute("data-lm-suppress-shortcuts", "true");

const TAGS = new Set("svg g rect line path circle text tspan title desc defs pattern polyline polygon ellipse".split(" "));

/** A picture made by the kernel; anything that could run or load something is left out. */
export function svgFrom(text) {
  const made = new DOMParser().parseFromString(text, "image/svg+xml").documentElement;
  if (made.nodeName !== "svg") throw new Error("the kernel sent a picture that is not SVG");
  const clean = (node) => {
    for (const child of [...node.children]) TAGS.has(child.nodeName) ? clean(child) : child.remove();
    for (const { name, value } of [...node.attributes])
      if (/^on|href/i.test(name) || /url\((?!#)|javascript:/i.test(value)) node.removeAttribute(name);
  };
  clean(made);
  return document.importNode(made, true);
}

/** A picture that the kernel drew for wide and for narrow places, words of the same size in both: the one that fits. */
export function fitted(ctx, drawn) {
  const node = h("div", {});
  let shown = -1;
  const watch = new ResizeObserver(() => {
    const width = node.clientWidth, next = width < 700 ? drawn.length - 1 : 0;
    if (!width || next === shown) return; // without a width the view is hidden
    const svg = svgFrom(drawn[(shown = next)]);
    svg.style.maxWidth = `${svg.getAttribute("width")}px`;
    svg.removeAttribute("width");
    svg.removeAttribute("height");
    svg.classList.add("wb-chart");
    node.replaceChildren(svg);
  });
  watch.observe(node);
  ctx.cleanup(() => watch.disconnect());
  return node;
}

const scaled = (value, base, units) => {
  if (value === null || value === undefined || Number.isNaN(value)) return "unknown";
  let power = 0;
  while (Math.abs(value) >= base && power < units.length - 1) (value /= base), power++;
  return `${three(value)} ${units[power]}`;
};
const three = (value) => {
  const size = Math.abs(value);
  return size >= 100 ? value.toFixed(0) : String(Number(value.toFixed(size >= 10 ? 1 : 2)));
};
export const format = {
  bytes: (value) => scaled(value, 1024, ["B", "KiB", "MiB", "GiB", "TiB", "PiB"]),
  flops: (value) => scaled(value, 1000, ["FLOP", "kFLOP", "MFLOP", "GFLOP", "TFLOP", "PFLOP"]),
  count: (value) => (Number.isFinite(value) ? value.toLocaleString("en-US", Number.isInteger(value) ? {} : { maximumSignificantDigits: 4 }) : "unknown"),
  share: (value) => (Number.isFinite(value) ? `${(100 * value).toFixed(1)} %` : "unknown"),
  seconds: (value) => {
    if (!Number.isFinite(value)) return "unknown";
    if (value === 0) return "0 s";
    for (const [scale, unit] of [[1, "s"], [1e-3, "ms"], [1e-6, "µs"]])
      if (Math.abs(value) >= scale) return `${three(value / scale)} ${unit}`;
    return `${three(value / 1e-9)} ns`;
  },
};
export const show = (unit, value) => (format[unit] ?? format.count)(value);

/** Binary data as numbers; a copy, because hosts differ in alignment. */
export function floats(view) {
  if (!view) return new Float32Array();
  if (view instanceof ArrayBuffer) return new Float32Array(view.slice(0));
  return new Float32Array(view.buffer.slice(view.byteOffset, view.byteOffset + view.byteLength));
}

const CIVIDIS = [[0, 34, 78], [18, 53, 112], [59, 73, 108], [87, 93, 109], [112, 113, 115],
  [138, 134, 120], [165, 156, 116], [195, 179, 105], [225, 204, 85], [254, 232, 56]];
export function ramp(share) {
  const place = Math.min(Math.max(share || 0, 0), 1) * (CIVIDIS.length - 1), low = Math.min(Math.floor(place), CIVIDIS.length - 2);
  return CIVIDIS[low].map((value, i) => Math.round(value + (CIVIDIS[low + 1][i] - value) * (place - low)));
}
export const css = (rgb) => `rgb(${rgb.join(",")})`;
export const colour = (node, name) => getComputedStyle(node).getPropertyValue(`--wb-${name}`).trim() || "#888";

export function range(values) {
  let low = Infinity, high = -Infinity;
  for (const value of values) if (Number.isFinite(value)) (low = Math.min(low, value)), (high = Math.max(high, value));
  return low <= high ? [low, high] : [0, 0];
}

/** A legend for `ramp`: its ends in words. */
export function legend(title, low, high) {
  const stops = CIVIDIS.map((rgb, i) => `${css(rgb)} ${(100 * i) / (CIVIDIS.length - 1)}%`).join(",");
  const bar = h("span", { class: "wb-ramp", "aria-hidden": "true" });
  bar.style.background = `linear-gradient(90deg,${stops})`;
  return h("div", { class: "wb-legend" }, h("span", {}, title), h("span", {}, low), bar, h("span", {}, high));
}

/** A canvas of one pixel per value, blown up by the browser: thousands of cells in a fraction of a millisecond. */
export function cells(canvas, columns, values, low, high) {
  const rows = Math.max(1, Math.ceil(values.length / columns));
  if (canvas.width !== columns || canvas.height !== rows) (canvas.width = columns), (canvas.height = rows);
  const context = canvas.getContext("2d"), image = context.createImageData(columns, rows);
  for (let i = 0; i < values.length; i++) {
    if (!Number.isFinite(values[i])) continue;
    const rgb = ramp(high > low ? (values[i] - low) / (high - low) : 0.5);
    image.data.set([rgb[0], rgb[1], rgb[2], 255], 4 * i);
  }
  context.putImageData(image, 0, 0);
}

/** The place of a pointer in a grid of cells drawn over the whole of `node`. */
export function cellAt(event, node, columns, rows) {
  const box = node.getBoundingClientRect();
  const column = Math.floor(((event.clientX - box.left) / box.width) * columns);
  const row = Math.floor(((event.clientY - box.top) / box.height) * rows);
  return column >= 0 && column < columns && row >= 0 && row < rows ? row * columns + column : -1;
}

/** A word with an explanation for the first contact: on hover and on focus, and spoken. */
export function term(ctx, word) {
  const whole = word.replace(/ per (client|device)$| in all$/, ""), key = ctx.glossary[whole] ? whole : whole.replace(/s$/, "");
  const meaning = ctx.glossary[key];
  if (!meaning) return word;
  const [notebook, path] = ctx.lessons[key] ?? [], address = path && lessonAddress(path), tip = notebook ? `${meaning} ${address ? "Click to open the notebook that teaches it" : "Taught in notebook"}: ${notebook}.` : meaning;
  const side = (event) => { // towards the middle, so that no explanation is cut off
    const box = event.currentTarget.getBoundingClientRect(), page = ctx.root.getBoundingClientRect();
    event.currentTarget.dataset.side = box.left - page.left > page.width - 260 && box.right - page.left > 260 ? "end" : "start";
  };
  const shared = { class: "wb-term", onmouseenter: side, onfocus: side, "aria-label": `${word}: ${tip}`, "data-tip": tip };
  return address ? h("a", { ...shared, href: address, target: "_blank", rel: "noopener" }, word) : h("span", { ...shared, tabindex: 0, role: "note" }, word);
}

/** A notebook beside the one that is open, as this host addresses it; nothing where the page is no notebook. */
function lessonAddress(path) {
  const here = decodeURI(location.pathname);
  return here.endsWith(".ipynb") ? here.replace(/[^/]*$/, path) : null;
}

/** Arrow keys move between `items`, one of which is in the tab order; Enter and space choose. */
export function roving(container, items, { choose, step = {}, escape } = {}) {
  keepKeys(container);
  const all = () => (typeof items === "function" ? items() : items);
  const focus = (item) => {
    if (!item) return;
    for (const other of all()) other.setAttribute("tabindex", other === item ? "0" : "-1");
    item.focus();
  };
  all().forEach((item, i) => item.setAttribute("tabindex", i === 0 ? "0" : "-1"));
  container.addEventListener("keydown", (event) => {
    const list = all(), at = list.indexOf(event.target.closest("[tabindex]"));
    if (at < 0) return;
    const moves = { ArrowDown: 1, ArrowRight: 1, ArrowUp: -1, ArrowLeft: -1, ...step };
    let handled = true;
    if (event.key in moves) {
      const move = moves[event.key];
      typeof move === "function" ? move(list[at], focus) : focus(list[Math.min(Math.max(at + move, 0), list.length - 1)]);
    } else if (event.key === "Home") focus(list[0]);
    else if (event.key === "End") focus(list[list.length - 1]);
    else if (event.key === "Enter" || event.key === " ") choose?.(list[at]);
    else if (event.key === "Escape" && escape) escape(list[at]);
    else handled = false;
    if (handled) event.preventDefault(), event.stopPropagation();
  });
  return focus;
}

function block(ctx, made) {
  const title = made.title ? h("h4", {}, term(ctx, made.title)) : null;
  if (made.form === "facts")
    return [title, h("dl", { class: "wb-facts" }, made.rows.map(([name, value]) => [h("dt", {}, term(ctx, name)), h("dd", {}, value)]))];
  if (made.form === "table") {
    const head = h("tr", {}, made.columns.map((name) => h("th", { scope: "col" }, term(ctx, name))));
    const rows = made.rows.map((row) => h("tr", {}, row.map((value) => h("td", {}, value))));
    const table = h("table", { "aria-label": made.title }, h("thead", {}, head), h("tbody", {}, rows));
    const scroll = h("div", { class: "wb-scroll", tabindex: 0, role: "region", "aria-label": `${made.title}, table` }, table);
    return [title, scroll, made.note ? h("p", { class: "wb-note" }, made.note) : null];
  }
  if (made.form === "code") {
    const lines = made.lines.map(([number, text, marked]) =>
      h("div", { class: marked ? "wb-line wb-marked" : "wb-line" }, number === null ? null : h("span", { class: "wb-number" }, number), h("code", {}, text || " ")));
    const body = h("div", { class: "wb-code", tabindex: 0, role: "region", "aria-label": made.title }, lines);
    return made.folded ? h("details", {}, h("summary", {}, made.title), body) : [h("h4", {}, made.title), body];
  }
  return [title, h("p", { class: "wb-note" }, made.text)];
}

/** The side panel: what is known about the chosen thing. */
export function details(ctx, node, made) {
  const heading = h("header", {}, h("span", { class: `wb-badge wb-kind-${made.kind}`, "aria-hidden": "true" }), h("h3", {}, made.title), h("p", {}, made.subtitle ?? ""));
  node.replaceChildren(heading, ...made.blocks.map((each) => block(ctx, each)).flat(Infinity).filter(Boolean), ...(made.extra ?? []));
}

function failure(ctx) {
  const text = h("span", { class: "wb-message" }), trace = h("pre", { tabindex: 0, role: "region", "aria-label": "traceback" });
  const copy = h("button", { type: "button", onclick: () => {
    const done = () => (copy.textContent = "Copied");
    if (navigator.clipboard) navigator.clipboard.writeText(trace.textContent).then(done, () => getSelection().selectAllChildren(trace));
    else getSelection().selectAllChildren(trace);
  } }, "Copy traceback");
  const dismiss = h("button", { type: "button", "aria-label": "Dismiss the error", onclick: () => (node.hidden = true) }, "×");
  const node = h("div", { class: "wb-error", role: "alert", hidden: true }, h("div", { class: "wb-row" }, text, copy, dismiss), h("details", {}, h("summary", {}, "Traceback"), trace));
  return { node, show: (error) => {
    node.hidden = !error?.message;
    text.textContent = error?.message ?? "";
    trace.textContent = error?.traceback ?? "";
    copy.textContent = "Copy traceback";
    copy.hidden = !error?.traceback;
    node.querySelector("details").hidden = !error?.traceback;
  } };
}

/** Everything a view needs from its host; `key` is the view's part of a model that holds several. */
function context(model, root, key, shared) {
  const prefix = key ? `${key}/` : "";
  const listen = (events, callback) => {
    const call = (...args) => { try { callback(...args); } catch (error) { shared.fail(error); } };
    for (const event of events.split(" ")) { // one at a time: marimo's models know no lists of events
      model.on(event, call);
      shared.cleanup(() => model.off(event, call));
    }
  };
  return {
    ...shared, model, root, listen,
    get data() { const all = model.get("data") ?? {}; return key ? all[key] : all; },
    get glossary() { return model.get("data")?.glossary ?? {}; },
    get lessons() { return model.get("data")?.lessons ?? {}; },
    get selection() { return model.get("selection") ?? {}; },
    array: (name) => floats((model.get("arrays") ?? {})[prefix + name]),
    live: (name) => (model.get("live") ?? {})[prefix + name],
    setting: (name, fallback) => (model.get("settings") ?? {})[prefix + name] ?? fallback,
    set: (name, value) => { model.set("settings", { ...model.get("settings"), [prefix + name]: value }); model.save_changes(); },
    select: (patch) => {
      const next = { ...model.get("selection"), ...patch };
      for (const name of Object.keys(next)) if (next[name] === null || next[name] === undefined) delete next[name];
      if (JSON.stringify(next) === JSON.stringify(model.get("selection"))) return;
      model.set("selection", next);
      model.save_changes();
    },
    onSelection: (callback) => listen("change:selection", callback),
    onData: (callback) => listen("change:data change:arrays", callback),
    onLive: (callback) => listen("change:live", callback),
    child: (name, node) => context(model, node, name, shared),
  };
}

function requests(model, shared) {
  const waiting = new Map();
  let next = 1, waited = false;
  const receive = (content, buffers) => {
    if (content?.kind !== "response" || !waiting.has(content.id)) return;
    const { done, failed, late } = waiting.get(content.id);
    clearTimeout(late);
    waiting.delete(content.id);
    if (waited && !waiting.size) (waited = false), shared.say("");
    if (content.error) shared.fail(content.error), failed(content.error);
    else done({ value: content.value, buffers });
  };
  model.on("msg:custom", receive);
  shared.cleanup(() => (model.off("msg:custom", receive), waiting.forEach(({ late }) => clearTimeout(late))));
  return (name, args = {}) => new Promise((done, failed) => {
    const id = `${Date.now()}-${next++}`;
    const late = setTimeout(() => ((waited = true), shared.say("Waiting for the kernel: it is busy or has stopped.")), 3000);
    waiting.set(id, { done, failed, late });
    model.send({ kind: "request", id, name, args });
  });
}

/** An anywidget front end around `build(context)`. */
export function widget(build) {
  return {
    render({ model, el }) {
      const undo = [], run = (callbacks) => callbacks.splice(0).forEach((callback) => callback());
      const root = h("section", { class: "wb", role: "group", "aria-label": model.get("label") || "Workbench view" });
      const live = h("div", { class: "wb-live", "aria-live": "polite", role: "status" });
      const shared = { cleanup: (callback) => undo.push(callback), say: (text) => (live.textContent = text) };
      const errors = failure();
      shared.fail = (error) => errors.show({ message: error.message ?? String(error), traceback: error.traceback ?? error.stack });
      shared.request = requests(model, shared);
      shared.onTheme = (callback) => {
        const watch = new MutationObserver(() => requestAnimationFrame(callback)), wanted = { attributes: true, attributeFilter: ["data-jp-theme-name", "data-jp-theme-light", "data-wb-theme", "class", "theme"] };
        watch.observe(document.body, wanted);
        watch.observe(document.documentElement, wanted);
        const media = matchMedia("(prefers-color-scheme: dark)");
        media.addEventListener("change", callback);
        undo.push(() => (watch.disconnect(), media.removeEventListener("change", callback)));
      };
      const body = h("div", { class: "wb-body" });
      root.append(errors.node, body, live);
      el.append(root);
      const ctx = context(model, body, "", shared);
      ctx.listen("change:problem", () => errors.show(model.get("problem")));
      ctx.listen("change:label", () => root.setAttribute("aria-label", model.get("label")));
      errors.show(model.get("problem"));
      try { build(ctx); } catch (error) { shared.fail(error); }
      model.send({ kind: "view", open: true });
      return () => { run(undo); model.send({ kind: "view", open: false }); };
    },
  };
}
