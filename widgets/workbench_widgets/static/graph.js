import { colour, format, h } from "./common.js";
import { arrange, graphTree, ROOT } from "./graph_layout.js";

const BAND = 400, FEW = 700; // only what lies in the visible bands is drawn; few wires are drawn as curves with heads
const SHADES = ["fg", "bg", "panel", "line", "muted", "server", "clients", "broadcast", "reduce", "collective", "accent", "loop", "branch"];
const plural = (count, noun) => `${format.count(count)} ${noun}${count === 1 ? "" : "s"}`;
const HELP = "Arrow keys go from box to box, Enter opens, closes or chooses, Space opens a fusion, Shift and arrows pan, plus and minus zoom, Home shows the whole.";

/** Thousands of instructions as a graph of nested groups: a group opens and closes; the kernel ordered what is inside. */
export function graphPane(ctx, place, { names, opcodes, opcode, flops, bytes, times, joint, choose, sourceOf }) {
  const { groups, kinds } = ctx.data.graph, G = groups.length, parent = ctx.array("hlo.parent"), wires = ctx.array("hlo.edges"), kind = ctx.array("hlo.kind");
  const times1 = (k) => (Number.isFinite(times[k]) ? times[k] : 1);
  const instructionOf = (node) => (node < G ? groups[node][1] : node - G);
  const nodeOf = new Map(groups.map(([, k], g) => [k, g]).filter(([k]) => k >= 0));
  const tree = graphTree({ parent, place: ctx.array("hlo.place"), groupCount: G, own(node, sum) {
    const k = instructionOf(node);
    if (k < 0) return;
    sum.count += 1;
    sum.flops += flops[k] * times1(k);
    sum.bytes += bytes[k] * times1(k);
    if (joint(k)) sum.joints.push(k);
  } });
  const isFusion = (node) => node < G && groups[node][1] >= 0, isGroup = (node) => node < G;
  const title = (node) => (isGroup(node) ? groups[node][0] : names[node - G]);
  const jointText = (all) => { // the axes that a closed group communicates over, and how much
    const axes = [...new Set(all.map((k) => joint(k).axes))].join(", "), sent = all.reduce((sum, k) => sum + joint(k).sent, 0);
    return `${plural(all.length, "collective")} over ${axes} · ${format.bytes(sent)} sent`;
  };
  const lines = (node) => [title(node), `${plural(tree.inside[node].count, "instr.").replace(/\.s$/, ".")} · ${format.flops(tree.inside[node].flops)}`];
  const cardWidth = (node) => Math.min(260, Math.max(150, 7 * Math.max(lines(node)[0].length + 3, lines(node)[1].length) + 14, tree.inside[node].joints.length ? 6.4 * jointText(tree.inside[node].joints).length + 20 : 0));

  const canvas = h("canvas", { tabindex: 0, role: "application", class: "wb-graph", "aria-label": `Data flow of ${plural(names.length, "instruction")} in ${plural(G, "group")}. ${HELP}` });
  const tip = h("p", { class: "wb-note wb-graphtip", role: "status" }, "Click a group to open it, its title to close it; drag to move, Ctrl and wheel to zoom.");
  const tool = (label, text, act) => h("button", { type: "button", "aria-label": label, onclick: act }, text);
  place.append(h("div", { class: "wb-tools" }, tool("Zoom in", "+", () => zoom(1.5)), tool("Zoom out", "−", () => zoom(1 / 1.5)), tool("Whole graph", "Whole graph", () => fit()), tool("Open all groups", "Open all", () => openAll()), tool("Close all groups", "Close all", () => { open.clear(); relayout(); fit(); })), canvas, tip);

  const open = new Set();
  let boxes = new Map(), edges = [], bands = new Map(), extent = { w: 1, h: 1 }, scale = 1, dx = 0, dy = 0, ready = false, frame = 0, drag = null, hues = {}, cursor = -1, marked = new Set(), kept = null;

  const shownAs = (node) => { let found = node; for (let each = parent[node]; each >= 0; each = parent[each]) if (!open.has(each)) found = each; return found; };
  const band = (g) => bands.get(g) ?? (bands.set(g, { nodes: [], edges: [] }), bands.get(g));
  const over = (box, act) => { for (let g = Math.floor(box.y / BAND); g <= Math.floor((box.y + box.h) / BAND); g++) act(band(g)); };

  /** After something opened or closed: where everything is, and which wires join what is visible. */
  function relayout() {
    const made = arrange(tree, { open, groupCount: G, isJoint: (node) => node >= G && Boolean(joint(node - G)), cardWidth, titleWidth: (group) => Math.min(320, 7 * title(group).length + 16) });
    boxes = made.boxes;
    extent = made;
    bands = new Map();
    for (const [node, box] of boxes) over(box, (each) => each.nodes.push(node));
    const seen = new Map(), shown = new Int32Array(parent.length);
    for (let node = 0; node < parent.length; node++) shown[node] = parent[node] < ROOT ? -1 : shownAs(node);
    for (let e = 0; e < wires.length; e += 2) {
      const a = shown[wires[e]], b = shown[wires[e + 1]];
      if (a < 0 || b < 0 || a === b || !boxes.has(a) || !boxes.has(b)) continue;
      const key = a * parent.length + b;
      if (!seen.has(key)) seen.set(key, { a, b, count: 0 });
      seen.get(key).count += 1;
    }
    edges = [...seen.values()];
    for (const edge of edges) {
      const a = boxes.get(edge.a), b = boxes.get(edge.b);
      over({ y: Math.min(a.y + a.h, b.y), h: Math.abs(b.y - a.y - a.h) }, (each) => each.edges.push(edge));
    }
    canvas.dataset.nodes = boxes.size;
    canvas.dataset.open = open.size;
    if (!boxes.has(cursor)) cursor = boxes.size ? boxes.keys().next().value : -1;
    later();
  }

  const theme = () => (hues = Object.fromEntries(SHADES.map((name) => [name, colour(ctx.root, name)])));
  const hue = (node) => hues[kinds[kind[node]]] ?? hues.muted;

  function draw() {
    frame = 0;
    const began = performance.now(), pen = canvas.getContext("2d"), ratio = devicePixelRatio || 1, W = canvas.width, H = canvas.height;
    pen.setTransform(1, 0, 0, 1, 0, 0);
    pen.clearRect(0, 0, W, H);
    pen.setTransform(scale * ratio, 0, 0, scale * ratio, dx * ratio, dy * ratio);
    const view = { left: -dx / scale, top: -dy / scale, right: (W / ratio - dx) / scale, bottom: (H / ratio - dy) / scale };
    const nodes = new Set(), shown = new Set();
    for (let g = Math.floor(view.top / BAND); g <= Math.floor(view.bottom / BAND); g++) {
      for (const node of bands.get(g)?.nodes ?? []) { const box = boxes.get(node); if (box.x < view.right && box.x + box.w > view.left) nodes.add(node); }
      for (const edge of bands.get(g)?.edges ?? []) shown.add(edge);
    }
    const few = shown.size <= FEW;
    // Groups contain what is drawn later, and a group always has a smaller number than the groups inside it.
    for (const node of [...nodes].filter((each) => isGroup(each) && open.has(each)).sort((a, b) => a - b)) frameOf(pen, node);
    drawWires(pen, shown, view, few);
    for (const node of nodes) if (!isGroup(node) || !open.has(node)) card(pen, node);
    pen.lineWidth = 2.5 / Math.min(scale, 1);
    pen.strokeStyle = hues.accent;
    for (const node of nodes) if (marked.has(node)) outline(pen, node, 2);
    if (nodes.has(cursor) && document.activeElement === canvas) (pen.setLineDash([5 / scale, 3 / scale]), outline(pen, cursor, 5), pen.setLineDash([]));
    canvas.dataset.frameMilliseconds = (performance.now() - began).toFixed(2);
  }
  const outline = (pen, node, away) => { const box = boxes.get(node); pen.strokeRect(box.x - away, box.y - away, box.w + 2 * away, box.h + 2 * away); };

  function frameOf(pen, node) {
    const box = boxes.get(node);
    pen.fillStyle = hues.panel;
    pen.strokeStyle = hue(node);
    pen.lineWidth = 1.2 / Math.min(1, Math.max(scale, 0.25));
    pen.beginPath();
    pen.roundRect(box.x, box.y, box.w, box.h, 8);
    pen.globalAlpha = 0.75;
    pen.fill();
    pen.globalAlpha = 1;
    pen.stroke();
    const size = Math.min(Math.max(12, 9 / scale), 20), room = Math.floor((box.w - 16) / (0.58 * size)); // it has a line of 26 to itself
    if (room > 3 && size * scale > 3.5) words(pen, `▾ ${title(node)}`, box.x + 9, box.y + 13 + size / 3, size, hue(node), room, 600);
  }

  function card(pen, node) {
    const box = boxes.get(node), dim = kept !== null && !kept.has(node);
    pen.globalAlpha = dim ? 0.22 : 1;
    const readable = scale > 0.45, joined = !isGroup(node) && joint(node - G);
    if (!readable && !isGroup(node)) {
      pen.fillStyle = hue(node);
      pen.fillRect(box.x, box.y, box.w, box.h);
    } else if (!isGroup(node) && !joined) {
      pen.fillStyle = hue(node);
      pen.fillRect(box.x, box.y, 4, box.h);
      words(pen, opcodes[opcode[node - G]], box.x + 9, box.y + 14, 10.5, hues.fg, 15);
    } else {
      pen.fillStyle = hues.bg;
      pen.strokeStyle = hue(node);
      pen.lineWidth = joined ? 2 : 1.3;
      pen.beginPath();
      pen.roundRect(box.x, box.y, box.w, box.h, 6);
      pen.fill();
      pen.stroke();
      pen.fillStyle = hue(node);
      pen.fillRect(box.x, box.y + 5, 4, box.h - 10);
      if (joined) {
        words(pen, names[node - G], box.x + 11, box.y + 15, 11, hues.fg, 24, 600);
        words(pen, `${joined.axes} · ${joined.payload}`, box.x + 11, box.y + 29, 10.5, hues.collective, 26);
      } else if (scale > 0.3) {
        const [first, second] = lines(node), all = tree.inside[node].joints, room = Math.floor((box.w - 18) / 6.2);
        words(pen, `▸ ${first}`, box.x + 11, box.y + 19, 12, hues.fg, room, 600);
        words(pen, second, box.x + 11, box.y + 36, 10.5, hues.muted, room);
        if (all.length) words(pen, jointText(all), box.x + 11, box.y + 51, 10.5, hues.collective, room + 4);
      }
    }
    pen.globalAlpha = 1;
  }
  function words(pen, text, x, y, size, fill, room, weight = 400) {
    pen.font = `${weight} ${size}px system-ui, sans-serif`;
    pen.fillStyle = fill;
    pen.fillText(text.length > room ? `${text.slice(0, Math.max(1, room - 1))}…` : text, x, y);
  }

  function drawWires(pen, shown, view, few) {
    pen.strokeStyle = pen.fillStyle = hues.muted;
    pen.lineWidth = (few ? 1.1 : 0.8) / Math.min(1, Math.max(scale, 0.1));
    pen.globalAlpha = shown.size < 60 ? 0.8 : few ? 0.45 : 0.3;
    pen.beginPath();
    const heads = [];
    for (const { a, b } of shown) {
      const from = boxes.get(a), to = boxes.get(b), x0 = from.x + from.w / 2, x1 = to.x + to.w / 2, y0 = from.y + from.h, y1 = to.y;
      if (Math.max(x0, x1) < view.left || Math.min(x0, x1) > view.right) continue;
      pen.moveTo(x0, y0);
      if (few && y1 > y0) { const bend = Math.max(10, (y1 - y0) / 2); pen.bezierCurveTo(x0, y0 + bend, x1, y1 - bend, x1, y1); heads.push([x1, y1]); }
      else pen.lineTo(x1, y1);
    }
    pen.stroke();
    pen.beginPath();
    for (const [x, y] of heads) pen.moveTo(x - 3.5, y - 6), pen.lineTo(x + 3.5, y - 6), pen.lineTo(x, y);
    pen.fill();
    pen.globalAlpha = 1;
  }

  const later = () => ready && (frame ||= requestAnimationFrame(draw));
  function size() { const box = canvas.getBoundingClientRect(), ratio = devicePixelRatio || 1; canvas.width = Math.max(1, box.width * ratio); canvas.height = Math.max(1, box.height * ratio); }
  function fit() {
    const box = canvas.getBoundingClientRect();
    scale = Math.min(1.2, (box.width - 24) / extent.w, (box.height - 24) / extent.h);
    dx = (box.width - extent.w * scale) / 2;
    dy = Math.max(12, (box.height - extent.h * scale) / 2);
    later();
  }
  function zoom(factor, px = canvas.clientWidth / 2, py = canvas.clientHeight / 2) {
    const next = Math.min(4, Math.max(0.004, scale * factor)), by = next / scale;
    dx = px - (px - dx) * by; dy = py - (py - dy) * by; scale = next;
    later();
  }
  function openAll() { for (let g = 0; g < G; g++) open.add(g); relayout(); fit(); }
  /** Keeps the title of the group where it was on the screen. */
  function toggle(group) {
    const before = boxes.get(group);
    open.has(group) ? open.delete(group) : open.add(group);
    relayout();
    const after = boxes.get(group);
    cursor = group;
    if (before && after) (dx += (before.x - after.x) * scale), (dy += (before.y - after.y) * scale);
    if (after.w * scale > canvas.clientWidth || after.h * scale > canvas.clientHeight) show(after);
    tell(group);
  }
  function show(box) {
    scale = Math.min(1.2, Math.max(0.02, Math.min((canvas.clientWidth - 40) / box.w, (canvas.clientHeight - 40) / box.h)));
    dx = canvas.clientWidth / 2 - (box.x + box.w / 2) * scale;
    dy = canvas.clientHeight / 2 - (box.y + box.h / 2) * scale;
    later();
  }
  function reveal(node) { // moves as little as needed
    const box = boxes.get(node);
    if (!box) return;
    const x = box.x * scale + dx, y = box.y * scale + dy, w = Math.min(box.w * scale, canvas.clientWidth - 40), height = Math.min(26 * scale + 10, canvas.clientHeight);
    if (x < 8) dx += 20 - x; else if (x + w > canvas.clientWidth) dx -= x + w - canvas.clientWidth + 20;
    if (y < 8) dy += 20 - y; else if (y + height > canvas.clientHeight) dy -= y + height - canvas.clientHeight + 20;
    later();
  }
  function tell(node) {
    if (node < 0) return;
    if (!isGroup(node)) { const k = node - G, made = joint(k); tip.textContent = `${names[k]}: ${opcodes[opcode[k]]}${made ? `, collective over ${made.axes}, ${made.payload}` : ""}${sourceOf(k) ? `, from ${sourceOf(k)}` : ""}`; return; }
    const each = tree.inside[node];
    tip.textContent = `${isFusion(node) ? "fusion" : "group"} ${title(node)}, ${open.has(node) ? "open" : "closed"}: ${plural(each.count, "instruction")}, ${format.flops(each.flops)}, ${format.bytes(each.bytes)} of memory traffic${each.joints.length ? `, ${jointText(each.joints)}` : ""}`;
  }
  /** The innermost box under a point of the page. */
  const at = (event) => {
    const page = canvas.getBoundingClientRect(), x = (event.clientX - page.left - dx) / scale, y = (event.clientY - page.top - dy) / scale;
    let found = -1, least = Infinity;
    for (const node of bands.get(Math.floor(y / BAND))?.nodes ?? []) {
      const box = boxes.get(node);
      if (x >= box.x && x <= box.x + box.w && y >= box.y && y <= box.y + box.h && box.w * box.h < least) (found = node), (least = box.w * box.h);
    }
    return { node: found, marker: found >= 0 && x < boxes.get(found).x + 24 };
  };
  function act(node, marker) {
    cursor = node;
    if (isFusion(node) && !marker && !open.has(node)) choose(groups[node][1]);
    else if (isGroup(node)) toggle(node);
    else choose(node - G);
    tell(node);
  }

  /** The nearest box in a direction, along the wires where there are some. */
  function step(direction) {
    const from = boxes.get(cursor);
    if (!from) return;
    const cx = from.x + from.w / 2, cy = from.y + Math.min(from.h / 2, 14), inner = isGroup(cursor) && open.has(cursor) && direction === "ArrowDown";
    let best = -1, least = Infinity;
    for (const [node, box] of boxes) {
      if (node === cursor) continue;
      if (inner && parent[node] !== cursor) continue;
      const x = box.x + box.w / 2 - cx, y = box.y + Math.min(box.h / 2, 14) - cy;
      const [along, across] = { ArrowDown: [y, x], ArrowUp: [-y, x], ArrowRight: [x, y], ArrowLeft: [-x, y] }[direction];
      const cost = along + 2.5 * Math.abs(across);
      if (along > 4 && cost < least) (best = node), (least = cost);
    }
    if (best < 0) return;
    cursor = best;
    reveal(best);
    tell(best);
  }

  canvas.addEventListener("wheel", (event) => { if (!event.ctrlKey && !event.metaKey) return; event.preventDefault(); const box = canvas.getBoundingClientRect(); zoom(Math.exp(-event.deltaY / 300), event.clientX - box.left, event.clientY - box.top); }, { passive: false });
  canvas.addEventListener("pointerdown", (event) => { drag = { x: event.clientX, y: event.clientY, moved: 0 }; canvas.setPointerCapture(event.pointerId); });
  canvas.addEventListener("pointermove", (event) => {
    if (!drag) { const { node } = at(event); canvas.style.cursor = node < 0 ? "grab" : "pointer"; if (node >= 0) tell(node); return; }
    const mx = event.clientX - drag.x, my = event.clientY - drag.y;
    Object.assign(drag, { x: event.clientX, y: event.clientY, moved: drag.moved + Math.abs(mx) + Math.abs(my) });
    dx += mx; dy += my;
    later();
  });
  canvas.addEventListener("pointerup", (event) => { const still = drag && drag.moved < 4, found = still ? at(event) : null; drag = null; if (found && found.node >= 0) act(found.node, found.marker); });
  canvas.addEventListener("pointercancel", () => (drag = null));
  canvas.addEventListener("keydown", (event) => {
    const pan = { ArrowDown: [0, -60], ArrowUp: [0, 60], ArrowLeft: [60, 0], ArrowRight: [-60, 0] }[event.key];
    if (pan && event.shiftKey) (dx += pan[0]), (dy += pan[1]), later();
    else if (pan) step(event.key);
    else if (event.key === "+" || event.key === "=") zoom(1.3);
    else if (event.key === "-") zoom(1 / 1.3);
    else if (event.key === "Home") fit();
    else if (event.key === "Enter" && cursor >= 0) act(cursor, false);
    else if (event.key === " " && cursor >= 0) act(cursor, true);
    else if (event.key === "Escape" && cursor >= 0 && (parent[cursor] >= 0 || open.has(cursor))) toggle(isGroup(cursor) && open.has(cursor) ? cursor : parent[cursor]), reveal(cursor);
    else return;
    event.preventDefault();
    event.stopPropagation();
  });
  canvas.addEventListener("focus", () => { tell(cursor); later(); });
  canvas.addEventListener("blur", later);
  ctx.onTheme(() => { theme(); later(); });
  const watch = new ResizeObserver(() => { if (ready && canvas.clientWidth) size(), later(); });
  watch.observe(canvas);
  ctx.cleanup(() => (cancelAnimationFrame(frame), watch.disconnect()));

  const drawn = (k) => nodeOf.get(k) ?? G + k;
  return {
    open() { theme(); size(); if (ready) return later(); ready = true; if (names.length <= 40) for (let g = 0; g < G; g++) open.add(g); relayout(); fit(); },
    /** Marks instructions, or the closed groups that hold them; the first of `reveal` is opened and brought into view. */
    mark(all, chosen = -1) {
      const wanted = chosen >= 0 ? drawn(chosen) : -1;
      if (ready && wanted >= 0 && parent[wanted] >= ROOT && !boxes.has(wanted)) { for (const each of tree.chain(wanted).slice(1)) open.add(each); relayout(); }
      marked = new Set(all.map(drawn).filter((node) => parent[node] >= ROOT).map(shownAs));
      if (ready && wanted >= 0 && boxes.has(wanted)) (cursor = wanted), reveal(wanted);
      later();
    },
    /** Only these instructions passed a filter; `null`: there is none. */
    keep(all) {
      kept = all === null ? null : new Set(all.map(drawn).flatMap((node) => tree.chain(node)));
      later();
    },
  };
}
