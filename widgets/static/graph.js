import { colour, h } from "./common.js";

const BAND = 400; // only what lies in the visible bands is drawn

/** Thousands of instructions as a graph laid out by the kernel: drag or arrow keys pan, wheel or + and − zoom, click chooses. */
export function graphPane(ctx, place, { names, opcodes, opcode, choose }) {
  const xy = ctx.array("hlo.xy"), edges = ctx.array("hlo.edges"), kind = ctx.array("hlo.kind"), count = xy.length / 2;
  const canvas = h("canvas", { tabindex: 0, role: "img", class: "wb-graph", "aria-label": `Data flow of ${count} instructions. Arrow keys pan, plus and minus zoom.` });
  const tip = h("p", { class: "wb-note", role: "status" }, "Drag or use the arrow keys to move, the wheel or + and − to zoom, click to choose.");
  const zoomIn = h("button", { type: "button", "aria-label": "Zoom in", onclick: () => zoom(1.5) }, "+"), zoomOut = h("button", { type: "button", "aria-label": "Zoom out", onclick: () => zoom(1 / 1.5) }, "−"), whole = h("button", { type: "button", onclick: () => fit() }, "Whole graph");
  place.append(h("div", { class: "wb-tools" }, zoomIn, zoomOut, whole, tip), canvas);
  const bands = new Map(), band = (g) => bands.get(g) ?? (bands.set(g, { nodes: [], edges: [] }), bands.get(g));
  let scale = 1, dx = 0, dy = 0, chosen = -1, ready = false, frame = 0, drag = null, hues = {};

  function index() {
    for (let i = 0; i < count; i++) band(Math.floor(xy[2 * i + 1] / BAND)).nodes.push(i);
    for (let e = 0; e < edges.length; e += 2) {
      const a = xy[2 * edges[e] + 1], b = xy[2 * edges[e + 1] + 1];
      for (let g = Math.floor(Math.min(a, b) / BAND); g <= Math.floor(Math.max(a, b) / BAND); g++) band(g).edges.push(e);
    }
    ready = true;
  }
  const theme = () => (hues = Object.fromEntries(["fg", "bg", "line", "muted", "server", "clients", "broadcast", "reduce", "collective", "accent", "loop", "branch"].map((name) => [name, colour(ctx.root, name)])));
  const KINDS = ["server", "broadcast", "clients", "reduce", "loop", "branch", "muted", "collective"];

  function draw() {
    frame = 0;
    const began = performance.now(), pen = canvas.getContext("2d"), ratio = devicePixelRatio || 1, W = canvas.width, H = canvas.height;
    pen.setTransform(1, 0, 0, 1, 0, 0);
    pen.clearRect(0, 0, W, H);
    pen.setTransform(scale * ratio, 0, 0, scale * ratio, dx * ratio, dy * ratio);
    const top = Math.floor(-dy / scale / BAND), bottom = Math.floor((H / ratio - dy) / scale / BAND), leftX = -dx / scale - 60, rightX = (W / ratio - dx) / scale + 60, seen = new Set();
    pen.strokeStyle = hues.line;
    pen.lineWidth = 1 / scale;
    pen.beginPath();
    for (let g = top; g <= bottom; g++) for (const e of bands.get(g)?.edges ?? []) {
      const a = 2 * edges[e], b = 2 * edges[e + 1];
      if (seen.has(e) || Math.max(xy[a], xy[b]) < leftX || Math.min(xy[a], xy[b]) > rightX) continue;
      seen.add(e);
      pen.moveTo(xy[a], xy[a + 1] + 9);
      pen.lineTo(xy[b], xy[b + 1] - 9);
    }
    pen.stroke();
    const words = scale > 0.55;
    if (words) pen.font = "10px system-ui, sans-serif";
    for (let g = top; g <= bottom; g++) for (const i of bands.get(g)?.nodes ?? []) {
      const x = xy[2 * i], y = xy[2 * i + 1];
      if (x < leftX || x > rightX) continue;
      pen.fillStyle = hues[KINDS[kind[i]]];
      if (words) {
        pen.fillRect(x - 44, y - 9, 4, 18);
        pen.fillStyle = i === chosen ? hues.accent : hues.fg;
        pen.fillText(opcodes[opcode[i]].slice(0, 15), x - 37, y + 4);
      } else pen.fillRect(x - 44, y - 9, 88, 18);
      if (i === chosen) (pen.strokeStyle = hues.accent), (pen.lineWidth = 2 / scale), pen.strokeRect(x - 46, y - 11, 92, 22);
    }
    canvas.dataset.frameMilliseconds = (performance.now() - began).toFixed(2);
  }
  const later = () => (frame ||= requestAnimationFrame(draw));
  function size() { const box = canvas.getBoundingClientRect(), ratio = devicePixelRatio || 1; canvas.width = Math.max(1, box.width * ratio); canvas.height = Math.max(1, box.height * ratio); }
  function fit() {
    let low = Infinity, high = -Infinity, bottom = 0;
    for (let i = 0; i < count; i++) (low = Math.min(low, xy[2 * i])), (high = Math.max(high, xy[2 * i])), (bottom = Math.max(bottom, xy[2 * i + 1]));
    const box = canvas.getBoundingClientRect();
    scale = Math.min(1.2, box.width / (high - low + 120), box.height / (bottom + 60));
    dx = box.width / 2 - ((low + high) / 2) * scale;
    dy = 24 * scale;
    later();
  }
  function zoom(factor, px = canvas.clientWidth / 2, py = canvas.clientHeight / 2) { dx = px - (px - dx) * factor; dy = py - (py - dy) * factor; scale *= factor; later(); }
  const at = (event) => {
    const box = canvas.getBoundingClientRect(), x = (event.clientX - box.left - dx) / scale, y = (event.clientY - box.top - dy) / scale, g = Math.floor(y / BAND);
    for (const near of [g - 1, g, g + 1]) for (const i of bands.get(near)?.nodes ?? []) if (Math.abs(xy[2 * i] - x) < 44 && Math.abs(xy[2 * i + 1] - y) < 10) return i;
    return -1;
  };
  canvas.addEventListener("wheel", (event) => { event.preventDefault(); const box = canvas.getBoundingClientRect(); zoom(Math.exp(-event.deltaY / 300), event.clientX - box.left, event.clientY - box.top); }, { passive: false });
  canvas.addEventListener("pointerdown", (event) => { drag = { x: event.clientX, y: event.clientY, moved: 0 }; canvas.setPointerCapture(event.pointerId); });
  canvas.addEventListener("pointermove", (event) => {
    if (!drag) { const i = at(event); tip.textContent = i < 0 ? " " : names[i]; return; }
    const mx = event.clientX - drag.x, my = event.clientY - drag.y;
    Object.assign(drag, { x: event.clientX, y: event.clientY, moved: drag.moved + Math.abs(mx) + Math.abs(my) });
    dx += mx; dy += my;
    later();
  });
  canvas.addEventListener("pointerup", (event) => { const still = drag && drag.moved < 4, i = still ? at(event) : -1; drag = null; if (i >= 0) choose(i); });
  canvas.addEventListener("keydown", (event) => {
    const pan = { ArrowDown: [0, -60], ArrowUp: [0, 60], ArrowLeft: [60, 0], ArrowRight: [-60, 0] }[event.key];
    if (pan) (dx += pan[0]), (dy += pan[1]), later();
    else if (event.key === "+" || event.key === "=") zoom(1.3);
    else if (event.key === "-") zoom(1 / 1.3);
    else return;
    event.preventDefault();
    event.stopPropagation();
  });
  ctx.onTheme(() => { theme(); later(); });
  ctx.cleanup(() => cancelAnimationFrame(frame));
  return {
    open() { if (!ready) index(); theme(); size(); fit(); },
    select(i) {
      chosen = i;
      if (i >= 0 && ready && canvas.clientWidth) {
        const x = xy[2 * i] * scale + dx, y = xy[2 * i + 1] * scale + dy;
        if (x < 0 || y < 0 || x > canvas.clientWidth || y > canvas.clientHeight) (dx += canvas.clientWidth / 2 - x), (dy += canvas.clientHeight / 2 - y);
      }
      if (ready) later();
    },
  };
}
