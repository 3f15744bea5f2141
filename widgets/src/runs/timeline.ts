// The timeline of a measured run: zoom, walk through spans, select an area.
import { button, h, keepKeys, menu, replace } from "../lib/dom";
import { asSentence, formatCount, formatSeconds, plural } from "../lib/format";
import { clamp, consume } from "../lib/keyboard";
import { save } from "../lib/save";
import { split } from "../lib/split";
import { placeIn } from "../lib/stage";
import type { RenderView, ViewContext } from "../lib/view";
import { type Camera, framed, inside, panned, zoomed } from "./camera";
import { type Area, AXIS, type Colours, coloursOf, type Marks, Painter, type View } from "./paint";
import { traceParts } from "./perfetto";
import { countBefore, type Levels, type Row, Scene } from "./scene";
import { type Columns, deviceOf, endOf, KINDS, spanAt, sumsBetween } from "./spans";
import { KIND_WORDS, sentenceOf, showArea, showSpan, showWhole } from "./timeline-details";

const GUTTER = 92;
const USUAL_HEIGHT = 470; // of the picture in an explorer that nobody enlarged
const OVERVIEW = 34;
const NEAR = 4; // pixels that a pointer may miss a span by
const ZOOM = 1.6;
const STEP = 0.2;
const CLICK = 4; // pixels that a click may move

const HELP =
  "Drag to move, Ctrl and the wheel to zoom, Shift and drag to select an area. Keys: W and S zoom, A and D move, arrows " +
  "go from span to span and from device to device, M selects what is visible, F shows everything, Enter zooms to the " +
  "span, Escape clears the selection.";

function columnsOf(context: ViewContext<"timeline">): Columns {
  const bytes = (name: string) => context.array(name).buffer;
  return {
    start: new Float64Array(bytes("start")),
    seconds: context.array("seconds"),
    place: new Uint32Array(bytes("place")),
    name: new Uint32Array(bytes("name")),
    path: new Uint32Array(bytes("path")),
    awaited: new Uint32Array(bytes("awaited")),
  };
}

class Timeline {
  private readonly canvas = h("canvas", { class: "wb-tl-canvas", role: "application", tabindex: 0 });
  private readonly overview = h("canvas", { class: "wb-tl-overview", "aria-hidden": "true" });
  private readonly spacer = h("div", { class: "wb-tl-spacer" });
  private readonly scroller = h("div", { class: "wb-tl-scroller" }, this.canvas, this.spacer);
  private readonly card = h("div", { class: "wb-tl-card", hidden: true, "aria-hidden": "true" });
  private readonly frame = h("div", { class: "wb-tl-frame" }, this.overview, this.scroller, this.card);
  private readonly found = h("span", { class: "wb-note", role: "status" });
  private readonly selecting = button("Select an area", () => this.toggleSelecting(), {
    "aria-pressed": "false",
    "data-tip": "Drag over the picture to sum an area; Shift and drag does the same.",
  });
  private readonly detail: HTMLElement;
  private scene: Scene;
  private painter: Painter | undefined;
  private colours: Colours | undefined;
  private view: View = { camera: { from: 0, to: 1 }, gutter: GUTTER, width: 0, height: 0, scrollTop: 0 };
  private marks: Marks = { hover: -1, chosen: -1, highlighted: null, area: null };
  private pending = 0;
  private drawnOverview = "";

  constructor(
    host: HTMLElement,
    private readonly context: ViewContext<"timeline">,
  ) {
    const { node, main, detail } = split(context, "Details of the selected span or area", 0.66);
    this.detail = detail;
    this.scene = new Scene(context.whole, columnsOf(context));
    this.view.camera = { from: 0, to: this.scene.end };
    main.append(this.tools(), this.frame, this.foot());
    host.append(node);
    this.show(this.levels());
    this.listen();
    this.follow();
  }

  private levels(): Levels {
    return this.context.setting<Levels>("levels", this.scene.fitting(USUAL_HEIGHT));
  }

  private show(levels: Levels): void {
    this.scene.show(levels);
    this.spacer.style.height = `${this.scene.height}px`;
    this.request();
  }

