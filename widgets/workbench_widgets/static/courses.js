import { format, h } from "./common.js";

const NS = "http://www.w3.org/2000/svg", W = 300, H = 92, L = 8, FOOT = 16, HEAD = 8;
const mark = (tag, attributes, text) => {
  const node = document.createElementNS(NS, tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  if (text !== undefined) node.textContent = text;
  return node;
};

/** Lines over a common axis: each is `{ values, class, dashed }`, null where a value is not finite. */
function lines(label, first, last, series) {
  const known = series.flatMap(({ values }) => values.filter((value) => value !== null)), low = Math.min(...known), high = Math.max(...known), span = high - low || 1;
  const count = Math.max(...series.map(({ values }) => values.length)), x = (i) => L + ((W - 2 * L) * i) / Math.max(count - 1, 1), y = (value) => HEAD + (H - HEAD - FOOT) * (1 - (value - low) / span);
  const svg = mark("svg", { viewBox: `0 0 ${W} ${H}`, class: "wb-chart", role: "img", "aria-label": label });
  for (const { values, name, dashed } of series) {
    let pen = "";
    const d = values.map((value, i) => { if (value === null) return (pen = ""), ""; const part = `${pen ? "L" : "M"}${x(i).toFixed(1)} ${y(value).toFixed(1)}`; pen = "on"; return part; }).join("");
    svg.append(mark("path", { d: d + (values.length === 1 ? "h4" : ""), class: name, fill: "none", "stroke-width": dashed ? 1.3 : 2, ...(dashed ? { "stroke-dasharray": "4 3" } : {}) }));
  }
  svg.append(mark("text", { x: L, y: H - 3, "font-size": 10, class: "wb-fill-muted" }, first), mark("text", { x: W - L, y: H - 3, "font-size": 10, "text-anchor": "end", class: "wb-fill-muted" }, last));
  return svg;
}

/** The chosen client over the rounds of a run, and over the local steps of the last one; asked of the kernel. */
export function courses(ctx) {
  const node = h("div", { class: "wb-courses" });
  let asked = false, again = false, shown;

  function draw(client, found) {
    node.replaceChildren(...found.flatMap(({ name, rounds, values, mean, steps }) => {
      const last = values.at(-1), said = last === null ? "not finite" : format.count(last), spoken = `${name} of client ${client}: ${said} after round ${rounds.at(-1)}`;
      const over = values.some((value) => value !== null) ? lines(spoken, `round ${rounds[0]}`, String(rounds.at(-1)), [{ values: mean, name: "wb-stroke-muted", dashed: true }, { values, name: "wb-stroke-clients" }]) : null;
      const local = steps.length > 1 && steps.some((value) => value !== null) ? lines(`${name} of client ${client} over ${steps.length} local steps`, "step 0", String(steps.length - 1), [{ values: steps, name: "wb-stroke-reduce" }]) : null;
      return [h("h4", {}, `${name}: ${said}`), over, local && h("p", { class: "wb-note" }, "and over the local steps of the last round:"), local];
    }).filter(Boolean), ...(found.length ? [h("p", { class: "wb-note" }, "Measured. Dashed: the mean over all clients.")] : []));
  }

  function show(client) {
    shown = client;
    if (client === undefined || !(ctx.live("metrics") ?? []).length) return node.replaceChildren();
    if (asked) return void (again = true); // one question at a time, however fast the rounds come
    asked = true;
    ctx.request("client_course", { client }).then(({ value }) => shown === client && draw(client, value), () => {}).finally(() => { asked = false; if (again) (again = false), show(shown); });
  }
  return { node, show };
}
