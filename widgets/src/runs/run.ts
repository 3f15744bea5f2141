// A run: how far it is, what can be done about it, its curves with bands over clients, every client over all rounds.
import { button, h, menu, replace, uniqueId } from "../lib/dom";
import { fitted } from "../lib/fitted";
import {
  formatBytes,
  formatCount,
  formatMetric,
  formatSeconds,
  formatWithin,
  metricTitle,
  plural,
} from "../lib/format";
import { floats } from "../lib/model";
import { cellAt, paintCells } from "../lib/pixels";
import { position, range, suitsLog } from "../lib/scale";
import type { ClientMap, RunSamples, SentCurve } from "../lib/states";
import { legend } from "../lib/theme";
import type { RenderView, ViewContext } from "../lib/view";
import { Chart, type Line } from "./chart";
import { aligned, BANDS, type BandKind, bandOf, type Curve, canBeLog, curveOf, topWithoutPeaks, union } from "./curves";

const OVER = new Set(["finished", "stopped", "interrupted", "failed"]);
const MOST_LINES = 12; // devices drawn one by one
const PARTS = "seconds of a step"; // the chart of a watched loop's seconds; compilations are events in the list

const RATES = /_per_second$|_share$|_bytes$/; // what `watch` itself measures, after the outputs and the seconds

type Axis = "round" | "seconds";

const readCurves = (sent: readonly SentCurve[] | undefined): Curve[] =>
  (sent ?? []).map(({ name, points, spread }) => curveOf(name, floats(points), floats(spread)));

class RunView {
  private readonly sync = uniqueId();
  private readonly status = h("div", { class: "wb-big", role: "status" });
  private readonly bar = h("div", {});
  private readonly progress = h(
    "div",
    { class: "wb-progress", role: "progressbar", "aria-label": "Rounds", "aria-valuemin": 0 },
    this.bar,
  );
  private readonly times = h("span", { class: "wb-note" });
  private readonly pause = this.asks("pause", "Pause");
  private readonly resume = this.asks("resume", "Resume");
  private readonly stop = this.asks("stop", "Stop");
  private readonly charts = new Map<string, { node: HTMLElement; chart: Chart }>();
  private readonly grid = h("div", { class: "wb-plots" });
  private readonly heat: HeatMap;
  private readonly problems = h("div", {});
  private readonly log: HTMLInputElement;
  private span: [number, number] | undefined;
  private others: { name: string; curves: Curve[] }[] = [];

  constructor(
    host: HTMLElement,
    private readonly context: ViewContext<"run">,
  ) {
    this.log = h("input", { type: "checkbox", onchange: () => this.draw() });
    this.heat = new HeatMap(context);
    const buttons = h("div", { class: "wb-row" }, this.pause, this.resume, this.stop);
    const head = h("div", { class: "wb-runhead wb-row" }, this.status, this.progress, buttons, this.times);
    const notes = h("textarea", {
      "aria-label": "Notes on this run",
      placeholder: 'Notes on this run (kept in view.settings["notes"])',
      rows: 2,
    });
    notes.value = context.setting("notes", "");
    notes.addEventListener("change", () => context.set("notes", notes.value));
    const body = h(
      "div",
      { class: "wb-scrolls" },
      this.isLoop ? this.problems : null,
      this.grid,
      this.heat.node,
      this.isLoop ? null : this.problems,
      h("h3", {}, "Notes"),
      notes,
      this.simulated(),
    );
    if (this.isLoop) {
      this.grid.classList.add("wb-loop");
      this.problems.classList.add("wb-events");
    }
    const live = context.live("status") !== undefined;
    head.hidden = !live;
    host.append(h("div", { class: "wb-runbar" }, head, live ? this.tools() : null), body);
    context.onLive(() => this.draw());
    context.onState(() => this.readOthers());
    context.onSelection(() => this.heat.mark());
    this.readOthers();
  }

  private readOthers(): void {
    const sent = this.context.state("others");
    this.others = sent.map(({ name, curves }) => ({ name, curves: readCurves(curves) }));
    this.draw();
  }

  private asks(name: "pause" | "resume" | "stop", text: string): HTMLButtonElement {
    return button(text, () => {
      this.context.request(`${name}_run`).then(
        (state) =>
          this.context.say(
            state === "running" && name === "pause" ? `It will pause before the next ${this.unit}.` : "",
          ),
        () => {},
      );
    });
  }

  private tools(): HTMLElement {
    const change = (name: string) => (value: string) => {
      this.context.set(name, value);
      this.draw();
    };
    const axis = menu<Axis>(
      "Along the axis",
      [
        ["round", `${this.unit}s`],
        ["seconds", "seconds"],
      ],
      this.axis,
      change("axis"),
    );
    const band = menu<BandKind>("Band over clients", BANDS, this.band, change("band"));
    return h(
      "div",
      { class: "wb-tools" },
      h("label", {}, "Along ", axis),
      this.isLoop ? null : h("label", {}, "Band over clients ", band),
      h("label", {}, this.log, " Logarithmic"),
    );
  }