  private tools(): HTMLElement {
    const levels = menu<Levels>(
      "Levels shown",
      [
        ["all", "stages and functions"],
        ["stages", "stages"],
        ["operations", "operations only"],
      ],
      this.levels(),
      (value) => {
        this.context.set("levels", value);
        this.show(value);
      },
    );
    const search = h("input", {
      type: "search",
      placeholder: "Find an operation",
      "aria-label": "Find an operation",
      oninput: () => this.highlight(search.value),
    });
    const icon = (sign: string, label: string, act: () => void) =>
      button(sign, act, { "aria-label": label, "data-tip": label, class: "wb-icon" });
    const zoom = h(
      "span",
      { class: "wb-row", role: "group", "aria-label": "Zoom" },
      icon("+", "Zoom in", () => this.look(zoomed(this.view.camera, 1 / ZOOM, 0.5, this.scene.end))),
      icon("−", "Zoom out", () => this.look(zoomed(this.view.camera, ZOOM, 0.5, this.scene.end))),
      button("Show all", () => this.look({ from: 0, to: this.scene.end })),
    );
    const save = button("Save as Perfetto trace", () => this.save(), {
      "data-tip": "A file for ui.perfetto.dev or chrome://tracing. It is created in the browser; nothing is uploaded.",
    });
    return h(
      "div",
      { class: "wb-tools" },
      zoom,
      this.selecting,
      h("label", {}, "Show ", levels),
      search,
      save,
      this.found,
    );
  }

  /** What the colours mean, and what the measurement itself says about its limits. */
  private foot(): HTMLElement {
    const { notes } = this.scene.data;
    const used = KINDS.filter((_, kind) =>
      this.scene.tracks.some(({ before, spans }) => before[kind][spans.length] > 0),
    );
    const keys = used.map((kind) =>
      h(
        "span",
        { class: "wb-tl-key" },
        h("span", { class: `wb-tl-swatch wb-tl-${kind}`, "aria-hidden": "true" }),
        KIND_WORDS[kind],
      ),
    );
    return h(
      "div",
      { class: "wb-tl-foot" },
      h("div", { class: "wb-row" }, keys),
      notes.length
        ? h(
            "details",
            {},
            h("summary", {}, `${plural(notes.length, "note")} on the measurement`),
            h(
              "ul",
              { class: "wb-note wb-tl-notes", "aria-label": "Notes on the measurement" },
              notes.map((note) => h("li", {}, asSentence(note))),
            ),
          )
        : null,
      h("details", {}, h("summary", {}, "Mouse and keys"), h("p", { class: "wb-note" }, HELP)),
    );
  }

  private listen(): void {
    const { canvas, scroller, context } = this;
    const { signal } = context;
    canvas.setAttribute(
      "aria-label",
      `${context.state("sentence")} Timeline of ${formatCount(this.scene.columns.start.length)} spans. ${HELP}`,
    );
    keepKeys(canvas);
    const watch = new ResizeObserver(() => this.request());
    watch.observe(scroller);
    signal.addEventListener("abort", () => watch.disconnect());
    scroller.addEventListener("scroll", () => this.request(), { signal });
    canvas.addEventListener("wheel", (event) => this.wheel(event), { signal, passive: false });
    canvas.addEventListener("keydown", (event) => this.key(event), { signal });
    canvas.addEventListener("pointerdown", (event) => this.press(event), { signal });
    canvas.addEventListener("pointermove", (event) => this.hover(event), { signal });
    canvas.addEventListener("pointerleave", () => this.point(-1), { signal });
    this.overview.addEventListener("pointerdown", (event) => this.jump(event), { signal });
    this.overview.addEventListener("pointermove", (event) => event.buttons && this.jump(event), { signal });
    context.theme.onChange(() => {
      this.painter = undefined;
      this.colours = undefined;
      this.drawnOverview = "";
      this.request();
    });
    context.onSelection(() => this.follow());
  }

  // Looking

  private look(camera: Camera): void {
    this.view.camera = inside(camera, this.scene.end);
    this.request();
  }

  private request(): void {
    this.pending ||= requestAnimationFrame(() => {
      this.pending = 0;
      if (!this.context.signal.aborted) this.paint();
    });
  }

