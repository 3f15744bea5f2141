// The devices now and over the last minutes: one scale for all, in the order of the mesh.

import { facts } from "../lib/details";
import { button, h, menu, replace, s, uniqueId } from "../lib/dom";
import { formatBytes, formatCount, formatSeconds, plural } from "../lib/format";
import { floats } from "../lib/model";
import { range } from "../lib/scale";
import type { DeviceReading } from "../lib/states";
import type { RenderView, ViewContext } from "../lib/view";
import { Chart, type Line } from "./chart";
import { quantiles } from "./quantiles";

const MOST_LINES = 12; // more are drawn as a band of percentiles
const [WIDTH, HEIGHT] = [200, 44];

interface Course {
  name: string;
  show: (value: number) => string;
}

const percent = (value: number) => `${value.toFixed(0)} %`;
const COURSES: Record<string, Course> = {
  memory: { name: "memory", show: formatBytes },
  utilisation: { name: "utilisation", show: percent },
  power: { name: "power", show: (value) => `${value.toFixed(0)} W` },
  temperature: { name: "temperature", show: (value) => `${value.toFixed(0)} °C` },
  processor: { name: "processor, of all cores", show: percent },
  "memory of this process": { name: "memory of this process", show: formatBytes },
};

interface Tile {
  node: HTMLElement;
  name: HTMLButtonElement;
  big: HTMLElement;
  facts: HTMLElement;
  spark: SVGSVGElement;
  top: HTMLElement;
}

function sparkline(): SVGSVGElement {
  return s("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", role: "img", class: "wb-spark" });
}

/** A curve from 0 to `most`, the same for all that are compared. */
function drawSpark(
  svg: SVGSVGElement,
  course: Course,
  seconds: Float32Array,
  values: Float32Array,
  most: number,
): void {
  const [low, high] = range(values);
  const known = values.some(Number.isFinite);
  const first = seconds[0] ?? 0;
  const span = Math.max((seconds[seconds.length - 1] ?? 0) - first, 1e-9);
  const said = known
    ? `${course.name} over ${formatSeconds(span)}: ${course.show(low)} to ${course.show(high)}`
    : `${course.name} unknown`;
  svg.setAttribute("aria-label", said);
  const points: string[] = [];
  values.forEach((value, i) => {
    if (!Number.isFinite(value)) return;
    const x = (WIDTH * (seconds[i] - first)) / span;
    points.push(`${x.toFixed(1)} ${(HEIGHT - 1 - ((HEIGHT - 4) * value) / most).toFixed(1)}`);
  });
  const line = `M${points.join("L")}`;
  const stroke = {
    d: line,
    class: "wb-stroke-broadcast",
    fill: "none",
    "stroke-width": 1.5,
    "vector-effect": "non-scaling-stroke",
  };
  const area = { d: `${line}L${WIDTH} ${HEIGHT}L0 ${HEIGHT}Z`, class: "wb-fill-broadcast-soft" };
  replace(svg, points.length > 1 ? [s("path", area), s("path", stroke)] : null);
}

class Devices {
  private readonly tiles = h("div", { class: "wb-tiles", role: "list" });
  private readonly host = h("div", {});
  private readonly arrays = h("div", {});
  private readonly note = h("p", { class: "wb-note" });
  private readonly choice = h("label", { hidden: true });
  private readonly together: Chart;
  private readonly togetherBox: HTMLElement;
  private made = new Map<string, Tile>();
  private offered = "";
  private course = "memory";

  constructor(
    host: HTMLElement,
    private readonly context: ViewContext<"devices">,
  ) {
    this.together = new Chart({ theme: context.theme, signal: context.signal, sync: uniqueId(), height: 190 });
    this.togetherBox = h("div", { class: "wb-tile" }, h("h3", {}, "All devices"), this.together.node);
    this.tiles.addEventListener("click", (event) => this.click(event));
    const drawn = h("div", { class: "wb-scrolls" }, this.togetherBox, this.tiles, this.host, this.arrays);
    host.append(h("div", { class: "wb-tools" }, this.note, this.choice), drawn);
    context.onLive(() => this.draw());
    context.onSelection(() => this.draw());
    this.draw();
  }

