import { colour, format, h } from "./common.js";

const EDGE = { left: 74, right: 14, top: 22, bottom: 24 };

/** Live bytes over the schedule: point or use the arrow keys to read it, click or press Enter to choose the instruction. */
export function memoryPane(ctx, place, { names, choose, sourceOf }) {
  const live = ctx.array("hlo.live"), moment = ctx.array("hlo.moment"), { sentence, buffers, notes } = ctx.data.memory, count = live.length;
  let peak = 0, at = 0, frame = 0, marked = new Set(), ready = false;
  for (let i = 1; i < count; i++) if (live[i] > live[peak]) peak = i;
  at = peak;
  const canvas = h("canvas", { class: "wb-memory", tabindex: 0, role: "slider", "aria-label": "Memory over the schedule; arrow keys go from instruction to instruction, Enter chooses", "aria-valuemin": 1, "aria-valuemax": count });
  const said = h("p", { class: "wb-note", role: "status" }), toPeak = h("button", { type: "button", onclick: () => go(peak) }, "Go to the peak");
  const rows = buffers.map((row) => h("tr", {}, row.map((value, i) => (i < 2 ? h(i ? "td" : "th", i ? { class: "wb-num" } : { scope: "row" }, value) : h("td", {}, value)))));
  const table = h("table", { "aria-label": "Buffers alive at the peak" }, h("thead", {}, h("tr", {}, ["buffer", "bytes", "shape", "source", "op_name"].map((name, i) => h("th", { scope: "col", class: i === 1 ? "wb-num" : null }, name)))), h("tbody", {}, rows));
  place.append(h("div", { class: "wb-tools" }, toPeak, h("span", {}, sentence)), canvas, said,
    ...(rows.length ? [h("h4", {}, "Alive at the peak, largest first"), h("div", { class: "wb-scroll", tabindex: 0, role: "region", "aria-label": "Buffers alive at the peak, table" }, table)] : []),
    notes.length ? h("p", { class: "wb-note" }, `${notes.join(". ")}.`) : "");

  const nameOf = (i) => (moment[i] >= 0 ? names[moment[i]] : "an instruction that is not listed");
  function tell() {
    const source = moment[at] >= 0 ? sourceOf(moment[at]) : "";
    said.textContent = `${format.count(at + 1)} of ${format.count(count)}: ${format.bytes(live[at])} alive while ${nameOf(at)} runs${source ? `, from ${source}` : ""}${at === peak ? " · this is the peak" : ""}`;
    canvas.setAttribute("aria-valuenow", at + 1);
    canvas.setAttribute("aria-valuetext", said.textContent);
  }
  function go(i) { at = Math.min(Math.max(i, 0), count - 1); tell(); later(); }

  function draw() {
    frame = 0;
    const ratio = devicePixelRatio || 1, W = canvas.clientWidth, H = canvas.clientHeight;
    if (!W) return;
    if (canvas.width !== Math.round(W * ratio)) (canvas.width = Math.round(W * ratio)), (canvas.height = Math.round(H * ratio));
    const pen = canvas.getContext("2d"), wide = W - EDGE.left - EDGE.right, high = H - EDGE.top - EDGE.bottom, most = live[peak] || 1, base = EDGE.top + high;
    const x = (i) => EDGE.left + (wide * i) / Math.max(count - 1, 1), y = (value) => EDGE.top + high * (1 - value / most), hue = (name) => colour(ctx.root, name);
    pen.setTransform(ratio, 0, 0, ratio, 0, 0);
    pen.clearRect(0, 0, W, H);
    const outline = () => { pen.beginPath(); pen.moveTo(x(0), y(live[0])); for (let i = 1; i < count; i++) pen.lineTo(x(i), y(live[i - 1])), pen.lineTo(x(i), y(live[i])); };
    outline();
    pen.lineTo(x(count - 1), base);
    pen.lineTo(x(0), base);
    pen.fillStyle = hue("broadcast-soft");
    pen.fill();
    pen.strokeStyle = hue("broadcast");
    pen.lineWidth = 1.5;
    outline();
    pen.stroke();
    pen.fillStyle = hue("collective");
    for (const i of marked) pen.fillRect(x(i) - 1, base, 2, 6);
    pen.font = "11px system-ui, sans-serif";
    pen.fillStyle = hue("muted");
    pen.textAlign = "right";
    pen.fillText(format.bytes(most), EDGE.left - 7, EDGE.top + 4);
    pen.fillText("0", EDGE.left - 7, base);
    pen.textAlign = "center";
    pen.fillText("instructions in the order in which they run", EDGE.left + wide / 2, H - 5);
    pen.fillStyle = hue("bad");
    pen.beginPath();
    pen.arc(x(peak), y(most), 4, 0, 7);
    pen.fill();
    pen.fillStyle = hue("fg");
    pen.textAlign = x(peak) > W / 2 ? "right" : "left";
    pen.fillText(`peak ${format.bytes(most)}`, x(peak) + (x(peak) > W / 2 ? -8 : 8), EDGE.top - 8);
    pen.strokeStyle = hue("accent");
    pen.lineWidth = 1.5;
    pen.beginPath();
    pen.moveTo(x(at), EDGE.top);
    pen.lineTo(x(at), base);
    pen.stroke();
  }
  const later = () => ready && (frame ||= requestAnimationFrame(draw));
  const pointed = (event) => { const box = canvas.getBoundingClientRect(); return Math.round(((event.clientX - box.left - EDGE.left) / (box.width - EDGE.left - EDGE.right)) * (count - 1)); };
  canvas.addEventListener("pointermove", (event) => go(pointed(event)));
  canvas.addEventListener("click", (event) => { go(pointed(event)); if (moment[at] >= 0) choose(moment[at]); });
  canvas.addEventListener("keydown", (event) => {
    const page = Math.max(1, Math.round(count / 20)), move = { ArrowRight: 1, ArrowUp: 1, ArrowLeft: -1, ArrowDown: -1, PageUp: page, PageDown: -page, Home: -count, End: count }[event.key];
    if (move) go(at + move);
    else if ((event.key === "Enter" || event.key === " ") && moment[at] >= 0) choose(moment[at]);
    else return;
    event.preventDefault();
    event.stopPropagation();
  });
  ctx.onTheme(later);
  const watch = new ResizeObserver(later);
  watch.observe(canvas);
  ctx.cleanup(() => (cancelAnimationFrame(frame), watch.disconnect()));
  tell();
  return {
    open() { ready = true; later(); },
    mark(all) {
      const wanted = new Set(all);
      marked = new Set([...moment.keys()].filter((i) => wanted.has(moment[i])));
      if (all.length === 1 && marked.size) go([...marked][0]);
      later();
    },
  };
}