  private get unit(): string {
    return this.context.state("unit");
  }
  /** Whether this is a watched loop, which has no clients. */
  private get isLoop(): boolean {
    return this.unit === "step";
  }
  private get axis(): Axis {
    return this.context.setting<Axis>("axis", "round");
  }
  private get band(): BandKind {
    return this.context.setting<BandKind>("band", "80");
  }

  /** A simulated round, drawn by the kernel. */
  private simulated(): HTMLElement | null {
    const gantt = this.context.state("gantt");
    if (!gantt) return null;
    return h(
      "div",
      {},
      h("h3", {}, "A round on the virtual clock"),
      h("p", { class: "wb-note" }, gantt.sentence),
      fitted(this.context, gantt.drawn),
    );
  }

  private draw(): void {
    const state = this.context.live("status");
    if (state === undefined) return; // a simulated round alone
    this.drawHead(state);
    const curves = readCurves(this.context.live("curves"));
    const samples = this.context.live("samples");
    const parts = this.isLoop ? curves.filter(({ name }) => /(^|_)seconds$/.test(name)) : [];
    const others = curves.filter((curve) => !parts.includes(curve));
    const wanted = new Set(others.map(({ name }) => name));
    this.span = this.spanOf(curves, samples ?? null);
    for (const curve of others) this.drawCurve(curve);
    if (parts.length) {
      wanted.add(PARTS);
      this.drawParts(parts.filter(({ name }) => name !== "compile_seconds"));
    }
    if (samples?.devices.length && this.axis === "seconds")
      for (const name of Object.keys(samples.columns)) {
        wanted.add(`devices: ${name}`);
        this.drawSamples(name, samples, curves[0]?.seconds ?? []);
      }
    for (const [name, { node }] of this.charts) node.hidden = !wanted.has(name);
    this.heat.draw(this.context.live("map") ?? null);
    const problems = this.context.live("problems") ?? [];
    const list = h(
      "ul",
      {},
      problems.map((text) => h("li", {}, text)),
    );
    replace(this.problems, problems.length ? [h("h3", {}, this.isLoop ? "Events" : "Problems"), list] : null);
  }

  private drawHead(state: string): void {
    const { context } = this;
    const finished = context.live("finished") ?? 0;
    const rounds = context.live("rounds") ?? null;
    const over = OVER.has(state);
    const { unit } = this;
    const endless = rounds === null; // a loop that somebody else drives
    const count = endless ? plural(finished, unit) : `${formatCount(finished)} of ${formatCount(rounds)} ${unit}s`;
    this.status.textContent = `${state} · ${count}`;
    this.progress.hidden = endless;
    this.bar.style.width = `${rounds ? (100 * finished) / rounds : 0}%`;
    this.progress.setAttribute("aria-valuemax", String(rounds));
    this.progress.setAttribute("aria-valuenow", String(finished));
    const left = context.live("left");
    const ahead =
      over || endless
        ? ""
        : left === "unknown"
          ? " · the time left is known after two rounds"
          : ` · about ${left} left`;
    this.times.textContent = `${context.live("elapsed")} ${over ? "in all" : "so far"} · ${context.live("pace")} per ${unit}${ahead}`;
    const alone = !context.hasKernel; // a saved page: nothing can be asked
    this.pause.disabled = alone || over || state === "paused";
    this.resume.disabled = alone || state !== "paused";
    this.stop.disabled = alone || over;
  }

  /** What all charts have on their axis. */
  private spanOf(curves: readonly Curve[], samples: RunSamples | null): [number, number] | undefined {
    if (this.axis === "round") return undefined;
    const all = [...curves, ...this.others.flatMap((each) => each.curves)].map(({ seconds }) => seconds.at(-1) ?? 0);
    const sampled = samples ? (floats(samples.seconds).at(-1) ?? 0) : 0;
    return [0, Math.max(...all, sampled, 1e-3)];
  }

  private chartOf(name: string): Chart {
    const known = this.charts.get(name);
    if (known) return known.chart;
    const chart = new Chart({ theme: this.context.theme, signal: this.context.signal, sync: this.sync });
    const node = h("div", { class: "wb-tile" }, h("h3", {}, metricTitle(name)), chart.node);
    if (this.isLoop) node.style.order = String(name === PARTS ? 1 : RATES.test(name) ? 2 : 0);
    this.charts.set(name, { node, chart });
    this.grid.append(node);
    return chart;
  }

