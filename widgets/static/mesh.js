import { cellAt, colour, css, details, format, h, legend, ramp, range, roving, show, widget } from "./common.js";

const rgbOf = (text) => text.match(/\w\w/g).map((part) => parseInt(part, 16));

/** Devices in the order of the mesh: cards with words while they are few, one pixel each when they are many. */
export function mesh(ctx) {
  const select = h("select", { "aria-label": "Colour devices by" });
  const legendBox = h("div", { class: "wb-legendbox" });
  const tip = h("div", { class: "wb-note", role: "status" });
  const place = h("div", { class: "wb-pictures" });
  const panel = h("aside", { class: "wb-panel", "aria-live": "polite", "aria-label": "Details of the chosen device" });
  ctx.root.append(h("div", { class: "wb-tools" }, h("label", {}, "Colour devices by ", select), legendBox), h("div", { class: "wb-split" }, place, panel));
  let ids = [], values = [], cards = [], canvas = null, cursor = 0, painted = 0;

  const clientsOf = (id) => ctx.data.held[id] ?? [];
  const words = (id) => clientsOf(id).map(([name, start, stop]) => (stop - start === 1 ? `${name} ${start}` : `${name} ${start}–${stop - 1}`)).join(", ");
  const at = (index) => `${ctx.data.names[index]}${words(ids[index]) ? `: ${words(ids[index])}` : ""}`;
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
    const fill = fills(), [low, high] = range(values);
    const start = performance.now();
    legendBox.replaceChildren();
    if (choice && (choice.kind !== "group" || high >= 8)) legendBox.append(legend("", show(choice.unit, low), show(choice.unit, high)));
    else if (choice) legendBox.append(h("span", {}, `${high + 1} groups, each in its own colour and numbered`));
    cards.forEach((card, i) => {
      const rgb = fill(values[i]);
      card.style.setProperty("--card", css(rgb));
      card.querySelector(".wb-cardnumber").textContent = choice?.kind === "group" ? format.count(values[i]) : "";
    });
    if (canvas) {
      const columns = ctx.data.columns, rows = Math.ceil(ids.length / columns);
      if (canvas.width !== columns || canvas.height !== rows) Object.assign(canvas, { width: columns, height: rows });
      const context = canvas.getContext("2d"), image = context.createImageData(columns, rows), selected = ctx.selection.device;
      for (let i = 0; i < ids.length; i++) {
        const rgb = ids[i] === selected ? [255, 255, 255] : fill(values[i]);
        image.data.set([rgb[0], rgb[1], rgb[2], 255], 4 * i);
      }
      context.putImageData(image, 0, 0);
      painted = performance.now() - start;
      canvas.dataset.paintMilliseconds = painted.toFixed(2);
    }
  }

  function buildCards() {
    const grid = h("div", { class: "wb-cards", role: "group", "aria-label": ctx.data.sentence });
    grid.style.gridTemplateColumns = `repeat(${ctx.data.columns}, minmax(64px, 1fr))`;
    cards = Array.from(ids, (id, i) => h("button", { type: "button", class: "wb-devicecard", "data-device": id, "aria-label": at(i) },
      h("span", { class: "wb-cardname" }, ctx.data.names[i], h("span", { class: "wb-cardnumber", "aria-hidden": "true" })), h("span", { class: "wb-cardclients" }, words(id) || "no clients")));
    grid.append(...cards);
    grid.addEventListener("click", (event) => { const card = event.target.closest("[data-device]"); if (card) choose(cards.indexOf(card)); });
    const row = (move) => (card, focus) => focus(cards[Math.min(Math.max(cards.indexOf(card) + move, 0), cards.length - 1)]);
    roving(grid, cards, { choose: (card) => choose(cards.indexOf(card)), step: { ArrowDown: row(ctx.data.columns), ArrowUp: row(-ctx.data.columns) } });
    place.replaceChildren(h("div", { class: "wb-scroll wb-wide" }, axesCaption(), grid));
  }

  function axesCaption() {
    const [first, ...rest] = ctx.data.axes;
    if (!first) return null;
    const across = rest.map((axis) => `${axis.name} (${axis.size})`).join(" × ");
    return h("p", { class: "wb-note" }, rest.length ? `rows: ${first.name} (${first.size}) · columns: ${across}` : `${first.name} (${first.size})`, ctx.data.abstract ? " · no devices behind it" : "");
  }

  function buildCanvas() {
    const rows = Math.ceil(ids.length / ctx.data.columns);
    canvas = h("canvas", { class: "wb-pixels", role: "img", tabindex: 0, "aria-label": `${ctx.data.sentence}. Arrow keys move, Enter chooses.` });
    canvas.style.aspectRatio = `${ctx.data.columns} / ${rows}`;
    canvas.style.maxHeight = "520px";
    const over = (event) => { const index = cellAt(event, canvas, ctx.data.columns, rows); return index < ids.length ? index : -1; };
    const tell = (index) => { tip.textContent = index < 0 ? "" : `${at(index)} · ${ctx.data.choices[Number(select.value)]?.label}: ${format.count(values[index])}`; };
    canvas.addEventListener("mousemove", (event) => tell(over(event)));
    canvas.addEventListener("mouseleave", () => tell(-1));
    canvas.addEventListener("click", (event) => { const index = over(event); if (index >= 0) choose(index); });
    canvas.addEventListener("keydown", (event) => {
      const move = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: ctx.data.columns, ArrowUp: -ctx.data.columns }[event.key];
      if (move) (cursor = Math.min(Math.max(cursor + move, 0), ids.length - 1)), tell(cursor);
      else if (event.key === "Enter" || event.key === " ") choose(cursor);
      else return;
      event.preventDefault();
      event.stopPropagation();
    });
    place.replaceChildren(h("div", { class: "wb-canvas wb-wide" }, axesCaption(), canvas, tip));
  }

  function follow() {
    const index = ids.indexOf(ctx.selection.device), { client } = ctx.selection;
    cards.forEach((card, i) => {
      const holds = client !== undefined && clientsOf(ids[i]).some(([, start, stop]) => client >= start && client < stop);
      card.classList.toggle("wb-selected", i === index);
      card.classList.toggle("wb-holds", holds);
      card.setAttribute("aria-pressed", String(i === index));
    });
    if (canvas) paint();
    if (index < 0) {
      const rows = ctx.data.axes.map((axis) => [`mesh axis ${axis.name}`, `${axis.size} devices, ${axis.type}`]);
      return details(ctx, panel, { title: `${format.count(ids.length)} devices`, kind: "server", subtitle: ctx.data.sentence, blocks: [{ form: "facts", title: "", rows }, { form: "note", title: "Look closer", text: "Choose a device: with the mouse, or with the arrow keys and Enter." }] });
    }
    const rows = [...(ctx.data.facts[index] ?? [])];
    for (const choice of ctx.data.choices) if (choice.kind !== "group") rows.push([choice.label, show(choice.unit, ctx.array(`mesh.${choice.key}`)[index])]);
    const held = clientsOf(ids[index]).map(([name, start, stop, padding]) => [name, `${start}–${stop - 1}`, format.count(stop - start), format.count(padding)]);
    details(ctx, panel, { title: ctx.data.names[index], kind: "clients", subtitle: "device", blocks: [{ form: "facts", title: "", rows },
      held.length ? { form: "table", title: "Lives here", columns: ["placement", "members", "count", "padding"], rows: held } : { form: "note", title: "Lives here", text: "No clients." }] });
  }

  function build() {
    ids = Array.from(ctx.array("mesh.id"));
    cards = [];
    canvas = null;
    select.replaceChildren(...ctx.data.choices.map((choice, i) => h("option", { value: i }, choice.label)));
    const preferred = ctx.data.choices.findIndex((choice) => choice.key === "axis0");
    select.value = String(Math.max(0, preferred));
    ctx.data.few ? buildCards() : buildCanvas();
    paint();
    follow();
  }
  select.addEventListener("change", paint);
  ctx.onTheme(paint);
  ctx.onSelection(follow);
  ctx.onData(build);
  build();
}

export default widget(mesh);