  private paint(): void {
    const { canvas, scroller, view } = this;
    const [width, height] = [scroller.clientWidth, scroller.clientHeight];
    if (!width || !height) return;
    const ratio = window.devicePixelRatio || 1;
    if (canvas.width !== Math.round(width * ratio) || canvas.height !== Math.round(height * ratio)) {
      canvas.width = Math.round(width * ratio);
      canvas.height = Math.round(height * ratio);
      canvas.style.width = `${width}px`;
      canvas.style.height = `${height}px`;
      canvas.style.marginBottom = `${-height}px`;
    }
    this.spacer.style.height = `${this.scene.height + AXIS}px`;
    Object.assign(view, { width, height, scrollTop: scroller.scrollTop });
    const pen = canvas.getContext("2d");
    if (!pen) return;
    pen.setTransform(ratio, 0, 0, ratio, 0, 0);
    this.colours ??= coloursOf(this.context.theme.colour);
    this.painter ??= new Painter(pen, this.scene, this.colours);
    this.painter.paint(view, this.marks);
    this.paintOverview();
  }

  /** The whole run as one strip, with a frame around what is in sight. */
  private paintOverview(): void {
    const { overview, scene, view } = this;
    const wide = view.width - GUTTER;
    const drawn = `${wide} ${view.camera.from} ${view.camera.to}`;
    if (drawn === this.drawnOverview || wide < 10) return;
    this.drawnOverview = drawn;
    overview.width = wide;
    overview.height = OVERVIEW;
    overview.style.marginLeft = `${GUTTER}px`;
    const pen = overview.getContext("2d");
    if (!pen) return;
    const colours = this.colours ?? coloursOf(this.context.theme.colour);
    pen.drawImage(this.overviewBars(wide, colours), 0, 0);
    const x1 = (view.camera.from / scene.end) * wide;
    const x2 = (view.camera.to / scene.end) * wide;
    pen.fillStyle = colours.bg;
    pen.globalAlpha = 0.6;
    pen.fillRect(0, 0, x1, OVERVIEW);
    pen.fillRect(x2, 0, wide - x2, OVERVIEW);
    pen.globalAlpha = 1;
    pen.strokeStyle = colours.accent;
    pen.lineWidth = 1.5;
    pen.strokeRect(x1 + 0.75, 0.75, Math.max(x2 - x1 - 1.5, 1), OVERVIEW - 1.5);
  }

  private barsMade: { wide: number; colours: string; canvas: HTMLCanvasElement } | undefined;

  /** The overview without its frame: it is the same wherever one looks. */
  private overviewBars(wide: number, colours: Colours): HTMLCanvasElement {
    const key = [...colours.kinds, colours.panel].join();
    if (this.barsMade?.wide === wide && this.barsMade.colours === key) return this.barsMade.canvas;
    const canvas = h("canvas", { width: wide, height: OVERVIEW });
    const pen = canvas.getContext("2d");
    this.barsMade = { wide, colours: key, canvas };
    if (!pen) return canvas;
    pen.fillStyle = colours.panel;
    pen.fillRect(0, 0, wide, OVERVIEW);
    const loads = this.loads(wide);
    for (let x = 0; x < wide; x++) {
      let top = OVERVIEW;
      for (let kind = 0; kind < KINDS.length; kind++) {
        const high = loads[x * KINDS.length + kind] * OVERVIEW;
        pen.fillStyle = colours.kinds[kind];
        pen.globalAlpha = KINDS[kind] === "wait" ? 0.35 : 0.9;
        pen.fillRect(x, top - high, 1, high);
        top -= high;
      }
    }
    pen.globalAlpha = 1;
    return canvas;
  }

  private loadsMade: { wide: number; values: Float32Array } | undefined;

  /** Per pixel of the overview and per kind, the share of the devices' time. */
  private loads(wide: number): Float32Array {
    if (this.loadsMade?.wide === wide) return this.loadsMade.values;
    const values = new Float32Array(wide * KINDS.length);
    const step = this.scene.end / wide;
    for (let x = 0; x < wide; x++)
      for (const track of this.scene.tracks)
        sumsBetween(track, x * step, (x + 1) * step).forEach((seconds, kind) => {
          values[x * KINDS.length + kind] += seconds / step / this.scene.data.devices.length;
        });
    this.loadsMade = { wide, values };
    return values;
  }

  private jump(event: PointerEvent): void {
    const box = this.overview.getBoundingClientRect();
    const { from, to } = this.view.camera;
    const middle = ((event.clientX - box.left) / box.width) * this.scene.end;
    this.look({ from: middle - (to - from) / 2, to: middle + (to - from) / 2 });
    this.overview.setPointerCapture(event.pointerId);
  }