  private get devices(): readonly DeviceReading[] {
    return this.context.live("devices") ?? [];
  }

  private get courses(): Record<string, DataView | undefined> {
    return { memory: this.context.live("memory"), ...this.context.live("courses") };
  }

  private click(event: Event): void {
    const where = (event.target as Element).closest<HTMLElement>("[data-where]")?.dataset.where;
    const device = this.devices.find((each) => each.where === where);
    if (device) this.context.select({ device: device.id });
  }

  /** What there is a history of: memory everywhere, the rest where the backend tells it. */
  private offer(): void {
    const names = Object.keys(this.courses);
    const wanted = this.context.setting("course", "memory");
    this.course = names.includes(wanted) ? wanted : "memory";
    if (names.join() === this.offered) return;
    this.offered = names.join();
    const choose = menu(
      "Draw over time",
      names.map((name) => [name, COURSES[name].name] as const),
      this.course,
      (name) => {
        this.context.set("course", name);
        this.draw();
      },
    );
    replace(this.choice, "Draw over time ", choose);
    this.choice.hidden = names.length < 2;
  }

  private tileOf(where: string): Tile {
    const parts = {
      name: button("", () => {}, { class: "wb-link" }),
      big: h("div", { class: "wb-big" }),
      facts: h("div", { class: "wb-note" }),
      top: h("span", { class: "wb-note wb-sparktop", "aria-hidden": "true" }),
      spark: sparkline(),
    };
    const use = h("div", { class: "wb-inuse" }, parts.big, h("span", { class: "wb-note" }, " in use"));
    const drawn = h("div", { class: "wb-sparkbox" }, parts.top, parts.spark);
    const node = h(
      "div",
      { class: "wb-tile", role: "listitem", "data-where": where },
      h("h3", {}, parts.name),
      use,
      drawn,
      parts.facts,
    );
    return { ...parts, node };
  }

  private draw(): void {
    const list = this.devices;
    const seconds = floats(this.context.live("seconds"));
    this.offer();
    const values = floats(this.courses[this.course]);
    const left = this.context.live("left_out");
    const span = seconds.length ? seconds[seconds.length - 1] - seconds[0] : 0;
    const more = left ? `; ${formatCount(left)} more devices are not drawn` : "";
    const samples = `the last ${formatSeconds(span)}, ${plural(seconds.length, "sample")}`;
    this.note.textContent = list.length
      ? `${plural(list.length, "device")}, ${samples}${more}`
      : "No sample has been taken yet.";
    if (list.length !== this.made.size || list.some(({ where }) => !this.made.has(where))) {
      this.made = new Map(list.map(({ where }) => [where, this.tileOf(where)]));
      replace(
        this.tiles,
        [...this.made.values()].map(({ node }) => node),
      );
    }
    const most = this.top(values, list);
    list.forEach((device, row) =>
      this.drawTile(device, seconds, values.subarray(row * seconds.length, (row + 1) * seconds.length), most),
    );
    this.drawTogether(list, seconds, values, most);
    this.drawHost(seconds);
    this.drawArrays();
  }

  /** The top of every scale: 100 % or the limit where the devices come near it, else the largest value of any. */
  private top(values: Float32Array, list: readonly DeviceReading[]): number {
    const [, high] = range(values);
    if (this.course === "utilisation") return 100;
    const limit = Math.max(0, ...list.map((device) => device.limit ?? 0));
    return this.course === "memory" && limit && limit < 2 * high ? limit : Math.max(high, 1);
  }

  private drawTile(device: DeviceReading, seconds: Float32Array, values: Float32Array, most: number): void {
    const tile = this.made.get(device.where);
    if (!tile) return;
    const kind = device.kind && !device.where.startsWith(device.kind) ? ` · ${device.kind}` : "";
    tile.name.textContent = `${device.where}${kind}${device.present ? "" : " · gone"}`;
    tile.big.textContent = formatBytes(device.bytes);
    const { utilisation, power, temperature } = COURSES;
    const known: [string, number | null, (value: number) => string][] = [
      ["peak", device.peak, formatBytes],
      ["of", device.limit, formatBytes],
      ["utilisation", device.utilisation, utilisation.show],
      ["power", device.power, power.show],
      ["temperature", device.temperature, temperature.show],
    ];
    tile.facts.textContent = known
      .filter(([, value]) => value !== null && value !== undefined)
      .map(([name, value, show]) => `${name} ${show(value as number)}`)
      .join(" · ");
    tile.node.classList.toggle("wb-selected", device.id === this.context.selection.device);
    const course = COURSES[this.course];
    tile.top.textContent = course.show(most);
    drawSpark(tile.spark, course, seconds, values, most);
  }

