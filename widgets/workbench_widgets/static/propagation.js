import { details, h, roving, svgFrom, widget } from "./common.js";

const PER_STEP = 900; // milliseconds between two frames at normal speed
const calm = () => matchMedia("(prefers-reduced-motion: reduce)").matches;

/** Why each axis is sharded: values as rows, and arrows that appear in the order in which Shardy decided. */
export function propagation(ctx) {
  const score = h("div", { class: "wb-wide wb-scorebox", tabindex: -1 });
  const panel = h("aside", { class: "wb-panel", "aria-live": "polite", "aria-label": "Why the chosen value is sharded" });
  const said = h("p", { class: "wb-note wb-said", role: "status", "aria-live": "polite" });
  const slider = h("input", { type: "range", min: 0, value: 0, "aria-label": "Step of the propagation", oninput: (event) => (stop(), go(Number(event.target.value))) });
  const counter = h("output", { class: "wb-counter" });
  const playButton = h("button", { type: "button", class: "wb-play", onclick: () => (timer ? stop() : play()) });
  const button = (label, sign, run) => h("button", { type: "button", "aria-label": label, title: label, onclick: () => (stop(), run()) }, sign);
  const speed = h("select", { "aria-label": "Speed" }, [["0.5", "½ ×"], ["1", "1 ×"], ["3", "3 ×"]].map(([value, text]) => h("option", { value, selected: value === "1" }, text)));
  const pages = h("select", { "aria-label": "Values shown", onchange: () => turn(Number(pages.value)) });
  const axis = h("select", { "aria-label": "Mesh axis shown", onchange: () => ctx.select({ axis: axis.value || null }) });
  const player = h("div", { class: "wb-tools wb-player", role: "group", "aria-label": "Play the propagation" },
    button("First step", "|‹", () => go(0)), button("Step back", "‹", () => go(frame - 1)), playButton, button("Step forward", "›", () => go(frame + 1)), button("Last step", "›|", () => go(last)),
    slider, counter, h("label", {}, "speed ", speed), h("label", {}, "axis ", axis), pages);
  const keys = h("p", { class: "wb-note" }, "Keys: space plays and pauses, ← and → step, Home and End jump; ↑ and ↓ walk through the values, Enter asks why.");
  ctx.root.append(player, said, h("div", { class: "wb-split" }, h("div", { class: "wb-pictures" }, score), panel), keys);
  let frame = 0, last = 0, timer = null, first = 0, rows = [], moving = [];

  const valueOf = (name) => ctx.data.values[ctx.data.place[name]];

  function play() {
    if (frame >= last) go(0);
    playButton.textContent = "❚❚ Pause";
    const next = () => { if (frame >= last) return stop(); go(frame + 1, true); timer = setTimeout(next, PER_STEP / Number(speed.value)); };
    timer = setTimeout(next, 200);
    playButton.setAttribute("aria-pressed", "true");
  }
  function stop() {
    clearTimeout(timer);
    timer = null;
    playButton.textContent = "▶ Play";
    playButton.setAttribute("aria-pressed", "false");
  }
  ctx.cleanup(() => clearTimeout(timer));

  /** Shows everything decided up to frame `to`; what is new is brought out. */
  function go(to, playing = false) {
    frame = Math.min(Math.max(to, 0), last);
    slider.value = String(frame);
    slider.setAttribute("aria-valuetext", frame ? `step ${frame} of ${last}` : "what the program says");
    counter.textContent = frame ? `step ${ctx.data.steps[frame - 1]} · ${frame} of ${last}` : `beginning · 0 of ${last}`;
    const chosen = ctx.selection.axis;
    for (const node of moving) {
      const at = Number(node.dataset.frame), other = chosen && node.dataset.axis !== chosen && ctx.data.axes.includes(chosen);
      node.classList.toggle("wb-future", at > frame || Boolean(other));
      node.classList.toggle("wb-now", at === frame && !other && frame > 0);
      node.classList.toggle("wb-past", at < frame && at > 0);
    }
    const now = moving.find((node) => Number(node.dataset.frame) === frame && node.dataset.to);
    const row = now && rows.find((each) => each.dataset.value === now.dataset.to);
    if (row && frame > 0) reveal(row);
    tell(playing);
  }

  /** Scrolls the box, never the page. */
  function reveal(row) {
    const box = score.getBoundingClientRect(), place = row.getBoundingClientRect();
    if (place.top < box.top + 40) score.scrollBy({ top: place.top - box.top - 60, behavior: calm() ? "auto" : "smooth" });
    else if (place.bottom > box.bottom - 20) score.scrollBy({ top: place.bottom - box.bottom + 60, behavior: calm() ? "auto" : "smooth" });
  }

  function tell(playing) {
    const arrived = [];
    for (const [name, found] of Object.entries(ctx.data.why))
      for (const [axis, , at, , sentence] of found) if (at === frame) arrived.push([name, axis, sentence]);
    const all = frame === 0
      ? `To begin with, the program itself says: ${arrived.slice(0, 4).map(([name, axis]) => `${axis} on ${valueOf(name).title}`).join(", ")}${arrived.length > 4 ? ` and ${arrived.length - 4} more` : ""}.`
      : `${arrived[0]?.[1] ?? ""}: ${arrived[0]?.[2] ?? ""}${arrived.length > 1 ? ` (and ${arrived.length - 1} more in this step)` : ""}`;
    said.setAttribute("aria-live", playing ? "off" : "polite"); // a reader could not follow a sentence per second
    said.textContent = ctx.data.values.length ? all : "";
  }

  /** The chain of reasons of every axis of a value, back to where the axis entered the program. */
  function why(name) {
    const blocks = [];
    for (const [axis, dimensions, frameAt] of ctx.data.why[name] ?? []) {
      const chain = [];
      for (let at = name, guard = 0; at && guard < 400; guard++) {
        const found = (ctx.data.why[at] ?? []).find(([each]) => each === axis);
        if (!found) break;
        chain.push([found[4], at, found[2]]);
        at = found[3];
      }
      const items = chain.map(([sentence, value, at]) => h("li", {}, h("button", { type: "button", class: "wb-link", onclick: () => (stop(), go(at), choose(value)) }, sentence)));
      blocks.push(h("h4", {}, `Why ${axis} on dimension ${dimensions.join(", ")}`), h("ol", { class: "wb-why" }, items.slice(0, 40), items.length > 40 ? h("li", {}, `… and ${items.length - 40} more steps`) : null),
        h("button", { type: "button", onclick: () => (stop(), go(frameAt)) }, frameAt ? `Show step ${ctx.data.steps[frameAt - 1]}` : "Show the beginning"));
    }
    return blocks;
  }

  function choose(name) {
    const value = valueOf(name), at = ctx.data.place[name];
    if (!value) return;
    const wanted = Math.floor(at / ctx.data.page) * ctx.data.page;
    if (first !== wanted) return turn(wanted).then(() => { if (first === wanted && rows.some((row) => row.dataset.value === name)) choose(name); });
    chosenValue = name;
    ctx.select({ stage: value.stage ?? null, line: value.line ?? null });
    follow();
    const row = rows.find((each) => each.dataset.value === name);
    if (row) reveal(row);
  }
  let chosenValue = null;

  function follow() {
    const { stage, leaf, axis: chosenAxis } = ctx.selection;
    axis.value = ctx.data.axes.includes(chosenAxis) ? chosenAxis : "";
    for (const row of rows) {
      const value = valueOf(row.dataset.value);
      row.classList.toggle("wb-selected", row.dataset.value === chosenValue);
      row.classList.toggle("wb-related", Boolean((stage && value.stage === stage) || (leaf && value.leaf && value.leaf === leaf)));
      row.setAttribute("aria-pressed", String(row.dataset.value === chosenValue));
    }
    for (const arc of score.querySelectorAll(".wb-arc")) arc.classList.toggle("wb-related", arc.dataset.to === chosenValue);
    const value = chosenValue && valueOf(chosenValue);
    if (!value) {
      const notes = ctx.data.notes.length ? [{ form: "note", title: "Notes", text: ctx.data.notes.join(" ") }] : [];
      return details(ctx, panel, { title: "Why is it sharded?", kind: "broadcast", subtitle: ctx.data.sentence, blocks: [
        { form: "note", title: "How to read this", text: "Every row is a value of the program, in order; a box is a dimension, a coloured tag a mesh axis that cuts it. Play shows how Shardy carried each axis from value to value. Choose a row to ask why." }, ...notes] });
    }
    details(ctx, panel, { title: value.title, kind: "broadcast", subtitle: "a value of the program", blocks: [{ form: "facts", title: "", rows: value.rows }], extra: why(chosenValue) });
  }

  function draw(text) {
    const svg = svgFrom(text);
    svg.setAttribute("role", "group");
    svg.removeAttribute("width");
    svg.removeAttribute("height");
    rows = [...svg.querySelectorAll("[data-value]")];
    moving = [...svg.querySelectorAll("[data-frame]")];
    for (const row of rows) row.setAttribute("role", "button"), row.setAttribute("aria-label", row.dataset.label);
    svg.addEventListener("click", (event) => { const row = event.target.closest("[data-value]"); if (row) choose(row.dataset.value); });
    roving(svg, rows, { choose: (row) => choose(row.dataset.value), step: { ArrowRight: () => (stop(), go(frame + 1)), ArrowLeft: () => (stop(), go(frame - 1)) }, escape: () => { chosenValue = null; follow(); } });
    score.replaceChildren(svg);
    go(frame);
    follow();
  }

  async function turn(to) {
    first = to;
    pages.value = String(to);
    if (to === 0) return draw(ctx.data.svg);
    const answer = await ctx.request("propagation_page", { first: to }).catch(() => null); // the error is shown already
    if (answer) draw(answer.value);
  }

  player.addEventListener("keydown", (event) => {
    if (event.target.closest("select")) return;
    const run = { ArrowRight: () => go(frame + 1), ArrowLeft: () => go(frame - 1), Home: () => go(0), End: () => go(last) }[event.key];
    if (run) stop(), run();
    else if (event.key === " " && event.target.tagName !== "BUTTON") timer ? stop() : play();
    else return;
    event.preventDefault();
    event.stopPropagation();
  });

  function build() {
    const count = ctx.data.values.length;
    last = ctx.data.steps.length;
    slider.max = String(last);
    axis.replaceChildren(h("option", { value: "" }, "all"), ...ctx.data.axes.map((each) => h("option", { value: each }, each)));
    const starts = Array.from({ length: Math.ceil(count / ctx.data.page) }, (_, i) => i * ctx.data.page);
    pages.replaceChildren(...starts.map((at) => h("option", { value: at }, `values ${at + 1}–${Math.min(at + ctx.data.page, count)} of ${count}`)));
    pages.hidden = starts.length < 2;
    stop();
    chosenValue = null;
    frame = last; // everything at once; Play begins at the beginning
    first = 0;
    player.hidden = keys.hidden = !count;
    count ? draw(ctx.data.svg) : (score.replaceChildren(h("p", { class: "wb-note" }, ctx.data.sentence, ". ", ctx.data.notes.join(" "))), follow());
  }
  ctx.onSelection(() => { follow(); go(frame, true); });
  ctx.onData(build);
  build();
}

export default widget(propagation);