  private drawCurve(curve: Curve): void {
    const along = (each: Curve) => (this.axis === "seconds" ? each.seconds : each.round);
    const behind = this.others.flatMap(({ name, curves }) => {
      const same = curves.find((each) => each.name === curve.name);
      return same ? [{ name, curve: same }] : [];
    });
    const x = union([along(curve), ...behind.map((each) => along(each.curve))]);
    const at = (each: Curve, values: readonly (number | null)[]) => aligned(along(each), values, x);
    const edges = bandOf(curve, this.band);
    const bands = edges ? [{ low: at(curve, edges[0]), high: at(curve, edges[1]), colour: "clients" }] : [];
    const own: Line = {
      label: behind.length ? "this run" : curve.spreads ? "mean" : metricTitle(curve.name),
      values: at(curve, curve.mean),
      colour: "clients",
      width: 2.4,
    };
    const lines = behind.map(
      ({ name, curve: each }, i): Line => ({
        label: name,
        values: at(each, each.mean),
        colour: `series-${(i + 3) % 8}`,
        width: 1.4,
        dash: [6, 4],
      }),
    );
    const format = formatMetric(curve.name) ?? formatWithin(own.values);
    const columns = [...[...lines, own].map(({ values }) => values), ...bands.flatMap(({ low, high }) => [low, high])];
    const last = curve.mean.at(-1) ?? null;
    const said = last === null ? "nothing yet" : format(last);
    this.chartOf(curve.name).draw({
      x,
      lines: [...lines, own],
      bands,
      log: this.log.checked && canBeLog(columns),
      rangeX: this.span,
      binary: curve.name.endsWith("_bytes"),
      label: `${metricTitle(curve.name)}: ${said} after ${this.unit} ${curve.round.at(-1) ?? 0}`,
      format,
      formatX:
        this.axis === "seconds" ? formatSeconds : (value) => (Number.isInteger(value) ? `${this.unit} ${value}` : ""),
    });
  }

  /** The seconds of a watched loop's steps, and the parts of these seconds. */
  private drawParts(parts: readonly Curve[]): void {
    const along = (each: Curve) => (this.axis === "seconds" ? each.seconds : each.round);
    const x = union(parts.map(along));
    const whole = ({ name }: Curve) => name === "seconds";
    const ordered = [...parts.filter((each) => !whole(each)), ...parts.filter(whole)]; // the whole is on top
    const lines = ordered.map((each, i): Line => {
      const isWhole = whole(each);
      return {
        label: isWhole ? "step" : each.name.replace(/_seconds$/, ""),
        values: aligned(along(each), each.mean, x),
        colour: isWhole ? "clients" : `series-${(i + 3) % 8}`,
        width: isWhole ? 2.4 : 1.4,
      };
    });
    const last = parts.find(whole)?.mean.at(-1);
    const columns = lines.map(({ values }) => values);
    const log = this.log.checked && canBeLog(columns);
    const top = log ? null : topWithoutPeaks(columns);
    const peaks = top === null ? 0 : x.filter((_, at) => columns.some((values) => (values[at] ?? 0) > top)).length;
    this.chartOf(PARTS).draw({
      x,
      lines,
      bands: [],
      log,
      ...(top === null ? {} : { range: [0, top] as const, note: `${plural(peaks, "peak")} above the chart` }),
      rangeX: this.span,
      binary: false,
      label: `${PARTS}: ${last == null ? "nothing yet" : formatSeconds(last)}`,
      format: formatSeconds,
      formatX:
        this.axis === "seconds" ? formatSeconds : (value) => (Number.isInteger(value) ? `${this.unit} ${value}` : ""),
    });
  }

  /** Devices over the same seconds as the curves, with rounds ruled in. */
  private drawSamples(name: string, samples: RunSamples, rules: readonly number[]): void {
    const seconds = Array.from(floats(samples.seconds));
    const values = floats(samples.columns[name]);
    const row = (device: number) =>
      Array.from(values.subarray(device * seconds.length, (device + 1) * seconds.length), (value) =>
        Number.isFinite(value) ? value : null,
      );
    const rows = samples.devices.map((_, device) => row(device));
    const lines: Line[] = samples.devices
      .slice(0, MOST_LINES)
      .map((label, device) => ({ label, values: rows[device], colour: `series-${device % 8}`, width: 1.4 }));
    const format = name === "memory" ? formatBytes : (value: number) => `${value.toFixed(0)} %`;
    this.chartOf(`devices: ${name}`).draw({
      x: seconds,
      lines,
      bands: [],
      log: false,
      rangeX: this.span,
      binary: name === "memory",
      rules,
      label: `${name} of ${plural(samples.devices.length, "device")} while the rounds ran`,
      format,
      formatX: formatSeconds,
    });
  }
}