  // Pointing

  private momentAt(x: number): number {
    const { camera, width } = this.view;
    return camera.from + ((x - GUTTER) / (width - GUTTER)) * (camera.to - camera.from);
  }

  private hit(event: PointerEvent): { row: Row | undefined; moment: number; span: number; y: number } {
    const place = placeIn(event, this.canvas);
    const moment = this.momentAt(place.x);
    const y = place.y - AXIS + this.scroller.scrollTop;
    const row = this.scene.rowAt(y);
    const slack = ((this.view.camera.to - this.view.camera.from) / this.view.width) * NEAR;
    const at = row && row.depth < 0 ? spanAt(this.scene.tracks[row.track], moment, slack) : -1;
    return { row, moment, y, span: row && at >= 0 ? this.scene.tracks[row.track].spans[at] : -1 };
  }

  private wheel(event: WheelEvent): void {
    if (event.ctrlKey || event.metaKey) {
      const { x, width } = placeIn(event, this.canvas);
      const share = clamp((x - GUTTER) / (width - GUTTER), 0, 1);
      this.look(zoomed(this.view.camera, Math.exp(event.deltaY / 300), share, this.scene.end));
      consume(event);
    } else if (event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY)) {
      this.look(panned(this.view.camera, (event.deltaX || event.deltaY) / this.view.width, this.scene.end));
      consume(event);
    } // else the page scrolls
  }

  private toggleSelecting(): void {
    const on = this.selecting.getAttribute("aria-pressed") !== "true";
    this.selecting.setAttribute("aria-pressed", String(on));
    this.canvas.classList.toggle("wb-tl-selecting", on);
  }

  private press(event: PointerEvent): void {
    if (event.button !== 0) return;
    this.canvas.setPointerCapture(event.pointerId);
    const selects = event.shiftKey || this.selecting.getAttribute("aria-pressed") === "true";
    const began = this.hit(event);
    const { camera } = this.view;
    const scroll = this.scroller.scrollTop;
    let dragged = false;
    const move = (now: PointerEvent) => {
      dragged ||= Math.hypot(now.clientX - event.clientX, now.clientY - event.clientY) > CLICK;
      if (!dragged) return;
      if (selects) return this.mark(this.areaFrom(began, this.hit(now)));
      const by = (camera.to - camera.from) / (this.view.width - GUTTER);
      const shift = (event.clientX - now.clientX) * by;
      this.scroller.scrollTop = scroll + event.clientY - now.clientY;
      this.look({ from: camera.from + shift, to: camera.to + shift });
    };
    const end = (now: PointerEvent) => {
      this.canvas.removeEventListener("pointermove", move);
      if (!dragged) this.click(this.hit(now));
      else if (selects) {
        this.describe();
        this.context.say("");
      }
    };
    this.canvas.addEventListener("pointermove", move);
    this.canvas.addEventListener("pointerup", end, { once: true });
  }

  private areaFrom(a: { moment: number; y: number }, b: { moment: number; y: number }): Area {
    const near = (y: number) =>
      this.scene.rows.reduce((best, row) =>
        Math.abs(row.top + row.height / 2 - y) < Math.abs(best.top + best.height / 2 - y) ? row : best,
      ).track;
    const [one, two] = [near(a.y), near(b.y)];
    const limit = (moment: number) => clamp(moment, 0, this.scene.end);
    return {
      from: limit(Math.min(a.moment, b.moment)),
      to: limit(Math.max(a.moment, b.moment)),
      firstTrack: Math.min(one, two),
      lastTrack: Math.max(one, two),
    };
  }

  private mark(area: Area | null): void {
    this.marks = { ...this.marks, area };
    this.request();
  }

  private click({ row, moment, span }: { row: Row | undefined; moment: number; span: number }): void {
    if (row && row.depth >= 0) return this.chooseSlice(row, moment);
    this.choose(span);
  }

  /** A click on a stage or function selects its stretch of time as an area, and its stage everywhere. */
  private chooseSlice(row: Row, moment: number): void {
    const slices = this.scene.slicesAt(row.track, row.depth);
    const at = slices.end.findIndex((end, i) => end >= moment && slices.start[i] <= moment);
    if (at < 0) return this.choose(-1);
    const track = this.scene.tracks[row.track];
    const inner = spanAt(track, (Math.max(slices.start[at], 0) + slices.end[at]) / 2, Number.POSITIVE_INFINITY);
    const place = inner < 0 ? undefined : this.scene.placeOf(track.spans[inner]);
    if (row.depth === 0) this.context.select({ stage: place?.stage ?? null });
    this.marks = { ...this.marks, chosen: -1 };
    this.mark({ from: slices.start[at], to: slices.end[at], firstTrack: row.track, lastTrack: row.track });
    this.describe();
  }

  private choose(span: number): void {
    this.marks = { ...this.marks, chosen: span, area: null };
    const place = span < 0 ? undefined : this.scene.placeOf(span);
    const device = span < 0 ? null : this.scene.data.device_ids[deviceOf(this.scene.columns, span)];
    this.context.select({
      instruction: span < 0 ? null : this.scene.nameOf(span),
      stage: place?.stage ?? null,
      line: place?.line ?? null,
      device,
    });
    this.describe();
    this.request();
  }

  private hover(event: PointerEvent): void {
    if (event.buttons) return this.point(-1);
    const { span } = this.hit(event);
    this.point(span);
    if (span < 0) return;
    const { x, y, width, height } = placeIn(event, this.frame);
    replace(this.card, this.cardOf(span));
    const wide = this.card.offsetWidth;
    this.card.style.left = `${clamp(x + 14, 4, width - wide - 4)}px`;
    const below = y + 18;
    const top = below + this.card.offsetHeight > height ? below - this.card.offsetHeight - 30 : below;
    this.card.style.top = `${top}px`;
  }

  private cardOf(span: number): HTMLElement[] {
    const place = this.scene.placeOf(span);
    return [
      h("b", {}, sentenceOf(this.scene, span)),
      h("div", {}, place?.frames.join(" › ") ?? ""),
      h("div", { class: "wb-note" }, place?.line ?? ""),
    ];
  }

  private point(span: number): void {
    this.card.hidden = span < 0;
    if (this.marks.hover === span) return;
    this.marks = { ...this.marks, hover: span };
    this.request();
  }

  // Keys

  private key(event: KeyboardEvent): void {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const { camera } = this.view;
    const { end } = this.scene;
    const acts: Record<string, () => void> = {
      w: () => this.look(zoomed(camera, 1 / ZOOM, this.centre(), end)),
      s: () => this.look(zoomed(camera, ZOOM, this.centre(), end)),
      a: () => this.look(panned(camera, -STEP, end)),
      d: () => this.look(panned(camera, STEP, end)),
      "+": () => this.look(zoomed(camera, 1 / ZOOM, this.centre(), end)),
      "-": () => this.look(zoomed(camera, ZOOM, this.centre(), end)),
      f: () => this.look({ from: 0, to: end }),
      m: () => {
        this.mark({ ...camera, firstTrack: 0, lastTrack: this.scene.tracks.length - 1 });
        this.describe();
      },
      Home: () => this.look({ from: 0, to: camera.to - camera.from }),
      End: () => this.look({ from: end - (camera.to - camera.from), to: end }),
      ArrowRight: () => this.walk(1),
      ArrowLeft: () => this.walk(-1),
      ArrowDown: () => this.change(1),
      ArrowUp: () => this.change(-1),
      Enter: () => this.zoomToChosen(),
      Escape: () => this.choose(-1),
    };
    const act = acts[event.key.length === 1 ? event.key.toLowerCase() : event.key];
    if (!act) return;
    act();
    consume(event);
  }

  /** Where keys zoom to: the chosen span if it is in sight, else the middle. */
  private centre(): number {
    const { chosen } = this.marks;
    const { from, to } = this.view.camera;
    if (chosen < 0) return 0.5;
    const middle = (this.scene.columns.start[chosen] + endOf(this.scene.columns, chosen)) / 2;
    return middle >= from && middle <= to ? (middle - from) / (to - from) : 0.5;
  }

  /** To the next span of the same track; from nothing to the first in sight. */
  private walk(step: number): void {
    const found = this.marks.chosen < 0 ? undefined : this.scene.find(this.marks.chosen);
    if (!found) return this.change(0);
    const { spans } = this.scene.tracks[found.track];
    this.go(spans[clamp(found.at + step, 0, spans.length - 1)]);
  }

  private change(step: number): void {
    const { chosen } = this.marks;
    const found = chosen < 0 ? undefined : this.scene.find(chosen);
    const { from, to } = this.view.camera;
    const number = found ? clamp(found.track + step, 0, this.scene.tracks.length - 1) : 0;
    const track = this.scene.tracks[number];
    if (!track) return;
    const moment = found ? this.scene.columns.start[chosen] + this.scene.columns.seconds[chosen] / 2 : (from + to) / 2;
    const at = spanAt(track, moment, Number.POSITIVE_INFINITY);
    if (at >= 0) this.go(track.spans[at]);
  }

  /** Chooses a span and brings it into sight. */
  private go(span: number): void {
    this.choose(span);
    this.reveal(span);
    this.context.say(sentenceOf(this.scene, span));
  }

  private reveal(span: number): void {
    const { camera } = this.view;
    const middle = (this.scene.columns.start[span] + endOf(this.scene.columns, span)) / 2;
    const width = camera.to - camera.from;
    if (middle < camera.from || middle > camera.to) this.look({ from: middle - width / 2, to: middle + width / 2 });
    const row = this.scene.operationRow(this.scene.find(span)?.track ?? -1);
    const room = this.scroller.clientHeight - AXIS;
    if (!row) return;
    if (row.top < this.scroller.scrollTop) this.scroller.scrollTop = row.top - 4;
    else if (row.top + row.height > this.scroller.scrollTop + room)
      this.scroller.scrollTop = row.top + row.height - room + 4;
  }

  private zoomToChosen(): void {
    const { chosen, area } = this.marks;
    if (chosen >= 0)
      this.look(framed(this.scene.columns.start[chosen], endOf(this.scene.columns, chosen), this.scene.end, 1));
    else if (area) this.look(framed(area.from, area.to, this.scene.end));
  }

  // What stands beside the picture

  private describe(): void {
    const { chosen, area } = this.marks;
    const zoom = () => this.zoomToChosen();
    if (area) showArea(this.context, this.detail, this.scene, area, zoom);
    else if (chosen >= 0) showSpan(this.context, this.detail, this.scene, chosen, zoom);
    else showWhole(this.context, this.detail, this.scene);
  }

  private highlight(text: string): void {
    const wanted = text.trim().toLowerCase();
    const { names } = this.scene.data;
    const chosen = this.context.selection.instruction;
    const hits = Uint8Array.from(names, (name) =>
      Number(wanted ? name.toLowerCase().includes(wanted) : name === chosen),
    );
    const any = wanted !== "" || (chosen !== undefined && hits.includes(1));
    const highlighted = any ? this.scene.tracks.map((track) => countBefore(this.scene.columns, track, hits)) : null;
    this.marks = { ...this.marks, highlighted };
    this.found.textContent = wanted ? this.summary(hits) : "";
    this.request();
  }

  private summary(hits: Uint8Array): string {
    const { columns, data } = this.scene;
    let count = 0;
    let seconds = 0;
    for (let i = 0; i < columns.start.length; i++)
      if (hits[columns.name[i]]) {
        count++;
        seconds += columns.seconds[i];
      }
    const kinds = hits.reduce((sum, hit) => sum + hit, 0);
    return count
      ? `${formatCount(kinds)} of ${formatCount(data.names.length)} operations, ${formatCount(count)} spans, ${formatSeconds(seconds)}`
      : "No operation has that name.";
  }

  /** Another view chose an instruction: its spans stand out. */
  private follow(): void {
    const { chosen } = this.marks;
    const wanted = this.context.selection.instruction;
    if (chosen >= 0 && this.scene.nameOf(chosen) !== wanted) this.marks = { ...this.marks, chosen: -1 };
    this.highlight(this.frame.parentElement?.querySelector<HTMLInputElement>("input[type=search]")?.value ?? "");
    this.describe();
  }

  private save(): void {
    save(traceParts(this.scene), "application/json", `${this.scene.data.title}.perfetto-trace.json`);
  }
}

export const timeline: RenderView<"timeline"> = (host, context) => {
  if (!context.state("devices").length) {
    host.append(h("p", { class: "wb-note wb-empty" }, `${context.state("sentence")} No spans were recorded.`));
    return;
  }
  new Timeline(host, context);
};
