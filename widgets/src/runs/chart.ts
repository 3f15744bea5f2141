// A chart over rounds or seconds: uPlot with the colours of the page, a shared crosshair and keys.
import uPlot from "uplot";
import { h, keepKeys, replace } from "../lib/dom";
import { clamp, consume } from "../lib/keyboard";
import type { Theme } from "../lib/view";

export type Values = readonly (number | null)[];

export interface Line {
  label: string;
  values: Values;
  /** A token such as "clients", or "series-3". */
  colour: string;
  width?: number;
  dash?: number[];
}

export interface Plot {
  x: readonly number[];
  lines: readonly Line[];
  /** Lower and upper edge of a band in a line's colour. */
  bands: readonly { low: Values; high: Values; colour: string }[];
  log: boolean;
  /** What a reader hears of the chart. */
  label: string;
  format: (value: number) => string;
  formatX: (value: number) => string;
  range?: readonly [number, number];
  /** Follows the values below the chart. */
  note?: string;
  /** The same for charts that stand side by side. */
  rangeX?: readonly [number, number];
  /** Ticks at powers of two. */
  binary?: boolean;
  /** Places on the x axis that are ruled in, such as the ends of rounds. */
  rules?: readonly number[];
}

export interface ChartOptions {
  theme: Theme;
  signal: AbortSignal;
  /** Charts of the same name share their crosshair. */
  sync: string;
  height?: number;
}

const FONT = "11px system-ui, -apple-system, 'Segoe UI', 'DejaVu Sans', sans-serif";
const LAST_LABEL = 30; // pixels: half of the label at the end of an axis, "round 1,000"
const HEIGHT = 170;

/** uPlot's own function; its types leave out that the other charts may hear of it. */
type Publishing = (at: { left: number; top: number }, fire?: boolean, publish?: boolean) => void;

const POWERS = Array.from({ length: 50 }, (_, power) => 2 ** power);

const LEAST_LABEL_WIDTH = 62;

/** Width of the labels on the left, so that the longest is not cut; narrow ones leave charts below each other aligned. */
function labelWidth(chart: uPlot, labels: readonly string[] | null): number {
  chart.ctx.font = FONT;
  const widths = (labels ?? []).map((label) => chart.ctx.measureText(label).width);
  return Math.ceil(Math.max(LEAST_LABEL_WIDTH, ...widths.map((width) => width + 12)));
}

const faded = (colour: string, share: number): string => `color-mix(in srgb, ${colour} ${100 * share}%, transparent)`;

/** A canvas understands no `color-mix` in older browsers: a plain colour with an alpha. */
function translucent(colour: string, share: number): string {
  const hex = /^#([0-9a-f]{2})([0-9a-f]{2})([0-9a-f]{2})$/i.exec(colour);
  return hex
    ? `rgb(${hex
        .slice(1)
        .map((each) => Number.parseInt(each, 16))
        .join(" ")} / ${share})`
    : faded(colour, share);
}

export class Chart {
  readonly node = h("div", { class: "wb-plot", role: "img", tabindex: 0 });
  private readonly box = h("div", { class: "wb-plotbox", "aria-hidden": "true" });
  private readonly readout = h("div", { class: "wb-plotread wb-note", "aria-live": "off" });
  private made: uPlot | undefined;
  private shape = "";
  private plot: Plot | undefined;
  private cursor = -1;

  constructor(private readonly options: ChartOptions) {
    this.node.append(this.box, this.readout);
    keepKeys(this.node);
    this.node.addEventListener("keydown", (event) => this.key(event));
    const watch = new ResizeObserver(() => this.fit());
    watch.observe(this.box);
    options.signal.addEventListener("abort", () => {
      watch.disconnect();
      this.made?.destroy();
    });
    options.theme.onChange(() => {
      this.shape = "";
      if (this.plot) this.draw(this.plot);
    });
  }

  draw(plot: Plot): void {
    this.plot = plot;
    this.node.setAttribute("aria-label", plot.label);
    const shape = JSON.stringify([
      plot.log,
      Boolean(plot.range),
      Boolean(plot.rangeX),
      plot.lines.map(({ label, colour, width, dash }) => [label, colour, width, dash]),
      plot.bands.map(({ colour }) => colour),
    ]);
    const data = this.data(plot);
    if (this.made && shape === this.shape) this.made.setData(data);
    else this.build(plot, data);
    this.shape = shape;
    this.read();
  }

  private data(plot: Plot): uPlot.AlignedData {
    const columns = [...plot.bands.flatMap(({ low, high }) => [high, low]), ...plot.lines.map(({ values }) => values)];
    return [plot.x as number[], ...columns.map((values) => values as (number | null)[])];
  }