/** Every client (rows) over all rounds (columns), as one picture. */
class HeatMap {
  readonly node = h("div", { hidden: true });
  private readonly canvas = h("canvas", { class: "wb-pixels", role: "img" });
  private readonly latest = h("canvas", { class: "wb-pixels", role: "img" });
  private readonly latestBox = h(
    "div",
    { hidden: true },
    h("h3", {}, "Every client after the last round"),
    this.latest,
  );
  private readonly ring = h("div", { class: "wb-heatring", hidden: true, "aria-hidden": "true" });
  private readonly key = h("div", { class: "wb-legendbox" });
  private readonly foot = h("div", { class: "wb-heatfoot", "aria-hidden": "true" });
  private readonly tip = h("p", { class: "wb-note", role: "status" });
  private made: ClientMap | null = null;
  private values: Float32Array = new Float32Array();

  constructor(private readonly context: ViewContext<"run">) {
    this.canvas.style.height = "200px";
    this.canvas.addEventListener("mousemove", (event) => this.hover(event));
    this.canvas.addEventListener("click", (event) => {
      const found = this.at(event);
      if (found) context.select({ client: found.client });
    });
    const go = h("input", { type: "number", min: 0, class: "wb-short" });
    go.addEventListener("change", () => context.select({ client: Number(go.value) }));
    this.node.append(
      this.latestBox,
      h("h3", {}, "Clients over rounds"),
      h("div", { class: "wb-tools" }, this.key, h("label", {}, "Go to client ", go)),
      h("div", { class: "wb-heatbox" }, this.canvas, this.ring),
      this.foot,
      this.tip,
    );
  }

  draw(made: ClientMap | null): void {
    this.made = made;
    this.node.hidden = !made;
    if (!made) return;
    this.values = floats(made.values);
    const rounds = made.last - made.first + 1;
    const [low, high] = this.paint(this.canvas, made.columns, this.values);
    this.canvas.setAttribute(
      "aria-label",
      `${made.name} of ${made.clients} clients over ${rounds} rounds, from ${formatCount(low)} to ${formatCount(high)}`,
    );
    const merged = [
      made.together > 1 ? `means of ${made.together} clients` : "",
      made.each > 1 ? `of ${made.each} rounds` : "",
    ]
      .filter(Boolean)
      .join(" and ");
    const log = suitsLog(this.values) ? ", logarithmic" : "";
    replace(this.key, legend(`${made.name}${merged ? `; ${merged}` : ""}${log}`, formatCount(low), formatCount(high)));
    const words = [
      `round ${made.first}`,
      `client 0 at the top, ${made.clients - 1} at the bottom`,
      `round ${made.last}`,
    ];
    replace(
      this.foot,
      words.map((text) => h("span", {}, text)),
    );
    this.drawLatest(made);
    this.mark();
  }

  private paint(canvas: HTMLCanvasElement, columns: number, values: Float32Array): [number, number] {
    const [low, high] = range(values);
    const log = suitsLog(values);
    paintCells(
      canvas,
      columns,
      values.map((value) => (Number.isFinite(value) ? position(value, low, high, log) : Number.NaN)),
    );
    return [low, high];
  }

  private drawLatest(made: ClientMap): void {
    const latest = floats(made.latest);
    this.latestBox.hidden = !latest.length;
    if (!latest.length) return;
    const across = Math.ceil(Math.sqrt(latest.length * 4));
    const [least, most] = this.paint(this.latest, across, latest);
    this.latest.style.aspectRatio = `${across} / ${Math.ceil(latest.length / across)}`;
    this.latest.dataset.round = String(made.last);
    this.latest.setAttribute(
      "aria-label",
      `${made.name} of all ${latest.length} clients after the last round, from ${formatCount(least)} to ${formatCount(most)}`,
    );
  }

  private at(event: MouseEvent): { client: number; round: number; value: number } | null {
    const { made } = this;
    const index = made ? cellAt(event, this.canvas, made.columns, made.rows) : -1;
    if (!made || index < 0) return null;
    const client = Math.floor(index / made.columns) * made.together;
    return { client, round: made.first + (index % made.columns) * made.each, value: this.values[index] };
  }

  private hover(event: MouseEvent): void {
    const found = this.at(event);
    this.tip.textContent = found ? `client ${found.client} · round ${found.round} · ${formatCount(found.value)}` : "";
  }

  /** Outlines the row of the chosen client. */
  mark(): void {
    const { client } = this.context.selection;
    const { made } = this;
    this.ring.hidden = !made || client === undefined || client >= made.clients;
    if (!made || client === undefined) return;
    const row = Math.floor(client / made.together);
    this.ring.style.top = `calc(${(100 * row) / made.rows}% - 1px)`;
    this.ring.style.height = `calc(${100 / made.rows}% + 2px)`;
    const last = this.values[row * made.columns + made.columns - 1];
    this.tip.textContent = `client ${client} · last ${formatCount(last)}`;
  }
}

export const run: RenderView<"run"> = (host, context) => {
  new RunView(host, context);
};