  private drawTogether(
    list: readonly DeviceReading[],
    seconds: Float32Array,
    values: Float32Array,
    most: number,
  ): void {
    this.togetherBox.hidden = seconds.length < 2 || list.length < 2;
    if (this.togetherBox.hidden) return;
    const row = (device: number) => values.subarray(device * seconds.length, (device + 1) * seconds.length);
    const numbers = (column: Float32Array) => Array.from(column, (value) => (Number.isFinite(value) ? value : null));
    const chosen = list.findIndex(({ id }) => id === this.context.selection.device);
    const few = list.length <= MOST_LINES;
    const spread = few
      ? null
      : quantiles(
          list.map((_, device) => row(device)),
          [0.1, 0.5, 0.9],
        );
    const lines: Line[] = few
      ? list.map(({ where }, device) => ({
          label: where,
          values: numbers(row(device)),
          colour: `series-${device % 8}`,
          width: device === chosen ? 3 : 1.5,
        }))
      : [{ label: "median", values: spread?.[1] ?? [], colour: "broadcast" }];
    if (!few && chosen >= 0)
      lines.push({ label: list[chosen].where, values: numbers(row(chosen)), colour: "accent", width: 2.4 });
    const course = COURSES[this.course];
    const what = `${course.name} of ${plural(list.length, "device")} over the last samples`;
    this.together.draw({
      x: Array.from(seconds, (second) => second - seconds[seconds.length - 1]),
      lines,
      bands: spread ? [{ low: spread[0], high: spread[2], colour: "broadcast" }] : [],
      log: false,
      binary: course.show === formatBytes,
      range: [0, most * 1.04],
      label: few ? what : `${what}: median, with the 10th to 90th percentile`,
      format: course.show,
      formatX: (second) => (second ? `−${formatSeconds(-second)}` : "now"),
    });
  }

  private drawHost(seconds: Float32Array): void {
    const hosts = Object.entries(this.context.live("host_courses") ?? {}).map(([name, bytes]) => {
      const values = floats(bytes);
      const [, high] = range(values);
      const spark = sparkline();
      drawSpark(spark, COURSES[name], seconds, values, name === "processor" ? 100 : Math.max(high, 1));
      const top = name === "processor" ? percent(100) : formatBytes(high);
      const drawn = h(
        "div",
        { class: "wb-sparkbox" },
        h("span", { class: "wb-note wb-sparktop", "aria-hidden": "true" }, top),
        spark,
      );
      return h("div", { class: "wb-tile" }, h("h3", {}, COURSES[name].name), drawn);
    });
    const known = facts(this.context, this.context.live("host") ?? []);
    replace(this.host, h("h3", {}, "Host"), known, h("div", { class: "wb-tiles" }, hosts));
  }

  private drawArrays(): void {
    const rows = this.context.live("arrays") ?? [];
    const count = formatCount(this.context.live("live_arrays") ?? rows.length);
    const head = h(
      "tr",
      {},
      ["type", "bytes", "sharding", "source"].map((name) => h("th", { scope: "col" }, name)),
    );
    const body = rows.map((row) =>
      h(
        "tr",
        {},
        row.map((value) => h("td", {}, value)),
      ),
    );
    const table = h("table", { "aria-label": "Largest live arrays" }, h("thead", {}, head), h("tbody", {}, body));
    const region = { class: "wb-scroll", tabindex: 0, role: "region", "aria-label": "Largest live arrays" };
    replace(
      this.arrays,
      rows.length ? [h("h3", {}, `Largest of ${count} live arrays`), h("div", region, table)] : null,
    );
  }
}

export const devices: RenderView<"devices"> = (host, context) => {
  new Devices(host, context);
};