  private build(plot: Plot, data: uPlot.AlignedData): void {
    this.made?.destroy();
    const { colour } = this.options.theme;
    const edges: uPlot.Series[] = plot.bands.flatMap(() => [
      { stroke: "transparent", width: 0, points: { show: false } },
      { stroke: "transparent", width: 0, points: { show: false } },
    ]);
    const lines: uPlot.Series[] = plot.lines.map((line) => ({
      label: line.label,
      stroke: colour(line.colour),
      width: line.width ?? 1.8,
      dash: line.dash,
      spanGaps: true,
      points: { show: line.values.length < 3, size: 5, fill: colour(line.colour) },
    }));
    const axis = { stroke: colour("muted"), font: FONT, ticks: { show: false } };
    const grid = { stroke: translucent(colour("line"), 0.7), width: 1 };
    this.made = new uPlot(
      {
        width: Math.max(this.box.clientWidth, 120),
        height: this.options.height ?? HEIGHT,
        padding: [null, LAST_LABEL, null, null],
        legend: { show: false },
        cursor: { sync: { key: this.options.sync }, points: { size: 7 }, drag: { x: true, y: false } },
        scales: {
          x: plot.rangeX ? { time: false, range: () => this.rangeX() } : { time: false },
          y: plot.range ? { range: () => [...(this.plot?.range ?? [0, 1])] } : { distr: plot.log ? 3 : 1 },
        },
        axes: [
          {
            ...axis,
            grid: { show: false },
            size: 24,
            space: 60,
            values: (_, ticks) => ticks.map((each) => this.plot?.formatX(each) ?? ""),
          },
          {
            ...axis,
            grid,
            size: labelWidth,
            space: 28,
            ...(plot.binary ? { incrs: POWERS } : {}),
            values: (_, ticks) => ticks.map((each) => (each === null ? "" : (this.plot?.format(each) ?? ""))),
          },
        ],
        series: [{}, ...edges, ...lines],
        bands: plot.bands.map(({ colour: name }, i) => ({
          series: [2 * i + 1, 2 * i + 2] as uPlot.Band.Bounds,
          fill: translucent(colour(name), 0.18),
        })),
        hooks: {
          setCursor: [(made) => this.moved(made.cursor.idx ?? -1)],
          drawAxes: [(made) => this.rule(made)],
        },
      },
      data,
      this.box,
    );
  }

  private rangeX(): [number, number] {
    const [low, high] = this.plot?.rangeX ?? [0, 1];
    return [low, high];
  }

  private rule(made: uPlot): void {
    const rules = this.plot?.rules ?? [];
    const { left, top, height, width } = made.bbox;
    if (!rules.length || rules.length > width / 6) return;
    made.ctx.fillStyle = translucent(this.options.theme.colour("fg"), 0.16);
    for (const moment of rules) {
      const x = Math.round(made.valToPos(moment, "x", true));
      if (x >= left && x <= left + width) made.ctx.fillRect(x, top, 1, height);
    }
  }

  private fit(): void {
    const width = this.box.clientWidth;
    if (width && this.made && this.made.width !== width)
      this.made.setSize({ width, height: this.options.height ?? HEIGHT });
  }

  private moved(index: number): void {
    this.cursor = index;
    this.read();
  }

  /** The values under the crosshair, else the last ones. */
  private read(): void {
    const { plot } = this;
    if (!plot?.x.length) return;
    const pointed = this.cursor >= 0 && this.cursor < plot.x.length;
    const own = plot.lines[plot.lines.length - 1]?.values ?? [];
    const at = pointed
      ? this.cursor
      : Math.max(
          own.findLastIndex((value) => value !== null),
          0,
        );
    const several = plot.lines.length > 1;
    const shown = plot.lines.map(({ label, values, colour }) => {
      const value = values[at];
      const known = value !== null && value !== undefined;
      if (!several) return known ? `${label} ${plot.format(value)}` : null;
      const key = h("span", { class: "wb-linekey", "aria-hidden": "true" });
      key.style.background = this.options.theme.colour(colour);
      return h("span", { class: "wb-linename" }, key, known ? `${label} ${plot.format(value)}` : label);
    });
    const bands = plot.bands.map(({ low, high }) =>
      low[at] === null || high[at] === null || low[at] === undefined
        ? null
        : `band ${plot.format(low[at] as number)} to ${plot.format(high[at] as number)}`,
    );
    const all = [plot.formatX(plot.x[at]), ...shown, ...bands, plot.note ?? null].filter((part) => part !== null);
    const parts = all.length > 9 ? [...all.slice(0, 8), `and ${all.length - 8} more`] : all;
    replace(
      this.readout,
      parts.map((part, place) => (place ? [" · ", part] : part)),
    );
  }

  /** Arrow keys move the crosshair of all charts that share it. */
  private key(event: KeyboardEvent): void {
    const steps: Record<string, number> = { ArrowRight: 1, ArrowLeft: -1, Home: -1e9, End: 1e9 };
    const step = steps[event.key];
    if (!this.made || !this.plot || (step === undefined && event.key !== "Escape")) return;
    consume(event);
    this.readout.setAttribute("aria-live", "polite");
    const last = this.plot.x.length - 1;
    const from = this.cursor < 0 ? last : this.cursor;
    const left = event.key === "Escape" ? -10 : this.made.valToPos(this.plot.x[clamp(from + step, 0, last)], "x");
    const setCursor: Publishing = this.made.setCursor;
    setCursor({ left, top: event.key === "Escape" ? -10 : 10 }, true, true);
  }
}
